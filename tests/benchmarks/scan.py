"""Selective scan on CPU against its peers: ``python -m tests.benchmarks.scan [--quick]``.

Peers: the reference loop that mamba-ssm publishes as the meaning of its kernel (written out below),
and mambapy's parallel scan. All run interleaved in one process; only ratios mean anything. Prints
the ratios beside their targets, peak extra memory, and the accuracy against float64, and exits
with 1 if a target is missed.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial

import torch
from mambapy.pscan import pscan
from torch import Tensor

from reorder_lightning.kernels import _blocked_scan
from reorder_lightning.kernels.selective_scan import selective_scan
from tests.benchmarks.timing import Report, interleaved_seconds, peak_bytes
from tests.kernels.references import relative_error, selective_scan_reference

Scan = Callable[..., Tensor]
STATE = 16
# (B, D, L): ratios to reach against (reference, mambapy), forward and backward.
TARGETS: dict[tuple[int, int, int], tuple[float | None, float]] = {
    (8, 192, 197): (50.0, 6.0),
    (8, 384, 197): (None, 15.0),
    (4, 768, 197): (None, 15.0),
    (2, 192, 1024): (None, 3.5),
    (1, 192, 4096): (None, 5.5),
}


def make_inputs(batch: int, width: int, length: int, delta: float = 0.1) -> tuple[Tensor, ...]:
    """``u, delta, A, B, C, D`` as leaves, with Mamba's initial rates."""
    inputs = (
        torch.randn(batch, width, length),
        torch.rand(batch, width, length) * delta,
        -torch.arange(1.0, STATE + 1).repeat(width, 1),
        torch.randn(batch, STATE, length),
        torch.randn(batch, STATE, length),
        torch.ones(width),
    )
    return tuple(x.requires_grad_() for x in inputs)


def reference(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """mamba-ssm's published meaning: all decays at once, then one time step after the other."""
    decay = torch.exp(torch.einsum("bdl,dn->bdln", delta, A))
    inputs = torch.einsum("bdl,bnl,bdl->bdln", delta, B, u)
    state = A.new_zeros(u.shape[0], *A.shape)
    ys = []
    for t in range(u.shape[2]):
        state = decay[:, :, t] * state + inputs[:, :, t]
        ys.append(torch.einsum("bdn,bn->bd", state, C[:, :, t]))
    return torch.stack(ys, dim=2) + u * D[:, None]


def mambapy(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """mambapy's scan with the products around it as its block makes them."""
    u, delta, B, C = (x.transpose(1, 2) for x in (u, delta, B, C))
    decay = torch.exp(delta.unsqueeze(-1) * A)
    states = pscan(decay, delta.unsqueeze(-1) * B.unsqueeze(2) * u.unsqueeze(-1))
    y = (states @ C.unsqueeze(-1)).squeeze(3) + D * u
    return y.transpose(1, 2)


def step(scan: Scan, inputs: tuple[Tensor, ...]) -> None:
    """Forward and backward."""
    for x in inputs:
        x.grad = None
    y = scan(*inputs)
    y.backward(torch.ones_like(y))


def times(scans: dict[str, Scan], inputs: tuple[Tensor, ...], rounds: int) -> dict[str, float]:
    """Seconds of a forward and backward pass of each."""
    runs = {name: partial(step, scan, inputs) for name, scan in scans.items()}
    return interleaved_seconds(runs, rounds)


def peak_memory(scan: Scan, inputs: tuple[Tensor, ...]) -> float:
    """Most memory that one forward and backward pass holds at a time, gradients included, MB."""
    _blocked_scan._WORKSPACE.buffers.clear()
    return peak_bytes(partial(step, scan, inputs)) / 1e6


def worst_error(delta: float) -> float:
    """Largest relative error of output and gradients against a float64 loop."""
    inputs = make_inputs(2, 192, 197, delta)
    exact = tuple(x.detach().double().requires_grad_() for x in inputs)
    y, expected = selective_scan(*inputs), selective_scan_reference(*exact)[0]
    assert isinstance(y, Tensor)
    pull = torch.randn_like(y)
    y.backward(pull)
    expected.backward(pull.double())
    pairs = [(y, expected), *((x.grad, e.grad) for x, e in zip(inputs, exact, strict=True))]
    return max(relative_error(a, b) for a, b in pairs if a is not None and b is not None)


def main(argv: list[str] | None = None) -> int:
    """Prints the table; the exit status says whether every target is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the first shape only, few rounds")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    report = Report()
    for shape, (slow_target, target) in list(TARGETS.items())[: 1 if args.quick else None]:
        inputs = make_inputs(*shape)
        found = times({"own": selective_scan, "mambapy": mambapy}, inputs, 5 if args.quick else 15)
        report.line(f"{shape} mambapy / own", found["mambapy"] / found["own"], target)
        report.note("    own, forward + backward, ms", found["own"] * 1e3)
        if slow_target is not None:
            found = times({"own": selective_scan, "slow": reference}, inputs, 5)
            ratio = found["slow"] / found["own"]
            report.line(f"{shape} mamba-ssm reference / own", ratio, slow_target)

    inputs = make_inputs(8, 192, 197)
    own, slow = peak_memory(selective_scan, inputs), peak_memory(reference, inputs)
    report.line("(8, 192, 197) peak extra memory, MB", own, 25.0, at_most=True)
    report.line("(8, 192, 197) memory, mamba-ssm reference / own", slow / own, 4.0)
    for delta in (0.1, 20.0):
        error = worst_error(delta)
        report.line(f"error against float64, delta up to {delta:g}", error, 1e-5, at_most=True)
    return report.status


if __name__ == "__main__":
    sys.exit(main())
