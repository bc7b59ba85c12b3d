"""The puzzle: which image is taken, how it is shown, and that its pieces lie where they should."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import colormaps

from reorder_lightning.order_figures import to_png
from reorder_lightning.orders import column, hilbert, random, row
from reorder_lightning.puzzle import cut, draw_puzzle, find_image, lay_out, tint, to_pixels

SIDES = st.integers(1, 7)


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def panels(figure):
    return {axes.get_title(loc="left"): axes for axes in figure.axes if axes.images}


# --------------------------------------------------------------------------- pieces


@settings(deadline=None, max_examples=30)
@given(height=SIDES, width=SIDES, seed=st.integers(0, 9))
def test_pieces_in_row_order_are_the_image_again(height, width, seed):
    image = noise(6 * height, 5 * width, seed)
    tiles = cut(image, (height, width), longer=max(image.shape))
    assert tiles.shape == (height * width, 6, 5, 3)
    assert np.array_equal(lay_out(tiles, (height, width), gaps=False), image)


@settings(deadline=None, max_examples=30)
@given(height=SIDES, width=SIDES, seed=st.integers(0, 9))
def test_piece_at_place_i_is_the_patch_read_at_i(height, width, seed):
    order = random(height, width, seed)
    count = height * width
    image = np.kron(np.arange(count).reshape(height, width, 1), np.ones((8, 8, 3)))
    tiles = cut(image.astype(np.uint8), (height, width), longer=8 * max(height, width))
    picture = lay_out(tiles[order.numpy()], (height, width))
    assert picture[4::9, 4::9, 0].flatten().tolist() == order.tolist()
    assert picture[:, 8::9].min(initial=255) == picture[8::9].min(initial=255) == 255  # the gaps


def test_patches_need_not_be_square_nor_whole_pixels():
    assert cut(noise(30, 50), (4, 3), longer=100).shape == (12, 15, 33, 3)


def test_tinted_patches_have_the_colours_of_the_rank_pictures():
    tiles = np.zeros((4, 2, 2, 3), np.uint8)
    first, *_, last = tint(tiles, torch.tensor([3, 1, 2, 0]), strength=1.0)[[3, 1, 2, 0]]
    for tile, place in ((first, 0.0), (last, 1.0)):
        assert np.allclose(tile, 255 * np.array(colormaps["viridis"](place)[:3]), atol=0.51)


# --------------------------------------------------------------------------- the image


@pytest.mark.parametrize("pack", [lambda x: x, lambda x: (x, torch.zeros(3)),
                                  lambda x: {"label": torch.zeros(3), "inputs": [x]},
                                  lambda x: ["a.png", {"deep": (x,)}]])  # fmt: skip
def test_image_whose_patches_differ_most_is_found_in_any_batch(pack):
    images = torch.full((3, 3, 8, 8), 9.0)
    images[1, :, :4] = 1.0
    found = find_image(pack(images.half()), (2, 2))
    assert torch.equal(found, images[1])


@pytest.mark.parametrize("batch", [None, "text", torch.zeros(4, 10), (torch.zeros(4, 3, 1, 9), 3),
                                   {"tokens": torch.zeros(4, 6, dtype=torch.long)}])  # fmt: skip
def test_batch_without_images_has_none(batch):
    assert find_image(batch, (2, 2)) is None


def test_normalised_image_is_shown_as_it_was():
    image = torch.from_numpy(noise(5, 7)).permute(2, 0, 1)
    mean, std = (0.48, 0.46, 0.41), (0.2, 0.3, 0.25)
    scaled = (image / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    for known, scale in (
        ((mean, std), scaled),
        ((mean, std), scaled.bfloat16().float()),
        ((None, None), image / 255),
        ((None, None), image.float()),
        (([0.5], [0.5]), image / 255),  # of another image's channels
    ):
        shown = to_pixels(scale, *known)
        assert np.abs(shown.astype(int) - image.permute(1, 2, 0).numpy()).max() <= 4


def test_unknown_scale_is_stretched():
    image = torch.linspace(-3, 5, 3 * 100).view(3, 10, 10)
    shown = to_pixels(image)
    assert shown.min() == 0
    assert shown.max() == 255
    assert (np.diff(shown[..., 0].flatten().astype(int)) >= 0).all()
    assert not to_pixels(torch.full((3, 2, 2), -7.0)).any()  # nothing to stretch


@pytest.mark.parametrize("channels", [1, 2, 13])
def test_other_channels_are_shown_in_grey(channels):
    shown = to_pixels(torch.rand(channels, 4, 4))
    assert shown.shape == (4, 4, 3)
    assert (shown == shown[..., :1]).all()


# --------------------------------------------------------------------------- the figure


def test_figure_has_the_image_and_two_panels_an_order():
    image, grid = noise(32, 32), (4, 4)
    orders = {"start order": row(*grid), "learned order": column(*grid)}
    figure = draw_puzzle(image, orders, grid, title="Final")
    found = panels(figure)
    assert list(found) == [
        "the image",
        "start order: when each patch is read",
        "learned order: when each patch is read",
        "start order: the sequence, row by row",
        "learned order: the sequence, row by row",
    ]
    shown = found["learned order: the sequence, row by row"].images[0].get_array()
    assert np.array_equal(shown, lay_out(cut(image, grid)[column(*grid).numpy()], grid))


@pytest.mark.parametrize("grid", [(1, 1), (1, 9), (9, 1), (24, 24), (3, 8)])
def test_any_grid_can_be_drawn(grid):
    picture = draw_puzzle(noise(48, 48), {"start order": hilbert(*grid)}, grid)
    assert to_png(picture).startswith(b"\x89PNG")


def test_bad_order_is_named():
    with pytest.raises(ValueError, match="Order mine is not a permutation"):
        draw_puzzle(noise(4, 4), {"mine": torch.tensor([0, 0])}, (1, 2))
