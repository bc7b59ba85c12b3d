"""Is another order better than the start order? A paired test on equal shares of training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Decision", "Trial", "paired_gain"]

_BLOCKS = 40


@dataclass(frozen=True)
class Decision:
    """What a trial of another order against the start order came to.

    Attributes:
        accepted: whether the other order replaces the start order.
        gain: mean reward of the other order minus that of the start order.
        gain_se: standard error of ``gain``; nan where the trial was too short to tell.
        challenger: which order the other one is: "learned" or "rival".
    """

    accepted: bool
    gain: float
    gain_se: float
    challenger: str = "learned"

    def __str__(self) -> str:
        """One line for the log."""
        if math.isnan(self.gain_se):
            if self.accepted:
                return f"The {self.challenger} order is taken without a trial."
            return "The start order is kept: nothing was found, or the trial was too short to tell."
        outcome = "The start order is kept"
        if self.accepted:
            outcome = f"The {self.challenger} order is accepted"
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


class Trial:
    """Two orders, each on half of the images of some updates, and which of them earns more.

    The model adapts to what it reads. So both orders have equal shares of the training, and what
    they earn is recorded only after some of it.

    Args:
        updates: planned length.
        adapting: share of it that is not recorded.
        z: standard errors by which the challenger must be better than the start order.
        challenger: its name in the decision.

    Example:
        >>> trial = Trial(32, adapting=0.5, z=2.0, challenger="rival")
        >>> for step in range(32):
        ...     _ = trial.record([4.0, 8.0 + step % 2, 4.0, 4.0])
        >>> print(trial.decision)
        The rival order is accepted: gain 1.125, standard error 0.032.
    """

    def __init__(self, updates: int, adapting: float, z: float, challenger: str) -> None:
        self.adapting = int(updates * adapting)
        self.z = z
        self.challenger = challenger
        self._done = 0
        self._differences: list[float] = []
        self._pending = torch.zeros(4, dtype=torch.float64)

    def controls(self, k: int, rank: int) -> int:
        """How many of ``k`` draws are to be the start order; an odd one takes turns."""
        return (k + (self._done + rank) % 2) // 2

    def record(self, sums: Sequence[float]) -> dict[str, float]:
        """Take in an update: images and summed reward of the challenger, then of the start order.

        Returns:
            The paired difference, if there is one: one draw a batch takes two updates.
        """
        self._pending += torch.tensor(sums, dtype=torch.float64)
        self._done += 1
        other, other_reward, start, start_reward = self._pending.tolist()
        if not (other and start):
            return {}
        self._pending.zero_()
        difference = other_reward / other - start_reward / start
        if self._done > self.adapting:
            self._differences.append(difference)
        return {"difference": difference}

    @property
    def decision(self) -> Decision:
        """By what was recorded so far."""
        gain, error = paired_gain(self._differences)
        return Decision(gain > self.z * error, gain, error, self.challenger)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain numbers."""
        return {
            "done": self._done,
            "differences": list(self._differences),
            "pending": self._pending.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of ``state_dict``."""
        self._done = int(state["done"])
        self._differences = list(state["differences"])
        self._pending = state["pending"].clone()
