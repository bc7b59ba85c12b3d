"""The families through timm's own factory, without Lightning."""

import pytest
import timm
import torch

import reorder_lightning.models  # noqa: F401  registers the names


@pytest.mark.parametrize("family", ["vit", "longformer", "transformer_xl", "mamba"])
def test_create_model_gives_the_plain_module_in_an_order(family):
    model = timm.create_model(
        f"reorder_{family}_tiny_patch16",
        img_size=64,
        patch_size=8,
        num_classes=5,
        depth=1,
        order="hilbert",
    )
    assert not hasattr(model, "trainer")
    assert model.patch_order.grid_size == (8, 8)
    assert model.patch_order.order[:3].tolist() in ([0, 1, 9], [0, 8, 9])
    assert model.get_classifier().in_features == 192
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 5)


def test_all_sizes_are_listed():
    families = ("longformer", "mamba", "transformer_xl", "vit")
    sizes = ("base", "huge", "large", "small", "tiny")
    expected = [f"reorder_{f}_{s}_patch16" for f in families for s in sizes]
    assert sorted(timm.list_models("reorder_*")) == expected


def test_there_are_no_weights_to_download():
    with pytest.raises(ValueError, match="no weights to download"):
        timm.create_model("reorder_mamba_tiny_patch16", pretrained=True)
