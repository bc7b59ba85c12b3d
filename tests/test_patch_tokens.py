"""Tokens of patches."""

import sys

import pytest
import torch

from reorder_lightning.patch_tokens import KMeansTokenizer, tokenize


def pictures(n=12, high=4, wide=6, side=2):
    """Patches of plain grey, of five shades; also the shade of each patch."""
    shades = torch.randint(5, (n, high, wide), generator=torch.Generator().manual_seed(n))
    grey = shades.repeat_interleave(side, 1).repeat_interleave(side, 2) / 4
    return grey[:, None].expand(-1, 3, -1, -1), shades


def test_same_patches_get_the_same_token():
    pytest.importorskip("sklearn")
    images, shades = pictures()
    tokenizer = KMeansTokenizer(2, num_codes=5)
    tokens = torch.from_numpy(tokenize(lambda: images.split(5), tokenizer))
    assert tokens.shape == (12, 4, 6)
    pairs = {
        (s, t) for s, t in zip(shades.flatten().tolist(), tokens.flatten().tolist(), strict=True)
    }
    assert len(pairs) == 5  # one token for each shade


def test_fit_is_repeatable_and_independent_of_the_batches():
    pytest.importorskip("sklearn")
    images = torch.rand(20, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    made = [tokenize(lambda n=n: images.split(n), KMeansTokenizer(4, 7)) for n in (20, 20, 3)]
    assert (made[0] == made[1]).all()
    assert (made[0] == made[2]).all()


def test_patches_may_be_flat():
    pytest.importorskip("sklearn")
    images, _ = pictures()
    assert tokenize(lambda: [images], KMeansTokenizer((4, 2), 3)).shape == (12, 2, 6)


def test_too_few_patches_and_uneven_ones_are_errors():
    pytest.importorskip("sklearn")
    images, _ = pictures(1)
    with pytest.raises(ValueError, match="have 24 patches, too few for 25 codes"):
        tokenize(lambda: [images], KMeansTokenizer(2, 25))
    with pytest.raises(ValueError, match="multiples of `patch_size`"):
        tokenize(lambda: [images], KMeansTokenizer(5, 2))
    with pytest.raises(ValueError, match="`num_codes` to be 2 or more"):
        KMeansTokenizer(2, 1)


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(ValueError, match=r"reorder-lightning\[prior\]"):
        KMeansTokenizer(4)


class Shades:
    """A tokenizer of the user's."""

    num_codes = 5

    def encode(self, images):
        return (images[:, 0, ::2, ::2] * 4).round().long()


def test_own_tokenizer_is_used_as_it_is():
    images, shades = pictures()
    assert (tokenize(lambda: images.split(5), Shades()) == shades.numpy()).all()


def test_tokenizer_that_gives_no_grid_is_an_error(monkeypatch):
    monkeypatch.setattr(Shades, "encode", lambda self, images: images.flatten(1))
    with pytest.raises(ValueError, match=r"Expected Shades to give integers \(12, H, W\)"):
        tokenize(lambda: [pictures()[0]], Shades())
    with pytest.raises(ValueError, match="no images"):
        tokenize(list, Shades())
