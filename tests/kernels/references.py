"""The kernels' formulas, written down literally; slow, and meant for float64."""

import torch
from torch import Tensor
from torch.nn import functional as F


def selective_scan_reference(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
) -> tuple[Tensor, Tensor]:
    """One time step after the other; output and last state."""
    if delta_bias is not None:
        delta = delta + delta_bias[:, None]
    if delta_softplus:
        delta = F.softplus(delta, threshold=1000)  # exact; 20 is the default
    if B.ndim == 3:
        B, C = B[:, None], C[:, None]
    per_group = u.shape[1] // B.shape[1]
    B, C = B.repeat_interleave(per_group, 1), C.repeat_interleave(per_group, 1)
    h = u.new_zeros(*u.shape[:2], A.shape[1])
    ys = []
    for t in range(u.shape[2]):
        step = delta[:, :, t, None]
        h = torch.exp(step * A) * h + step * B[..., t] * u[:, :, t, None]
        ys.append((h * C[..., t]).sum(-1))
    y = torch.stack(ys, -1)
    if D is not None:
        y = y + D[:, None] * u
    if z is not None:
        y = y * F.silu(z)
    return y, h


def relative_error(x: Tensor, expected: Tensor) -> float:
    """Largest difference over the largest expected magnitude."""
    if expected.numel() == 0:
        assert x.shape == expected.shape
        return 0.0
    scale = expected.double().abs().max().clamp(min=1e-30)
    return ((x.double() - expected.double()).abs().max() / scale).item()
