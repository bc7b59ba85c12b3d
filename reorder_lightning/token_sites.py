"""Where in a foreign model the patch tokens can be ordered, and why some models must be refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lightning import LightningModule
from timm.layers import PatchDropout
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

_CONTAINERS = (nn.Sequential, nn.ModuleList)
_POSITION_NAME = re.compile(r"(^|_)(rope|rotary|alibi)(_|$)|rel(ative)?_(pos|attention_bias)")
_POSITION_CLASS = re.compile(r"Rope|RoPE|Rotary|RelPos|RelativePos|ALiBi|Alibi")
_BLIND_BLOCKS = (  # full self-attention and nothing that knows of places
    "timm.models.vision_transformer",
    "transformers.models.vit.",
    "transformers.models.deit.",
    "transformers.models.dinov2.",
)


class TokensNotFoundError(ValueError):
    """The model has no patch tokens that can be ordered, or not yet."""


@dataclass(frozen=True)
class TokenSite:
    """The blocks between which the tokens are read in order.

    Attributes:
        first: path of the first block; its input ``(B, P + N, D)`` is ordered.
        last: path of the last block; ``restore=True`` puts its output back into raster order.
        grid_size: rows and columns of patches.
        num_prefix_tokens: tokens in front that stay where they are.
    """

    first: str
    last: str
    grid_size: tuple[int, int]
    num_prefix_tokens: int


def find_site(
    module: nn.Module,
    target: str | None = None,
    grid_size: tuple[int, int] | None = None,
    num_prefix_tokens: int | None = None,
) -> TokenSite:
    """Find the first block of a model, its patch grid and its prefix tokens.

    Args:
        module: the model.
        target: path of the first block, or of a part with one timm VisionTransformer in it. None:
            the one VisionTransformer in ``module``.
        grid_size: rows and columns of patches. None: what the model's ``patch_embed`` says.
        num_prefix_tokens: class, distillation and register tokens in front. None: what the model
            says, or 0.

    Raises:
        ValueError: if no tokens are found, or an order of them would not do what it should.

    Example:
        >>> import timm
        >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=32)
        >>> find_site(vit)
        TokenSite(first='blocks.0', last='blocks.11', grid_size=(2, 2), num_prefix_tokens=1)
    """
    path = target if target is not None else ""
    part = submodule(module, path)
    transformers = {n: m for n, m in part.named_modules() if isinstance(m, VisionTransformer)}
    if len(transformers) > 1:
        raise ValueError(
            f"Found {len(transformers)} models with patch tokens: "
            f"{', '.join(_join(path, name) or 'the model itself' for name in transformers)}. "
            "Give the path of one of them as `target`; for several, one REOrder each, told apart "
            "by `name`."
        )
    if transformers:
        path = _join(_join(path, next(iter(transformers))), "blocks")
    elif target is None:
        raise TokensNotFoundError(_nothing_found(module))
    first = _first_block(module, path)
    owners = [submodule(module, parent) for parent in _parents(first)]
    grid = grid_size or _first_of(getattr(m, "patch_embed", None) for m in owners)
    if not isinstance(grid, tuple):
        grid = getattr(grid, "grid_size", None)
    if grid is None:
        raise ValueError(
            f"Cannot tell the patch grid in front of `target={first!r}`: give `grid_size=(rows, "
            "columns)`."
        )
    prefix = num_prefix_tokens
    if prefix is None:
        prefix = _first_of(getattr(m, "num_prefix_tokens", None) for m in owners) or 0
    _refuse(module, first)
    height, width = grid
    return TokenSite(first, _last_block(module, first), (int(height), int(width)), int(prefix))


def is_order_blind(module: nn.Module, site: TokenSite) -> bool:
    """Whether the blocks are known to give the same result for every order of the tokens."""
    container = submodule(module, site.first.rpartition(".")[0])
    blocks = list(container) if isinstance(container, _CONTAINERS) else []
    return bool(blocks) and all(type(b).__module__.startswith(_BLIND_BLOCKS) for b in blocks)


def submodule(module: nn.Module, path: str) -> nn.Module:
    """The submodule at a dotted path; the error of a wrong path lists what is there."""
    found = module
    for part in path.split(".") if path else []:
        child = getattr(found, part, None)
        if not isinstance(child, nn.Module):
            there = ", ".join(name for name, _ in found.named_children()) or "nothing"
            raise TokensNotFoundError(
                f"`target={path!r}` does not exist: {type(found).__name__} has no module {part!r}, "
                f"only {there}."
            )
        found = child
    return found


def _refuse(module: nn.Module, first: str) -> None:
    """Raise for models in which an order of the tokens is wrong."""
    block = submodule(module, first)
    cure = "Put a reorder_lightning.PatchOrder into the model yourself, where this is right."
    for name, owner in module.named_modules():
        if sum(child is block for child in owner._modules.values()) > 1:
            raise ValueError(
                f"The block {first!r} is used more than once in {name or type(owner).__name__!r}: "
                f"it would order its tokens each time. {cure}"
            )
    for part in _around(module, first):
        where = type(part).__name__
        position = _own_position(part)
        if position:
            raise ValueError(
                f"{where} has positions inside its blocks ({position}): they belong to places in "
                f"the sequence, and an order would give each patch the position of another. {cure}"
            )
        if isinstance(part, PatchDropout) and part.prob > 0:
            raise ValueError(
                f"{where} drops patches before the first block, so that the tokens there are no "
                f"whole grid. Build the model with patch_drop_rate=0. {cure}"
            )


def _around(module: nn.Module, first: str) -> Iterator[nn.Module]:
    """The modules that the tokens of the first block may go through.

    All of the model that holds the block; of a LightningModule, which may hold other models too,
    only what stands beside the block.
    """
    for path in reversed(_parents(first)):
        owner = submodule(module, path)
        if not isinstance(owner, LightningModule):
            yield from owner.modules()
            return
        yield owner
        yield from owner.children()
    yield from submodule(module, first).modules()


def _own_position(part: nn.Module) -> str | None:
    """Name of what gives positions inside the blocks, if this module has it."""
    if _POSITION_CLASS.search(type(part).__name__):
        return type(part).__name__
    held: dict[str, Any] = {**part.__dict__, **part._parameters, **part._buffers, **part._modules}
    for name, value in held.items():
        if _POSITION_NAME.search(name) and isinstance(value, nn.Module | Tensor):
            return name
    return None


def _nothing_found(module: nn.Module) -> str:
    name = type(module).__name__
    stages = [
        n for n, m in module.named_modules() if re.search("PatchMerging|Downsample", _type(m))
    ]
    if stages:
        return (
            f"{name} is hierarchical ({stages[0]!r} merges patches between its stages), so there "
            "is no one sequence of patches whose order could be learned. Use a model with one "
            "patch grid."
        )
    return (
        f"REOrder found no patch tokens in {name}: it knows reorder_lightning.PatchOrder and "
        "timm's VisionTransformer. For another model give `target='path.to.first.block'`, "
        "`grid_size=(rows, columns)` and `num_prefix_tokens`, or call "
        "reorder_lightning.PatchOrder(None, grid_size) in your model, on the tokens after the "
        "position embedding and before the first block."
    )


def _type(module: nn.Module) -> str:
    return type(module).__name__


def _first_block(module: nn.Module, path: str) -> str:
    """Go into containers: their first child gets the same tokens, and can't be bypassed."""
    part = submodule(module, path)
    while isinstance(part, _CONTAINERS):
        if not len(part):
            raise ValueError(f"`target={path!r}` is an empty {type(part).__name__}.")
        name, part = next(iter(part.named_children()))
        path = _join(path, name)
    if not path:
        raise ValueError("`target` must be the path of a block inside the model, but got ''.")
    return path


def _last_block(module: nn.Module, first: str) -> str:
    parent = first.rpartition(".")[0]
    container = submodule(module, parent)
    if not isinstance(container, _CONTAINERS):
        return first
    return _join(parent, list(container._modules)[-1])


def _parents(path: str) -> list[str]:
    """Paths of the modules around ``path``, the nearest first."""
    parts = path.split(".")[:-1]
    return [".".join(parts[:n]) for n in range(len(parts), -1, -1)]


def _first_of(values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
