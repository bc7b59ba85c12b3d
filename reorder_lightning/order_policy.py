"""OrderPolicy: learn an order from rewards. Plain PyTorch: no Lightning, no model."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from reorder_lightning.plackett_luce import PlackettLuce
from reorder_lightning.schedules import temperature_share

__all__ = ["OrderPolicy"]

_BASELINES = ("leave-one-out", "ema")
_LOG_PROBS = ("exact", "paper")
_COLD = 1e-3  # below this temperature draws are the mode order


class OrderPolicy:
    """A Plackett-Luce policy over orders, trained with REINFORCE.

    Args:
        start: int64 ``(N,)``, the order to start from.
        total_updates: planned number of calls of ``update``.
        lr: Adam's learning rate.
        peak_temperature: largest temperature of the schedule.
        schedule: ``"triangular"``, ``"linear"`` or ``"cosine"``.
        log_prob: ``"exact"`` (of logits / temperature) or ``"paper"`` (of the logits).
        baseline: ``"leave-one-out"`` over the draws of a batch, or ``"ema"``.
        momentum: of the EMA baseline.
        spread: range of the logits at the start.
        seed: of the draws.
    """

    def __init__(
        self,
        start: Tensor,
        *,
        total_updates: int,
        lr: float | None = None,
        peak_temperature: float = 0.5,
        schedule: str = "triangular",
        log_prob: str = "exact",
        baseline: str = "leave-one-out",
        momentum: float = 0.99,
        spread: float = 1.0,
        seed: int = 0,
    ) -> None:
        for name, value, known in (
            ("log_prob", log_prob, _LOG_PROBS),
            ("baseline", baseline, _BASELINES),
        ):
            if value not in known:
                raise ValueError(
                    f"Expected argument `{name}` to be one of {known} but got {value!r}"
                )
        if total_updates < 1:
            raise ValueError(
                f"Expected argument `total_updates` to be >= 1 but got {total_updates}"
            )
        temperature_share(schedule, 0.0)
        self.start = start.detach().cpu().long().clone()
        self.logits = PlackettLuce.from_order(self.start, spread).logits
        self.total_updates = total_updates
        self.lr = 5e-3 if lr is None else lr
        self.peak_temperature = peak_temperature
        self.schedule = schedule
        self.log_prob = log_prob
        self.baseline = baseline
        self.momentum = momentum
        self.seed = seed
        self.updates = 0
        self.draws = 0
        self.baseline_value: float | None = None
        self._moments = torch.zeros(2, len(start))
        self._steps = 0
        self._gradient = torch.zeros(len(start), dtype=torch.float64)
        self._sums = torch.zeros(4, dtype=torch.float64)  # images, reward, advantage, advantage^2

    @property
    def mode(self) -> Tensor:
        """The learned order, int64 ``(N,)``."""
        return PlackettLuce(self.logits).mode

    @property
    def temperature(self) -> float:
        """Scale of the Gumbel noise for the next draw."""
        done = min(self.updates / self.total_updates, 1.0)
        return self.peak_temperature * temperature_share(self.schedule, done)

    def draw(self, k: int, rank: int = 0) -> Tensor:
        """``k`` orders for the next batch, int64 ``(k, N)``."""
        if k == 1 and self.baseline == "leave-one-out":
            raise ValueError(
                'One draw with baseline="leave-one-out" gives an advantage of exactly zero: '
                'take 2 or more draws per batch, or baseline="ema"'
            )
        key = random.Random(f"{self.seed}/{self.draws}/{rank}").getrandbits(63)
        self.draws += 1
        if self.temperature < _COLD:
            return self.mode.repeat(k, 1)
        generator = torch.Generator().manual_seed(key)
        return self._policy().sample((k,), generator=generator)

    def observe(self, orders: Tensor, rewards: Tensor) -> None:
        """Take in what a batch earned; image ``i`` used ``orders[i % K]``."""
        orders = orders.detach().cpu()
        rewards = rewards.detach().cpu().double()
        finite = rewards.isfinite()
        group = torch.arange(len(rewards)) % len(orders)
        counts = torch.zeros(len(orders), dtype=torch.float64)
        counts.index_add_(0, group, finite.double())
        sums = torch.zeros_like(counts).index_add_(0, group, rewards.where(finite, 0.0))
        self._sums[0] += counts.sum()
        self._sums[1] += sums.sum()
        if self.temperature < _COLD:
            return
        advantage = sums / counts.clamp_min(1) - self._baseline(sums, counts)
        advantage[counts == 0] = 0.0
        weight = advantage * counts
        policy = self._policy() if self.log_prob == "exact" else PlackettLuce(self.logits)
        scale = self.temperature if self.log_prob == "exact" else 1.0
        self._gradient += (weight[:, None] * policy.score(orders)).sum(0) / scale
        self._sums[2] += weight.sum()
        self._sums[3] += (weight * advantage).sum()

    def update(self, reduce: Callable[[Tensor], Tensor] | None = None) -> dict[str, float]:
        """Move the policy once; call it on every rank, after every optimiser step."""
        flat = torch.cat([self._sums, self._gradient])
        if reduce is not None:
            flat = reduce(flat)
        sums, gradient = flat[:4].cpu(), flat[4:].cpu()
        images = sums[0].item()
        metrics: dict[str, float] = {}
        if images > 0:
            reward = sums[1].item() / images
            mean = sums[2].item() / images
            metrics["reward"] = reward
            metrics["advantage_std"] = max(sums[3].item() / images - mean * mean, 0.0) ** 0.5
            if self.temperature >= _COLD:
                self._adam((gradient / images).float())
            if self.baseline_value is None:
                self.baseline_value = reward
            self.baseline_value = self.momentum * self.baseline_value + (1 - self.momentum) * reward
            metrics["baseline"] = self.baseline_value
        self._sums.zero_()
        self._gradient.zero_()
        self.updates += 1
        return metrics

    def _policy(self) -> PlackettLuce:
        return PlackettLuce(self.logits / self.temperature)

    def _baseline(self, sums: Tensor, counts: Tensor) -> Tensor:
        if self.baseline == "ema":
            value = self.baseline_value
            return (
                torch.tensor(value) if value is not None else sums.sum() / counts.sum().clamp_min(1)
            )
        others = counts.sum() - counts
        mean = (sums.sum() - sums) / others.clamp_min(1)
        # Without another image to compare with there is no advantage.
        return mean.where(others > 0, sums / counts.clamp_min(1))

    def _adam(self, gradient: Tensor) -> None:
        self._steps += 1
        self._moments[0].lerp_(gradient, 0.1)
        self._moments[1].lerp_(gradient.square(), 0.001)
        first = self._moments[0] / (1 - 0.9**self._steps)
        second = self._moments[1] / (1 - 0.999**self._steps)
        self.logits = self.logits + self.lr * first / (second.sqrt() + 1e-12)

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors and numbers; loads with ``weights_only=True``."""
        return {
            "logits": self.logits.clone(),
            "moments": self._moments.clone(),
            "steps": self._steps,
            "gradient": self._gradient.clone(),
            "sums": self._sums.clone(),
            "updates": self.updates,
            "draws": self.draws,
            "baseline": self.baseline_value,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken."""
        self.logits = state["logits"].clone()
        self._moments = state["moments"].clone()
        self._steps = state["steps"]
        self._gradient = state["gradient"].clone()
        self._sums = state["sums"].clone()
        self.updates = state["updates"]
        self.draws = state["draws"]
        self.baseline_value = state["baseline"]
