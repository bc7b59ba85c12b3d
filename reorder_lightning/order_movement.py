"""How an order moves while it is learned: a figure, and an animation."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import PIL.Image
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from torch import Tensor

from reorder_lightning.order_figures import (
    COLOURS,
    FADED,
    INK,
    NUMBERED,
    PANEL_TITLE,
    Image,
    add_scale,
    new_figure,
    panel_size,
    quiet_frame,
    set_title,
    to_image,
    write_numbers,
)
from reorder_lightning.order_files import Grid, check_order, patch_count
from reorder_lightning.orders import kendall_tau
from reorder_lightning.puzzle import cut, lay_out, tint

EARLIER, LATER = "#2a78b5", "#d9822b"
_SHIFT = LinearSegmentedColormap.from_list("shift", [EARLIER, "#f7f7f5", LATER])
_COMING = "#dde3e8"  # what the animation has not yet come to
_FRAMES = 32  # at most, whatever the number of epochs: the file stays small
_DPI = 100
_TONES = 200  # colours of the animation's pictures
_FIRST_MS, _NEXT_MS, _LAST_MS = 1200, 250, 3000


# --------------------------------------------------------------------------- figure


def draw_movement(
    start: Tensor, orders: Mapping[int, Tensor], grid: Grid, title: str = ""
) -> Figure:
    """Draw how far an order has moved from its start: over the epochs, and each patch at the end.

    Where the last order is the start order, only the epochs are drawn: no patch has moved.

    Args:
        start: int64 ``(H * W,)``, the order before the first of these epochs.
        orders: epoch to the order at its end, int64 ``(H * W,)``; epochs ascend.
        grid: rows and columns of patches ``(H, W)``.
        title: one line above the panels.

    Raises:
        ValueError: an order is not a permutation of the grid.

    >>> from reorder_lightning.orders import column, row
    >>> figure = draw_movement(row(4, 4), {3: row(4, 4), 4: column(4, 4)}, (4, 4))
    >>> figure.axes[0].get_lines()[0].get_ydata().tolist()
    [1.0, 1.0, 0.4]
    """
    start = check_order(start, patch_count(*grid), "Argument `start`")
    checked = {
        epoch: check_order(order, len(start), f"The order of epoch {epoch}")
        for epoch, order in orders.items()
    }
    before, after = start.argsort(), checked[max(checked)].argsort()
    moved = not before.equal(after)
    high, wide = panel_size(grid)
    side = max(high, 2.4)
    widths = [3.4, side, max(wide, 2.6) + 0.7] if moved else [5.6]
    figure = new_figure(sum(widths) + 0.5 * len(widths), side + (1.25 if title else 0.9))
    panels = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    _draw_epochs(panels[0], start, checked)
    if moved:
        _draw_ranks(panels[1], before, after)
        _draw_shift(panels[2], (after - before).view(grid))
    if title:
        set_title(figure, title)
    return figure


def _draw_epochs(axes: Axes, start: Tensor, orders: Mapping[int, Tensor]) -> None:
    first = min(orders)
    epochs = [first - 1, *orders]
    tau = [1.0, *(kendall_tau(order, start) for order in orders.values())]
    axes.plot(epochs, tau, color=EARLIER, linewidth=2, marker="o", markersize=4, clip_on=False)
    axes.set_title("Kendall tau to the start order", **PANEL_TITLE)
    axes.set_xlabel("epoch", fontsize=9, color=INK)
    low = min(*tau, 0.9)
    axes.set_ylim(low - 0.05 * (1 - low), 1 + 0.05 * (1 - low))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda epoch, _: "start" if epoch < 0 else f"{epoch:.0f}")
    )
    _quiet_axes(axes)


def _draw_ranks(axes: Axes, before: Tensor, after: Tensor) -> None:
    last = len(before) - 1
    axes.plot([0, last], [0, last], color=FADED, linewidth=1, linestyle="--", zorder=1)
    axes.scatter(
        before.numpy(), after.numpy(), c=before.numpy(), cmap=COLOURS, zorder=2, linewidths=0,
        s=float(np.clip(6000 / len(before), 5, 36)), clip_on=False,
    )  # fmt: skip
    axes.set_title("rank of each patch", **PANEL_TITLE)
    axes.set_xlabel("start order", fontsize=9, color=INK)
    axes.set_ylabel("learned order", fontsize=9, color=INK)
    axes.set_xlim(-0.02 * last, 1.02 * last)
    axes.set_ylim(1.02 * last, -0.02 * last)  # first on top, as in the pictures of the grid
    axes.set_box_aspect(1)
    axes.set_anchor("N")
    _quiet_axes(axes)


def _draw_shift(axes: Axes, shift: Tensor) -> None:
    largest = int(shift.abs().max())
    image = axes.imshow(shift.numpy(), cmap=_SHIFT, vmin=-largest, vmax=largest)
    if shift.numel() <= NUMBERED:
        write_numbers(axes, shift.numpy(), (shift.abs() > 0.7 * largest).numpy(), sign=True)
    axes.set_title("read earlier (-) or later (+), in places", **PANEL_TITLE)
    axes.set_anchor("NW")
    quiet_frame(axes, shift.shape)
    add_scale(axes, image, ticks=[-largest, 0, largest])


def _quiet_axes(axes: Axes) -> None:
    axes.tick_params(length=0, labelsize=8, labelcolor=FADED)
    axes.grid(color="#e6eaee", zorder=0)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)


# --------------------------------------------------------------------------- animation


def animate(orders: Mapping[str, Tensor], grid: Grid, image: Image | None = None) -> bytes:
    """An animated GIF of an order on its way from the first of ``orders`` to the last.

    A frame shows when each patch is read and, with an image, its patches in the order in which the
    model reads them; below, Kendall tau to the first order. The last frame stays longest. Of more
    than 32 orders, 32 at equal distances are shown, the first and the last among them.

    Args:
        orders: title of the frame to order, int64 ``(H * W,)``.
        grid: rows and columns of patches ``(H, W)``.
        image: uint8 ``(h, w, 3)``, see `reorder_lightning.puzzle.to_pixels`.

    Returns:
        The content of the file.

    Raises:
        ValueError: an order is not a permutation of the grid.

    >>> from reorder_lightning.orders import column, row
    >>> animate({"start": row(4, 4), "end": column(4, 4)}, (4, 4))[:6]
    b'GIF89a'
    """
    frames = [
        (title, check_order(order, patch_count(*grid), f"Order {title}"))
        for title, order in orders.items()
    ]
    if len(frames) > _FRAMES:
        frames = [frames[i] for i in np.linspace(0, len(frames) - 1, _FRAMES).round().astype(int)]
    tau = [kendall_tau(order, frames[0][1]) for _, order in frames]
    stage = _Stage(tau, grid, image)
    drawn = [stage.draw(i, *frame) for i, frame in enumerate(frames)]
    return _to_gif(drawn)


class _Stage:
    """One figure that is drawn again for each frame, its pictures pixel by pixel."""

    def __init__(self, tau: list[float], grid: Grid, image: Image | None) -> None:
        self.grid, self.tau, self.strength = grid, tau, 1.0 if image is None else 0.6
        # Without an image, each patch is a square in the colour of its rank.
        shown = np.full((*grid, 3), 128, np.uint8) if image is None else image
        self.tiles = cut(shown, grid, longer=256)
        picture = lay_out(self.tiles, grid)
        high, wide = (pixels / _DPI for pixels in picture.shape[:2])
        names = ["violet is read first, yellow last", "the sequence, row by row"]
        names = names[: 1 if image is None else 2]
        column = max(wide, 2.3) + 0.2  # or the titles overlap
        width = max(0.2 + len(names) * column, 3.2)
        self.figure = new_figure(width, high + 1.65)
        self.figure.set_layout_engine("none")
        self.figure.set_dpi(_DPI)
        self.title = self.figure.suptitle(
            "", x=0.2 / width, ha="left", fontsize=12, fontweight="bold", color=INK
        )
        self.panels = []
        for i, name in enumerate(names):
            axes = self._place(0.2 + i * column, 0.7, wide, high)
            axes.set_title(name, **PANEL_TITLE)
            axes.set_axis_off()
            self.panels.append(axes.imshow(picture))
        self._draw_course(self._place(0.55, high + 1.15, width - 0.75, 0.35))

    def _place(self, left: float, top: float, width: float, height: float) -> Axes:
        """Axes at a place in inches from the top left corner."""
        across, down = self.figure.get_size_inches()
        corner = (left / across, 1 - (top + height) / down)
        return self.figure.add_axes((*corner, width / across, height / down))

    def _draw_course(self, axes: Axes) -> None:
        low = min(*self.tau, 0.9, 1.0)
        axes.plot(range(len(self.tau)), self.tau, color=_COMING, linewidth=2, clip_on=False)
        (self.course,) = axes.plot([], color=EARLIER, linewidth=2, clip_on=False)
        (self.now,) = axes.plot([], color=EARLIER, marker="o", markersize=5, clip_on=False)
        axes.set_xlim(0, max(len(self.tau) - 1, 1))
        axes.set_ylim(low - 0.02, 1.02)
        axes.set_yticks([low, 1.0], [f"{low:.2f}", "1"])
        axes.set_xticks([])
        axes.set_title("Kendall tau to the start order", **PANEL_TITLE)
        _quiet_axes(axes)

    def draw(self, place: int, title: str, order: Tensor) -> Image:
        pictures = [tint(self.tiles, order, self.strength), self.tiles[order.numpy()]]
        for panel, tiles in zip(self.panels, pictures, strict=False):
            panel.set_data(lay_out(tiles, self.grid))
        self.title.set_text(title)
        self.course.set_data(range(place + 1), self.tau[: place + 1])
        self.now.set_data([place], [self.tau[place]])
        return to_image(self.figure)


def _to_gif(drawn: list[Image]) -> bytes:
    """Frames in one palette, so that what does not change from frame to frame takes no space."""
    exact = 255 * np.array([to_rgb(colour) for colour in ("white", INK, EARLIER, _COMING)])
    ends = PIL.Image.fromarray(np.concatenate([drawn[0], drawn[-1]])).quantize(_TONES)
    tones = np.array(ends.getpalette()).reshape(-1, 3)[:_TONES]
    # Pillow looks up the nearest tone only roughly: near-white must not be there beside white.
    far = np.abs(tones[:, None] - exact).max(2).min(1) > 8
    palette = PIL.Image.new("P", (1, 1))
    palette.putpalette(np.concatenate([exact.round().astype(int), tones[far]]).flatten().tolist())
    frames = [
        PIL.Image.fromarray(picture).quantize(palette=palette, dither=PIL.Image.Dither.NONE)
        for picture in drawn
    ]
    buffer = io.BytesIO()
    frames[0].save(
        buffer, "GIF", save_all=True, append_images=frames[1:], loop=0,
        duration=[_FIRST_MS, *[_NEXT_MS] * (len(frames) - 2), _LAST_MS][: len(frames)],
    )  # fmt: skip
    return buffer.getvalue()
