"""What the benchmarks share: interleaved timing, and a table of values beside their targets."""

import time
from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def interleaved_seconds(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of the least disturbed call in several rounds, in which the functions take turns.

    The minimum, since whatever else runs on the machine only ever adds time. A turn is 50 ms or
    one call, whichever is longer, so that a fast function isn't timed only with the caches that a
    slow one left behind. A first round warms up and isn't counted.
    """
    found = dict.fromkeys(runs, float("inf"))
    for i in range(rounds + 1):
        for name, run in runs.items():
            turn = 0.0
            while turn < 0.05:
                start = time.perf_counter()
                run()
                seconds = time.perf_counter() - start
                turn += seconds
                if i > 0:
                    found[name] = min(found[name], seconds)
    return found


def peak_bytes(run: Callable[[], object]) -> int:
    """Most memory that a function holds at a time beyond what was held before, in bytes."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        run()
    held = peak = 0
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


class Report:
    """Prints values beside their targets and remembers whether one was missed.

    Attributes:
        status: 0 while all targets are met, else 1; an exit status.
    """

    def __init__(self) -> None:
        self.status = 0

    def line(self, text: str, value: float, target: float, *, at_most: bool = False) -> None:
        """A value that should be at least (or at most) its target."""
        met = value <= target if at_most else value >= target
        self.status |= int(not met)
        sign = "<=" if at_most else ">="
        print(f"{text:<60}{value:>10.3g}   target {sign} {target:g}{'' if met else '   MISSED'}")

    def note(self, text: str, value: float) -> None:
        """A value without a target."""
        print(f"{text:<60}{value:>10.3g}", flush=True)
