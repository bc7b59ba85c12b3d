"""Figures of a report: what they show."""

import numpy as np
import pytest

from reorder_lightning.order_figures import to_png
from reorder_lightning.prior import Estimate
from reorder_lightning.report_figures import (
    draw_accuracy,
    draw_compressibility,
    draw_curves,
    draw_movements,
)
from reorder_lightning.reports import make_report
from reorder_lightning.run_results import read_run
from tests.report_runs import POLICY, correct, write_run

ORDERS = ("row", "hilbert", "spiral", "snake", "random")


@pytest.fixture
def comparison(tmp_path):
    """Five orders, two methods, two seeds."""
    runs = []
    for i, order in enumerate(ORDERS):
        for seed in (0, 1):
            top1 = correct(100, 0.3 + 0.05 * i, 10 * i + seed)
            curve = (0.1, 0.2 + 0.1 * seed)
            for method, reorder in (("fixed", None), ("reorder", POLICY)):
                more = {"movement": [(1, 0.8), (2, 0.6)], "accepted": seed == 0} if reorder else {}
                folder = tmp_path / f"{order}-{method}-{seed}"
                write_run(
                    folder, top1, order=order, seed=seed, reorder=reorder, curve=curve, **more
                )
                runs.append(read_run(folder))
    return make_report(runs).comparisons[0]


def panels(figure):
    return {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_visible()}


def test_accuracy_has_each_arm_with_its_error_and_seeds(comparison):
    (axes,) = draw_accuracy(comparison).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(comparison.orders)
    assert len(axes.containers) == len(comparison.arms)
    for arm, bar in zip(comparison.arms, axes.containers, strict=True):
        (ends,) = bar.lines[2][0].get_segments()
        assert ends[:, 0] == pytest.approx(
            [arm.top1.value - arm.top1.se, arm.top1.value + arm.top1.se]
        )
        assert comparison.orders[round(ends[0, 1])] == arm.order
    seeds = [line for line in axes.lines if line.get_markersize() == 4 and len(line.get_xdata())]
    assert sum(len(line.get_xdata()) for line in seeds) == 20


def test_curves_are_means_with_a_band(comparison):
    figure = draw_curves(comparison)
    assert list(panels(figure)) == list(comparison.orders)
    axes = panels(figure)["hilbert"]
    assert [line.get_xdata().tolist() for line in axes.lines] == [[1, 2], [1, 2]]
    assert axes.lines[0].get_ydata() == pytest.approx([10, 25])
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert heights.max() == pytest.approx(25 + np.std([20, 30], ddof=1))


def test_movement_starts_at_one_and_shows_what_was_kept(comparison):
    figure = draw_movements(comparison)
    lines = panels(figure)["spiral"].lines
    assert lines[0].get_xdata().tolist() == [1, 2, 3]
    assert lines[0].get_ydata().tolist() == [1.0, 0.8, 0.6]
    kept = [line.get_markerfacecolor() == "white" for line in lines[1::2]]
    assert kept == [False, True]


def test_compressibility_needs_two_orders(comparison):
    saved = {name: Estimate(10 + i, 9 + i, 12 + i) for i, name in enumerate(ORDERS[:3])}
    (axes,) = draw_compressibility(comparison, saved).axes
    assert {text.get_text() for text in axes.texts} == set(ORDERS[:3])
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    places = {(line.get_xdata()[0], line.get_ydata()[0]) for line in dots}
    row = comparison.arms[0]
    assert any(place == pytest.approx((10, row.top1.value), abs=0.1) for place in places)
    assert draw_compressibility(comparison, {"row": saved["row"]}) is None
    assert draw_compressibility(comparison, {}) is None


def test_without_metrics_there_are_no_curves_and_no_movement(tmp_path):
    run = read_run(write_run(tmp_path / "run", correct(20, 0.5, 0)))
    (comparison,) = make_report([run]).comparisons
    assert draw_curves(comparison) is None
    assert draw_movements(comparison) is None
    assert to_png(draw_accuracy(comparison)).startswith(b"\x89PNG")


def test_methods_have_the_same_colours_in_all_figures(comparison):
    def colours(figure):
        (legend,) = figure.legends
        return {
            text.get_text(): handle.get_color()
            for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True)
        }

    all_of_them = colours(draw_accuracy(comparison))
    assert list(all_of_them) == ["fixed", "reorder"]
    assert colours(draw_curves(comparison)) == all_of_them
    assert colours(draw_movements(comparison)) == {"reorder": all_of_them["reorder"]}
