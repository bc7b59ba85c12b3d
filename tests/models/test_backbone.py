"""The shared backbone: grid, order, positions, read-out, head."""

import pytest
import torch
from torch import nn

from reorder_lightning.models.backbone import SequenceBackbone, patch_grid, read_out_index


class Mix(nn.Module):
    """A block in which a token sees those before it, so that order matters."""

    def forward(self, tokens):
        return tokens + tokens.cumsum(1)


def make(**kwargs):
    torch.manual_seed(0)
    args = {"img_size": (8, 12), "patch_size": 4, "num_classes": 3, "embed_dim": 16} | kwargs
    return SequenceBackbone([Mix(), Mix()], **args).double()


IMAGES = torch.randn(2, 3, 8, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_patch_grid_is_not_assumed_square():
    assert patch_grid((64, 96), 16) == (4, 6)
    assert patch_grid(32, (4, 8)) == (8, 4)


@pytest.mark.parametrize(("image", "patch"), [(64, 15), (8, 16), ((64, 60), 16), (64, 0)])
def test_a_grid_that_does_not_fit_names_both_sizes(image, patch):
    with pytest.raises(ValueError, match=r"`image_size` to be multiples of `patch_size`.*Try"):
        patch_grid(image, patch)


@pytest.mark.parametrize("read_out", ["first", "middle", "last", "mean"])
def test_the_class_token_stands_where_it_was_asked_for(read_out):
    model = make(read_out=read_out)
    tokens = model.embed(IMAGES)
    index = read_out_index(read_out, 6)
    assert tokens.shape == (2, 6 if index is None else 7, 16)
    if index is not None:
        torch.testing.assert_close(tokens[:, index], model.cls_token[0].expand(2, -1))
        patches = torch.cat([tokens[:, :index], tokens[:, index + 1 :]], dim=1)
        embedded = model.patch_embed(IMAGES) + model.pos_embed
        torch.testing.assert_close(patches, embedded)


def test_case_27_a_class_token_in_the_middle_keeps_its_place():
    model = make(img_size=(56, 56), read_out="middle", order="hilbert")
    tokens = model.embed(torch.randn(1, 3, 56, 56, dtype=torch.float64))
    assert tokens.shape[1] == 197
    assert model.read_out_index == 98
    torch.testing.assert_close(tokens[0, 98], model.cls_token[0, 0])
    patches = torch.cat([tokens[:, :98], tokens[:, 99:]], dim=1)
    restored = model.patch_order.inverse(patches)
    torch.testing.assert_close(model.patch_order(restored), patches)
    assert not torch.equal(restored, patches)


def test_an_unknown_read_out_is_an_error():
    with pytest.raises(ValueError, match=r"`read_out` to be one of .*'centre'"):
        read_out_index("centre", 4)


def test_positions_travel_with_the_patch_or_stay_in_the_slot():
    order = [5, 3, 1, 0, 2, 4]
    patch, slot = (
        make(order=order, read_out="mean"),
        make(order=order, read_out="mean", position="slot"),
    )
    slot.load_state_dict(patch.state_dict())
    embedded = patch.patch_embed(IMAGES)
    torch.testing.assert_close(patch.embed(IMAGES), (embedded + patch.pos_embed)[:, order])
    torch.testing.assert_close(slot.embed(IMAGES), embedded[:, order] + slot.pos_embed)


def test_the_logits_depend_on_the_order():
    row, column = make(order="row"), make(order="column")
    assert (row(IMAGES) - column(IMAGES)).abs().max() > 1e-6


def test_gradient_checkpointing_changes_no_gradient():
    grads = []
    for enable in (False, True):
        model = make(order="column")
        model.set_grad_checkpointing(enable)
        model(IMAGES).sum().backward()
        grads.append(model.pos_embed.grad)
    torch.testing.assert_close(*grads, rtol=0, atol=0)


def test_reset_classifier_keeps_dtype_and_features():
    model = make()
    features = model.forward_head(model.forward_features(IMAGES), pre_logits=True)
    model.reset_classifier(7)
    assert model(IMAGES).shape == (2, 7)
    assert model.get_classifier().weight.dtype == torch.float64
    model.reset_classifier(0)
    torch.testing.assert_close(model(IMAGES), features)
