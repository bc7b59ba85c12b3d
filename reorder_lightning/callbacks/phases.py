"""When a training warms up, learns the order, and trains with it frozen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Phase = Literal["warmup", "policy", "frozen"]


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
        total_steps: optimiser steps of the whole training; may be infinite if both are ints.
        steps_per_epoch: optimiser steps of one epoch.

    Raises:
        ValueError: if a length is negative or a share above 1, if both together are longer than
            the training, or if a share is asked for of a training without an end.

    Example:
        >>> plan_phases(2, 0.5, total_steps=100, steps_per_epoch=10)
        Phases(warmup=20, policy=50)
    """
    steps = []
    for name, length in (("warmup", warmup), ("policy", policy)):
        if isinstance(length, float):
            if not 0.0 <= length <= 1.0:
                raise ValueError(
                    f"Expected `{name}` to be a share of the training in [0, 1] or a whole number "
                    f"of epochs, but got {length}."
                )
            if length and math.isinf(total_steps):
                raise ValueError(
                    f"`{name}={length}` is a share of the training, which has no end here. Set the "
                    f"Trainer's max_epochs or max_steps, or give `{name}` as whole epochs."
                )
            steps.append(round(length * total_steps) if length else 0)
        else:
            if length < 0:
                raise ValueError(f"Expected `{name}` to be 0 or more epochs, but got {length}.")
            steps.append(round(length * steps_per_epoch))
    if sum(steps) > total_steps:
        epochs = total_steps / steps_per_epoch
        raise ValueError(
            f"`warmup={warmup}` and `policy={policy}` take {sum(steps)} optimiser steps, but the "
            f"training has {total_steps} ({epochs:g} epochs). Shorten them, train longer, or give "
            f"them as shares, e.g. warmup=0.15, policy=0.3."
        )
    return Phases(*steps)
