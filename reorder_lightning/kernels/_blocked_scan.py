"""The portable selective scan: blocked, recomputing, pure PyTorch.

The recurrence ``h[t] = exp(delta[t] A) * h[t-1] + delta[t] B[t] u[t]`` is run over blocks of a few
images and a few time steps, small enough that a block's states stay in the processor's cache:

- inside a block time is the outermost and the channel the innermost axis, so that one time step of
  all images is one contiguous piece of memory and one fused multiply-add;
- the exponential is ``exp2`` with ``log2(e)`` folded into ``A`` (``torch.exp`` is several times
  slower on CPU);
- the sums over states and channels are batched matrix products;
- only the state at the start of each block is kept for the backward pass, which recomputes the
  rest. Exponents are never accumulated over time, so nothing overflows, however large ``delta``.
"""

import math
import threading
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

_LOG2_E = 1.0 / math.log(2.0)

# Measured on CPU: a step of fewer than 2**15 elements isn't shared between threads by PyTorch, and
# blocks of 2**19 elements (2 MiB in float32) keep a backward pass's four blocks in the cache.
_STEP_ELEMENTS = 2**16
_BLOCK_ELEMENTS = 2**19
# On accelerators the launch of a step costs more than its work.
_ACCELERATOR_FACTOR = 64


class _Workspace(threading.local):
    """Buffers that a thread reuses from call to call: allocating them anew costs page faults.

    One buffer for each role, of one block at most, so a thread holds some 8 MiB however long the
    sequences are that it has seen. A block that is larger than the standard (one step of a very
    wide model) isn't kept.
    """

    def __init__(self) -> None:
        self.buffers: dict[tuple[str, torch.device, torch.dtype], Tensor] = {}

    def take(self, role: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Uninitialised memory of a shape; the next call for the same role takes it back."""
        numel = math.prod(shape)
        if like.device.type != "cpu" or numel > 2 * _BLOCK_ELEMENTS:
            return like.new_empty(shape)
        key = (role, like.device, like.dtype)
        buffer = self.buffers.get(key)
        if buffer is None or buffer.numel() < numel:
            buffer = like.new_empty(numel)
            self.buffers[key] = buffer
        return buffer[:numel].view(*shape)


_WORKSPACE = _Workspace()


def block_sizes(batch: int, length: int, states: int, device: torch.device) -> tuple[int, int]:
    """Images and time steps in a block, for ``states`` state values per image.

    Args:
        batch: Images in the call; may be symbolic.
        length: Time steps; may be symbolic.
        states: Channels times state size.
        device: Where the scan runs.

    Returns:
        Images and steps, both at least 1.
    """
    factor = 1 if device.type == "cpu" else _ACCELERATOR_FACTOR
    step_elements, block_elements = _STEP_ELEMENTS * factor, _BLOCK_ELEMENTS * factor
    images = _at_least_one(torch.sym_min(batch, -(-step_elements // states)))
    steps = _at_least_one(torch.sym_min(length, block_elements // (images * states)))
    return images, steps


def softplus(x: Tensor) -> Tensor:
    """``log(1 + exp(x))``, accurate to the last bits for every ``x``.

    ``log1p(e) = 2 atanh(e / (2 + e))``: PyTorch vectorises ``atanh`` but not ``log1p``, which makes
    this seven times faster than ``torch.nn.functional.softplus`` on CPU.
    """
    e = x.abs().mul_(-_LOG2_E).exp2_()
    e.div_(e + 2.0)
    return e.atanh_().mul_(2.0).add_(x.clamp(min=0.0))


def _at_least_one(n: int | torch.SymInt) -> int:
    return cast(int, torch.sym_max(1, n))


class _Block:
    """Time-major inputs of a few images, and the buffers for their blocks of time steps.

    Shapes: ``u, dt, x (L, b, G, 1, H)``, ``b (L, b, G, N, 1)``, ``c (L, b, G, 1, N)``,
    ``a2 (G, N, H)``; ``D = G * H`` and ``x = dt * u``.
    """

    def __init__(
        self,
        u: Tensor,
        delta: Tensor,
        a2: Tensor,
        B: Tensor,
        C: Tensor,
        delta_bias: Tensor | None,
        delta_softplus: bool,
        steps: int,
    ) -> None:
        groups, state, channels = a2.shape
        batch, _, length = u.shape
        self.shape = (length, batch, groups, 1, channels)
        self.a2 = a2
        self.u = time_major(u, self.shape)
        raw = time_major(delta, self.shape)
        if delta_bias is not None:
            raw = raw + delta_bias.view(groups, 1, channels)
        self.raw = raw
        self.dt = softplus(raw) if delta_softplus else raw
        self.x = self.dt * self.u
        self.b = B.permute(3, 0, 1, 2).contiguous().unsqueeze(-1)
        self.c = C.permute(3, 0, 1, 2).contiguous().unsqueeze(-2)
        block = (steps, batch, groups, state, channels)
        self.decay = _WORKSPACE.take("decay", block, u)
        self.decays = self.decay.unbind(0)
        # One slot more: the state before the block's first step.
        self.h = _WORKSPACE.take("h", (steps + 1, *block[1:]), u)
        self.hs = self.h.unbind(0)

    def run(self, start: int, stop: int) -> Tensor:
        """States after the steps ``start`` to ``stop``; ``hs[0]`` holds the one before them."""
        n = stop - start
        decay = torch.mul(self.dt[start:stop], self.a2, out=self.decay[:n])
        torch.exp2(decay, out=decay)
        states = torch.mul(self.x[start:stop], self.b[start:stop], out=self.h[1 : n + 1])
        hs = self.hs
        for t, a in enumerate(self.decays[:n]):
            hs[t + 1].addcmul_(a, hs[t])
        return states


def time_major(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``(b, G * H, L)`` as contiguous ``(L, b, G, 1, H)``."""
    return x.permute(2, 0, 1).contiguous().view(shape)


def _channel_major(x: Tensor) -> Tensor:
    """``(L, b, G, 1, H)`` as a view ``(b, G * H, L)``."""
    return x.flatten(2).permute(1, 2, 0)


def _rows(x: Tensor) -> Tensor:
    """``(T, b, G, M, K)`` as a batch of matrices ``(T * b * G, M, K)``."""
    return x.flatten(0, 2)


def empty_like_channels_last(x: Tensor) -> Tensor:
    """Memory of ``(B, D, L)`` whose channels are innermost, as the layers around a scan want."""
    batch, channels, length = x.shape
    return x.new_empty(batch, length, channels).transpose(1, 2)


def _transposed_rates(A: Tensor, groups: int) -> Tensor:
    """``A (G * H, N)`` as contiguous ``(G, N, H)``, for ``exp2``."""
    return A.reshape(groups, -1, A.shape[1]).transpose(1, 2).mul(_LOG2_E).contiguous()


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
    """The scan's output, its last state, and the states that ``scan_backward`` starts from.

    Args:
        u: Input ``(B, D, L)``.
        delta: Step sizes ``(B, D, L)``.
        A: Rates ``(D, N)``.
        B: Input projection ``(B, G, N, L)``.
        C: Output projection ``(B, G, N, L)``.
        D: Skip weights ``(D,)``.
        delta_bias: Added to ``delta`` ``(D,)``.
        delta_softplus: Whether ``softplus`` is applied to ``delta`` after the bias.

    Returns:
        ``y (B, D, L)``, ``last_state (B, D, N)``, ``bounds (blocks, B, G, N, H)``.
    """
    batch, width, length = u.shape
    groups, state = B.shape[1], B.shape[2]
    channels = width // groups
    images, steps = block_sizes(batch, length, width * state, u.device)
    a2 = _transposed_rates(A, groups)
    bounds = u.new_empty(-(-length // steps), batch, groups, state, channels)
    last = u.new_empty(batch, groups, state, channels)
    y = empty_like_channels_last(u)
    for i in range(0, batch, images):
        part = slice(i, min(i + images, batch))
        block = _Block(
            u[part], delta[part], a2, B[part], C[part], delta_bias, delta_softplus, steps
        )
        out = torch.empty_like(block.u)
        block.h[0].zero_()
        for k, start in enumerate(range(0, length, steps)):
            stop = min(start + steps, length)
            bounds[k, part] = block.h[0]
            states = block.run(start, stop)
            torch.bmm(_rows(block.c[start:stop]), _rows(states), out=_rows(out[start:stop]))
            block.h[0].copy_(block.h[stop - start])
        if D is not None:
            out.addcmul_(block.u, D.view(groups, 1, channels))
        y[part] = _channel_major(out)
        last[part] = block.h[0]
    last = last.transpose(2, 3).reshape(batch, width, state).contiguous()
    return y, last, bounds


def scan_backward(
    dy: Tensor,
    dlast: Tensor | None,
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
    """Gradients of ``scan_forward``.

    Args:
        dy: Gradient of the output ``(B, D, L)``.
        dlast: Gradient of the last state ``(B, D, N)``, or None for zero.
        u: As in ``scan_forward``, like all further arguments.
        delta: Step sizes.
        A: Rates.
        B: Input projection.
        C: Output projection.
        D: Skip weights.
        delta_bias: Bias of ``delta``.
        delta_softplus: Whether ``softplus`` was applied.
        bounds: From ``scan_forward``.

    Returns:
        Gradients of ``u, delta, A, B, C, D, delta_bias``; those of ``D`` and ``delta_bias`` are
        computed whether or not these were given.
    """
    batch, width, length = u.shape
    groups, state = B.shape[1], B.shape[2]
    channels = width // groups
    images, steps = block_sizes(batch, length, width * state, u.device)
    a2 = _transposed_rates(A, groups)
    rates = A.reshape(groups, channels, state).transpose(1, 2).contiguous()
    du, ddelta = empty_like_channels_last(u), empty_like_channels_last(u)
    dA = torch.zeros_like(a2)
    dB, dC = torch.empty_like(B), torch.empty_like(C)
    dD, dbias = u.new_zeros(width), u.new_zeros(width)
    for i in range(0, batch, images):
        part = slice(i, min(i + images, batch))
        block = _Block(
            u[part], delta[part], a2, B[part], C[part], delta_bias, delta_softplus, steps
        )
        out = _BlockGradients(block, time_major(dy[part], block.shape), rates)
        if dlast is None:
            carry = u.new_zeros(out.g.shape[1:])
        else:
            carry = dlast[part].reshape(-1, groups, channels, state).transpose(2, 3).contiguous()
        for k in reversed(range(len(bounds))):
            start, stop = k * steps, min((k + 1) * steps, length)
            block.h[0].copy_(bounds[k, part])
            out.run(start, stop, carry)
        ddt = out.dx.mul(block.u).add_(out.ddt)
        if delta_softplus:
            ddt.mul_(torch.sigmoid(block.raw))
        dx_u = out.dx.mul_(block.dt)
        if D is not None:
            dx_u.addcmul_(out.dy, D.view(groups, 1, channels))
        du[part] = _channel_major(dx_u)
        ddelta[part] = _channel_major(ddt)
        dB[part] = out.db.squeeze(-2).permute(1, 2, 3, 0)
        dC[part] = out.dc.squeeze(-2).permute(1, 2, 3, 0)
        dA += out.da
        dD += torch.mul(out.dy, block.u).sum((0, 1)).flatten()
        dbias += ddt.sum((0, 1)).flatten()
    dA = dA.transpose(1, 2).reshape(width, state).contiguous()
    return du, ddelta, dA, dB, dC, dD, dbias


class _BlockGradients:
    """Gradients of the time-major inputs of a ``_Block``, filled block by block from the end."""

    def __init__(self, block: _Block, dy: Tensor, rates: Tensor) -> None:
        length, batch, groups, _, _ = block.shape
        state = rates.shape[1]
        self.block, self.dy, self.rates = block, dy, rates
        self.g = _WORKSPACE.take("g", block.decay.shape, dy)
        self.gs = self.g.unbind(0)
        self.scratch = _WORKSPACE.take("scratch", block.decay.shape, dy)
        self.dx, self.ddt = torch.empty_like(dy), torch.empty_like(dy)
        self.db = dy.new_empty(length, batch, groups, 1, state)
        self.dc = dy.new_empty(length, batch, groups, 1, state)
        self.da = torch.zeros_like(rates)

    def run(self, start: int, stop: int, carry: Tensor) -> None:
        """Adds the steps ``start`` to ``stop``; ``carry`` is the later steps' pull on their state.

        ``carry`` is replaced by the pull of these steps on the state before them.
        """
        block, n = self.block, stop - start
        states = block.run(start, stop)
        dy = self.dy[start:stop]
        # g[t] = dL/dh[t] = C[t] dy[t] + decay[t+1] g[t+1]
        g = torch.mul(dy, block.c[start:stop].transpose(-1, -2), out=self.g[:n])
        gs, decays = self.gs, block.decays
        gs[n - 1].add_(carry)
        for t in range(n - 1, 0, -1):
            gs[t - 1].addcmul_(decays[t], gs[t])
        dc, db = _rows(self.dc[start:stop]), _rows(self.db[start:stop])
        torch.bmm(_rows(dy), _rows(states).transpose(1, 2), out=dc)
        torch.bmm(_rows(block.x[start:stop]), _rows(g).transpose(1, 2), out=db)
        torch.bmm(
            _rows(block.b[start:stop].transpose(-1, -2)), _rows(g), out=_rows(self.dx[start:stop])
        )
        # dL/d(delta[t] A) = g[t] * decay[t] * h[t-1]
        pull = block.decay[:n].mul_(g)
        carry.copy_(pull[0])
        pull.mul_(block.h[:n])
        scratch = torch.mul(pull, self.rates, out=self.scratch[:n])
        torch.sum(scratch, -2, keepdim=True, out=self.ddt[start:stop])
        self.da += pull.mul_(block.dt[start:stop]).sum((0, 1))
