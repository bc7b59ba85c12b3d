"""Transformer-XL: attention by relative position, and memory between segments of the sequence.

Dai et al., "Transformer-XL: Attentive Language Models beyond a Fixed-Length Context", ACL 2019,
arXiv 1901.02860; as an image classifier in REOrder (Kutscher et al., 2025, arXiv 2505.23751).
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from timm.layers import DropPath, Mlp, calculate_drop_path_rates, to_2tuple
from timm.models import checkpoint
from torch import Tensor, nn

from reorder_lightning.kernels._constants import cached_constant
from reorder_lightning.kernels.relative_attention import relative_attention
from reorder_lightning.models.backbone import Position, SequenceBackbone
from reorder_lightning.models.base import ImageClassifier, Order, size_of
from reorder_lightning.orders import OrderLike

# A class token in the middle would part the patches around it by one more step.
XLReadOut = Literal["first", "last", "mean"]

_SIZES = {  # depth, width, heads
    "tiny": (12, 192, 3),
    "small": (12, 384, 6),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
    "huge": (32, 1280, 16),
}


@cached_constant
def distance_embedding(
    longest: int, shortest: int, dim: int, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Sines and cosines of the distances from ``longest`` down to ``shortest``, ``(W, dim)``.

    The distance is signed: a sine changes its sign with it, a cosine does not.
    """
    distances = torch.arange(longest, shortest - 1, -1, device=device, dtype=torch.float64)
    exponents = torch.arange(0, dim, 2, device=device, dtype=torch.float64) / dim
    angles = distances[:, None] * 10000.0**-exponents
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :dim].to(dtype)


class RelativeAttention(nn.Module):
    """Multi-head attention with a content and a position term.

    Args:
        dim: width ``D`` of the tokens.
        num_heads: attention heads ``h``.
        causal: whether patches see earlier patches only (and the class token).
        attn_drop: dropout of attention weights.
        proj_drop: dropout of the output.

    Raises:
        ValueError: if the width is no multiple of the heads.
    """

    def __init__(
        self, dim: int, num_heads: int, causal: bool, attn_drop: float, proj_drop: float
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"Expected `num_heads` to divide the width {dim} but got {num_heads}.")
        self.num_heads = num_heads
        self.causal = causal
        self.attn_drop = attn_drop
        self.qkv = nn.Linear(dim, 3 * dim)
        self.distance_proj = nn.Linear(dim, dim, bias=False)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(
        self, tokens: Tensor, memory: Tensor | None, biases: Tensor, cls_index: int | None
    ) -> Tensor:
        """Mix tokens ``(B, L, D)``.

        Args:
            tokens: ``(B, L, D)``.
            memory: tokens in front that are read but not written, ``(B, M, D)``.
            biases: content and position bias ``(2, h, d)``.
            cls_index: place of the class token, 0 or ``L - 1``, or None.

        Returns:
            ``(B, L, D)``.
        """
        read = tokens if memory is None else torch.cat([memory, tokens], dim=1)
        length, keys, dim = tokens.shape[1], read.shape[1], tokens.shape[2]
        # heads outermost, since the distances are shared over the batch
        qkv = self.qkv(read).unflatten(2, (3, self.num_heads, -1)).permute(2, 3, 0, 1, 4)
        q, k, v = qkv.unbind(0)
        distances = distance_embedding(keys - 1, 1 - length, dim, tokens.device, tokens.dtype)
        r = self.distance_proj(distances).unflatten(1, (self.num_heads, -1)).transpose(0, 1)
        mixed = relative_attention(
            q[:, :, keys - length :],
            k,
            v,
            r,
            biases[0],
            biases[1],
            cls_index=cls_index,
            causal=self.causal,
            dropout_p=self.attn_drop if self.training else 0.0,
        )
        out: Tensor = self.proj_drop(self.proj(mixed.permute(1, 2, 0, 3).flatten(2)))
        return out


class TransformerXLBlock(nn.Module):
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        causal: bool,
        mlp_ratio: float,
        attn_drop: float,
        proj_drop: float,
        drop_path: float,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = RelativeAttention(dim, num_heads, causal, attn_drop, proj_drop)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=proj_drop)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(
        self, tokens: Tensor, memory: Tensor | None, biases: Tensor, cls_index: int | None
    ) -> Tensor:
        """See `RelativeAttention.forward`."""
        memory = None if memory is None else self.norm1(memory)
        mixed = self.attn(self.norm1(tokens), memory, biases, cls_index)
        tokens = tokens + self.drop_path(mixed)
        out: Tensor = tokens + self.drop_path(self.mlp(self.norm2(tokens)))
        return out


class TransformerXLBackbone(SequenceBackbone):
    """A stack of `TransformerXLBlock` over the ordered patches, in one or several segments.

    With ``segment_len`` the patches are read in segments; each block also sees the ``mem_len``
    tokens that stood before the segment at its input. The memory belongs to the image: it is empty
    at its start and never reaches another batch. The class token joins the last segment.

    Args:
        depth: number of blocks.
        embed_dim: width of the tokens.
        num_heads: attention heads.
        causal: whether patches see earlier patches only. The class token sees all and is seen by
            all, so from the second block on some of the later patches leaks into the earlier ones.
        segment_len: patches in a segment; None: one segment.
        mem_len: tokens of memory before a segment.
        detach_memory: keep gradients out of the memory, as the paper does for long texts. Off, so
            that the early segments, which the class token reads through the memory only, learn.
        mlp_ratio: hidden width of the MLP over the tokens' width.
        attn_drop_rate: dropout of attention weights.
        proj_drop_rate: dropout behind attention and in the MLP.
        drop_path_rate: stochastic depth of the last block, rising linearly from 0.
        read_out: where the class token stands, or ``"mean"``: no class token.
        order: the patch order at the start.
        kwargs: see `SequenceBackbone`.

    Raises:
        ValueError: if the class token would stand between patches or in front of segments, or a
            length is out of range.
    """

    def __init__(
        self,
        *,
        depth: int = 12,
        embed_dim: int = 192,
        num_heads: int = 3,
        causal: bool = False,
        segment_len: int | None = None,
        mem_len: int = 128,
        detach_memory: bool = False,
        mlp_ratio: float = 4.0,
        attn_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        read_out: XLReadOut = "last",
        order: OrderLike | None = None,
        **kwargs: Any,
    ) -> None:
        if read_out not in ("first", "last", "mean"):
            raise ValueError(
                f"Expected `read_out` to be 'first', 'last' or 'mean', but got {read_out!r}: a "
                "class token between patches would change their distances."
            )
        if segment_len is not None and (segment_len < 1 or mem_len < 0):
            raise ValueError(
                f"Expected `segment_len` to be at least 1 and `mem_len` at least 0, but got "
                f"{segment_len} and {mem_len}."
            )
        if segment_len is not None and read_out == "first":
            raise ValueError(
                "With `segment_len` the class token joins the last segment; set `read_out` to "
                "'last' or 'mean'."
            )
        rates = calculate_drop_path_rates(drop_path_rate, depth)
        super().__init__(
            [
                TransformerXLBlock(
                    embed_dim, num_heads, causal, mlp_ratio, attn_drop_rate, proj_drop_rate, rate
                )
                for rate in rates
            ],
            embed_dim=embed_dim,
            read_out=read_out,
            order=order,
            **kwargs,
        )
        self.segment_len = segment_len
        self.mem_len = mem_len
        self.detach_memory = detach_memory
        # content and position bias of all blocks
        self.attn_biases = nn.Parameter(torch.empty(2, num_heads, embed_dim // num_heads))
        nn.init.trunc_normal_(self.attn_biases, std=0.02)

    def no_weight_decay(self) -> set[str]:
        """Positions, class token, and the attention's biases."""
        return super().no_weight_decay() | {"attn_biases"}

    def segments(self, length: int) -> list[int]:
        """Lengths of the segments of ``length`` tokens; the class token makes the last one longer.

        Example:
            >>> backbone = TransformerXLBackbone(depth=0, img_size=64, segment_len=6)
            >>> backbone.segments(17)
            [6, 6, 5]
        """
        if self.segment_len is None:
            return [length]
        prefix = int(self.cls_token is not None)
        patches = length - prefix
        lengths = [self.segment_len] * math.ceil(patches / self.segment_len)
        lengths[-1] = patches - sum(lengths[:-1]) + prefix
        return lengths

    def forward_blocks(self, tokens: Tensor) -> Tensor:
        """``(B, L, D)`` through all blocks, segment by segment."""
        memories: list[Tensor | None] = [None] * len(self.blocks)
        outputs = []
        segments = tokens.split(self.segments(tokens.shape[1]), dim=1)
        recompute = self.grad_checkpointing and torch.is_grad_enabled()
        for i, segment in enumerate(segments):
            is_last = i == len(segments) - 1
            cls_index = self._cls_index(segment.shape[1]) if is_last else None
            for layer, block in enumerate(self.blocks):
                memory = memories[layer]
                if not is_last:
                    memories[layer] = self._remember(memory, segment)
                args = (segment, memory, self.attn_biases, cls_index)
                segment = checkpoint(block, *args) if recompute else block(*args)
            outputs.append(segment)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def _cls_index(self, length: int) -> int | None:
        return {"first": 0, "last": length - 1}.get(self.read_out)

    def _remember(self, memory: Tensor | None, segment: Tensor) -> Tensor | None:
        """The last ``mem_len`` tokens up to the end of the segment, at one block's input."""
        if self.mem_len == 0:
            return None
        seen = segment if memory is None else torch.cat([memory, segment], dim=1)
        seen = seen[:, -self.mem_len :]
        return seen.detach() if self.detach_memory else seen


class TransformerXL(ImageClassifier):
    """Transformer-XL as a LightningModule.

    Args:
        num_classes: number of classes.
        image_size: height and width of the images in pixels.
        size: tiny, small, base, large or huge.
        patch_size: side of a patch in pixels.
        order: the patch order at the start: a name, a path or a list. None: row, or the order of
            the checkpoint in ``init_from``.
        position: ``"patch"`` or ``"slot"``; see `SequenceBackbone`.
        read_out: place of the class token, or ``"mean"``; see `TransformerXLBackbone`.
        causal: whether patches see earlier patches only.
        segment_len: patches in a segment; None: one segment.
        mem_len: tokens of memory before a segment.
        detach_memory: keep gradients out of the memory.
        depth: number of blocks, if not that of the size.
        embed_dim: width of the tokens, if not that of the size.
        num_heads: attention heads, if not those of the size.
        attn_drop_rate: dropout of attention weights.
        proj_drop_rate: dropout behind attention and in the MLP.
        drop_path_rate: stochastic depth of the last block (Huang et al., 2016).
        kwargs: how to train; see `ImageClassifier`.

    Example:
        >>> model = TransformerXL(num_classes=10, image_size=32, patch_size=8, depth=1)
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
        read_out: XLReadOut = "last",
        causal: bool = False,
        segment_len: int | None = None,
        mem_len: int = 128,
        detach_memory: bool = False,
        depth: int | None = None,
        embed_dim: int | None = None,
        num_heads: int | None = None,
        attn_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        layers, width, heads = size_of(size, _SIZES)
        backbone = TransformerXLBackbone(
            img_size=to_2tuple(image_size),
            patch_size=patch_size,
            num_classes=num_classes,
            depth=depth or layers,
            embed_dim=embed_dim or width,
            num_heads=num_heads or heads,
            causal=causal,
            segment_len=segment_len,
            mem_len=mem_len,
            detach_memory=detach_memory,
            order=order,
            position=position,
            read_out=read_out,
            attn_drop_rate=attn_drop_rate,
            proj_drop_rate=proj_drop_rate,
            drop_path_rate=drop_path_rate,
        )
        super().__init__(backbone, **kwargs)
