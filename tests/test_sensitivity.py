"""What many orders do to one model."""

import math

import pytest
import torch
from lightning import LightningModule
from torch import nn

from reorder_lightning.orders import get_order
from reorder_lightning.patch_order import PatchOrder
from reorder_lightning.sensitivity import OWN, order_sensitivity, orders_to_try


class LastPatch(LightningModule):
    """Says the class that the patch it reads last shows; or that of any patch, if blind."""

    def __init__(self, order="row", blind=False):
        super().__init__()
        self.patch_order = PatchOrder(order, (2, 3))
        self.blind = blind
        self.scale = nn.Parameter(torch.tensor(5.0))

    def forward(self, images):
        tokens = self.patch_order(images[:, 0].flatten(1)[..., None])[..., 0]
        shown = tokens.amax(1) if self.blind else tokens[:, -1]
        return self.scale * nn.functional.one_hot(shown.long(), 3).float()


def batches(n=24):
    """The class stands in the bottom right patch, where a row scan ends; 0 is in all others."""
    targets = torch.arange(n) % 3
    images = torch.zeros(n, 1, 2, 3)
    images[:, 0, 1, 2] = targets.float()
    return list(zip(images.split(10), targets.split(10), strict=True))


def test_orders_that_read_the_class_last_are_right():
    model = LastPatch("row").train()
    found = order_sensitivity(model, batches(), orders_to_try((2, 3), random=4))
    assert found.own.order == OWN
    assert found.images == 24
    right = math.log(1 + 2 * math.exp(-5))
    for row in (*found.fixed, *found.random):
        last = get_order(row.order, 2, 3)[-1] == 5
        assert row.top1 == pytest.approx(100 if last else 100 / 3)  # class 0 is right by chance
        assert row.loss == pytest.approx(right if last else right + 5 * 2 / 3)
        assert row.change == pytest.approx(row.top1 - 100)
    assert [row.top1 for row in found.fixed] == sorted((r.top1 for r in found.fixed), reverse=True)
    assert found.fixed_range == pytest.approx(200 / 3)
    assert found.matters
    assert found.own.top1_se == 0
    wrong = found.fixed[-1]  # 8 of 24 right
    assert wrong.top1_se == pytest.approx(100 * math.sqrt(8 * 16 / 24 / 23 / 24))
    assert wrong.change_se == pytest.approx(wrong.top1_se)


def test_model_is_as_before():
    model = LastPatch("column").train()
    order_sensitivity(model, batches())
    assert model.training
    assert model.patch_order.order.equal(get_order("column", 2, 3))


def test_order_does_not_matter_to_a_blind_model():
    found = order_sensitivity(LastPatch(blind=True), batches())
    assert {row.top1 for row in found.rows} == {100.0}
    assert len(found.rows) == 1 + 9 + 10
    assert not found.matters
    assert found.random_std == found.fixed_range == 0


def test_spread_of_few_random_orders_is_unknown():
    none = order_sensitivity(LastPatch(), batches(), orders_to_try((2, 3), random=0))
    assert math.isnan(none.random_mean)
    assert math.isnan(none.random_std)


def test_bad_input_is_named(monkeypatch):
    with pytest.raises(ValueError, match="two or more images, but got 0"):
        order_sensitivity(LastPatch(), [])
    with pytest.raises(ValueError, match="`random` to be 0 or more"):
        orders_to_try((2, 2), -1)
    images, _ = batches()[0]
    with pytest.raises(ValueError, match="has 3 classes, but there are images of class 7"):
        order_sensitivity(LastPatch(), [(images, torch.full((10,), 7))])
    monkeypatch.setattr(LastPatch, "forward", lambda self, images: images)
    with pytest.raises(ValueError, match="Expected LastPatch to give logits"):
        order_sensitivity(LastPatch(), batches())
