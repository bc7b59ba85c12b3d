"""Sliding-window attention with global tokens, as in Longformer.

Source: I. Beltagy, M. Peters, A. Cohan, "Longformer: The Long-Document Transformer", 2020
(arXiv 2004.05150), section 3.1.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from reorder_lightning.kernels._constants import cached_constant

# Measured on CPU, see tests/benchmarks/attention.py: up to this length full scores under a mask
# are faster than blocks, and blocks of this many queries are the fastest.
DENSE_LENGTH = 200
BLOCK = 32


def banded_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int,
    global_k: Tensor | None = None,
    global_v: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    r"""Attention of each token to its neighbours, and to tokens that all can see.

    Query :math:`i` sees the keys :math:`|i - j| \le w`, ``2 * window + 1`` of them inside the
    sequence and fewer at its ends, and every global key. Cost and memory grow linearly with the
    length: beyond ``DENSE_LENGTH`` tokens the sequence is cut into blocks of queries, each with
    the keys that its block can reach; any length is padded to whole blocks, and padding is masked.

    Args:
        q: Queries ``(B, h, L, d)``.
        k: Keys ``(B, h, L, d)``.
        v: Values ``(B, h, L, d)``.
        window: Reach :math:`w` to each side.
        global_k: Keys of global tokens ``(B, h, G, d)``.
        global_v: Values of global tokens ``(B, h, G, d)``.
        dropout_p: Probability of dropping an attention weight.

    Returns:
        ``(B, h, L, d)``.

    Raises:
        ValueError: If the window is negative, or only one of the global arguments is given.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 1, 2, 300, 8)
        >>> banded_attention(q, k, v, window=7).shape
        torch.Size([1, 2, 300, 8])
    """
    if window < 0:
        raise ValueError(f"Expected argument `window` to be at least 0 but got {window}.")
    if (global_k is None) != (global_v is None):
        raise ValueError("Expected both arguments `global_k` and `global_v`, or none of them.")
    if global_k is None or global_v is None:
        global_k, global_v = k[:, :, :0], v[:, :, :0]
    if q.shape[2] <= max(DENSE_LENGTH, BLOCK + 2 * window):
        return _dense(q, k, v, window, global_k, global_v, dropout_p)
    return _blocked(q, k, v, window, global_k, global_v, dropout_p)


def _dense(
    q: Tensor, k: Tensor, v: Tensor, window: int, global_k: Tensor, global_v: Tensor, p: float
) -> Tensor:
    """Full scores under a mask."""
    length, count = q.shape[2], global_k.shape[2]
    if count:
        k, v = torch.cat([global_k, k], 2), torch.cat([global_v, v], 2)
    mask = None
    if window < length - 1:
        mask = _dense_mask(length, window, count, q.device, q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)


def _blocked(
    q: Tensor, k: Tensor, v: Tensor, window: int, global_k: Tensor, global_v: Tensor, p: float
) -> Tensor:
    """Blocks of queries, each with the keys from ``window`` before to ``window`` after it."""
    batch, heads, length, dim = q.shape
    blocks = -(-length // BLOCK)
    count = global_k.shape[2]
    padding = blocks * BLOCK - length
    q = F.pad(q, (0, 0, 0, padding)).view(batch, heads, blocks, BLOCK, dim)
    keys, values = (
        torch.cat([g.unsqueeze(2).expand(-1, -1, blocks, -1, -1), _reach(x, window, padding)], 3)
        for g, x in ((global_k, k), (global_v, v))
    )
    mask = _block_mask(length, BLOCK, window, count, q.device, q.dtype)
    scores = torch.matmul(q * dim**-0.5, keys.transpose(-1, -2)) + mask
    weights = F.dropout(scores.softmax(-1), p) if p else scores.softmax(-1)
    return torch.matmul(weights, values).flatten(2, 3)[:, :, :length]


def _reach(x: Tensor, window: int, padding: int) -> Tensor:
    """``(B, h, L, d)`` to what each block can see, ``(B, h, blocks, BLOCK + 2 * window, d)``."""
    padded = F.pad(x, (0, 0, window, window + padding))
    return padded.unfold(2, BLOCK + 2 * window, BLOCK).transpose(-1, -2)


@cached_constant
def _dense_mask(
    length: int, window: int, count: int, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """``(L, G + L)``: 0 where a query sees a key, else minus infinity."""
    place = torch.arange(length, device=device)
    outside = (place[:, None] - place).abs() > window
    return _additive(F.pad(outside, (count, 0)), dtype)


@cached_constant
def _block_mask(
    length: int, block: int, window: int, count: int, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """``(blocks, block, G + block + 2 * window)``: the same inside each block, padding masked."""
    start = torch.arange(0, length, block, device=device)[:, None]
    queries = start + torch.arange(block, device=device)
    keys = start - window + torch.arange(block + 2 * window, device=device)
    outside = (queries[:, :, None] - keys[:, None]).abs() > window
    outside |= ((keys < 0) | (keys >= length))[:, None]
    # Queries of the padding see nothing real; any finite row keeps them free of nan.
    outside &= (queries < length)[:, :, None]
    return _additive(F.pad(outside, (count, 0)), dtype)


def _additive(masked: Tensor, dtype: torch.dtype) -> Tensor:
    zeros = torch.zeros(masked.shape, dtype=dtype, device=masked.device)
    return zeros.masked_fill(masked, -torch.inf)
