"""Selective scan, the recurrence of Mamba.

Source: A. Gu and T. Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023
(arXiv 2312.00752), section 3 and algorithm 2. Arguments and meaning are those of the function of
the same name in the mamba-ssm package.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from reorder_lightning.kernels._backends import announce, mamba_ssm_scan, scan_module
from reorder_lightning.kernels._blocked_scan import empty_like_channels_last
from reorder_lightning.kernels._scan_operator import scan_by_operator


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Runs a state space model whose step size and projections depend on the input.

    For each image and channel :math:`d` with a state of :math:`N` values,

    .. math::
        h_t = e^{\Delta_t A_d} \odot h_{t-1} + \Delta_t u_t B_t, \qquad
        y_t = C_t^\top h_t + D_d u_t, \qquad h_0 = 0,

    where :math:`\Delta` is ``delta``, plus ``delta_bias`` and through a softplus where asked for.
    The output is multiplied by ``silu(z)`` if ``z`` is given.

    Several scans with their own ``B`` and ``C`` go through one call as groups: concatenate their
    channels in ``u``, ``delta`` and ``A``, and stack their projections along ``G``.

    The computation runs in float32 (in float64 if any input is float64), also under autocast, and
    keeps about one state of ``B * D * N`` values per 4 MiB block for the backward pass instead of
    one per time step. Gradients reach every tensor, the last state included; there are no second
    derivatives.

    Args:
        u: Input ``(B, D, L)``.
        delta: Step sizes ``(B, D, L)``.
        A: Rates ``(D, N)``, real and usually negative.
        B: Input projection ``(B, N, L)``, or ``(B, G, N, L)``: channels ``g * D / G`` to
            ``(g + 1) * D / G`` use group ``g``.
        C: Output projection, shaped like ``B``.
        D: Skip weights ``(D,)``.
        z: Gate ``(B, D, L)``.
        delta_bias: Bias ``(D,)`` of ``delta``.
        delta_softplus: Apply ``softplus`` to ``delta`` after the bias.
        return_last_state: Also return the state after the last step.

    Returns:
        ``y (B, D, L)`` in the dtype of ``u``, with channels innermost in memory; with
        ``return_last_state`` also the state ``(B, D, N)`` in the dtype of the computation.

    Raises:
        ValueError: If shapes don't fit each other, or an input is complex.

    Example:
        >>> import torch
        >>> u, delta = torch.randn(2, 8, 16), torch.rand(2, 8, 16)
        >>> B, C = torch.randn(2, 4, 16), torch.randn(2, 4, 16)
        >>> selective_scan(u, delta, -torch.rand(8, 4), B, C).shape
        torch.Size([2, 8, 16])
    """
    B = B.unsqueeze(1) if B.ndim == 3 else B
    C = C.unsqueeze(1) if C.ndim == 3 else C
    _check(u, delta, A, B, C, D, z, delta_bias)
    dtype = torch.float32
    for x in (u, delta, A, B, C, D, z, delta_bias):
        if x is not None and x.dtype == torch.float64:
            dtype = torch.float64

    args = (u.to(dtype), delta.to(dtype), A.to(dtype), B.to(dtype), C.to(dtype), _cast(D, dtype))
    fused = _fused_scan(args[0], return_last_state)
    if fused is not None:
        announce(u.device.type, "mamba-ssm")
        with torch.autocast(u.device.type, enabled=False):
            out = fused(
                *args, _cast(z, dtype), _cast(delta_bias, dtype), delta_softplus, return_last_state
            )
        return (out[0].to(u.dtype), out[1]) if return_last_state else out.to(u.dtype)
    if torch.compiler.is_compiling() and torch.onnx.is_in_onnx_export():
        y, last_state = scan_by_operator(*args, _cast(delta_bias, dtype), delta_softplus)
    else:
        y, last_state, _ = _scan(*args, _cast(delta_bias, dtype), delta_softplus)
    if z is not None:
        y = y * F.silu(z.to(dtype))
    y = y.to(u.dtype)
    return (y, last_state) if return_last_state else y


def _cast(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if x is None else x.to(dtype)


def _fused_scan(u: Tensor, return_last_state: bool) -> Callable[..., Any] | None:
    """mamba-ssm's kernel where it can stand in for our op.

    It is one op to eager mode only, takes no float64, and gives no gradient of the last state.
    """
    if u.device.type != "cuda" or u.dtype != torch.float32 or torch.compiler.is_compiling():
        return None
    if u.numel() == 0 or (return_last_state and torch.is_grad_enabled()):
        return None
    return mamba_ssm_scan()


def _check(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
) -> None:
    if u.ndim != 3:
        raise ValueError(f"Expected argument `u` to have shape (B, D, L) but got {tuple(u.shape)}.")
    batch, width, length = u.shape
    if A.ndim != 2 or A.shape[0] != width:
        raise ValueError(
            f"Expected argument `A` to have shape (D, N) with D = {width} but got {tuple(A.shape)}."
        )
    groups = B.shape[1] if B.ndim == 4 else 1
    if groups < 1 or width % groups:
        raise ValueError(
            f"Expected the number of groups in argument `B`, {groups}, to divide the {width} "
            "channels of `u`."
        )
    projection = (batch, groups, A.shape[1], length)
    expected = {
        "delta": (delta, (batch, width, length)),
        "B": (B, projection),
        "C": (C, projection),
        "D": (D, (width,)),
        "z": (z, (batch, width, length)),
        "delta_bias": (delta_bias, (width,)),
    }
    for name, (x, shape) in expected.items():
        if x is not None and x.shape != shape:
            raise ValueError(
                f"Expected argument `{name}` to have shape {tuple(shape)} but got {tuple(x.shape)}."
            )
    if A.is_complex() or B.is_complex() or C.is_complex():
        raise ValueError("Expected real arguments `A`, `B`, `C` but got a complex one.")


@torch.library.custom_op("reorder_lightning::selective_scan", mutates_args=())
def _scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output ``(B, D, L)``, last state ``(B, D, N)``, states at the starts of the blocks."""
    with torch.autocast(u.device.type, enabled=False):
        module = scan_module(u)
        announce(u.device.type, module.NAME)
        result: tuple[Tensor, Tensor, Tensor] = module.scan_forward(
            u, delta, A, B, C, D, delta_bias, delta_softplus
        )
        return result


@_scan.register_fake
def _(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, width, length = u.shape
    _, groups, state, _ = B.shape
    steps = scan_module(u).block_steps(batch, length, width * state, u.device)
    bounds = u.new_empty(-(-length // steps), batch, groups, state, width // groups)
    return empty_like_channels_last(u), u.new_empty(batch, width, state), bounds


@torch.library.custom_op("reorder_lightning::selective_scan_backward", mutates_args=())
def _scan_backward(
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
    """Gradients of ``u, delta, A, B, C, D, delta_bias``."""
    with torch.autocast(u.device.type, enabled=False):
        result: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
        result = scan_module(u).scan_backward(
            dy, dlast, u, delta, A, B, C, D, delta_bias, delta_softplus, bounds
        )
        return result


@_scan_backward.register_fake
def _(
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
    width = u.shape[1]
    return (
        empty_like_channels_last(u),
        empty_like_channels_last(u),
        A.new_empty(A.shape),
        torch.empty_like(B),
        torch.empty_like(C),
        u.new_empty(width),
        u.new_empty(width),
    )


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.delta_softplus = inputs
    ctx.save_for_backward(*tensors, output[2])


def _backward(ctx: Any, dy: Tensor, dlast: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, bounds = ctx.saved_tensors
    grads = _scan_backward(dy, dlast, *tensors, ctx.delta_softplus, bounds)
    given = zip(grads, tensors, strict=True)
    return (*(g if x is not None else None for g, x in given), None)


def _refuse_double_backward(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(
        "selective_scan has no second derivatives. Call backward without create_graph=True, or "
        "compute gradient penalties on a model without a scan."
    )


_scan.register_autograd(_backward, setup_context=_save_inputs)
_scan_backward.register_autograd(_refuse_double_backward)
