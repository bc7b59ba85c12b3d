"""Figures of a report, one comparison each."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from reorder_lightning.order_figures import FADED, INK, PANEL_TITLE, new_figure, set_title
from reorder_lightning.prior import Estimate
from reorder_lightning.reports import FIXED, Arm, Comparison
from reorder_lightning.run_results import Curve

__all__ = ["draw_accuracy", "draw_compressibility", "draw_curves", "draw_movements"]

_FIXED_COLOUR = "#2a78b5"
_COLOURS = ("#d9822b", "#3d9a6a", "#8a5fb0", "#c2476b", "#7a6a53")
_COLUMNS = 4  # panels in a row


def draw_accuracy(comparison: Comparison) -> Figure:
    """Draw top-1 by start order, the methods beside each other.

    A bar is one standard error over images to both sides of the mean over seeds; each seed is a
    pale dot.
    """
    colours = _colours(comparison)
    orders, methods = comparison.orders, comparison.methods
    step = 0.7 / len(methods)  # of the height that an order has
    figure = new_figure(7.2, 1.6 + len(orders) * (0.2 + 0.2 * len(methods)))
    axes = figure.subplots()
    for arm in comparison.arms:
        y = orders.index(arm.order) + step * (methods.index(arm.method) - (len(methods) - 1) / 2)
        seeds = [100 * float(run.top1.mean()) for run in arm.runs if len(arm.runs) > 1]
        axes.plot(
            seeds, [y + min(0.38 * step, 0.12)] * len(seeds), "o", markersize=4, markeredgewidth=0,
            alpha=0.5, color=colours[arm.method],
        )  # fmt: skip
        axes.errorbar(
            arm.top1.value, y, xerr=arm.top1.se, fmt="o", markersize=6, capsize=3, linewidth=1.6,
            color=colours[arm.method],
        )  # fmt: skip
    for line in range(1, len(orders)):
        axes.axhline(line - 0.5, color="#e6eaee", linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(orders)), orders)
    axes.set_ylim(len(orders) - 0.5, -0.5)
    axes.set_xlabel("top-1 %: mean over seeds ± standard error over images; small: each seed")
    _finish(axes, "x")
    _name(figure, comparison, colours)
    return figure


def draw_curves(comparison: Comparison) -> Figure | None:
    """Draw validation top-1 over the epochs, a panel for each start order.

    Lines are means over seeds, bands their standard deviation to both sides.

    Returns:
        None if no run has logged it.
    """

    def draw(axes: Axes, arm: Arm, colour: str) -> None:
        epochs, values = _common([run.accuracy for run in arm.runs])
        if not epochs:
            return
        mean = values.mean(axis=0)
        axes.plot(epochs, mean, color=colour, linewidth=1.6, marker="o" if len(epochs) == 1 else "")
        if len(values) > 1:
            std = values.std(axis=0, ddof=1)
            axes.fill_between(epochs, mean - std, mean + std, color=colour, alpha=0.2, linewidth=0)

    if not any(run.accuracy for arm in comparison.arms for run in arm.runs):
        return None
    return _by_order(comparison, comparison.arms, draw, "validation top-1 %\n(band: sd over seeds)")


def draw_movements(comparison: Comparison) -> Figure | None:
    """Draw how far each run's order is from its start, a panel for each start order.

    A filled dot ends a run that accepted the learned order, a hollow one a run that kept its start.

    Returns:
        None if no run has learned an order.
    """

    def draw(axes: Axes, arm: Arm, colour: str) -> None:
        for run in (run for run in arm.runs if run.movement):
            curve = {min(run.movement) - 1: 1.0, **run.movement}  # it starts from the start
            axes.plot([*curve], [*curve.values()], color=colour, linewidth=1.2, alpha=0.8)
            last = max(curve)
            face = "white" if run.accepted is False else colour
            axes.plot(last, curve[last], "o", ms=5, color=colour, mfc=face, clip_on=False, zorder=3)

    learned = [arm for arm in comparison.arms if any(run.movement for run in arm.runs)]
    if not learned:
        return None
    figure = _by_order(
        comparison, learned, draw, "Kendall tau to the start\n(hollow end: the start was kept)"
    )
    lowest = min(min(run.movement.values()) for arm in learned for run in arm.runs if run.movement)
    figure.axes[0].set_ylim(min(lowest, 0) - 0.05, 1.05)  # 0: unrelated to the start
    return figure


def draw_compressibility(comparison: Comparison, saved: Mapping[str, Estimate]) -> Figure | None:
    """Draw top-1 against what LZMA saves on the sequences of the start order.

    Args:
        comparison: its arms.
        saved: order to % saved with its 95 % interval, as `reorder prior` finds it.

    Returns:
        None if less than two of the start orders are in ``saved``.
    """
    arms = [arm for arm in comparison.arms if arm.order in saved]
    if len({arm.order for arm in arms}) < 2:
        return None
    colours = _colours(comparison)
    figure = new_figure(7.2, 4.4)
    axes = figure.subplots()
    span = max(saved[arm.order].high for arm in arms) - min(saved[arm.order].low for arm in arms)
    by_saving = sorted({arm.order for arm in arms}, key=lambda order: saved[order].value)
    for i, order in enumerate(by_saving):
        estimate = saved[order]
        group = [arm for arm in arms if arm.order == order]
        axes.hlines(group[0].top1.value, estimate.low, estimate.high, color=FADED, linewidth=1)
        for j, arm in enumerate(group):
            aside = 0.012 * span * (j - (len(group) - 1) / 2)  # so that none hides another
            axes.errorbar(
                estimate.value + aside, arm.top1.value, yerr=arm.top1.se, fmt="o", markersize=5,
                capsize=2, linewidth=1.2, color=colours[arm.method],
            )  # fmt: skip
        above = i % 2 == 0  # names of neighbours keep apart
        ends = [arm.top1.value + (1 if above else -1) * arm.top1.se for arm in group]
        axes.annotate(
            order, (estimate.value, max(ends) if above else min(ends)),
            xytext=(0, 5 if above else -5), textcoords="offset points", ha="center",
            va="bottom" if above else "top", fontsize=9, color=INK,
        )  # fmt: skip
    axes.margins(0.08, 0.12)
    axes.set_xlabel("% saved by LZMA, with its 95 % interval over images")
    axes.set_ylabel("top-1 % ± standard error over images")
    _finish(axes, "both")
    _name(figure, comparison, colours)
    return figure


# --------------------------------------------------------------------------- parts


def _colours(comparison: Comparison) -> dict[str, str]:
    """One colour for each method, the same in all figures."""
    others = [method for method in comparison.methods if method != FIXED]
    cycle = {method: _COLOURS[i % len(_COLOURS)] for i, method in enumerate(others)}
    return ({FIXED: _FIXED_COLOUR} if FIXED in comparison.methods else {}) | cycle


def _by_order(
    comparison: Comparison,
    arms: Sequence[Arm],
    draw: Callable[[Axes, Arm, str], None],
    what: str,
) -> Figure:
    """A panel of epochs for each start order of the arms, on common axes."""
    colours = _colours(comparison)
    orders = list(dict.fromkeys(arm.order for arm in arms))
    columns = min(_COLUMNS, len(orders))
    rows = math.ceil(len(orders) / columns)
    figure = new_figure(max(2.9 * columns, 6.0) + 0.4, 2.4 * rows + 1.3)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axes, order in zip(panels, orders, strict=False):
        for arm in arms:
            if arm.order == order:
                draw(axes, arm, colours[arm.method])
        axes.set_title(order, **PANEL_TITLE)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        _finish(axes, "both")
    for axes in panels[len(orders) :]:
        axes.set_visible(False)
    for axes in panels[max(len(orders) - columns, 0) : len(orders)]:  # the lowest of each column
        axes.set_xlabel("epoch")
        axes.tick_params(labelbottom=True)
    figure.supylabel(what, fontsize=9, color=INK)
    shown = {arm.method for arm in arms}
    _name(figure, comparison, {m: colour for m, colour in colours.items() if m in shown})
    return figure


def _common(curves: Sequence[Curve]) -> tuple[list[int], npt.NDArray[np.float64]]:
    """The epochs that all curves have, and their values ``(curves, epochs)``."""
    curves = [curve for curve in curves if curve]
    epochs = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    return epochs, np.array([[curve[epoch] for epoch in epochs] for curve in curves])


def _finish(axes: Axes, grid: Literal["both", "x"]) -> None:
    axes.tick_params(length=0, labelsize=9, labelcolor=INK)
    axes.grid(axis=grid, color="#e6eaee")
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=INK, fontsize=9)


def _name(figure: Figure, comparison: Comparison, colours: Mapping[str, str]) -> None:
    """Title above the panels, methods below."""
    letters = int(8.5 * figure.get_figwidth())  # of a line of the title
    set_title(figure, "\n".join(textwrap.wrap(comparison.title, letters)))
    handles = [
        Line2D([], [], marker="o", linestyle="", color=colour, label=method)
        for method, colour in colours.items()
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9,
        labelcolor=INK, handletextpad=0.1,
    )  # fmt: skip
