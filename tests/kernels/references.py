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


def relative_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    r: Tensor,
    content_bias: Tensor,
    position_bias: Tensor,
    cls_index: int | None = None,
    causal: bool = False,
) -> Tensor:
    """One pair of query and key after the other; all ``(h, B, L, d)``, see the kernel."""
    heads, batch, queries, dim = q.shape
    keys = k.shape[2]
    memory = keys - queries
    out = torch.zeros_like(q)
    for head in range(heads):
        for b in range(batch):
            for i in range(queries):
                scores = []
                for j in range(keys):
                    with_cls = cls_index is not None and (i == cls_index or j == memory + cls_index)
                    distance = memory + i - j
                    score = (q[head, b, i] + content_bias[head]) @ k[head, b, j]
                    if not with_cls:
                        row = r[head, keys - 1 - distance]
                        score = score + (q[head, b, i] + position_bias[head]) @ row
                    if causal and distance < 0 and not with_cls:
                        score = score * 0 - torch.inf
                    scores.append(score / dim**0.5)
                out[head, b, i] = torch.stack(scores).softmax(0) @ v[head, b]
    return out


def banded_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int,
    global_k: Tensor | None = None,
    global_v: Tensor | None = None,
) -> Tensor:
    """Dense scores, then everything outside the band masked; all ``(B, h, L, d)``."""
    length = q.shape[2]
    place = torch.arange(length)
    outside = (place[:, None] - place).abs() > window
    scores = (q @ k.mT).masked_fill(outside, -torch.inf)
    if global_k is not None:
        scores = torch.cat([q @ global_k.mT, scores], dim=-1)
        v = torch.cat([global_v, v], dim=2)
    return (scores / q.shape[-1] ** 0.5).softmax(-1) @ v


def relative_error(x: Tensor, expected: Tensor) -> float:
    """Largest difference over the largest expected magnitude."""
    if expected.numel() == 0:
        assert x.shape == expected.shape
        return 0.0
    scale = expected.double().abs().max().clamp(min=1e-30)
    return ((x.double() - expected.double()).abs().max() / scale).item()
