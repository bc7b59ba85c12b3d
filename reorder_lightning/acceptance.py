"""Is the learned order better than the start order? A paired test on equal shares of training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

__all__ = ["Decision", "paired_gain"]

_BLOCKS = 40


@dataclass(frozen=True)
class Decision:
    """What the trial of the learned order against the start order came to.

    Attributes:
        accepted: whether the learned order replaces the start order.
        gain: mean reward of the learned order minus that of the start order.
        gain_se: standard error of ``gain``; nan where the trial was too short to tell.
    """

    accepted: bool
    gain: float
    gain_se: float

    def __str__(self) -> str:
        """One line for the log."""
        if math.isnan(self.gain_se):
            if self.accepted:
                return "The learned order is taken without a trial."
            return "The start order is kept: nothing was found, or the trial was too short to tell."
        outcome = "The learned order is accepted" if self.accepted else "The start order is kept"
        return f"{outcome}: gain {self.gain:.4g}, standard error {self.gain_se:.2g}."


def paired_gain(differences: Sequence[float]) -> tuple[float, float]:
    """Mean of a series of paired differences and its standard error.

    Differences of neighbouring batches may be correlated, since the model that earns them hardly
    changes in between. So the series is cut into up to 40 blocks, whose means are nearly
    independent ("batch means": Law and Kelton, Simulation Modeling and Analysis, section 9.5).

    Args:
        differences: one number per optimiser step, in time order.

    Returns:
        ``(mean, standard error)``; ``(0.0, nan)`` for fewer than 8 differences.

    Example:
        >>> paired_gain([1.0, 3.0] * 8)
        (2.0, 0.2581988897471611)
    """
    if len(differences) < 8:
        return 0.0, math.nan
    values = torch.tensor(differences, dtype=torch.float64)
    blocks = torch.stack([block.mean() for block in values.tensor_split(min(_BLOCKS, len(values)))])
    return values.mean().item(), (blocks.std() / math.sqrt(len(blocks))).item()
