"""Start a backbone from the weights of a checkpoint."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn

from reorder_lightning.order_files import load_checkpoint
from reorder_lightning.orders import get_order, resize_order
from reorder_lightning.patch_order import PatchOrder

_ORDER_KEY = "patch_order._extra_state"


def load_weights(backbone: nn.Module, path: str | Path, keep_order: bool = False) -> None:
    """Load weights and patch order of a checkpoint of the same family into ``backbone``.

    What does not fit the new image size or number of classes is adapted, each with a warning: the
    position table is resampled (timm), the order is resized by interpolating ranks, a head of
    another width stays newly initialised.

    Args:
        backbone: a module with a ``patch_order``.
        path: a Lightning checkpoint of this package, or a plain ``state_dict`` of the backbone.
        keep_order: keep the backbone's own order rather than the checkpoint's.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is no checkpoint, or one of another architecture.
    """
    weights = _backbone_weights(load_checkpoint(path))
    own = backbone.state_dict()
    order = backbone.patch_order
    assert isinstance(order, PatchOrder)
    if keep_order:
        weights.pop(_ORDER_KEY, None)
    if _ORDER_KEY in weights:
        weights[_ORDER_KEY] = _fit_order(weights[_ORDER_KEY], order, path)
    if "pos_embed" in weights and weights["pos_embed"].shape != own["pos_embed"].shape:
        weights["pos_embed"] = _fit_positions(
            weights["pos_embed"], own["pos_embed"], order.grid_size
        )
        warnings.warn(f"init_from: the position table of {path} was resampled.", stacklevel=3)
    for key in [k for k in weights if k.startswith("head.")]:
        if key in own and weights[key].shape != own[key].shape:
            weights[key] = own[key]
            warnings.warn(
                f"init_from: {key} of {path} has another shape (other classes?) and starts new.",
                stacklevel=3,
            )
    order.given = order.given or _ORDER_KEY in weights
    try:
        backbone.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"init_from={str(path)!r} holds the weights of another architecture: {error}"
        ) from error


def _backbone_weights(checkpoint: dict[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = checkpoint.get("state_dict", checkpoint)
    prefix = "backbone."
    inner = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    return inner or dict(state)


def _grid_of(count: int, like: tuple[int, int]) -> tuple[int, int]:
    """The grid of ``count`` patches with the aspect of ``like``."""
    height = round((count * like[0] / like[1]) ** 0.5)
    if height < 1 or count % height:
        raise ValueError(
            f"init_from: cannot tell the patch grid of {count} patches to fit it to a grid of "
            f"{like[0]}x{like[1]}; use an image of the same aspect."
        )
    return height, count // height


def _fit_order(saved: Tensor, layer: PatchOrder, path: str | Path) -> Tensor:
    grid = layer.grid_size
    if len(saved) == grid[0] * grid[1]:
        return get_order(saved, *grid)
    warnings.warn(f"init_from: the patch order of {path} was resized to {grid}.", stacklevel=4)
    return resize_order(saved, _grid_of(len(saved), grid), grid)


def _fit_positions(saved: Tensor, own: Tensor, grid: tuple[int, int]) -> Tensor:
    prefix = own.shape[1] - grid[0] * grid[1]
    resampled: Tensor = resample_abs_pos_embed(
        saved,
        new_size=list(grid),
        old_size=list(_grid_of(saved.shape[1] - prefix, grid)),
        num_prefix_tokens=prefix,
    )
    return resampled
