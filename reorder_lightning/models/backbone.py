"""SequenceBackbone: patches -> order -> blocks -> head, the part that all families share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
from timm.layers import PatchEmbed, to_2tuple, trunc_normal_
from timm.models import checkpoint_seq, named_apply
from timm.models.vision_transformer import init_weights_vit_timm
from torch import Tensor, nn

from reorder_lightning.orders import OrderLike
from reorder_lightning.patch_order import PatchOrder

ReadOut = Literal["first", "middle", "last", "mean"]
Position = Literal["patch", "slot"]
SIZES = ("tiny", "small", "base", "large", "huge")


def patch_grid(
    img_size: int | tuple[int, int], patch_size: int | tuple[int, int]
) -> tuple[int, int]:
    """Rows and columns of the patches of an image, ``(H, W)``.

    Raises:
        ValueError: if a side of the image is not a multiple of the patch's side.

    Example:
        >>> patch_grid((64, 96), 16)
        (4, 6)
    """
    image, patch = to_2tuple(img_size), to_2tuple(patch_size)
    if any(p < 1 or i < p or i % p for i, p in zip(image, patch, strict=True)):
        fits = [p for p in (4, 7, 8, 14, 16, 32) if all(i >= p and i % p == 0 for i in image)]
        cure = f"patch_size {fits}" if fits else "another image size"
        raise ValueError(
            f"Expected the sides of `image_size` to be multiples of `patch_size`, but got images "
            f"of {image[0]}x{image[1]} and patches of {patch[0]}x{patch[1]}. Try {cure}."
        )
    return image[0] // patch[0], image[1] // patch[1]


class SequenceBackbone(nn.Module):
    """An image classifier that reads its patches one after the other, in timm's vocabulary.

    ``patch_embed`` gives ``N = H * W`` tokens in raster order, ``patch_order`` puts them into
    reading order, a class token is set at its place, ``blocks`` read the sequence, ``norm`` and
    ``head`` give the logits. A family is a subclass that brings its blocks.

    Args:
        blocks: modules ``(B, L, D) -> (B, L, D)``, ``L = N + 1`` (``N`` with ``read_out="mean"``).
        img_size: height and width in pixels.
        patch_size: side of a patch in pixels.
        in_chans: channels of the image.
        num_classes: width of the head; 0 for none.
        embed_dim: width ``D`` of the tokens.
        order: the patch order at the start; see `reorder_lightning.orders.get_order`. None: row.
        position: ``"patch"``: the position embedding belongs to the patch and travels with it;
            ``"slot"``: it belongs to the place in the sequence (REOrder's fixed-order baselines).
        read_out: where the class token stands in the sequence, or ``"mean"``: no class token, the
            mean of all tokens.
        drop_rate: dropout before the head.
        pos_drop_rate: dropout on the tokens before the first block.

    Raises:
        ValueError: if the image is not a whole number of patches, or the order does not fit.
    """

    def __init__(
        self,
        blocks: Iterable[nn.Module],
        *,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        embed_dim: int = 192,
        order: OrderLike | None = None,
        position: Position = "patch",
        read_out: ReadOut = "last",
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        grid = patch_grid(img_size, patch_size)
        count = math.prod(grid)
        self.grid_size = grid
        self.num_classes = num_classes
        self.embed_dim = self.num_features = self.head_hidden_size = embed_dim
        self.position = position
        self.read_out = read_out
        self.grad_checkpointing = False

        self.patch_embed = PatchEmbed(to_2tuple(img_size), patch_size, in_chans, embed_dim)
        self.pos_embed = nn.Parameter(torch.empty(1, count, embed_dim))
        self.patch_order = PatchOrder(order, grid)
        index = read_out_index(read_out, count)
        self.read_out_index = index
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim)) if index is not None else None
        self.pos_drop = nn.Dropout(pos_drop_rate)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(embed_dim)
        self.head_drop = nn.Dropout(drop_rate)
        self.head = nn.Linear(embed_dim, num_classes) if num_classes else nn.Identity()
        self._init_weights()

    def _init_weights(self) -> None:
        trunc_normal_(self.pos_embed, std=0.02)
        if self.cls_token is not None:
            nn.init.normal_(self.cls_token, std=0.02)
        named_apply(init_weights_vit_timm, self)

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that an optimiser should not decay (timm's convention)."""
        return {"pos_embed", "cls_token"}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the blocks in the backward pass instead of keeping their activations."""
        self.grad_checkpointing = enable

    def get_classifier(self) -> nn.Module:
        """The head."""
        return self.head

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the head by a new one; 0 for none."""
        self.num_classes = num_classes
        head = nn.Linear(self.embed_dim, num_classes) if num_classes else nn.Identity()
        self.head = head.to(self.pos_embed.device, self.pos_embed.dtype)
        named_apply(init_weights_vit_timm, self.head)

    def embed(self, images: Tensor) -> Tensor:
        """Images ``(B, C, height, width)`` to the sequence that the first block reads."""
        tokens: Tensor = self.patch_embed(images)
        if self.position == "patch":
            tokens = self.patch_order(tokens + self.pos_embed)
        else:
            tokens = self.patch_order(tokens) + self.pos_embed
        if self.cls_token is not None:
            at = self.read_out_index
            cls_token = self.cls_token.expand(tokens.shape[0], -1, -1)
            tokens = torch.cat([tokens[:, :at], cls_token, tokens[:, at:]], dim=1)
        dropped: Tensor = self.pos_drop(tokens)
        return dropped

    def forward_blocks(self, tokens: Tensor) -> Tensor:
        """``(B, L, D)`` through all blocks."""
        if self.grad_checkpointing and torch.is_grad_enabled():
            out: Tensor = checkpoint_seq(self.blocks, tokens)
            return out
        for block in self.blocks:
            tokens = block(tokens)
        return tokens

    def forward_features(self, images: Tensor) -> Tensor:
        """Images to normed tokens ``(B, L, D)`` in reading order."""
        features: Tensor = self.norm(self.forward_blocks(self.embed(images)))
        return features

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Tokens ``(B, L, D)`` to logits ``(B, num_classes)``, or to what the head would get."""
        at = self.read_out_index
        pooled: Tensor = self.head_drop(tokens.mean(1) if at is None else tokens[:, at])
        if pre_logits:
            return pooled
        logits: Tensor = self.head(pooled)
        return logits

    def forward(self, images: Tensor) -> Tensor:
        """Images ``(B, C, height, width)`` to logits ``(B, num_classes)``."""
        return self.forward_head(self.forward_features(images))


def read_out_index(read_out: ReadOut, num_patches: int) -> int | None:
    """Place of the class token among ``num_patches + 1`` tokens; None for ``"mean"``.

    Example:
        >>> read_out_index("middle", 196)
        98
    """
    places = {"first": 0, "middle": num_patches // 2, "last": num_patches, "mean": None}
    if read_out not in places:
        raise ValueError(f"Expected `read_out` to be one of {list(places)}, but got {read_out!r}.")
    return places[read_out]
