"""Reports: finished runs, grouped into arms that may be compared, with errors and paired tests."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from reorder_lightning.orders import ORDERS
from reorder_lightning.report_statistics import PairedTest, bootstrap_errors, paired_test
from reorder_lightning.run_results import LeftOut, Run

__all__ = ["BASELINE", "Arm", "Comparison", "Report", "Score", "make_report"]

FIXED = "fixed"
"""Method of the runs that others are held against: the order stays what it was."""
BASELINE = "row"
"""Start order of the runs that all others are held against."""


class Score(NamedTuple):
    """An accuracy, in per cent.

    Attributes:
        value: mean over images and seeds.
        se: bootstrap standard error over images.
        std: standard deviation over seeds; None with less than two.
    """

    value: float
    se: float
    std: float | None


@dataclass(frozen=True)
class Arm:
    """The runs of one start order and method, which differ by their seed.

    Attributes:
        order: start order.
        method: how it was treated.
        runs: one for each seed.
        top1: top-1 accuracy.
        top5: top-5 accuracy.
        vs_row: difference of top-1 to the row order, fixed; None for itself or without common
            seeds. Answers whether this arm is better than reading row by row.
        vs_start: difference of top-1 to the same start order, fixed. Answers whether the method is
            better than leaving the order as it was.
    """

    order: str
    method: str
    runs: tuple[Run, ...]
    top1: Score
    top5: Score
    vs_row: PairedTest | None
    vs_start: PairedTest | None

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the runs, ascending."""
        return tuple(run.seed for run in self.runs)

    @property
    def accepted(self) -> tuple[int, int] | None:
        """How many runs accepted the learned order, and of how many that decided."""
        decided = [run.accepted for run in self.runs if run.accepted is not None]
        return (sum(decided), len(decided)) if decided else None

    @property
    def kendall(self) -> float | None:
        """Kendall's tau of the final order to the start, mean over seeds."""
        last = [run.movement[max(run.movement)] for run in self.runs if run.movement]
        return float(np.mean(last)) if last else None

    def cost(self, name: str) -> float | None:
        """Mean over seeds of one of `Run.costs`."""
        known = [run.costs[name] for run in self.runs if name in run.costs]
        return float(np.mean(known)) if known else None


@dataclass(frozen=True)
class Comparison:
    """All arms of one setting: the same model, data and training but for order and seed.

    Attributes:
        title: the setting in words, with what tells it from the others of the report.
        model: name of the model's class.
        data: name of the DataModule's class.
        images: number of validation images.
        arms: the row order first, and of each order the fixed method first.
    """

    title: str
    model: str
    data: str
    images: int
    arms: tuple[Arm, ...]

    @property
    def orders(self) -> tuple[str, ...]:
        """Start orders, each once."""
        return tuple(dict.fromkeys(arm.order for arm in self.arms))

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods, each once."""
        return tuple(sorted(dict.fromkeys(arm.method for arm in self.arms), key=_method_rank))

    @property
    def tests(self) -> tuple[PairedTest, ...]:
        """All paired tests; for the row order both questions are the same one."""
        found = [arm.vs_row for arm in self.arms]
        found += [arm.vs_start for arm in self.arms if arm.order != BASELINE]
        return tuple(test for test in found if test is not None)


@dataclass(frozen=True)
class Report:
    """What runs have shown.

    Attributes:
        comparisons: one for each setting; arms of different settings are never compared.
        left_out: folders that are not in it, and why.
    """

    comparisons: tuple[Comparison, ...]
    left_out: tuple[LeftOut, ...]


def make_report(runs: Sequence[Run], left_out: Iterable[LeftOut] = ()) -> Report:
    """Group runs by setting, start order and method, and compare them.

    Of runs that have all of these and the seed in common, the newest counts.

    Args:
        runs: finished runs.
        left_out: what could not be read, to be passed on.

    Raises:
        ValueError: there are no runs.
    """
    if not runs:
        reasons = "".join(f"\n  {one.folder}: {one.reason}" for one in left_out)
        raise ValueError(f"There is no finished run to report on.{reasons}")
    settings: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        settings[_key(run.setting)].append(run)
    groups = list(settings.values())
    titles = _titles([group[0].setting for group in groups])
    repeated: list[LeftOut] = []
    comparisons = [_compare(*pair, repeated) for pair in zip(titles, groups, strict=True)]
    comparisons.sort(key=lambda c: c.title)
    return Report(tuple(comparisons), (*left_out, *repeated))


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


# --------------------------------------------------------------------------- one setting


def _compare(title: str, runs: Sequence[Run], repeated: list[LeftOut]) -> Comparison:
    arms: dict[tuple[str, str], dict[int, Run]] = defaultdict(dict)
    newest_first = sorted(runs, key=lambda run: -run.written)
    for run, method in zip(newest_first, _methods(newest_first), strict=True):
        newer = arms[run.order, method].setdefault(run.seed, run)
        if newer is not run:
            which = f"{run.order}, {method}, seed {run.seed}"
            repeated.append(LeftOut(run.folder, f"repeated ({which}), newer: {newer.folder}"))
    ordered = sorted(arms, key=lambda names: (_order_rank(names[0]), _method_rank(names[1])))
    cells = [sorted(arms[names].values(), key=lambda run: run.seed) for names in ordered]
    top1, top5 = _scores(cells)
    setting = runs[0].setting
    return Comparison(
        title,
        str(setting.get("model.class_path")),
        str(setting.get("data.class_path")),
        setting["images"],
        tuple(
            Arm(
                order,
                method,
                tuple(cells[i]),
                top1[i],
                top5[i],
                _test(arms[order, method], arms.get((BASELINE, FIXED))),
                _test(arms[order, method], arms.get((order, FIXED))),
            )
            for i, (order, method) in enumerate(ordered)
        ),
    )


def _scores(cells: Sequence[Sequence[Run]]) -> tuple[list[Score], list[Score]]:
    """Top-1 and top-5 of each cell, all on the same resampled images."""
    results = [[run.top1 for run in cell] for cell in cells]
    results += [[run.top5 for run in cell] for cell in cells]
    errors = bootstrap_errors(np.stack([np.mean(one, axis=0) for one in results], axis=1))
    scores = []
    for one, error in zip(results, errors, strict=True):
        by_seed = 100 * np.mean(one, axis=1)
        std = float(by_seed.std(ddof=1)) if len(by_seed) > 1 else None
        scores.append(Score(float(by_seed.mean()), 100 * float(error), std))
    return scores[: len(cells)], scores[len(cells) :]


def _test(arm: dict[int, Run], other: dict[int, Run] | None) -> PairedTest | None:
    """On the seeds that both have."""
    seeds = sorted({*arm} & {*(other or {})})
    if other is None or other is arm or not seeds:
        return None
    return paired_test(
        np.stack([arm[seed].top1 for seed in seeds]), np.stack([other[seed].top1 for seed in seeds])
    )


def _methods(runs: Sequence[Run]) -> list[str]:
    """The method of each run, with its arguments where one name stands for several policies."""
    policies: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for run in runs:
        policies[run.method][_key(run.policy)] = run.policy or {}
    texts = {
        (method, key): text
        for method, found in policies.items()
        for key, text in zip(found, _differing(list(found.values())), strict=True)
    }
    full = [(run.method, texts[run.method, _key(run.policy)]) for run in runs]
    return [f"{method} ({text})" if text else method for method, text in full]


def _order_rank(order: str) -> tuple[int, str]:
    return [*ORDERS, order].index(order), order


def _method_rank(method: str) -> tuple[bool, str]:
    return method != FIXED, method


# --------------------------------------------------------------------------- several settings


def _titles(settings: Sequence[dict[str, Any]]) -> list[str]:
    """What each setting is, and what tells it from others of the same model and data."""
    alike: dict[str, list[int]] = defaultdict(list)
    for i, setting in enumerate(settings):
        alike[_name(setting)].append(i)
    titles = [""] * len(settings)
    for name, places in alike.items():
        for i, text in zip(places, _differing([settings[i] for i in places]), strict=True):
            titles[i] = f"{name}: {text}" if text else name
    return titles


def _name(setting: dict[str, Any]) -> str:
    length = f"{setting.get('trainer.max_epochs')} epochs"
    if "trainer.max_epochs" not in setting:
        length = f"{setting.get('trainer.max_steps')} steps"
    model, data = setting.get("model.class_path"), setting.get("data.class_path")
    return f"{model} on {data}, {setting['images']:,} validation images, {length}"


def _differing(parts: Sequence[dict[str, Any]]) -> list[str]:
    """Of each, the entries that are not the same in all, as ``name value, name value``."""
    names = dict.fromkeys(name for part in parts for name in part)
    telling = [name for name in names if len({_key(part.get(name)) for part in parts}) > 1]
    return [
        ", ".join(f"{name.rpartition('.')[2]} {part.get(name)}" for name in telling)
        for part in parts
    ]
