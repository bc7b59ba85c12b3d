"""When a training warms up, learns the order, and trains with it frozen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Phase = Literal["warmup", "policy", "frozen"]

# Of the policy phase, for the race with a rival: a model takes hundreds of updates to read a second
# order as well as the one that is easier to begin with.
RACE_SHARE = 0.75


@dataclass(frozen=True)
class Phases:
    """The three spans of a training, in optimiser steps: warm-up, policy, frozen."""

    warmup: int
    policy: int

    def at(self, step: int) -> Phase:
        """The phase that optimiser step ``step`` (from 0) belongs to."""
        if step < self.warmup:
            return "warmup"
        return "policy" if step < self.warmup + self.policy else "frozen"


def plan_phases(
    warmup: int | float, policy: int | float, total_steps: float, steps_per_epoch: float
) -> Phases:
    """Turn epochs or shares of the training into optimiser steps.

    Args:
        warmup: length of the warm-up: an int is epochs, a float a share of the training in [0, 1].
        policy: length of the policy phase, likewise.
        total_steps: optimiser steps of the whole training, or infinity.
        steps_per_epoch: optimiser steps of one epoch, or infinity.

    Raises:
        ValueError: if a length is negative or a share above 1, if both together are longer than
            the training, or if one is a share of a training without an end, or counts epochs of
            unknown length.

    Example:
        >>> plan_phases(2, 0.5, total_steps=100, steps_per_epoch=10)
        Phases(warmup=20, policy=50)
    """
    first = _steps("warmup", warmup, total_steps, steps_per_epoch)
    last = first + _steps("policy", policy, total_steps, steps_per_epoch)
    # Ends are rounded, not lengths: two shares of 0.5 must not add up to more than the training.
    if round(last) > total_steps:
        epochs = total_steps / steps_per_epoch
        raise ValueError(
            f"`warmup={warmup}` and `policy={policy}` take {round(last)} optimiser steps, but the "
            f"training has {total_steps} ({epochs:g} epochs). Shorten them, train longer, or give "
            f"them as shares, e.g. warmup=0.15, policy=0.3."
        )
    return Phases(round(first), round(last) - round(first))


def _steps(name: str, length: int | float, total_steps: float, steps_per_epoch: float) -> float:
    """A length in optimiser steps, not rounded."""
    if isinstance(length, float):
        if not 0.0 <= length <= 1.0:
            raise ValueError(
                f"Expected `{name}` to be a share of the training in [0, 1] or a whole number "
                f"of epochs, but got {length}."
            )
        steps = total_steps
    else:
        if length < 0:
            raise ValueError(f"Expected `{name}` to be 0 or more epochs, but got {length}.")
        steps = steps_per_epoch
    if length and math.isinf(steps):
        raise ValueError(
            f"`{name}={length}` cannot be turned into optimiser steps, because this training has "
            "no end, or its epochs no known length. Set the Trainer's max_epochs or max_steps and "
            f"give `{name}` as a share, or as whole epochs of a loader with a length."
        )
    return length * steps if length else 0.0
