"""Attention with relative positions, as in Transformer-XL.

Source: Z. Dai et al., "Transformer-XL: Attentive Language Models beyond a Fixed-Length Context",
ACL 2019 (arXiv 1901.02860), section 3.3 and appendix B.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from reorder_lightning.kernels._constants import cached_constant

# Queries that share a product with the distances they need.
BLOCK = 64


def relative_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    r: Tensor,
    content_bias: Tensor,
    position_bias: Tensor,
    cls_index: int | None = None,
    causal: bool = False,
    dropout_p: float = 0.0,
) -> Tensor:
    r"""Attention whose scores depend on the signed distance between query and key.

    With :math:`M = K - L` keys of memory in front, query :math:`i` stands at :math:`M + i` and

    .. math::
        s_{ij} = \frac{(q_i + a)^\top k_j + (q_i + b)^\top r_{M+i-j}}{\sqrt{d}}, \qquad
        y_i = \sum_j \mathrm{softmax}_j(s_{ij})\, v_j .

    The position term of all pairs is one matrix product; that each query reads it from another
    offset is a change of strides, not a copy. A class token has no position: the position term of
    its row and column is zero, and with ``causal`` both stay open, so that later patches reach
    earlier ones of the next layer through it.

    Args:
        q: Queries ``(h, B, L, d)``, heads outermost because ``r`` is shared over the batch.
        k: Keys ``(h, B, K, d)``, ``K >= L``; the last ``L`` belong to the queries.
        v: Values ``(h, B, K, d)``.
        r: Embedded distances ``(h, L + K - 1, d)``, from the largest, ``K - 1``, down to
            ``-(L - 1)``.
        content_bias: :math:`a`, ``(h, d)``.
        position_bias: :math:`b`, ``(h, d)``.
        cls_index: Place of the class token among the queries, first or last; None if there is none.
        causal: Whether a query sees no key behind it (the class token excepted).
        dropout_p: Probability of dropping an attention weight.

    Returns:
        ``(h, B, L, d)``.

    Raises:
        ValueError: If the shapes don't fit, or the class token is neither first nor last.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 1, 5, 4)
        >>> r, bias = torch.randn(2, 9, 4), torch.zeros(2, 4)
        >>> relative_attention(q, k, v, r, bias, bias).shape
        torch.Size([2, 1, 5, 4])
    """
    heads, batch, queries, dim = q.shape
    keys = k.shape[2]
    _check(q, k, v, r, cls_index)
    scale = dim**-0.5
    dtype = _matmul_dtype(q)
    a = ((q + content_bias[:, None, None]) * scale).to(dtype).flatten(0, 1)
    b = ((q + position_bias[:, None, None]) * scale).to(dtype)
    k, v, r = k.to(dtype), v.to(dtype), r.to(dtype)
    if cls_index is not None:
        b = b * _all_but(cls_index, queries, b)
    k, v = k.flatten(0, 1), v.flatten(0, 1)
    cls_key = None if cls_index is None else keys - queries + cls_index
    scores: Tensor
    if torch.compiler.is_compiling():
        scores = _scores(a, k, b, r, cls_key)
    else:
        scores = _Scores.apply(a, k, b, r, cls_key)
    if causal:
        scores = scores + _causal_mask(queries, keys, cls_index, scores.device, scores.dtype)
    weights = F.dropout(scores.softmax(-1), dropout_p) if dropout_p else scores.softmax(-1)
    return torch.bmm(weights, v).view(heads, batch, queries, dim)


def _matmul_dtype(x: Tensor) -> torch.dtype:
    """What autocast would multiply in. Our own backward pass runs outside of it."""
    device = x.device.type
    if x.dtype != torch.float64 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


def _check(q: Tensor, k: Tensor, v: Tensor, r: Tensor, cls_index: int | None) -> None:
    heads, batch, queries, dim = q.shape
    keys = k.shape[2]
    if k.shape != (heads, batch, keys, dim) or v.shape != k.shape or keys < queries:
        raise ValueError(
            f"Expected arguments `k` and `v` to have shape ({heads}, {batch}, K, {dim}) with "
            f"K >= {queries} but got {tuple(k.shape)} and {tuple(v.shape)}."
        )
    if r.shape != (heads, queries + keys - 1, dim):
        raise ValueError(
            f"Expected argument `r` to have shape {(heads, queries + keys - 1, dim)} but got "
            f"{tuple(r.shape)}."
        )
    if cls_index not in (None, 0, queries - 1):
        raise ValueError(
            f"Expected argument `cls_index` to be None, 0 or {queries - 1}, since a class token "
            f"between patches would change their distances, but got {cls_index}."
        )


def _all_but(index: int, length: int, like: Tensor) -> Tensor:
    """``(L, 1)``: 0 at the index and 1 elsewhere."""
    keep = like.new_ones(length, 1)
    keep[index] = 0
    return keep


def _shift(p: Tensor, keys: int) -> Tensor:
    """View ``(n, L, K)`` of ``p (n, L, L + K - 1)`` with ``out[i, j] = p[i, L - 1 - i + j]``."""
    n, queries, width = p.shape
    if queries == 1:
        return p
    flat = p.reshape(n, queries * width)[:, queries - 1 : queries * width - 1]
    return flat.view(n, queries, width - 1)[:, :, :keys]


def _scores(a: Tensor, k: Tensor, b: Tensor, r: Tensor, cls_key: int | None) -> Tensor:
    """Scores ``(h * B, L, K)`` in operations that compilers and exporters know."""
    p = torch.bmm(b.flatten(1, 2), r.transpose(1, 2)).view(a.shape[0], b.shape[2], -1)
    shifted = _shift(p, k.shape[1])
    if cls_key is not None:
        shifted = shifted * _all_but(cls_key, k.shape[1], p).squeeze(1)
    return torch.baddbmm(shifted, a, k.transpose(1, 2))


class _Scores(torch.autograd.Function):
    """The same in blocks of queries: a block reads ``K + BLOCK - 1`` distances, all read twice."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, k: Tensor, b: Tensor, r: Tensor, cls_key: int | None
    ) -> Tensor:
        ctx.save_for_backward(a, k, b, r)
        ctx.cls_key = cls_key
        scores = torch.bmm(a, k.transpose(1, 2))
        for rows, distances in _blocks(b.shape[2], k.shape[1]):
            p = torch.bmm(b[:, :, rows].flatten(1, 2), r[:, distances].transpose(1, 2))
            shifted = _shift(p.view(a.shape[0], -1, p.shape[2]), k.shape[1])
            if cls_key is not None:
                shifted[..., cls_key] = 0
            scores[:, rows] += shifted
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, ds: Tensor) -> tuple[Tensor | None, ...]:
        a, k, b, r = ctx.saved_tensors
        db, dr = torch.empty_like(b), torch.zeros_like(r)
        for rows, distances in _blocks(b.shape[2], k.shape[1]):
            part, r_part = b[:, :, rows].flatten(1, 2), r[:, distances]
            dp = ds.new_zeros(*part.shape[:2], r_part.shape[1])
            shifted = _shift(dp.view(a.shape[0], -1, dp.shape[2]), k.shape[1])
            shifted.copy_(ds[:, rows])
            if ctx.cls_key is not None:
                shifted[..., ctx.cls_key] = 0
            db[:, :, rows] = torch.bmm(dp, r_part).unflatten(1, (b.shape[1], -1))
            dr[:, distances].baddbmm_(dp.transpose(1, 2), part)
        return torch.bmm(ds, k), torch.bmm(ds.transpose(1, 2), a), db, dr, None


def _blocks(queries: int, keys: int) -> list[tuple[slice, slice]]:
    """Rows of queries, and the rows of ``r`` that these need."""
    found = []
    for start in range(0, queries, BLOCK):
        stop = min(start + BLOCK, queries)
        found.append((slice(start, stop), slice(queries - stop, queries + keys - 1 - start)))
    return found


@cached_constant
def _causal_mask(
    queries: int, keys: int, cls_index: int | None, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """``(L, K)``: minus infinity where a key lies behind its query."""
    ahead = torch.ones(queries, keys, dtype=torch.bool, device=device).triu(keys - queries + 1)
    if cls_index is not None:
        ahead[cls_index] = False
        ahead[:, keys - queries + cls_index] = False
    return torch.zeros(queries, keys, dtype=dtype, device=device).masked_fill(ahead, -torch.inf)
