"""ViT: full self-attention, blind to the order of its patches. The control.

Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021, arXiv 2010.11929. The model is
timm's; this file adds the patch order, so that runs with and without an order share their code.
"""

from __future__ import annotations

from typing import Any

from timm.layers import to_2tuple
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from reorder_lightning.models.backbone import Position, patch_grid
from reorder_lightning.models.base import ImageClassifier, Order, size_of
from reorder_lightning.orders import OrderLike
from reorder_lightning.patch_order import PatchOrder

_SIZES = {  # depth, width, heads
    "tiny": (12, 192, 3),
    "small": (12, 384, 6),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
    "huge": (32, 1280, 16),
}


class ViTBackbone(VisionTransformer):  # type: ignore[misc]
    """timm's VisionTransformer with a `PatchOrder` in front of its blocks.

    Full attention with positions that travel with their patches gives the same logits for every
    order; with ``position="slot"`` it does not. Pretrained timm weights load as they are.

    Args:
        order: the patch order at the start.
        position: ``"patch"``: the position embedding travels with its patch; ``"slot"``: it belongs
            to the place in the sequence.
        kwargs: timm's own arguments.
    """

    def __init__(
        self, *, order: OrderLike | None = None, position: Position = "patch", **kwargs: Any
    ) -> None:
        grid = patch_grid(kwargs.get("img_size", 224), kwargs.get("patch_size", 16))
        super().__init__(**kwargs)
        self.position = position
        self.patch_order = PatchOrder(order, grid)

    def _pos_embed(self, x: Tensor) -> Tensor:
        # Not forward_pre of blocks[0]: patch dropout, which comes after this, then drops tokens of
        # the sequence that is really read.
        if self.position == "slot":
            embedded: Tensor = super()._pos_embed(self.patch_order(x))
            return embedded
        ordered: Tensor = self.patch_order(super()._pos_embed(x), self.num_prefix_tokens)
        return ordered


class ViT(ImageClassifier):
    """Vision Transformer as a LightningModule; blind to the patch order (the control).

    Args:
        num_classes: number of classes.
        image_size: height and width of the images in pixels.
        size: tiny, small, base, large or huge.
        patch_size: side of a patch in pixels.
        order: the patch order at the start: a name, a path or a list. None: row, or the order of
            the checkpoint in ``init_from``.
        position: ``"patch"`` or ``"slot"``; see `ViTBackbone`.
        depth: number of blocks, if not that of the size.
        embed_dim: width of the tokens, if not that of the size.
        num_heads: attention heads, if not those of the size.
        drop_path_rate: stochastic depth of the last block (Huang et al., 2016).
        kwargs: how to train; see `ImageClassifier`.

    Example:
        >>> model = ViT(num_classes=10, image_size=32, patch_size=8, size="tiny", depth=1)
        >>> model.backbone.patch_order.grid_size
        (4, 4)
    """

    def __init__(
        self,
        num_classes: int,
        image_size: int | tuple[int, int] = 224,
        size: str = "tiny",
        patch_size: int = 16,
        order: Order = None,
        position: Position = "patch",
        depth: int | None = None,
        embed_dim: int | None = None,
        num_heads: int | None = None,
        drop_path_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        layers, width, heads = size_of(size, _SIZES)
        backbone = ViTBackbone(
            img_size=to_2tuple(image_size),
            patch_size=patch_size,
            num_classes=num_classes,
            depth=depth or layers,
            embed_dim=embed_dim or width,
            num_heads=num_heads or heads,
            order=order,
            position=position,
            drop_path_rate=drop_path_rate,
        )
        super().__init__(backbone, **kwargs)
