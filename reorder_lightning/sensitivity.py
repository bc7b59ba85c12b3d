"""How much the patch order matters to a trained model: one model, many orders."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from lightning import LightningModule
from torch import Tensor
from torch.nn import functional as F

from reorder_lightning.attachment import attach
from reorder_lightning.order_files import Grid
from reorder_lightning.orders import ORDERS, get_order
from reorder_lightning.patch_order import PatchOrder

OWN = "(its own)"
"""Name of the order that the model came with."""


@dataclass(frozen=True)
class OrderScore:
    """How a model does in one order.

    Attributes:
        order: its name.
        top1: in per cent of the images.
        top1_se: standard error over images, in points.
        loss: mean cross-entropy, in nats.
        loss_se: standard error over images.
        change: top-1 minus that in the model's own order, in points.
        change_se: standard error of the difference over the same images.
    """

    order: str
    top1: float
    top1_se: float
    loss: float
    loss_se: float
    change: float
    change_se: float


@dataclass(frozen=True)
class Sensitivity:
    """What orders do to one model; top-1 in per cent, differences in points.

    Attributes:
        own: the model's own order.
        fixed: the fixed orders, best first.
        random: random orders, best first.
        images: number of images.
    """

    own: OrderScore
    fixed: tuple[OrderScore, ...]
    random: tuple[OrderScore, ...]
    images: int

    @property
    def rows(self) -> tuple[OrderScore, ...]:
        """Its own order, then all others."""
        return (self.own, *self.fixed, *self.random)

    @property
    def fixed_range(self) -> float:
        """Best minus worst top-1 of the fixed orders."""
        return self.fixed[0].top1 - self.fixed[-1].top1

    @property
    def random_mean(self) -> float:
        """Mean top-1 of the random orders; nan without any."""
        return float(np.mean([row.top1 for row in self.random])) if self.random else math.nan

    @property
    def random_std(self) -> float:
        """Standard deviation of top-1 over the random orders; nan with less than two."""
        few = len(self.random) < 2
        return math.nan if few else float(np.std([row.top1 for row in self.random], ddof=1))

    @property
    def matters(self) -> bool:
        """Whether any order changes top-1 by more than chance does.

        Each of the paired differences is held against a normal distribution at 5 % over all of them
        (Bonferroni).
        """
        others = (*self.fixed, *self.random)
        limit = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(1 - 0.025 / len(others)))
        return any(abs(row.change) > limit.item() * row.change_se for row in others)


def orders_to_try(grid: Grid, random: int = 10) -> dict[str, Tensor]:
    """All fixed orders of a grid but ``random``, and ``random:0``, ``random:1``, ...

    Args:
        grid: rows and columns of patches.
        random: how many random ones.

    Raises:
        ValueError: ``random`` is negative.

    Example:
        >>> list(orders_to_try((2, 2), random=2))[-3:]
        ['morton', 'random:0', 'random:1']
    """
    if random < 0:
        raise ValueError(f"Expected `random` to be 0 or more, but got {random}.")
    fixed = [name for name in ORDERS if name != "random"]
    return {n: get_order(n, *grid) for n in [*fixed, *(f"random:{i}" for i in range(random))]}


def order_sensitivity(
    model: LightningModule,
    batches: Iterable[tuple[Tensor, Tensor]],
    orders: Mapping[str, Tensor] | None = None,
) -> Sensitivity:
    """Evaluate a model on the same images in many orders, without training it for any of them.

    A small change says that the model makes little use of the order that it was trained in. A large
    one says that it does, not that another order would be worse to train in.

    Args:
        model: images to logits ``(B, classes)``; with a `PatchOrder`, or one that it can be
            attached to. Its mode and its order are the same afterwards.
        batches: normalised images ``(B, 3, H, W)`` and int64 targets ``(B,)``.
        orders: name to int64 ``(N,)``, one or more; random ones are those whose name starts with
            ``random``. None: `orders_to_try` of the model's grid.

    Raises:
        ValueError: the model has no patch order, gives no logits or fewer than there are classes,
            or there are less than two images.
    """
    layer = attach(model)
    own, training = layer.order, model.training
    every = {OWN: own, **(orders_to_try(layer.grid_size) if orders is None else orders)}
    model.eval()
    try:
        with torch.inference_mode():
            parts = [_evaluate(model, layer, every, *batch) for batch in batches]
    finally:
        layer.order = own
        model.train(training)
    correct = torch.cat([part[0] for part in parts], dim=1) if parts else torch.empty(0, 0)
    if correct.shape[1] < 2:
        raise ValueError(f"Expected two or more images, but got {correct.shape[1]}.")
    losses = torch.cat([part[1] for part in parts], dim=1)
    rows = [_score(*row, correct[0]) for row in zip(every, correct, losses, strict=True)]
    ranked = sorted(rows[1:], key=lambda row: (-row.top1, row.loss))
    chance = [row for row in ranked if row.order.startswith("random")]
    fixed = [row for row in ranked if row not in chance]
    return Sensitivity(rows[0], tuple(fixed), tuple(chance), correct.shape[1])


def _evaluate(
    model: LightningModule,
    layer: PatchOrder,
    orders: Mapping[str, Tensor],
    images: Tensor,
    targets: Tensor,
) -> tuple[Tensor, Tensor]:
    """Whether each image is right, in per cent, and its loss: float64 ``(orders, B)`` both."""
    images, targets = images.to(model.device), targets.to(model.device)
    correct, losses = [], []
    for order in orders.values():
        layer.order = order
        logits = model(images)
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            raise ValueError(f"Expected {type(model).__name__} to give logits (B, classes).")
        if targets.max() >= logits.shape[1]:
            raise ValueError(
                f"The model has {logits.shape[1]} classes, but there are images of class "
                f"{int(targets.max())}. Give the data that it was trained for."
            )
        correct.append(100.0 * (logits.argmax(1) == targets).double().cpu())
        losses.append(F.cross_entropy(logits.float(), targets, reduction="none").double().cpu())
    return torch.stack(correct), torch.stack(losses)


def _score(name: str, correct: Tensor, losses: Tensor, own: Tensor) -> OrderScore:
    (top1, top1_se), (loss, loss_se) = _mean(correct), _mean(losses)
    return OrderScore(name, top1, top1_se, loss, loss_se, *_mean(correct - own))


def _mean(values: Tensor) -> tuple[float, float]:
    """Mean and its standard error."""
    return values.mean().item(), values.std().item() / math.sqrt(len(values))
