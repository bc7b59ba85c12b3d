"""Explicit orders: checked, saved to files, and read from files and checkpoints."""

import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

Grid: TypeAlias = tuple[int, int]


class SavedOrder(NamedTuple):
    """An order read from a file.

    Attributes:
        order: int64 tensor ``(N,)``.
        grid: rows and columns of patches, ``N = grid[0] * grid[1]``.
        source: where it came from, in words.
    """

    order: Tensor
    grid: Grid
    source: str


def patch_count(height: int, width: int) -> int:
    """Number of patches of a grid, which must have at least one."""
    if height < 1 or width < 1:
        raise ValueError(f"Expected a grid of at least 1x1 patches, but got {height}x{width}.")
    return height * width


def check_order(
    order: Sequence[int] | Tensor, count: int, what: str = "Argument `order`"
) -> Tensor:
    """Return ``order`` as an int64 tensor on the CPU if it is a permutation of ``count`` indices.

    Args:
        order: explicit order, ``(count,)``.
        count: number of patches.
        what: how an error should call the order.

    Raises:
        ValueError: says which indices are missing, doubled or outside.

    >>> check_order([0, 2, 2], 3)
    Traceback (most recent call last):
    ValueError: Argument `order` is not a permutation of 0..2: missing 1; doubled 2.
    """
    found = torch.as_tensor(order).detach().cpu()
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise ValueError(f"{what} must hold integers, but its dtype is {found.dtype}.")
    if found.shape != (count,):
        raise ValueError(
            f"{what} must have one index for each of the {count} patches, shape ({count},), but "
            f"its shape is {tuple(found.shape)}."
        )
    found = found.long().clone()
    inside = found[(found >= 0) & (found < count)]
    times = torch.bincount(inside, minlength=count)
    faults = {
        "missing": (times == 0).nonzero().flatten(),
        "doubled": (times > 1).nonzero().flatten(),
        "outside": found[(found < 0) | (found >= count)],
    }
    told = "; ".join(f"{fault} {_listed(which)}" for fault, which in faults.items() if len(which))
    if told:
        raise ValueError(f"{what} is not a permutation of 0..{count - 1}: {told}.")
    return found


def save_order(path: str | PathLike[str], order: Tensor, grid: Grid, source: str) -> Path:
    """Write an order as a small JSON file: the order, its grid and where it came from.

    Args:
        path: file to write; missing folders are made.
        order: int64 ``(H * W,)``.
        grid: rows and columns ``(H, W)``.
        source: where the order came from, in words, e.g. ``"REOrder, epoch 30 of run 7"``.

    Returns:
        The path.

    Raises:
        ValueError: ``order`` is not a permutation of ``grid``.
    """
    order = check_order(order, patch_count(*grid))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"grid": list(grid), "source": source, "order": order.tolist()}
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    return path


def load_order(path: str | PathLike[str]) -> SavedOrder:
    """Read an order that :func:`save_order` wrote.

    Args:
        path: JSON file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file holds no order, or not a permutation of its grid.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no saved order at {path}.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        height, width = (int(n) for n in content["grid"])
        order, source = content["order"], str(content["source"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a saved order: expected a JSON object with `grid` [rows, columns], "
            f"`order` and `source`, as `reorder export` writes it ({error!r})."
        ) from error
    order = check_order(order, patch_count(height, width), f"The order in {path}")
    return SavedOrder(order, (height, width), source)


def load_checkpoint_order(path: str | PathLike[str]) -> Tensor:
    """Read the order that a model's PatchOrder left in a Lightning checkpoint.

    Args:
        path: checkpoint with a ``state_dict``.

    Returns:
        int64 tensor ``(N,)``. The grid is not part of it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no checkpoint, or holds no order, or more than one.
    """
    return order_in_checkpoint(load_checkpoint(path), path)


def load_checkpoint(path: str | PathLike[str]) -> dict[str, Any]:
    """Read a checkpoint on the CPU without running code from it (``weights_only=True``).

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no checkpoint.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no checkpoint at {path}.")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (
        Exception
    ) as error:  # torch raises RuntimeError, UnpicklingError, EOFError, KeyError, ...
        raise ValueError(f"{path} cannot be read as a checkpoint: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is no checkpoint: it holds a {type(content).__name__}.")
    return content


def order_in_checkpoint(checkpoint: dict[str, Any], path: str | PathLike[str]) -> Tensor:
    """Find the order in a loaded checkpoint; arguments and errors as `load_checkpoint_order`."""
    state = checkpoint.get("state_dict", checkpoint)
    found = {key: state[key] for key in state if str(key).endswith("patch_order._extra_state")}
    if not found:
        raise ValueError(f"The checkpoint {path} holds no order: its model has no PatchOrder.")
    order, *others = found.values()
    if any(not torch.equal(order, other) for other in others):
        raise ValueError(f"The checkpoint {path} holds different orders: {', '.join(found)}.")
    return check_order(order, len(order), f"The order in {path}")


def _listed(indices: Tensor, most: int = 8) -> str:
    """Some indices in words."""
    shown = ", ".join(str(i) for i in indices[:most].tolist())
    return shown if len(indices) <= most else f"{shown}, ... ({len(indices)} in all)"
