"""Fixed orders: pure functions from a grid to the list of its patches.

An order is an int64 tensor ``(N,)`` with ``N = height * width``; ``order[i]`` is the raster index
``r * width + c`` of the patch that is read at position ``i``, so ``tokens[:, order]`` applies it
and ``order.argsort()`` gives the rank (position) of every patch.

The scans are those that REOrder starts from (Kutscher et al., 2025, arXiv 2505.23751, section 3
and appendix), and three more: boustrophedon, morton and random.
"""

from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from reorder_lightning.order_files import (
    Grid,
    SavedOrder,
    check_order,
    load_checkpoint_order,
    load_order,
    patch_count,
    save_order,
)

__all__ = [
    "ORDERS",
    "Grid",
    "OrderLike",
    "SavedOrder",
    "anti_diagonal",
    "boustrophedon",
    "check_order",
    "column",
    "diagonal",
    "get_order",
    "hilbert",
    "kendall_tau",
    "load_checkpoint_order",
    "load_order",
    "morton",
    "random",
    "resize_order",
    "row",
    "save_order",
    "snake",
    "spiral",
]

OrderLike: TypeAlias = "str | PathLike[str] | Sequence[int] | Tensor"


# --------------------------------------------------------------------------- fixed orders


def row(height: int, width: int) -> Tensor:
    """Rows from the top, each from the left (raster order).

    >>> row(2, 3).tolist()
    [0, 1, 2, 3, 4, 5]
    """
    return torch.arange(patch_count(height, width))


def column(height: int, width: int) -> Tensor:
    """Columns from the left, each from the top.

    >>> column(2, 3).tolist()
    [0, 3, 1, 4, 2, 5]
    """
    return row(height, width).view(height, width).t().flatten()


def boustrophedon(height: int, width: int) -> Tensor:
    """Rows from the top, every second one backwards: unit steps only.

    >>> boustrophedon(2, 3).tolist()
    [0, 1, 2, 5, 4, 3]
    """
    raster = row(height, width).view(height, width).clone()
    raster[1::2] = raster[1::2].flip(1)
    return raster.flatten()


def diagonal(height: int, width: int) -> Tensor:
    """Main diagonals from the bottom left corner: by ``c - r``, inside one by ``c``.

    This is the scan behind the published numbers of REOrder; its appendix describes
    :func:`anti_diagonal`.

    >>> diagonal(2, 3).tolist()
    [3, 0, 4, 1, 5, 2]
    """
    r, c = _cells(height, width)
    return _by(c - r, c)


def anti_diagonal(height: int, width: int) -> Tensor:
    """Anti-diagonals from the top left corner: by ``r + c``, inside one by ``r``.

    >>> anti_diagonal(2, 3).tolist()
    [0, 1, 3, 2, 4, 5]
    """
    r, c = _cells(height, width)
    return _by(r + c, r)


def snake(height: int, width: int) -> Tensor:
    """Anti-diagonals in turns: by ``s = r + c``, even ``s`` by ascending ``c``, odd by descending.

    >>> snake(2, 3).tolist()
    [0, 1, 3, 4, 2, 5]
    """
    r, c = _cells(height, width)
    s = r + c
    return _by(s, torch.where(s % 2 == 0, c, -c))


def spiral(height: int, width: int) -> Tensor:
    """From the top left corner right, down, left, up, and so on inwards: unit steps only.

    >>> spiral(3, 3).tolist()
    [0, 1, 2, 5, 8, 7, 6, 3, 4]
    """
    rest = row(height, width).view(height, width)
    parts = []
    while rest.numel():
        parts.append(rest[0])
        rest = rest[1:].rot90()  # the next side becomes the top row
    return torch.cat(parts)


def hilbert(height: int, width: int) -> Tensor:
    """Generalised Hilbert curve from the top left corner, on any grid, without a jump.

    The grid is halved recursively, as in a Hilbert curve, but unequal halves are allowed. The curve
    ends in a corner next to the one it starts from. Colour the grid as a chessboard: such a curve
    of unit steps along an axis of odd length exists only if the other length is odd too. So the
    curve is made along the longer axis first (the rows of a square) and, if that one jumps, along
    the other. Cropping a 16x16 curve instead jumps 5 times on 14x14.

    >>> hilbert(2, 2).tolist()
    [0, 2, 3, 1]
    >>> hilbert(2, 3).tolist()
    [0, 3, 4, 5, 2, 1]
    """
    patch_count(height, width)
    across, down = (0, width), (height, 0)
    axes = [(across, down), (down, across)] if width >= height else [(down, across), (across, down)]
    curves = [torch.tensor(list(_curve((0, 0), *pair))) for pair in axes]
    cells = min(curves, key=_jumps)  # the first one without a jump
    return cells[:, 0] * width + cells[:, 1]


def morton(height: int, width: int) -> Tensor:
    """Z-order: by the interleaved bits of row and column, the column's bit being the lower one.

    >>> morton(2, 4).tolist()
    [0, 1, 4, 5, 2, 3, 6, 7]
    """
    r, c = _cells(height, width)
    code = torch.zeros_like(r)
    for bit in range(max(height, width).bit_length()):
        code |= ((c >> bit & 1) << 2 * bit) | ((r >> bit & 1) << 2 * bit + 1)
    return _by(code)


def random(height: int, width: int, seed: int = 0) -> Tensor:
    """A fixed random order; the global random state is neither read nor changed.

    >>> random(2, 3, seed=1).sort().values.tolist()
    [0, 1, 2, 3, 4, 5]
    """
    return torch.randperm(patch_count(height, width), generator=torch.Generator().manual_seed(seed))


ORDERS: dict[str, Callable[[int, int], Tensor]] = {
    f.__name__: f
    for f in (
        row,
        column,
        boustrophedon,
        diagonal,
        anti_diagonal,
        snake,
        spiral,
        hilbert,
        morton,
        random,
    )
}
"""The fixed orders by name; ``random:7`` is ``random`` with seed 7."""


# --------------------------------------------------------------------------- any order


def get_order(order: OrderLike, height: int, width: int) -> Tensor:
    """Turn whatever names an order into the order of this grid.

    Args:
        order: a name (``hilbert``; ``random`` and ``random:7`` with a seed), a path to an order
            saved by :func:`save_order` or to a checkpoint (``.ckpt``), or an explicit order.
        height: rows of patches.
        width: columns of patches.

    Returns:
        int64 tensor ``(height * width,)`` on the CPU, a copy of an explicit order.

    Raises:
        ValueError: unknown name; not a permutation (says which indices are missing or doubled);
            an order for another grid.
        FileNotFoundError: the path does not exist.

    >>> get_order("column", 2, 2).tolist(), get_order([3, 2, 1, 0], 2, 2).tolist()
    ([0, 2, 1, 3], [3, 2, 1, 0])
    """
    count = patch_count(height, width)
    if not isinstance(order, str | PathLike):
        return check_order(order, count)
    name, _, seed = str(order).partition(":")
    if name == "random" and seed:
        return random(height, width, _seed(seed))
    if str(order) in ORDERS:
        return ORDERS[str(order)](height, width)
    path = Path(order)
    if not path.suffix and not path.exists():
        names = ", ".join(ORDERS)
        raise ValueError(
            f"Expected argument `order` to be one of {names}, random:SEED, or the path to a saved "
            f"order or checkpoint, but got {str(order)!r}."
        )
    if path.suffix != ".json":
        return check_order(load_checkpoint_order(path), count, f"The order in {path}")
    saved = load_order(path)
    if saved.grid != (height, width):
        raise ValueError(
            f"The order in {path} is for a grid of {_text(saved.grid)} patches, but the model has "
            f"{_text((height, width))}. Resize it with `reorder_lightning.orders.resize_order`."
        )
    return saved.order


def resize_order(order: Tensor, from_grid: Grid, to_grid: Grid) -> Tensor:
    """Carry an order over to another grid, so that a learned one survives a change of resolution.

    Every new patch takes the rank of the old patch that it lies in; new patches inside one old
    patch are sorted by the bilinearly interpolated rank, so they are read in the direction of the
    scan there. The old patches are thus visited exactly as before. (Bilinear ranks alone mix what
    lies on two sides of a border in the order: a row scan taken from 14x14 to 24x24 then has a
    mean step of 10.6 patches instead of 1.9.)

    Args:
        order: int64 ``(H * W,)``.
        from_grid: its rows and columns ``(H, W)``.
        to_grid: the new rows and columns.

    Returns:
        int64 tensor ``(to_grid[0] * to_grid[1],)``.

    Raises:
        ValueError: ``order`` is not a permutation of ``from_grid``.

    >>> resize_order(column(2, 2), (2, 2), (4, 2)).tolist()
    [0, 2, 4, 6, 1, 3, 5, 7]
    """
    patch_count(*to_grid)
    order = check_order(order, patch_count(*from_grid))
    if from_grid == to_grid:
        return order
    rank = order.argsort().double().view(1, 1, *from_grid)
    inside = F.interpolate(rank, size=to_grid, mode="bilinear", align_corners=True)
    return _by(F.interpolate(rank, size=to_grid, mode="nearest-exact").flatten(), inside.flatten())


def kendall_tau(order: Tensor, other: Tensor) -> float:
    """Kendall's rank correlation of two orders of the same patches.

    The share of pairs of patches that both read in the same direction, minus the share of those
    that they don't: 1 for the same order, -1 for the reverse, about 0 for unrelated ones.

    Args:
        order: int64 ``(N,)``.
        other: int64 ``(N,)``.

    Example:
        >>> kendall_tau(torch.tensor([0, 1, 2]), torch.tensor([0, 2, 1]))
        0.33333333333333337
    """
    # The positions in `other` of the patches in the sequence of `order`: count the rising pairs.
    rank = other.argsort()[order]
    pairs = len(rank) * (len(rank) - 1) / 2
    falling = (rank[:, None] > rank[None, :]).triu(1).sum().item()
    return 1.0 - 2.0 * falling / max(pairs, 1.0)


# --------------------------------------------------------------------------- helpers


def _cells(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Row and column of every raster index."""
    index = row(height, width)
    return index // width, index % width


def _by(*keys: Tensor) -> Tensor:
    """Indices sorted by the first key, ties by the next one, then by raster index."""
    order = torch.arange(len(keys[0]))
    for key in reversed(keys):
        order = order[key[order].argsort(stable=True)]
    return order


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"Expected `random:SEED` with a whole number, but got 'random:{text}'.")
    return int(text)


def _text(grid: Grid) -> str:
    return f"{grid[0]}x{grid[1]}"


def _curve(start: Grid, major: Grid, minor: Grid) -> Iterator[Grid]:
    """Cells of the block spanned by two signed axes, from its first corner to `major`'s far end."""
    length, breadth = abs(sum(major)), abs(sum(minor))
    step, side = _unit(major), _unit(minor)
    if breadth == 1 or length == 1:
        walk = step if breadth == 1 else side
        for i in range(length * breadth):
            yield _add(start, walk, i)
        return
    # Halves are even where possible: a curve along an even axis always exists.
    if 2 * length > 3 * breadth:  # long: two blocks one after the other
        half = _scaled(step, _half(length))
        yield from _curve(start, half, minor)
        yield from _curve(_add(start, half), _add(major, half, -1), minor)
        return
    # Else up the first half of the long side, along the top, and down the second half.
    half, rise = _scaled(step, length // 2), _scaled(side, _half(breadth))
    yield from _curve(start, rise, half)
    yield from _curve(_add(start, rise), major, _add(minor, rise, -1))
    corner = _add(_add(start, _add(major, step, -1)), _add(rise, side, -1))
    yield from _curve(corner, _scaled(rise, -1), _add(half, major, -1))


def _half(length: int) -> int:
    """Half of a length, the odd ones rounded up to an even number."""
    half = length // 2
    return half + 1 if half % 2 and length > 2 else half


def _unit(axis: Grid) -> Grid:
    return (axis[0] > 0) - (axis[0] < 0), (axis[1] > 0) - (axis[1] < 0)


def _scaled(axis: Grid, by: int) -> Grid:
    return axis[0] * by, axis[1] * by


def _add(a: Grid, b: Grid, by: int = 1) -> Grid:
    return a[0] + by * b[0], a[1] + by * b[1]


def _jumps(cells: Tensor) -> int:
    """How many steps of a path are no unit steps."""
    return int((cells.diff(dim=0).abs().sum(1) != 1).sum())
