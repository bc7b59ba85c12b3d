"""Longformer: each patch attends to its neighbours in the sequence and to the class token.

Beltagy, Peters and Cohan, "Longformer: The Long-Document Transformer", 2020, arXiv 2004.05150,
section 3; as an image classifier in REOrder (Kutscher et al., 2025, arXiv 2505.23751).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from timm.layers import DropPath, Mlp, calculate_drop_path_rates, to_2tuple
from torch import Tensor, nn
from torch.nn import functional as F

from reorder_lightning.kernels.banded_attention import banded_attention
from reorder_lightning.models.backbone import (
    Position,
    ReadOut,
    SequenceBackbone,
    patch_grid,
    read_out_index,
)
from reorder_lightning.models.base import ImageClassifier, Order, size_of
from reorder_lightning.orders import OrderLike

_SIZES = {  # depth, width, heads
    "tiny": (12, 192, 3),
    "small": (12, 384, 6),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
    "huge": (32, 1280, 16),
}


class LongformerAttention(nn.Module):
    """Sliding-window attention of the patches, global attention of the class token.

    Patches see ``2 * window + 1`` patches around them and the class token, all through the local
    projections. The class token sees every token through projections of its own. These are never
    applied to the patches: a single query ``q`` reads ``q @ (W x) = (W.T @ q) @ x``, and the
    weighted mean of projected values is the projected weighted mean, which saves two of six
    products of the module's width.

    Args:
        dim: width ``D`` of the tokens.
        num_heads: attention heads ``h``.
        window: patches seen to each side.
        cls_index: place of the class token in the sequence, or None.
        attn_drop: dropout of attention weights.
        proj_drop: dropout of the output.

    Raises:
        ValueError: if the width is no multiple of the heads.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        window: int,
        cls_index: int | None = 0,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"Expected `num_heads` to divide the width {dim} but got {num_heads}.")
        self.num_heads = num_heads
        self.window = window
        self.cls_index = cls_index
        self.attn_drop = attn_drop
        self.qkv = nn.Linear(dim, 3 * dim)
        self.qkv_global = nn.Linear(dim, 3 * dim) if cls_index is not None else None
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, tokens: Tensor) -> Tensor:
        """``(B, L, D)`` to ``(B, L, D)``."""
        p = self.attn_drop if self.training else 0.0
        qkv = self.qkv(tokens).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        at = self.cls_index
        if at is None:
            q, k, v = qkv.unbind(0)
            mixed = banded_attention(q, k, v, self.window, dropout_p=p).transpose(1, 2).flatten(2)
        else:
            q, k, v = _without(qkv, at, dim=3).unbind(0)
            _, global_k, global_v = qkv[:, :, :, at : at + 1].unbind(0)
            mixed = banded_attention(q, k, v, self.window, global_k, global_v, p)
            mixed = mixed.transpose(1, 2).flatten(2)
            read = self._read_all(tokens, at, p)
            mixed = torch.cat([mixed[:, :at], read, mixed[:, at:]], dim=1)
        out: Tensor = self.proj_drop(self.proj(mixed))
        return out

    def _read_all(self, tokens: Tensor, at: int, dropout_p: float) -> Tensor:
        """What the class token reads from all tokens, ``(B, 1, D)``."""
        assert self.qkv_global is not None
        heads = self.num_heads
        weights = self.qkv_global.weight.unflatten(0, (3, heads, -1))  # (3, h, d, D)
        biases = self.qkv_global.bias.unflatten(0, (3, heads, -1))
        cls_token = tokens[:, at]
        # (B, h, d); heads are a batch of small products
        q = torch.einsum("bx,hdx->bhd", cls_token, weights[0]) + biases[0]
        keys = torch.einsum("bhd,hdx->bhx", q * q.shape[-1] ** -0.5, weights[1])
        # the key's bias adds the same to every score, which softmax doesn't see
        scores = torch.matmul(keys, tokens.transpose(1, 2))
        mean = torch.matmul(F.dropout(scores.softmax(-1), dropout_p), tokens)  # (B, h, D)
        read: Tensor = torch.einsum("bhx,hdx->bhd", mean, weights[2]) + biases[2]
        return read.flatten(1).unsqueeze(1)


def _without(x: Tensor, index: int, dim: int) -> Tensor:
    """All but one entry along a dimension; a view where the entry is first or last."""
    last = x.shape[dim] - 1
    if index in (0, last):
        return x.narrow(dim, int(index == 0), last)
    return torch.cat([x.narrow(dim, 0, index), x.narrow(dim, index + 1, last - index)], dim)


class LongformerBlock(nn.Module):
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        window: int,
        cls_index: int | None,
        mlp_ratio: float,
        attn_drop: float,
        proj_drop: float,
        drop_path: float,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = LongformerAttention(dim, num_heads, window, cls_index, attn_drop, proj_drop)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=proj_drop)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        """``(B, L, D)`` to ``(B, L, D)``."""
        tokens = tokens + self.drop_path(self.attn(self.norm1(tokens)))
        out: Tensor = tokens + self.drop_path(self.mlp(self.norm2(tokens)))
        return out


class LongformerBackbone(SequenceBackbone):
    """A stack of `LongformerBlock` over the ordered patches.

    Args:
        depth: number of blocks.
        embed_dim: width of the tokens.
        num_heads: attention heads.
        window: patches seen to each side; the span is ``2 * window + 1``.
        mlp_ratio: hidden width of the MLP over the tokens' width.
        attn_drop_rate: dropout of attention weights.
        proj_drop_rate: dropout behind attention and in the MLP.
        drop_path_rate: stochastic depth of the last block, rising linearly from 0.
        img_size: height and width in pixels.
        patch_size: side of a patch in pixels.
        read_out: where the class token stands, or ``"mean"``: no class token. The window counts
            patches only, so the place changes nothing but the layout.
        order: the patch order at the start.
        kwargs: see `SequenceBackbone`.

    Raises:
        ValueError: if the window is negative.
    """

    def __init__(
        self,
        *,
        depth: int = 12,
        embed_dim: int = 192,
        num_heads: int = 3,
        window: int = 7,
        mlp_ratio: float = 4.0,
        attn_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        read_out: ReadOut = "first",
        order: OrderLike | None = None,
        **kwargs: Any,
    ) -> None:
        if window < 0:
            raise ValueError(f"Expected `window` to be at least 0, but got {window}.")
        cls_index = read_out_index(read_out, math.prod(patch_grid(img_size, patch_size)))
        blocks = [
            LongformerBlock(
                embed_dim,
                num_heads,
                window,
                cls_index,
                mlp_ratio,
                attn_drop_rate,
                proj_drop_rate,
                rate,
            )
            for rate in calculate_drop_path_rates(drop_path_rate, depth)
        ]
        super().__init__(
            blocks,
            img_size=img_size,
            patch_size=patch_size,
            embed_dim=embed_dim,
            read_out=read_out,
            order=order,
            **kwargs,
        )


class Longformer(ImageClassifier):
    """Longformer as a LightningModule.

    Args:
        num_classes: number of classes.
        image_size: height and width of the images in pixels.
        size: tiny, small, base, large or huge.
        patch_size: side of a patch in pixels.
        order: the patch order at the start: a name, a path or a list. None: row, or the order of
            the checkpoint in ``init_from``.
        position: ``"patch"`` or ``"slot"``; see `SequenceBackbone`.
        read_out: place of the class token, or ``"mean"``; see `LongformerBackbone`.
        window: patches seen to each side. 7 is the paper's total of 14; its released code uses 25.
        depth: number of blocks, if not that of the size.
        embed_dim: width of the tokens, if not that of the size.
        num_heads: attention heads, if not those of the size.
        attn_drop_rate: dropout of attention weights.
        proj_drop_rate: dropout behind attention and in the MLP.
        drop_path_rate: stochastic depth of the last block (Huang et al., 2016).
        kwargs: how to train; see `ImageClassifier`.

    Example:
        >>> model = Longformer(num_classes=10, image_size=32, patch_size=8, depth=1, window=2)
        >>> model(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: int,
        image_size: int | tuple[int, int] = 224,
        size: str = "tiny",
        patch_size: int = 16,
        order: Order = None,
        position: Position = "patch",
        read_out: ReadOut = "first",
        window: int = 7,
        depth: int | None = None,
        embed_dim: int | None = None,
        num_heads: int | None = None,
        attn_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        layers, width, heads = size_of(size, _SIZES)
        backbone = LongformerBackbone(
            img_size=to_2tuple(image_size),
            patch_size=patch_size,
            num_classes=num_classes,
            depth=depth or layers,
            embed_dim=embed_dim or width,
            num_heads=num_heads or heads,
            window=window,
            order=order,
            position=position,
            read_out=read_out,
            attn_drop_rate=attn_drop_rate,
            proj_drop_rate=proj_drop_rate,
            drop_path_rate=drop_path_rate,
        )
        super().__init__(backbone, **kwargs)
