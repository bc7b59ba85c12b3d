"""Nothing of ours waits for the device between the start of a training step and its end."""

import pytest
import torch
from lightning import Callback

from reorder_lightning.callbacks.reorder import REOrder
from tests.toys import Classifier, loader, trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")
SYNCHRONISING = ("item", "cpu", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__")


class NoSync(Callback):
    """Makes everything that waits for a device fail, from forward to backward."""

    def __init__(self, patch):
        self.patch = patch
        self.steps = 0

    def on_train_batch_start(self, *args):
        def fail(tensor, *args, **kwargs):
            raise AssertionError("a host-device synchronisation in a training step")

        for name in SYNCHRONISING:
            self.patch.setattr(torch.Tensor, name, fail)

    def on_after_backward(self, *args):
        self.patch.undo()
        self.steps += 1


def test_a_training_step_does_not_wait_for_the_device(tmp_path, monkeypatch):
    """Forward, hooks and captured logits, in all phases and with every kind of draws."""
    for draws in (1, 3, "image"):
        callback = REOrder(
            warmup=1, policy=1, draws_per_batch=draws, baseline="ema", estimator="score"
        )
        watch = NoSync(monkeypatch)
        trainer(tmp_path, callback, watch, max_epochs=3).fit(Classifier(), loader())
        assert watch.steps == 12
        assert callback.policy.updates == 4


def test_the_test_notices_a_synchronisation(tmp_path, monkeypatch):
    class Waits(Classifier):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return loss * loss.detach().item()

    with pytest.raises(AssertionError, match="synchronisation"):
        trainer(tmp_path, NoSync(monkeypatch)).fit(Waits(), loader())
    monkeypatch.undo()
