"""Two ways to turn orders and their rewards into a move of the policy's logits.

Both work in two halves: ``evidence`` is a sum over the images of a batch, so that micro-batches
and ranks can be added up; ``step`` turns the mean of an optimiser step into new logits.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor

from reorder_lightning.plackett_luce import PlackettLuce

__all__ = ["Learner", "RankRegression", "Reinforce"]


class Learner(Protocol):
    """What `OrderPolicy` needs of a learner."""

    def evidence(self, orders: Tensor, weights: Tensor, logits: Tensor, tau: float) -> Tensor:
        """Sum over draws: orders ``(K, N)``, weights ``(K,)`` = advantage x images, to ``(N,)``."""
        ...

    def step(self, logits: Tensor, mean: Tensor, tau: float, done: float) -> Tensor:
        """New logits from the evidence per image; ``done`` is the share of exploration over."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain numbers."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of ``state_dict``."""
        ...


class Reinforce:
    """REINFORCE: the closed-form score times the advantage, followed by Adam.

    Source: Kutscher et al., arXiv 2505.23751, section 4; Williams (1992).

    Args:
        size: number of patches ``N``.
        lr: Adam's learning rate.
        log_prob: ``"exact"``: of logits / tau, from which the draws come; ``"paper"``: of the
            logits, as in the published code.
    """

    def __init__(self, size: int, lr: float, log_prob: str = "exact") -> None:
        self.lr = lr
        self.exact = log_prob == "exact"
        self._first = torch.zeros(size)
        self._second = torch.zeros(size)
        self._steps = 0

    def evidence(self, orders: Tensor, weights: Tensor, logits: Tensor, tau: float) -> Tensor:
        """Sum of weight x score."""
        scale = tau if self.exact else 1.0
        score = PlackettLuce(logits / scale).score(orders).double() / scale
        return weights @ score

    def step(self, logits: Tensor, mean: Tensor, tau: float, done: float) -> Tensor:
        """One step of Adam (betas 0.9 and 0.999) up the gradient."""
        gradient = mean.float()
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


class RankRegression:
    r"""Regress rewards on ranks, shrink what may be noise, and move at a bounded speed.

    The evidence is the covariance of a draw's reward with the rank that each patch had in it: how
    much an image gains when the patch is read later. It is averaged over the last tenth of the
    exploration and split into spatial frequencies of the patch grid (discrete cosine transform).
    In each band of frequencies, with mean square :math:`S_b` and noise variance :math:`V`
    (measured from the scatter of the evidence over time), it is shrunk by :math:`\max(0, 1 - V /
    S_b)`, the positive-part estimator of James and Stein (1961). So where rewards say little, only
    slow changes over the grid are learned, from many patches together; where they say much, each
    patch is free. The logits move by the shrunken evidence, relative to the size of the unshrunken
    one: full speed for a clear signal, next to none for noise, whatever the scale of the rewards.

    Ranks replace the score of the Plackett-Luce distribution, which they resemble: at equal logits
    it is a monotone function of the rank, but with a long tail for the last patches, whose
    variance the regression on ranks doesn't have.

    Args:
        grid_size: rows and columns of the patch grid; None where there is none: one band.
        size: number of patches ``N``.
        steps: planned number of steps.
        travel: how far a patch with a clear signal moves over all steps, in logits per
            temperature.
    """

    def __init__(
        self, grid_size: tuple[int, int] | None, size: int, steps: int, travel: float = 6.0
    ) -> None:
        self.travel = travel
        self.steps = steps
        self.keep = 1 - 1 / max(2.0, 0.1 * steps)
        self.grid_size = grid_size
        if grid_size is None:
            self._band = torch.zeros(size, dtype=torch.int64)
        else:
            height, width = grid_size
            self._down, self._across = _cosines(height), _cosines(width)
            row = torch.arange(height, dtype=torch.float64)[:, None]
            column = torch.arange(width, dtype=torch.float64)
            self._band = (row.square() + column.square()).sqrt().round().long().flatten()
        self._members = self._band.bincount().double().clamp_min(1)
        self._mean = torch.zeros(size, dtype=torch.float64)
        self._square = 0.0
        self._weight = 0.0
        self._weight2 = 0.0

    def evidence(self, orders: Tensor, weights: Tensor, logits: Tensor, tau: float) -> Tensor:
        """Minus the sum of weight x rank / N: positive where an earlier place earns more."""
        ranks = orders.argsort(dim=-1).double() / orders.shape[-1]
        return -(weights @ (ranks - ranks.mean(dim=0)))

    def step(self, logits: Tensor, mean: Tensor, tau: float, done: float) -> Tensor:
        """Average, shrink, move."""
        waves = self._to_waves(mean.double())
        keep = self.keep
        self._mean = keep * self._mean + (1 - keep) * waves
        self._square = keep * self._square + (1 - keep) * waves.square().mean().item()
        self._weight = keep * self._weight + (1 - keep)
        self._weight2 = keep**2 * self._weight2 + (1 - keep) ** 2
        independent = self._weight**2 / self._weight2  # steps in the average
        average = self._mean / self._weight
        size = average.square().mean().sqrt().item()
        if independent < 4 or size == 0:
            return logits
        noise = self._square / self._weight / independent
        moves = self._from_waves(self._shrink(average, noise)) / size
        speed = 2 * (1 - done) * self.travel / self.steps
        return logits + (speed * tau * moves).float()

    def _shrink(self, average: Tensor, noise: float) -> Tensor:
        power = torch.zeros_like(self._members).index_add_(0, self._band, average.square())
        power = power / self._members
        kept = (1 - noise / power.clamp_min(1e-300)).clamp_min(0)
        return average * kept[self._band]

    def _to_waves(self, values: Tensor) -> Tensor:
        if self.grid_size is None:
            return values
        return (self._down @ values.view(self.grid_size) @ self._across.T).flatten()

    def _from_waves(self, waves: Tensor) -> Tensor:
        if self.grid_size is None:
            return waves
        return (self._down.T @ waves.view(self.grid_size) @ self._across).flatten()

    def state_dict(self) -> dict[str, Any]:
        """The running averages."""
        return {
            "mean": self._mean.clone(),
            "square": self._square,
            "weight": self._weight,
            "weight2": self._weight2,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of ``state_dict``."""
        self._mean = state["mean"].clone()
        self._square = float(state["square"])
        self._weight = float(state["weight"])
        self._weight2 = float(state["weight2"])


def _cosines(n: int) -> Tensor:
    """The orthonormal discrete cosine transform (type 2), float64 ``(n, n)``."""
    place = torch.arange(n, dtype=torch.float64)
    waves = torch.cos(math.pi / n * place[:, None] * (place + 0.5)) * math.sqrt(2 / n)
    waves[0] /= math.sqrt(2)
    return waves
