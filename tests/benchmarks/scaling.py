"""Cost over length: ``python -m tests.benchmarks.scaling``.

Scan and banded attention, forward and backward, from 256 to 16,384 tokens. Prints the exponent of
the fit ``cost = a * length ** exponent`` for time and peak memory, and exits with 1 if one is above
1.1.
"""

import argparse
import math
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from reorder_lightning.kernels.banded_attention import banded_attention
from reorder_lightning.kernels.selective_scan import selective_scan
from tests.benchmarks.scan import make_inputs
from tests.benchmarks.timing import Report, interleaved_seconds, peak_bytes

LENGTHS = (256, 1024, 4096, 16384)


def scan(length: int) -> Callable[[], None]:
    """A scan of 96 channels, as a function."""
    inputs = make_inputs(1, 96, length)

    def run() -> None:
        y = selective_scan(*inputs)
        assert isinstance(y, Tensor)
        y.backward(torch.ones_like(y))

    return run


def attention(length: int) -> Callable[[], None]:
    """A banded attention of three heads and a global token, as a function."""
    q, k, v = (torch.randn(1, 3, length, 64, requires_grad=True) for _ in range(3))
    cls_k, cls_v = (torch.randn(1, 3, 1, 64, requires_grad=True) for _ in range(2))

    def run() -> None:
        y = banded_attention(q, k, v, 7, cls_k, cls_v)
        y.backward(torch.ones_like(y))

    return run


def exponent(costs: list[float]) -> float:
    """Slope of the least-squares line through ``(log length, log cost)``."""
    xs, ys = [math.log(n) for n in LENGTHS], [math.log(c) for c in costs]
    x0, y0 = sum(xs) / len(xs), sum(ys) / len(ys)
    slope = sum((x - x0) * (y - y0) for x, y in zip(xs, ys, strict=True))
    return slope / sum((x - x0) ** 2 for x in xs)


def main(argv: list[str] | None = None) -> int:
    """Prints the table; the exit status says whether the cost is linear."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    report = Report()
    for name, make in (("scan", scan), ("banded attention", attention)):
        runs = {str(length): make(length) for length in LENGTHS}
        seconds = list(interleaved_seconds(runs, args.rounds).values())
        memory = [float(peak_bytes(run)) for run in runs.values()]
        for length, s, m in zip(LENGTHS, seconds, memory, strict=True):
            print(f"    {name}, {length} tokens: {s * 1e3:.1f} ms, {m / 1e6:.1f} MB")
        report.line(f"{name}: exponent of time", exponent(seconds), 1.1, at_most=True)
        report.line(f"{name}: exponent of memory", exponent(memory), 1.1, at_most=True)
    return report.status


if __name__ == "__main__":
    sys.exit(main())
