"""How the temperature moves while the policy explores: pure functions of the share that is done."""

from __future__ import annotations

import math

__all__ = ["SCHEDULES", "temperature_share"]

SCHEDULES = ("constant", "triangular", "linear", "cosine")


def temperature_share(schedule: str, done: float) -> float:
    """Share of the peak temperature at a point of the exploration.

    ``triangular`` rises from 0 to 1 and falls to 0 again (Kutscher et al., arXiv 2505.23751);
    ``linear`` and ``cosine`` fall from 1 to 0.

    Args:
        schedule: one of :data:`SCHEDULES`.
        done: share of the exploration that is over, in [0, 1].

    Raises:
        ValueError: for another schedule.

    Example:
        >>> [temperature_share("triangular", done) for done in (0.0, 0.25, 0.5, 1.0)]
        [0.0, 0.5, 1.0, 0.0]
    """
    if schedule == "constant":
        return 1.0
    if schedule == "triangular":
        return 1.0 - abs(2.0 * done - 1.0)
    if schedule == "linear":
        return 1.0 - done
    if schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * done))
    raise ValueError(f"Expected argument `schedule` to be one of {SCHEDULES} but got {schedule!r}")
