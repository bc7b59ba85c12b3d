"""The learner of orders used by default: mirrored draws, regression on ranks, shrinkage."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from reorder_lightning.order_learners import Evidence
from reorder_lightning.plackett_luce import gumbel

__all__ = ["RankRegression"]

_GUMBEL_STD = math.pi / math.sqrt(6)


class RankRegression:
    r"""Try mirrored pairs of orders, regress rewards on ranks, move as far as the evidence goes.

    *Draws* come in pairs: one adds noise to the logits, the other the mirrored noise. Their
    difference in reward needs no other baseline, and is blind to any drift of the reward ("mirrored
    sampling": Brockhoff et al., PPSN 2010; Sehnke et al., "Parameter-exploring policy gradients",
    Neural Networks 2010). The noise has two parts: a smooth field over the patch grid, with
    amplitudes falling as 1 / frequency, and Gumbel noise. The field has few degrees of freedom, so
    the reward's answer to it is seen through much more noise than an answer to 64 or 196 numbers
    would be; Gumbel noise resolves single patches. It goes from the first to the second, and from
    few draws to all of them, as the evidence grows (``found``).

    *Evidence* is the covariance of the reward with the rank that each patch had: how much an image
    earns when a patch is read earlier. Its running average over about a tenth of the exploration is
    split into spatial frequencies (discrete cosine transform), and each band, with mean square
    :math:`S` and noise variance :math:`V`, is shrunk by :math:`\max(0, 1 - V / S)` (James and
    Stein, 1961). Where rewards say little, only slow changes over the grid are learned, from many
    patches together; where they say much, each patch is free. The logits move by the shrunken
    evidence, divided by the size of the unshrunken one: at full speed for a clear signal, hardly
    for noise, and alike for every scale of rewards and for every planned number of steps.

    Args:
        grid_size: rows and columns of the patch grid; None where there is none: one band.
        size: number of patches ``N``.
        steps: planned number of steps.
        explore_share: share of a batch's draws that explore before anything is found.
        travel: how far a patch with a clear signal moves over all steps, in logits per
            temperature.
    """

    def __init__(
        self,
        grid_size: tuple[int, int] | None,
        size: int,
        steps: int,
        explore_share: float = 0.25,
        travel: float = 6.0,
    ) -> None:
        self.explore_share = explore_share
        self.travel = travel
        self.steps = steps
        self.keep = 1 - 1 / max(2.0, 0.1 * steps)
        self.found = 0.0
        self._waves = _Waves(grid_size, size)
        self._sums = torch.zeros(size, dtype=torch.float64)
        self._noise = torch.zeros(len(self._waves.members), dtype=torch.float64)
        self._moves = torch.zeros_like(self._sums)
        self._foretold = 0.0
        self._foretold_square = 0.0
        self._steps = 0

    def exploring(self, k: int) -> int:
        """An even number, from ``explore_share`` of ``k`` to all of them as ``found`` rises."""
        share = self.explore_share + (1 - self.explore_share) * self.found
        return 2 * min(max(1, round(share * k / 2)), k // 2)

    def explore(self, logits: Tensor, tau: float, k: int, generator: torch.Generator) -> Tensor:
        """``k / 2`` pairs: first all the ones, then all their mirror images."""
        shape = (k // 2, len(logits))
        field = self._waves.smooth(torch.randn(shape, generator=generator)) * _GUMBEL_STD
        uniform = torch.rand(shape, generator=generator)
        smooth, rough = math.sqrt(1 - self.found), math.sqrt(self.found)
        keys = torch.cat(
            [
                logits + tau * (smooth * field + rough * gumbel(uniform)),
                logits + tau * (-smooth * field + rough * gumbel(1 - uniform)),
            ]
        )
        return keys.argsort(dim=-1, descending=True, stable=True)

    def evidence(
        self,
        orders: Tensor,
        count: Tensor,
        total: Tensor,
        logits: Tensor,
        tau: float,
        moving: float | None,
    ) -> Evidence:
        """Minus the sum over pairs of images x reward x rank / N, each as half a difference."""
        pairs = len(orders) // 2
        first, second = count[:pairs], count[pairs:]
        mean = total / count.clamp_min(1)
        advantage = (mean[:pairs] - mean[pairs:]) / 2
        weight = 4 * first * second / (first + second).clamp_min(1)  # 0 where one has no image
        rank = orders.argsort(dim=-1).double() / orders.shape[-1]
        earlier = (rank[pairs:] - rank[:pairs]) / 2
        return Evidence((weight * advantage) @ earlier, weight, advantage)

    def step(self, logits: Tensor, sums: Tensor, images: float, tau: float, done: float) -> Tensor:
        """Average, shrink, move."""
        self._check((self._moves @ sums).item())
        waves = self._waves.split(sums)
        self._sums = self.keep * self._sums + waves
        self._noise = self.keep**2 * self._noise + self._waves.power(waves)
        self._steps += 1
        size = self._sums.square().mean().sqrt().item()
        if self._steps < 4 or size == 0:
            return logits
        ratio = self._waves.power(self._sums) / self._noise.clamp_min(1e-300)
        kept = (1 - 1 / ratio.clamp_min(1e-9)).clamp_min(0)
        self._moves = self._waves.join(self._sums * kept[self._waves.band]) / size
        speed = 2 * (1 - done) * self.travel / self.steps
        return logits + (speed * tau * self._moves).float()

    def _check(self, foretold: float) -> None:
        """Raise ``found`` where past evidence foretells the new rewards.

        ``foretold`` is the new evidence along the last move. If rewards were noise, its sum over
        the steps would be a martingale, and the sum over the root of summed squares about a
        standard normal variable: 2 of it are the least that counts, 4 are certainty.
        """
        self._foretold += foretold
        self._foretold_square += foretold**2
        if self._steps >= 20 and self._foretold_square > 0:
            z = self._foretold / math.sqrt(self._foretold_square)
            self.found = max(self.found, min((z - 2) / 2, 1.0))

    def state_dict(self) -> dict[str, Any]:
        """The running sums."""
        return {
            "found": self.found,
            "sums": self._sums.clone(),
            "noise": self._noise.clone(),
            "moves": self._moves.clone(),
            "foretold": self._foretold,
            "foretold_square": self._foretold_square,
            "steps": self._steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of ``state_dict``."""
        self.found = float(state["found"])
        self._sums = state["sums"].clone()
        self._noise = state["noise"].clone()
        self._moves = state["moves"].clone()
        self._foretold = float(state["foretold"])
        self._foretold_square = float(state["foretold_square"])
        self._steps = int(state["steps"])


class _Waves:
    """Spatial frequencies of a patch grid, in bands of about equal frequency."""

    def __init__(self, grid_size: tuple[int, int] | None, size: int) -> None:
        self.grid_size = grid_size
        if grid_size is None:
            frequency = torch.zeros(size, dtype=torch.float64)
        else:
            height, width = grid_size
            self._down, self._across = _cosines(height), _cosines(width)
            row = torch.arange(height, dtype=torch.float64)[:, None]
            column = torch.arange(width, dtype=torch.float64)
            frequency = (row.square() + column.square()).sqrt().flatten()
        self.band = frequency.round().long()
        self.members = self.band.bincount().double().clamp_min(1)
        amplitude = 1 / (1 + frequency.square()).sqrt()
        if grid_size is not None:
            amplitude[0] = 0  # a constant changes no order
        self._amplitude = amplitude / amplitude.square().mean().sqrt().clamp_min(1e-12)

    def smooth(self, noise: Tensor) -> Tensor:
        """White noise ``(k, N)`` to smooth fields of variance about 1, float32 ``(k, N)``."""
        return self.join(noise.double() * self._amplitude).float()

    def power(self, waves: Tensor) -> Tensor:
        """Mean square of each band."""
        return torch.zeros_like(self.members).index_add_(0, self.band, waves**2) / self.members

    def split(self, values: Tensor) -> Tensor:
        """Values over the grid ``(N,)`` to waves ``(N,)``."""
        if self.grid_size is None:
            return values
        return (self._down @ values.view(self.grid_size) @ self._across.T).flatten()

    def join(self, waves: Tensor) -> Tensor:
        """Waves ``(..., N)`` to values ``(..., N)``."""
        if self.grid_size is None:
            return waves
        grid = waves.unflatten(-1, self.grid_size)
        values: Tensor = self._down.T @ grid @ self._across
        return values.flatten(-2)


def _cosines(n: int) -> Tensor:
    """The orthonormal discrete cosine transform (type 2), float64 ``(n, n)``."""
    place = torch.arange(n, dtype=torch.float64)
    waves = torch.cos(math.pi / n * place[:, None] * (place + 0.5)) * math.sqrt(2 / n)
    waves[0] /= math.sqrt(2)
    return waves
