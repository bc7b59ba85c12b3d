"""Cost of REOrder in a training step on CPU: ``python -m tests.benchmarks.overhead``.

The step is timm's ViT-tiny (224 pixels, 196 patches) at batch 64, forward, backward and AdamW. What
the callback adds to it is timed by itself, as a difference of two whole steps would drown in noise:
its hooks, in a real Trainer in the policy phase, and the gather of the tokens, forward and
backward, which there is none of without it. All run in one process on one thread, and CPU seconds
of that thread are counted, which a busy machine disturbs least. On more cores the step and the
gather get faster, the hooks don't: the share is told for one core and for two, as if the step took
half the time there. Prints the shares beside their targets, and exits with 1 if one is missed.
"""

import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import timm
import torch
from lightning import LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from reorder_lightning.callbacks.reorder import REOrder
from reorder_lightning.patch_order import PatchOrder
from tests.benchmarks.timing import Report

BATCH, SIDE, WIDTH, CLASSES = 64, 14, 192, 1000
TARGETS = {1: 0.5, 8: 1.0}  # percent of a step, for draws a batch


class Timed(REOrder):
    """Notes how long its hooks take."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seconds: list[float] = []

    def on_train_batch_start(self, *args: Any) -> None:
        start = time.thread_time()
        super().on_train_batch_start(*args)
        self.before = time.thread_time() - start

    def on_train_batch_end(self, *args: Any) -> None:
        start = time.thread_time()
        super().on_train_batch_end(*args)
        if self.phase == "policy":
            self.seconds.append(self.before + time.thread_time() - start)


class Small(LightningModule):
    """As many patches, images and classes as the ViT, and next to nothing to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Identity()
        self.classifier = nn.Linear(1, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.first(images.view(BATCH, SIDE * SIDE, 1))
        return self.classifier(tokens[:, -1])

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def hook_seconds(draws: int, folder: str) -> float:
    """CPU seconds that the hooks add to a training step, the median of 100 steps."""
    kind = {"baseline": "ema", "estimator": "score"} if draws == 1 else {}
    callback = Timed(
        warmup=0, policy=1.0, draws_per_batch=draws, target="first", grid_size=(SIDE, SIDE), **kind
    )
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        max_epochs=1,
        callbacks=[callback],
        enable_model_summary=False,
        **quiet,
    )
    n = BATCH * 100
    data = TensorDataset(torch.randn(n, SIDE, SIDE), torch.randint(CLASSES, (n,)))
    trainer.fit(Small(), DataLoader(data, batch_size=BATCH))
    return statistics.median(callback.seconds)


def cpu_seconds(run: Callable[[], object], rounds: int) -> float:
    """CPU seconds of this thread, the median of several rounds after one to warm up."""
    found = []
    for _ in range(rounds + 1):
        start = time.thread_time()
        run()
        found.append(time.thread_time() - start)
    return statistics.median(found[1:])


def main() -> int:
    """Prints the table; the exit status says whether every target is met."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = timm.create_model("vit_tiny_patch16_224")
    optimizer = torch.optim.AdamW(model.parameters())
    images, targets = torch.randn(BATCH, 3, 224, 224), torch.randint(CLASSES, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), targets).backward()
        optimizer.step()

    tokens = torch.randn(BATCH, 1 + SIDE * SIDE, WIDTH, requires_grad=True)
    pull = torch.randn_like(tokens)
    layer = PatchOrder("hilbert", (SIDE, SIDE))

    def gather(draws: int) -> None:
        layer.draw = torch.stack([torch.randperm(SIDE * SIDE) for _ in range(draws)])
        torch.autograd.grad(layer(tokens, 1), tokens, pull)

    seconds = cpu_seconds(step, 3)
    report = Report()
    report.note("ViT-tiny step at batch 64, CPU ms", seconds * 1e3)
    report.note("clone of its tokens, CPU ms", cpu_seconds(pull.clone, 20) * 1e3)
    with tempfile.TemporaryDirectory() as folder:
        for draws, target in TARGETS.items():
            hooks = hook_seconds(draws, folder)
            moved = cpu_seconds(partial(gather, draws), 20)
            report.note(f"K={draws}: gather, forward + backward, CPU ms", moved * 1e3)
            report.note(f"K={draws}: hooks, CPU ms", hooks * 1e3)
            report.note(
                f"K={draws}: share of the step, one core, %", (hooks + moved) / seconds * 100
            )
            share = (2 * hooks + moved) / seconds * 100
            report.line(f"K={draws}: share of the step, two cores, %", share, target, at_most=True)
    return report.status


if __name__ == "__main__":
    sys.exit(main())
