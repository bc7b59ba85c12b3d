"""`init_from`: weights and order of a checkpoint, adapted where sizes differ."""

import pytest
import torch

from reorder_lightning.models import Mamba, ViT
from reorder_lightning.orders import get_order, resize_order


def make(cls=Mamba, **kwargs):
    args = {"num_classes": 3, "image_size": 16, "patch_size": 4, "depth": 1, "embed_dim": 16}
    return cls(**(args | ({"num_heads": 2} if cls is ViT else {}) | kwargs))


@pytest.fixture
def checkpoint(tmp_path):
    model = make(order="spiral")
    torch.save({"state_dict": model.state_dict()}, tmp_path / "a.ckpt")
    return model, str(tmp_path / "a.ckpt")


def test_weights_and_order_are_taken_and_hyperparameters_are_not(checkpoint):
    source, path = checkpoint
    model = make(init_from=path, lr=0.5)
    for key, value in source.state_dict().items():
        assert torch.equal(model.state_dict()[key], value), key
    assert model.hparams.lr == 0.5
    assert "init_from" not in model.hparams


def test_an_order_that_was_asked_for_stays(checkpoint):
    _, path = checkpoint
    model = make(init_from=path, order="column")
    assert torch.equal(model.backbone.patch_order.order, get_order("column", 4, 4))


def test_another_number_of_classes_starts_a_new_head(checkpoint):
    source, path = checkpoint
    with pytest.warns(UserWarning, match=r"head\.\w+ of .* has another shape"):
        model = make(init_from=path, num_classes=5)
    assert model.backbone.head.out_features == 5
    assert torch.equal(model.backbone.norm.weight, source.backbone.norm.weight)


def test_another_image_size_resamples_positions_and_resizes_the_order(checkpoint):
    source, path = checkpoint
    with pytest.warns(UserWarning, match="resized|resampled"):
        model = make(init_from=path, image_size=(24, 24))
    expected = resize_order(source.backbone.patch_order.order, (4, 4), (6, 6))
    assert torch.equal(model.backbone.patch_order.order, expected)
    assert model(torch.zeros(1, 3, 24, 24)).shape == (1, 3)


def test_a_vit_with_a_class_token_in_its_table_is_resampled(tmp_path):
    torch.save(make(ViT).backbone.state_dict(), tmp_path / "vit.pt")
    with pytest.warns(UserWarning, match="resized|resampled"):
        model = make(ViT, init_from=str(tmp_path / "vit.pt"), image_size=32)
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 3)


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.ckpt"):
        make(init_from=str(tmp_path / "none.ckpt"))


def test_another_architecture_is_refused(checkpoint):
    _, path = checkpoint
    with pytest.raises(ValueError, match="another architecture"):
        make(init_from=path, depth=2)
