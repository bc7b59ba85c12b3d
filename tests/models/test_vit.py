"""ViT: timm's model with an order in front of its blocks."""

import pytest
import timm
import torch

from reorder_lightning.models.vit import ViT, ViTBackbone


def make(**kwargs):
    torch.manual_seed(0)
    args = {"img_size": 16, "patch_size": 4, "depth": 2, "embed_dim": 16, "num_heads": 2}
    return ViTBackbone(**(args | {"num_classes": 3} | kwargs)).eval()


def test_parameter_count_of_the_paper():
    with torch.device("meta"):
        backbone = ViT(num_classes=1000, size="base").backbone
    assert sum(p.numel() for p in backbone.parameters()) == pytest.approx(86_570_728, rel=0.001)


@pytest.mark.parametrize("order", ["hilbert", "random:1"])
def test_case_26_full_attention_is_blind_to_the_order_of_patches_with_their_positions(order):
    model = make().double()
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    expected = model(images)
    model.patch_order.order = order
    torch.testing.assert_close(model(images), expected, rtol=1e-12, atol=1e-13)


def test_case_26_ordering_before_the_position_table_changes_the_logits():
    model = make(order="random:1", position="slot").double()
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    assert (model(images) - make().double()(images)).abs().max() > 1e-4


def test_a_timm_state_dict_loads_as_it_is():
    timms = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=4, depth=2, num_classes=3
    ).eval()
    model = ViTBackbone(
        img_size=16, patch_size=4, depth=2, embed_dim=192, num_heads=3, num_classes=3
    ).eval()
    model.load_state_dict(timms.state_dict())
    images = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(model(images), timms(images))
