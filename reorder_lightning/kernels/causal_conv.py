"""Short depthwise convolution that looks back in time only, as in front of Mamba's scan."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    r"""Convolves every channel with its own few taps over the present and the past.

    .. math:: y_{d,t} = b_d + \sum_{k=0}^{K-1} w_{d,k}\, x_{d,\, t-K+1+k}

    with zeros before the first time step. On CPU this is ``K`` shifted multiply-adds over channels
    that are innermost in memory, which is several times faster than ``conv1d`` with as many groups
    as channels; elsewhere it is that ``conv1d``.

    Args:
        x: Input ``(B, D, L)``; fastest on CPU where it is a transposed view of ``(B, L, D)``.
        weight: Taps ``(D, K)``, the present one last.
        bias: Bias ``(D,)``.

    Returns:
        ``(B, D, L)`` in the dtype of ``x``; the sums are taken in the widest dtype of the inputs.

    Raises:
        ValueError: If shapes don't fit each other.

    Example:
        >>> import torch
        >>> causal_conv1d(torch.ones(1, 1, 4), torch.tensor([[1.0, 10.0]]))
        tensor([[[10., 11., 11., 11.]]])
    """
    if x.ndim != 3:
        raise ValueError(f"Expected argument `x` to have shape (B, D, L) but got {tuple(x.shape)}.")
    width = x.shape[1]
    if weight.ndim != 2 or weight.shape[0] != width:
        raise ValueError(
            f"Expected argument `weight` to have shape (D, K) with D = {width} but got "
            f"{tuple(weight.shape)}."
        )
    if bias is not None and bias.shape != (width,):
        raise ValueError(
            f"Expected argument `bias` to have shape ({width},) but got {tuple(bias.shape)}."
        )
    if x.device.type != "cpu":
        past = weight.shape[1] - 1
        return F.conv1d(F.pad(x, (past, 0)), weight.unsqueeze(1), bias, groups=width).to(x.dtype)
    dtype = torch.promote_types(x.dtype, weight.dtype)
    tokens, taps = x.transpose(1, 2).to(dtype), weight.t().to(dtype)
    bias = taps.new_zeros(width) if bias is None else bias.to(dtype)
    if torch.compiler.is_compiling():  # the compiler fuses the shifts, and ONNX knows them
        y = _shifted(tokens, taps, bias)
    else:
        y = _ShiftedTaps.apply(tokens, taps, bias)
    return y.transpose(1, 2).to(x.dtype)


def _shifted(x: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    """``x (B, L, D)``, ``taps (K, D)``, ``bias (D,)`` to ``(B, L, D)``, out of place."""
    past, length = len(taps) - 1, x.shape[1]
    padded = F.pad(x, (0, 0, past, 0))
    y = bias.expand_as(x)
    for k, tap in enumerate(taps.unbind()):
        y = torch.addcmul(y, padded[:, k : k + length], tap)
    return y


class _ShiftedTaps(torch.autograd.Function):
    """The same, in place on one output, and with a backward that keeps the inputs only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
        x, taps = x.contiguous(), taps.contiguous()
        ctx.save_for_backward(x, taps)
        y = torch.addcmul(bias, x, taps[-1])
        for shift, tap in _past_taps(taps, x.shape[1]):
            y[:, shift:].addcmul_(x[:, :-shift], tap)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, taps = ctx.saved_tensors
        dy = dy.contiguous()
        dx = dy * taps[-1]
        dtaps = torch.zeros_like(taps)
        dtaps[-1] = (dy * x).sum((0, 1))
        for shift, tap in _past_taps(taps, x.shape[1]):
            dx[:, :-shift].addcmul_(dy[:, shift:], tap)
            dtaps[-1 - shift] = (dy[:, shift:] * x[:, :-shift]).sum((0, 1))
        return dx, dtaps, dy.sum((0, 1))


def _past_taps(taps: Tensor, length: int) -> list[tuple[int, Tensor]]:
    """Shift and tap of every tap but the present one, those beyond the sequence left out."""
    return [(s, taps[-1 - s]) for s in range(1, min(len(taps), length))]
