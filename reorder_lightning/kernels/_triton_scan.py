"""The selective scan as Triton kernels, for CUDA devices without mamba-ssm.

Blocked and recomputing like the portable path: a program owns a few channels of one image and walks
over blocks of time steps, whose states live in registers only; the states at the starts of the
blocks are kept for the backward pass, which recomputes the rest. Inside a block, time is scanned in
parallel. Products of decays are at most 1, so nothing overflows for negative rates. Sums over
channels are written per program and added up afterwards, so results are deterministic.
"""

# Triton reads the annotations of its kernels itself and knows few.
# ruff: noqa: ANN001, ANN202
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
# mypy: allow-untyped-decorators

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

NAME = "Triton"
_LN_2 = math.log(2.0)
# A program's tile is STEPS x N x CHANNELS values; for a state of 16 that's 32 a thread.
STEPS = 16
_TILE = 4096


@triton.jit
def _combine(decay1, state1, decay2, state2):
    """Two steps as one: first ``(decay1, state1)``, then ``(decay2, state2)``."""
    return decay1 * decay2, decay2 * state1 + state2


@triton.jit
def _softplus(x):
    """``log(1 + exp(x))``; the quotient corrects the rounding of ``1 + e``."""
    e = tl.exp(-tl.abs(x))
    one_plus = 1.0 + e
    log1p = tl.where(one_plus == 1.0, e, tl.log(one_plus) * (e / (one_plus - 1.0)))
    return tl.maximum(x, 0.0) + log1p


@triton.jit
def _step_sizes(delta, places, valid, bias, SOFTPLUS: tl.constexpr):
    """Raw and final step sizes of a block, ``(T, channels)``; 0 outside, which changes nothing."""
    raw = tl.load(delta + places, mask=valid, other=0.0) + bias[None, :]
    dt = _softplus(raw) if SOFTPLUS else raw
    return raw, tl.where(valid, dt, 0.0)


@triton.jit
def _forward_kernel(
    u, delta, rates, B, C, D, delta_bias,
    y, bounds, last,
    batch, length, groups, state, channels,
    SOFTPLUS: tl.constexpr, T: tl.constexpr, N: tl.constexpr, H: tl.constexpr,
) -> None:  # fmt: skip
    """One image, group and ``H`` channels.

    Layouts: ``u, delta, y (B, L, G, H)``, ``B, C (B, L, G, N)``, ``rates (G, N, H)`` times log2 e,
    ``D, delta_bias (G, H)``, ``bounds (blocks, B, G, N, H)``, ``last (B, G, N, H)``.
    """
    image, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    d = tl.program_id(2) * H + tl.arange(0, H)
    n, steps = tl.arange(0, N), tl.arange(0, T)
    in_d, in_n = d < channels, n < state
    in_nd = in_n[:, None] & in_d[None, :]
    nd = n[:, None] * channels + d[None, :]
    rate = tl.load(rates + group * state * channels + nd, mask=in_nd, other=0.0)
    skip = tl.load(D + group * channels + d, mask=in_d, other=0.0)
    bias = tl.load(delta_bias + group * channels + d, mask=in_d, other=0.0)
    h = tl.zeros((N, H), dtype=tl.float32)
    for block in range(tl.cdiv(length, T)):
        at = ((block * batch + image) * groups + group) * state * channels
        tl.store(bounds + at + nd, h, mask=in_nd)
        t = block * T + steps
        row = (image * length + t) * groups + group
        td, tn = row[:, None] * channels + d[None, :], row[:, None] * state + n[None, :]
        in_td = (t < length)[:, None] & in_d[None, :]
        in_tn = (t < length)[:, None] & in_n[None, :]
        _, dt = _step_sizes(delta, td, in_td, bias, SOFTPLUS)
        u_t = tl.load(u + td, mask=in_td, other=0.0)
        b_t = tl.load(B + tn, mask=in_tn, other=0.0)
        c_t = tl.load(C + tn, mask=in_tn, other=0.0)
        decay = tl.exp2(dt[:, None, :] * rate[None, :, :])
        product, states = tl.associative_scan(
            (decay, (dt * u_t)[:, None, :] * b_t[:, :, None]), 0, _combine
        )
        states += product * h[None, :, :]
        y_t = tl.sum(states * c_t[:, :, None], axis=1) + skip[None, :] * u_t
        tl.store(y + td, y_t, mask=in_td)
        h = tl.sum(tl.where((steps == T - 1)[:, None, None], states, 0.0), axis=0)
    tl.store(last + (image * groups + group) * state * channels + nd, h, mask=in_nd)


@triton.jit
def _backward_kernel(
    u, delta, rates, B, C, D, delta_bias,
    dy, pull_on_last, bounds,
    du, ddelta, drates, dB, dC,
    batch, length, groups, state, channels,
    SOFTPLUS: tl.constexpr, T: tl.constexpr, N: tl.constexpr, H: tl.constexpr,
) -> None:  # fmt: skip
    """The same program in reverse.

    Layouts as in ``_forward_kernel``; ``drates (B, G, N, H)`` is the gradient of ``exp``'s rates,
    ``dB, dC (programs, B, L, G, N)``.
    """
    image, group, program = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    d = program * H + tl.arange(0, H)
    n, steps = tl.arange(0, N), tl.arange(0, T)
    in_d, in_n = d < channels, n < state
    in_nd = in_n[:, None] & in_d[None, :]
    nd = n[:, None] * channels + d[None, :]
    rate = tl.load(rates + group * state * channels + nd, mask=in_nd, other=0.0)
    skip = tl.load(D + group * channels + d, mask=in_d, other=0.0)
    bias = tl.load(delta_bias + group * channels + d, mask=in_d, other=0.0)
    own = (image * groups + group) * state * channels
    pull = tl.load(pull_on_last + own + nd, mask=in_nd, other=0.0)
    drate = tl.zeros((N, H), dtype=tl.float32)
    blocks = tl.cdiv(length, T)
    for i in range(blocks):
        block = blocks - 1 - i
        at = ((block * batch + image) * groups + group) * state * channels
        h = tl.load(bounds + at + nd, mask=in_nd, other=0.0)
        t = block * T + steps
        row = (image * length + t) * groups + group
        td, tn = row[:, None] * channels + d[None, :], row[:, None] * state + n[None, :]
        in_td = (t < length)[:, None] & in_d[None, :]
        in_tn = (t < length)[:, None] & in_n[None, :]
        raw, dt = _step_sizes(delta, td, in_td, bias, SOFTPLUS)
        u_t = tl.load(u + td, mask=in_td, other=0.0)
        b_t = tl.load(B + tn, mask=in_tn, other=0.0)
        c_t = tl.load(C + tn, mask=in_tn, other=0.0)
        dy_t = tl.load(dy + td, mask=in_td, other=0.0)
        decay = tl.exp2(dt[:, None, :] * rate[None, :, :])
        x = (dt * u_t)[:, None, :] * b_t[:, :, None]
        # the states before each step: a scan of the steps one earlier
        before = groups * channels
        in_before = in_td & (steps > 0)[:, None]
        _, dt_before = _step_sizes(delta, td - before, in_before, bias, SOFTPLUS)
        u_before = tl.load(u + td - before, mask=in_before, other=0.0)
        in_b_before = in_tn & (steps > 0)[:, None]
        b_before = tl.load(B + tn - groups * state, mask=in_b_before, other=0.0)
        product, previous = tl.associative_scan(
            (
                tl.exp2(dt_before[:, None, :] * rate[None, :, :]),
                (dt_before * u_before)[:, None, :] * b_before[:, :, None],
            ),
            0,
            _combine,
        )
        previous += product * h[None, :, :]
        # g[t] = C[t] dy[t] + decay[t + 1] g[t + 1]; `pull` holds the last product already
        in_after = ((t + 1 < length) & (steps < T - 1))[:, None] & in_d[None, :]
        _, dt_after = _step_sizes(delta, td + before, in_after, bias, SOFTPLUS)
        product, g = tl.associative_scan(
            (
                tl.exp2(dt_after[:, None, :] * rate[None, :, :]),
                c_t[:, :, None] * dy_t[:, None, :],
            ),
            0,
            _combine,
            reverse=True,
        )
        g += product * pull[None, :, :]
        part = program.to(tl.int64) * batch * length * groups * state
        states = decay * previous + x
        tl.store(dC + part + tn, tl.sum(states * dy_t[:, None, :], axis=2), mask=in_tn)
        tl.store(dB + part + tn, tl.sum(g * (dt * u_t)[:, None, :], axis=2), mask=in_tn)
        dx = tl.sum(g * b_t[:, :, None], axis=1)
        g *= decay
        pull = tl.sum(tl.where((steps == 0)[:, None, None], g, 0.0), axis=0)
        g *= previous
        ddt = tl.sum(g * rate[None, :, :], axis=1) * 0.6931471805599453 + dx * u_t
        drate += tl.sum(g * dt[:, None, :], axis=0)
        if SOFTPLUS:
            ddt *= 1.0 / (1.0 + tl.exp(-raw))
        tl.store(ddelta + td, ddt, mask=in_td)
        tl.store(du + td, dx * dt + skip[None, :] * dy_t, mask=in_td)
    tl.store(drates + own + nd, drate, mask=in_nd)


def block_steps(batch: int, length: int, states: int, device: torch.device) -> int:
    """Time steps between two states in ``bounds``."""
    return STEPS


class _Arguments:
    """The scan's arguments in the kernels' layouts."""

    def __init__(
        self,
        u: Tensor,
        delta: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None,
        delta_bias: Tensor | None,
        delta_softplus: bool,
    ) -> None:
        batch, width, length = u.shape
        groups, state = B.shape[1], B.shape[2]
        channels = width // groups
        self.sizes = (batch, length, groups, state, channels)
        rates = A.reshape(groups, channels, state).transpose(1, 2) / _LN_2
        zeros = u.new_zeros(width)
        self.tensors = (
            u.transpose(1, 2).contiguous(),
            delta.transpose(1, 2).contiguous(),
            rates.contiguous(),
            B.permute(0, 3, 1, 2).contiguous(),
            C.permute(0, 3, 1, 2).contiguous(),
            zeros if D is None else D.contiguous(),
            zeros if delta_bias is None else delta_bias.contiguous(),
        )
        padded_state = triton.next_power_of_2(state)
        tile = max(1, _TILE // (STEPS * padded_state))
        tile = min(tile, triton.next_power_of_2(channels))
        self.programs = triton.cdiv(channels, tile)
        self.grid = (batch, groups, self.programs)
        self.constants = {"SOFTPLUS": delta_softplus, "T": STEPS, "N": padded_state, "H": tile}


def scan_forward(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Same arguments and results as the portable ``scan_forward``, in float32 only."""
    args = _Arguments(u, delta, A, B, C, D, delta_bias, delta_softplus)
    batch, length, groups, state, channels = args.sizes
    y = torch.empty_like(args.tensors[0])
    bounds = u.new_empty(-(-length // STEPS), batch, groups, state, channels)
    last = u.new_empty(batch, groups, state, channels)
    if batch:
        with torch.cuda.device_of(u):  # Triton launches on the current device
            _forward_kernel[args.grid](
                *args.tensors, y, bounds, last, *args.sizes, **args.constants
            )
    last = last.transpose(2, 3).reshape(batch, groups * channels, state).contiguous()
    return y.transpose(1, 2), last, bounds


def scan_backward(
    dy: Tensor,
    dlast: Tensor,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
    bounds: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Same arguments and results as the portable ``scan_backward``, in float32 only."""
    args = _Arguments(u, delta, A, B, C, D, delta_bias, delta_softplus)
    batch, length, groups, state, channels = args.sizes
    width = groups * channels
    dy = dy.transpose(1, 2).contiguous()
    pull = dlast.reshape(batch, groups, channels, state).transpose(2, 3).contiguous()
    du, ddelta = torch.empty_like(dy), torch.empty_like(dy)
    drates = torch.empty_like(pull)
    dB = u.new_empty(args.programs, batch, length, groups, state)
    dC = torch.empty_like(dB)
    if batch:
        with torch.cuda.device_of(u):
            _backward_kernel[args.grid](
                *args.tensors, dy, pull, bounds, du, ddelta, drates, dB, dC,
                *args.sizes, **args.constants,
            )  # fmt: skip
    dA = drates.sum(0).transpose(1, 2).reshape(width, state)
    dD, dbias = (dy * args.tensors[0]).sum((0, 1)), ddelta.sum((0, 1))
    return (
        du.transpose(1, 2),
        ddelta.transpose(1, 2),
        dA.contiguous(),
        torch.empty_like(B).copy_(dB.sum(0).permute(0, 2, 3, 1)),
        torch.empty_like(C).copy_(dC.sum(0).permute(0, 2, 3, 1)),
        dD if D is not None else torch.zeros_like(dD),
        dbias if delta_bias is not None else torch.zeros_like(dbias),
    )
