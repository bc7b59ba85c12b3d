"""Nothing of ours waits for the device from the start of a training step to its last kernel.

The rewards are read behind it, on a stream that waits for the forward pass only.
"""

from contextlib import contextmanager

import pytest
import torch
from lightning import Callback
from lightning.pytorch.callbacks import LambdaCallback

from reorder_lightning.callbacks.early_read import EarlyRead
from reorder_lightning.callbacks.reorder import REOrder
from tests.toys import Classifier, loader, trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")
SYNCHRONISING = ("item", "cpu", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__")


class NoSync(Callback):
    """Makes everything that waits for a device fail, from forward to the optimiser's step.

    Put it behind REOrder, whose draws are made on the CPU, and `allow` before it.
    """

    def __init__(self, patch):
        self.patch = patch
        self.steps = 0

    def on_train_batch_start(self, *args):
        def fail(tensor, *args, **kwargs):
            raise AssertionError("a host-device synchronisation in a training step")

        for name in SYNCHRONISING:
            self.patch.setattr(torch.Tensor, name, fail)

    @property
    def allow(self):
        def undo(*args):
            self.patch.undo()
            self.steps += 1

        return LambdaCallback(on_train_batch_end=undo)


def test_a_training_step_does_not_wait_for_the_device(tmp_path, monkeypatch):
    """Draws, hooks and captured logits, in all phases and with every kind of draws."""
    for draws in (1, 3, "image"):
        callback = REOrder(
            warmup=1, policy=1, draws_per_batch=draws, baseline="ema", estimator="score"
        )
        watch = NoSync(monkeypatch)
        trainer(tmp_path, watch.allow, callback, watch, max_epochs=3).fit(Classifier(), loader())
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


class Queue:
    """What torch.cuda offers, writing down what is asked of it."""

    def __init__(self, log):
        self.Event = lambda: self
        self.Stream = lambda device: self
        self.current_stream = lambda device: "main stream"
        self.log = log

    def record(self, stream):
        self.log.append(f"mark on {stream}")

    def wait_event(self, event):
        self.log.append("side stream waits for the mark")

    @contextmanager
    def stream(self, stream):
        self.log.append("to the side stream")
        yield
        self.log.append("back")


def test_reading_waits_for_the_mark_only(monkeypatch):
    log = []
    monkeypatch.setattr("reorder_lightning.callbacks.early_read.torch.cuda", Queue(log))
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    read = EarlyRead()
    with read.reading(gpu):
        assert log == [], "nothing was marked"
    read.mark(cpu)
    with read.reading(cpu):
        assert log == []
    read.mark(gpu)
    log.append("backward pass")
    with read.reading(gpu):
        log.append("read")
    assert log == [
        "mark on main stream",
        "backward pass",
        "side stream waits for the mark",
        "to the side stream",
        "read",
        "back",
    ]
    read.forget()
    with read.reading(gpu):
        assert log[-1] == "back"


@pytest.mark.parametrize("own", [None, lambda outputs, batch: -torch.ones(len(batch[0]))])
def test_rewards_are_marked_before_the_backward_pass(tmp_path, monkeypatch, own):
    """Not where code of the user's computes them after it: that may read anything."""
    log = []
    monkeypatch.setattr(EarlyRead, "mark", lambda self, device: log.append("mark"))

    class Logs(Classifier):
        def on_after_backward(self):
            log.append("backward")

    callback = REOrder(warmup=1, policy=1, reward_fn=own)
    trainer(tmp_path, callback, max_epochs=3).fit(Logs(), loader())
    marked = ["mark", "backward"] if own is None else ["backward"]
    assert log == ["backward"] * 4 + marked * 4 + ["backward"] * 4
