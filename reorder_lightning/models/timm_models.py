"""The families' plain modules under names for ``timm.create_model``.

Importing ``reorder_lightning.models`` registers ``reorder_{vit, transformer_xl, longformer, mamba}_
{tiny, small, base, large, huge}_patch16``.

Example:
    >>> import timm, reorder_lightning.models
    >>> model = timm.create_model(
    ...     "reorder_mamba_tiny_patch16", img_size=64, patch_size=8, order="hilbert", depth=1
    ... )
    >>> model.patch_order.grid_size
    (8, 8)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timm.models import register_model
from torch import nn

from reorder_lightning.models import longformer, mamba, transformer_xl, vit

# What timm's create_model hands to every entry point, for weights to download.
_PRETRAINED_ARGUMENTS = ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")


def _register(name: str, backbone: type[nn.Module], defaults: Mapping[str, Any]) -> None:
    """Register a backbone with the defaults of a size; ``create_model``'s arguments go first."""

    def create(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        if pretrained:
            raise ValueError(
                f"Expected `pretrained` to be False for {name}: there are no weights to download. "
                "Load your own with `checkpoint_path`."
            )
        for argument in _PRETRAINED_ARGUMENTS:
            kwargs.pop(argument, None)
        return backbone(**{**defaults, **kwargs})

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f"{backbone.__name__} with {dict(defaults)}."
    globals()[name] = register_model(create)


for _size, (_depth, _width) in mamba._SIZES.items():
    _register(
        f"reorder_mamba_{_size}_patch16",
        mamba.MambaBackbone,
        {"depth": _depth, "embed_dim": _width},
    )
for _family, _backbone, _sizes in (
    ("vit", vit.ViTBackbone, vit._SIZES),
    ("longformer", longformer.LongformerBackbone, longformer._SIZES),
    ("transformer_xl", transformer_xl.TransformerXLBackbone, transformer_xl._SIZES),
):
    for _size, (_depth, _width, _heads) in _sizes.items():
        _register(
            f"reorder_{_family}_{_size}_patch16",
            _backbone,
            {"depth": _depth, "embed_dim": _width, "num_heads": _heads},
        )
