"""Pictures of orders: pure functions from an order to a matplotlib figure.

The figures are made through matplotlib's object-oriented interface with its Agg canvas: pyplot's
global state, backend and open windows are never touched.
"""

import io
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray
from torch import Tensor

from reorder_lightning.order_files import Grid, check_order, patch_count

Image: TypeAlias = "NDArray[np.uint8]"

COLOURS = "viridis"  # rank, first to last: the same in every panel, and readable in grey
INK = "#22303c"
FADED = "#8b98a5"
PAPER = "#f4f6f8"
PANEL_TITLE: dict[str, Any] = {"loc": "left", "fontsize": 10, "color": INK}
NUMBERED = 144  # up to this many patches, each shows its number


def draw_order(order: Tensor, grid: Grid, logits: Tensor | None = None, title: str = "") -> Figure:
    """Draw one order: the rank of each patch, the path over the grid and, if given, the logits.

    Args:
        order: int64 ``(H * W,)``, ``order[i]`` being the raster index of the patch read at ``i``.
        grid: rows and columns ``(H, W)``.
        logits: ``(H * W,)``, one per patch in raster order; a larger one is read earlier.
        title: one line above the panels.

    Returns:
        A figure of two or three panels, to be saved with ``savefig`` or :func:`to_image`.

    Raises:
        ValueError: ``order`` is not a permutation of the grid, or ``logits`` do not fit it.

    >>> from reorder_lightning.orders import hilbert
    >>> draw_order(hilbert(8, 8), (8, 8)).axes[0].get_title(loc="left")
    'rank of each patch'
    """
    order = check_order(order, patch_count(*grid))
    if logits is not None and logits.numel() != len(order):
        raise ValueError(
            f"Expected argument `logits` to have one value for each of the {len(order)} patches, "
            f"but got {logits.numel()}."
        )
    panels = 2 if logits is None else 3
    high, wide = panel_size(grid)
    figure = new_figure(panels * (wide + 0.85) + 0.2, high + (1.15 if title else 0.85))
    axes = figure.subplots(1, panels, squeeze=False)[0]
    _draw_ranks(axes[0], order, grid)
    draw_path(axes[1], order, grid)
    axes[1].set_title("path over the grid", **PANEL_TITLE)
    if logits is not None:
        _draw_logits(axes[2], logits.detach().cpu().float().view(grid).numpy())
    if title:
        set_title(figure, title)
    return figure


def draw_orders(orders: Mapping[str, Tensor], grid: Grid, columns: int = 5) -> Figure:
    """Draw the paths of several orders of one grid side by side, each under its name.

    Args:
        orders: name to order, int64 ``(H * W,)``.
        grid: rows and columns ``(H, W)``.
        columns: panels in a row of the figure.

    Raises:
        ValueError: an order is not a permutation of the grid.
    """
    rows = math.ceil(len(orders) / columns)
    high, wide = (0.75 * side for side in panel_size(grid))
    figure = new_figure(min(columns, len(orders)) * (wide + 0.3), rows * (high + 0.5))
    axes = figure.subplots(rows, min(columns, len(orders)), squeeze=False).flatten()
    for panel, (name, order) in zip(axes, orders.items(), strict=False):
        draw_path(panel, check_order(order, patch_count(*grid), f"Order {name}"), grid)
        panel.set_title(name, **PANEL_TITLE)
    for panel in axes[len(orders) :]:
        panel.set_visible(False)
    return figure


def to_image(figure: Figure) -> Image:
    """Pixels of a figure, uint8 ``(height, width, 3)``, for loggers that take images."""
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    pixels: Image = np.asarray(canvas.buffer_rgba())[..., :3].copy()
    return pixels


def to_png(figure: Figure) -> bytes:
    """A figure as the content of a PNG file."""
    buffer = io.BytesIO()
    canvas: Any = FigureCanvasAgg(figure)
    canvas.print_png(buffer)
    return buffer.getvalue()


# --------------------------------------------------------------------------- panels


def new_figure(width: float, height: float) -> Figure:
    """An empty white figure of this size in inches."""
    return Figure(figsize=(width, height), dpi=140, layout="constrained", facecolor="white")


def set_title(figure: Figure, title: str) -> None:
    """One bold line above the panels."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)


def panel_size(grid: Grid, longer: float = 3.4) -> tuple[float, float]:
    """Height and width of a panel in inches; a very flat grid still gets some of both."""
    height, width = grid
    scale = longer / max(height, width)
    return max(height * scale, 0.8), max(width * scale, 0.8)


def _draw_ranks(axes: Axes, order: Tensor, grid: Grid) -> None:
    rank = order.argsort().view(grid).numpy()
    image = axes.imshow(rank, cmap=COLOURS, vmin=0, vmax=max(len(order) - 1, 1))
    if len(order) <= NUMBERED:
        write_numbers(axes, rank, dark=rank <= 0.55 * len(order))
    axes.set_title("rank of each patch", **PANEL_TITLE)
    quiet_frame(axes, grid)
    add_scale(axes, image, ticks=[0, len(order) - 1])


def write_numbers(
    axes: Axes, values: "NDArray[np.int64]", dark: "NDArray[np.bool_]", sign: bool = False
) -> None:
    """A number ``(H, W)`` in each patch, in white where the patch is dark."""
    size = min(9.0, 90 / max(values.shape))
    for (r, c), value in np.ndenumerate(values):
        text = f"{value:+d}" if sign and value else str(value)
        axes.text(
            c, r, text, ha="center", va="center", fontsize=size,
            color="white" if dark[r, c] else INK,
        )  # fmt: skip


def _draw_logits(axes: Axes, logits: "NDArray[np.float32]") -> None:
    # Reversed colours: a large logit is read early, so it looks like a small rank.
    image = axes.imshow(logits, cmap=f"{COLOURS}_r")
    axes.set_title("logits (larger is earlier)", **PANEL_TITLE)
    quiet_frame(axes, logits.shape)
    add_scale(axes, image)


def draw_path(axes: Axes, order: Tensor, grid: Grid) -> None:
    """The way through the patch centres; steps to any of eight neighbours are bold, jumps thin."""
    order = order if len(order) > 1 else order.repeat(2)  # a path has at least one step
    width = grid[1]
    cells = np.stack([order.numpy() % width, order.numpy() // width], axis=1).astype(float)
    steps = np.stack([cells[:-1], cells[1:]], axis=1)  # (N - 1, 2 ends, x and y)
    jumps = np.abs(steps[:, 1] - steps[:, 0]).max(1) > 1
    unit = 72 * max(panel_size(grid)) / max(grid)  # points from patch to patch
    bold = float(np.clip(unit * 0.22, 0.5, 3.2))
    lines = LineCollection(
        list(steps),
        cmap=COLOURS,
        array=np.arange(len(steps)),
        linewidths=np.where(jumps, min(0.5 * bold, 0.8), bold),
        alpha=np.where(jumps, 0.4, 1.0),
        capstyle="round",
        zorder=2,
    )
    axes.set_facecolor(PAPER)
    axes.add_collection(lines)
    for where, face in ((cells[-1], INK), (cells[0], "white")):  # last, then first on top
        axes.plot(
            *where, marker="o", markersize=max(2.6 * bold, 3.5), color=face,
            markeredgecolor=INK, markeredgewidth=max(0.45 * bold, 0.8), zorder=3, clip_on=False,
            path_effects=[patheffects.withStroke(linewidth=bold, foreground="white")],
        )  # fmt: skip
    quiet_frame(axes, grid)
    axes.set_xlim(-0.5, grid[1] - 0.5)
    axes.set_ylim(grid[0] - 0.5, -0.5)
    axes.set_aspect("equal")
    if max(grid) <= 32:
        axes.set_xticks(np.arange(grid[1] + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(grid[0] + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=0.9, zorder=0)


def quiet_frame(axes: Axes, grid: tuple[int, ...]) -> None:
    """Quiet frame: the first and last row and column are numbered, nothing else."""
    axes.set_xticks([0, grid[1] - 1])
    axes.set_yticks([0, grid[0] - 1])
    axes.tick_params(which="both", length=0, labelsize=8, labelcolor=FADED)
    for spine in axes.spines.values():
        spine.set_visible(False)


def add_scale(axes: Axes, image: AxesImage, ticks: list[int] | None = None) -> None:
    """A slim colour scale beside a panel, as high as what the panel shows."""
    values: Any = image.get_array()
    width = 0.1 / panel_size(values.shape)[1]
    beside = axes.inset_axes((1 + width, 0, width, 1))
    bar = axes.figure.colorbar(image, cax=beside, ticks=ticks)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8, labelcolor=FADED)
