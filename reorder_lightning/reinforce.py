"""The published learner of orders: REINFORCE on a Plackett-Luce policy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reorder_lightning.order_learners import Evidence
from reorder_lightning.plackett_luce import PlackettLuce

__all__ = ["Reinforce"]


class Reinforce:
    """REINFORCE: Plackett-Luce draws, the closed-form score times the advantage, and Adam.

    Source: Kutscher et al., arXiv 2505.23751, section 4; R. J. Williams (1992). The leave-one-out
    baseline is that of Kool et al., "Buy 4 REINFORCE samples, get a baseline for free!" (2019).

    Args:
        size: number of patches ``N``.
        lr: Adam's learning rate.
        log_prob: ``"exact"``: of logits / tau, from which the draws come; ``"paper"``: of the
            logits, as in the published code.
        baseline: ``"leave-one-out"`` or ``"ema"``.
    """

    found = 1.0

    def __init__(self, size: int, lr: float, log_prob: str, baseline: str) -> None:
        self.lr = lr
        self.exact = log_prob == "exact"
        self.baseline = baseline
        self._first = torch.zeros(size)
        self._second = torch.zeros(size)
        self._steps = 0

    def exploring(self, k: int) -> int:
        """All draws explore, as published."""
        return k

    def explore(self, logits: Tensor, tau: float, k: int, generator: torch.Generator) -> Tensor:
        """``k`` draws from the policy."""
        return PlackettLuce(logits / tau).sample((k,), generator=generator)

    def evidence(
        self,
        orders: Tensor,
        count: Tensor,
        total: Tensor,
        logits: Tensor,
        tau: float,
        moving: float | None,
    ) -> Evidence:
        """Sum of images x advantage x score."""
        mean = total / count.clamp_min(1)
        advantage = (mean - self._compare(count, total, moving)).where(count > 0, 0.0)
        scale = tau if self.exact else 1.0
        score = PlackettLuce(logits / scale).score(orders).double() / scale
        return Evidence((count * advantage) @ score, count, advantage)

    def _compare(self, count: Tensor, total: Tensor, moving: float | None) -> Tensor:
        """The baseline of each draw, ``(k,)``."""
        if self.baseline == "ema":
            return (
                total.sum() / count.sum().clamp_min(1)
                if moving is None
                else total.new_tensor(moving)
            )
        others = count.sum() - count
        mean_of_others = (total.sum() - total) / others.clamp_min(1)
        # Without another image to compare with there is no advantage.
        return mean_of_others.where(others > 0, total / count.clamp_min(1))

    def step(self, logits: Tensor, sums: Tensor, images: float, tau: float, done: float) -> Tensor:
        """One step of Adam (betas 0.9 and 0.999) up the gradient."""
        gradient = (sums / images).float()
        self._steps += 1
        self._first.lerp_(gradient, 1 - 0.9)
        self._second.lerp_(gradient.square(), 1 - 0.999)
        first = self._first / (1 - 0.9**self._steps)
        second = self._second / (1 - 0.999**self._steps)
        return logits + self.lr * first / (second.sqrt() + 1e-12)

    def state_dict(self) -> dict[str, Any]:
        """Adam's moments and step count."""
        return {
            "first": self._first.clone(),
            "second": self._second.clone(),
            "steps": self._steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of ``state_dict``."""
        self._first = state["first"].clone()
        self._second = state["second"].clone()
        self._steps = int(state["steps"])
