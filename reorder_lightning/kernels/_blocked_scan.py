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

NAME = "PyTorch"
_LOG2_E = 1.0 / math.log(2.0)

# Measured on CPU: a step of fewer than 2**15 elements isn't shared between threads by PyTorch, and
# blocks of 2**20 elements (4 MiB in float32) are the fastest: smaller ones pay for more calls, and
# of larger ones the three of a backward pass leave the cache.
_STEP_ELEMENTS = 2**16
_BLOCK_ELEMENTS = 2**20
# On accelerators the launch of a step costs more than its work.
_ACCELERATOR_FACTOR = 64


class _Workspace(threading.local):
    """Buffers that a thread reuses from call to call: allocating them anew costs page faults.

    One buffer for each role, of one block at most, so a thread holds some 20 MiB however long the
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
            with torch.inference_mode(False):  # what validation allocates, training writes to
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
    parts = -(-batch // -(-step_elements // states))
    images = _at_least_one(-(-batch // _at_least_one(parts)))  # parts of equal size
    steps = _at_least_one(torch.sym_min(length, block_elements // (images * states)))
    return images, steps


def softplus(x: Tensor, out: Tensor) -> Tensor:
    """Writes ``log(1 + exp(x))``, accurate to the last bits for every ``x``, to ``out``.

    ``log1p(e) = 2 atanh(e / (2 + e))``: PyTorch vectorises ``atanh`` but not ``log1p``, which makes
    this seven times faster than ``torch.nn.functional.softplus`` on CPU.
    """
    e = torch.abs(x, out=out).mul_(-_LOG2_E).exp2_()
    e.div_(e + 2.0).atanh_().mul_(2.0)
    return e.add_(x.clamp(min=0.0))


def block_steps(batch: int, length: int, states: int, device: torch.device) -> int:
    """Time steps between two states in ``bounds``; see ``block_sizes``."""
    return block_sizes(batch, length, states, device)[1]


def _at_least_one(n: int | torch.SymInt) -> int:
    return cast(int, torch.sym_max(1, n))


class _Block:
    """Some images' inputs as time-major views, and buffers for a few of their time steps.

    Views: ``u, delta (L, b, G, 1, H)``, ``B (L, b, G, N, 1)``, ``C (L, b, G, 1, N)``. Buffers are
    contiguous, hold ``T`` steps and are filled by ``run``: ``u_, raw_, dt_, x_`` (``x = dt * u``),
    ``b_, c_``, ``decay (T, b, G, N, H)`` and ``h (T + 1, b, G, N, H)``.
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
        groups, _, channels = a2.shape
        batch = len(u)
        self.groups, self.steps, self.softplus = groups, steps, delta_softplus
        self.a2 = a2
        self.bias = None if delta_bias is None else delta_bias.view(groups, 1, channels)
        self.u, self.delta = time_major(u, groups), time_major(delta, groups)
        self.B, self.C = B.permute(3, 0, 1, 2).unsqueeze(-1), C.permute(3, 0, 1, 2).unsqueeze(-2)
        self.u_, self.raw_, self.x_ = self.row("u"), self.row("raw"), self.row("x")
        self.dt_ = self.row("dt") if delta_softplus else self.raw_
        self.b_ = _WORKSPACE.take("b", (steps, *self.B.shape[1:]), u)
        self.c_ = _WORKSPACE.take("c", (steps, *self.C.shape[1:]), u)
        self.decay = _WORKSPACE.take("decay", (steps, batch, *a2.shape), u)
        self.decays = self.decay.unbind(0)
        # One slot more: the state before the block's first step.
        self.h = _WORKSPACE.take("h", (steps + 1, batch, *a2.shape), u)
        self.hs = self.h.unbind(0)

    def row(self, role: str) -> Tensor:
        """A buffer ``(T, b, G, 1, H)``."""
        return _WORKSPACE.take(role, (self.steps, *self.u.shape[1:]), self.u)

    def run(self, start: int, stop: int) -> Tensor:
        """States after the steps ``start`` to ``stop``; ``h[0]`` holds the one before them."""
        n = stop - start
        u, dt = self.u_[:n].copy_(self.u[start:stop]), self.dt_[:n]
        raw = self.raw_[:n].copy_(self.delta[start:stop])
        if self.bias is not None:
            raw.add_(self.bias)
        if self.softplus:
            softplus(raw, out=dt)
        x = torch.mul(dt, u, out=self.x_[:n])
        b = self.b_[:n].copy_(self.B[start:stop])
        self.c_[:n].copy_(self.C[start:stop])
        decay = torch.mul(dt, self.a2, out=self.decay[:n])
        torch.exp2(decay, out=decay)
        states = torch.mul(x, b, out=self.h[1 : n + 1])
        hs = self.hs
        for t, a in enumerate(self.decays[:n]):
            hs[t + 1].addcmul_(a, hs[t])
        return states


def time_major(x: Tensor, groups: int) -> Tensor:
    """``(b, G * H, L)`` as a view ``(L, b, G, 1, H)``."""
    batch, width, length = x.shape
    return x.permute(2, 0, 1).view(length, batch, groups, 1, width // groups)


def _rows(x: Tensor) -> Tensor:
    """``(T, b, G, M, K)`` as a batch of matrices ``(T * b * G, M, K)``."""
    return x.flatten(0, 2)


def empty_like_channels_last(x: Tensor) -> Tensor:
    """Memory of ``(B, D, L)`` whose channels are innermost, as the layers around a scan want."""
    batch, channels, length = x.shape
    return x.new_empty(batch, length, channels).transpose(1, 2)


def _transposed_rates(A: Tensor, groups: int) -> Tensor:
    """``A (G * H, N)`` as contiguous ``(G, N, H)``."""
    return A.reshape(groups, -1, A.shape[1]).transpose(1, 2).contiguous()


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
    images, steps = block_sizes(batch, length, width * state, u.device)
    a2 = _transposed_rates(A, groups) * _LOG2_E
    bounds = u.new_empty(-(-length // steps), batch, *a2.shape)
    last = u.new_empty(batch, *a2.shape)
    y = empty_like_channels_last(u)
    for i in range(0, batch, images):
        part = slice(i, min(i + images, batch))
        block = _Block(
            u[part], delta[part], a2, B[part], C[part], delta_bias, delta_softplus, steps
        )
        out, ys = block.row("y"), time_major(y[part], groups)
        block.h[0].zero_()
        for k, start in enumerate(range(0, length, steps)):
            stop = min(start + steps, length)
            n = stop - start
            bounds[k, part] = block.h[0]
            states = block.run(start, stop)
            torch.bmm(_rows(block.c_[:n]), _rows(states), out=_rows(out[:n]))
            if D is not None:
                out[:n].addcmul_(block.u_[:n], D.view(groups, 1, -1))
            ys[start:stop] = out[:n]
            block.h[0].copy_(block.h[n])
        last[part] = block.h[0]
    last = last.transpose(2, 3).reshape(batch, width, state).contiguous()
    return y, last, bounds


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
    """Gradients of ``scan_forward``.

    Args:
        dy: Gradient of the output ``(B, D, L)``.
        dlast: Gradient of the last state ``(B, D, N)``.
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
        Gradients of ``u, delta, A, B, C, D, delta_bias``; zeros for a missing ``D`` or
        ``delta_bias``.
    """
    batch, width, length = u.shape
    groups, state = B.shape[1], B.shape[2]
    images, steps = block_sizes(batch, length, width * state, u.device)
    rates = _transposed_rates(A, groups)
    a2 = rates * _LOG2_E
    out = _Gradients(u, B, C, D, rates)
    for i in range(0, batch, images):
        part = slice(i, min(i + images, batch))
        block = _Block(
            u[part], delta[part], a2, B[part], C[part], delta_bias, delta_softplus, steps
        )
        pull = _transposed_state(dlast[part], groups)
        out.select(block, part, dy)
        for k in reversed(range(len(bounds))):
            start, stop = k * steps, min((k + 1) * steps, length)
            block.h[0].copy_(bounds[k, part])
            out.run(start, stop, pull)
    dA = out.dA.transpose(1, 2).reshape(width, state).contiguous()
    return out.du, out.ddelta, dA, out.dB, out.dC, out.dD.flatten(), out.dbias.flatten()


def _transposed_state(x: Tensor, groups: int) -> Tensor:
    """``(b, G * H, N)`` as contiguous ``(b, G, N, H)``, never the same memory."""
    x = x.unflatten(1, (groups, -1)).transpose(2, 3)
    return x.clone(memory_format=torch.contiguous_format)


class _Gradients:
    """Gradients of the scan's arguments, filled block by block from the end of the sequence."""

    def __init__(self, u: Tensor, B: Tensor, C: Tensor, D: Tensor | None, rates: Tensor) -> None:
        groups, _, channels = rates.shape
        self.du, self.ddelta = empty_like_channels_last(u), empty_like_channels_last(u)
        self.dB, self.dC = torch.empty_like(B), torch.empty_like(C)
        self.dA = torch.zeros_like(rates)
        self.dD, self.dbias = u.new_zeros(groups, 1, channels), u.new_zeros(groups, 1, channels)
        self.rates = rates
        self.D = None if D is None else D.view(groups, 1, channels)

    def select(self, block: _Block, part: slice, dy: Tensor) -> None:
        """Works on the images ``part``, whose inputs are in ``block``, from now on."""
        self.block, groups = block, block.groups
        self.dy = time_major(dy[part], groups)
        self.du_view = time_major(self.du[part], groups)
        self.ddelta_view = time_major(self.ddelta[part], groups)
        self.dB_view = self.dB[part].permute(3, 0, 1, 2).unsqueeze(-2)
        self.dC_view = self.dC[part].permute(3, 0, 1, 2).unsqueeze(-2)
        self.dy_, self.dx_, self.ddt_ = block.row("dy"), block.row("dx"), block.row("ddt")
        self.g = _WORKSPACE.take("g", block.decay.shape, dy)
        self.gs = self.g.unbind(0)
        self.dbc = _WORKSPACE.take("dbc", block.c_.shape, dy)

    def run(self, start: int, stop: int, pull: Tensor) -> None:
        """Adds the steps ``start`` to ``stop``.

        Args:
            start: First step.
            stop: Step after the last.
            pull: Derivative of the loss by the state after these steps, through the later ones
                only. Replaced by that of the state before these steps.
        """
        block, n = self.block, stop - start
        states = block.run(start, stop)
        dy = self.dy_[:n].copy_(self.dy[start:stop])
        # g[t] = dL/dh[t] = C[t] dy[t] + decay[t+1] g[t+1]
        g = torch.mul(dy, block.c_[:n].transpose(-1, -2), out=self.g[:n])
        gs, decays = self.gs, block.decays
        gs[n - 1].add_(pull)
        for t in range(n - 1, 0, -1):
            gs[t - 1].addcmul_(decays[t], gs[t])
        dbc = self.dbc[:n]
        torch.bmm(_rows(dy), _rows(states).transpose(1, 2), out=_rows(dbc))
        self.dC_view[start:stop] = dbc
        torch.bmm(_rows(block.x_[:n]), _rows(g).transpose(1, 2), out=_rows(dbc))
        self.dB_view[start:stop] = dbc
        dx = self.dx_[:n]
        torch.bmm(_rows(block.b_[:n].transpose(-1, -2)), _rows(g), out=_rows(dx))
        # dL/d(delta[t] A) = g[t] * decay[t] * h[t-1]
        exponent = block.decay[:n].mul_(g)
        pull.copy_(exponent[0])
        exponent.mul_(block.h[:n])
        ddt = self.ddt_[:n]
        scratch = torch.mul(exponent, self.rates, out=states)  # the states are done with
        torch.sum(scratch, -2, keepdim=True, out=ddt)
        self.dA += exponent.mul_(block.dt_[:n]).sum((0, 1))
        self._finish(start, stop, dx, ddt)

    def _finish(self, start: int, stop: int, dx: Tensor, ddt: Tensor) -> None:
        """From the gradients of ``x`` and ``dt`` to those of ``u, delta, D`` and the bias."""
        block, n = self.block, stop - start
        u, dy = block.u_[:n], self.dy_[:n]
        ddt.addcmul_(dx, u)
        if block.softplus:
            ddt.mul_(block.raw_[:n].sigmoid_())
        self.ddelta_view[start:stop] = ddt
        if block.bias is not None:
            self.dbias += ddt.sum((0, 1))
        dx.mul_(block.dt_[:n])
        if self.D is not None:
            dx.addcmul_(dy, self.D)
            self.dD += dy.mul_(u).sum((0, 1))
        self.du_view[start:stop] = dx
