"""A report as text: tables of strings, markdown, and rows for a csv file."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from reorder_lightning.report_statistics import PairedTest
from reorder_lightning.reports import BASELINE, FIXED, Arm, Comparison, Report, Score

__all__ = [
    "TextTable",
    "cost_table",
    "csv_rows",
    "left_out_lines",
    "markdown",
    "notes",
    "result_table",
]

ONE_SEED, BY_LUCK = "*", "?"
_COSTS = {
    "parameters": ("parameters", "{:,.0f}"),
    "gflops": ("GFLOPs", "{:.3g}"),
    "seconds_per_epoch": ("s / epoch", "{:.1f}"),
    "peak_memory_mb": ("peak MB", "{:,.0f}"),
}


class TextTable(NamedTuple):
    """Cells of a table; the first two columns are names, the others numbers."""

    header: list[str]
    rows: list[list[str]]


def result_table(comparison: Comparison) -> TextTable:
    """Accuracy of each arm with its errors, both paired tests, and what the policy did."""
    header = ["order", "method", "seeds", "top-1 %", "sd", "top-5 %", "sd"]
    header += [f"vs {BASELINE}, {FIXED}", "p", f"vs same, {FIXED}", "p"]
    policy = any(arm.accepted or arm.kendall is not None for arm in comparison.arms)
    rows = [
        [
            *(arm.order, arm.method, str(len(arm.seeds))),
            *(*_score(arm.top1), *_score(arm.top5)),
            *(*_test(arm.vs_row), *_test(arm.vs_start)),
            *(_policy(arm) if policy else ()),
        ]
        for arm in comparison.arms
    ]
    return TextTable([*header, *(["accepted", "tau"] if policy else [])], rows)


def cost_table(comparison: Comparison) -> TextTable:
    """What each arm costs: mean over seeds, nothing where it is not known."""
    header = ["order", "method", *(title for title, _ in _COSTS.values())]
    rows = []
    for arm in comparison.arms:
        costs = [(arm.cost(name), form) for name, (_, form) in _COSTS.items()]
        cells = ["" if value is None else form.format(value) for value, form in costs]
        rows.append([arm.order, arm.method, *cells])
    return TextTable(header, rows)


def notes(comparison: Comparison) -> Iterator[str]:
    """What the numbers mean, and what they do not, a sentence or two each."""
    yield (
        "± of an accuracy is the bootstrap standard error over validation images, sd the standard "
        "deviation over seeds. Differences are of top-1, in percentage points, paired by seed and "
        "image; with two or more seeds their ± and p count the noise of images and of seeds."
    )
    if any(test.seeds == 1 for test in comparison.tests):
        yield (
            f"{ONE_SEED} One pair of trainings: p is about these two trained models, not about the "
            "methods, for which other seeds are needed."
        )
    for test in comparison.tests:
        if test.by_luck:
            yield (
                f"{BY_LUCK} The seeds agree by chance: ±{test.se:.2f} is less than half of the "
                f"±{test.image_se:.2f} that the images alone would give. Do not rely on this p."
            )
    yield (
        f"vs {BASELINE}, {FIXED} asks whether an arm is better than reading row by row; vs same, "
        f"{FIXED} whether its method is better than leaving its start order as it is. Neither "
        "answers the other: a poor start order leaves more to gain."
    )
    count = len(comparison.tests)
    if count > 1:
        yield (
            f"{count} tests: by chance alone {0.05 * count:.1f} of them would be expected below "
            f"0.05. Those below 0.05 / {count} = {0.05 / count:.2g} hold all together (Bonferroni)."
        )
    yield from _missing(comparison)


def _missing(comparison: Comparison) -> Iterator[str]:
    names = {(arm.order, arm.method): arm for arm in comparison.arms}
    if (BASELINE, FIXED) not in names:
        yield f"There are no runs of order {BASELINE}, method {FIXED}, to compare with."
    for arm in comparison.arms:
        for order in dict.fromkeys((BASELINE, arm.order)):
            other = names.get((order, FIXED))
            alone = set(arm.seeds) - set(other.seeds) if other else set()
            if alone:
                yield (
                    f"{arm.order}, {arm.method}: seeds {sorted(alone)} have no partner in {order}, "
                    f"{FIXED}, and are not in that test."
                )


def left_out_lines(report: Report) -> Iterator[str]:
    """Each folder that is not in the report, and why."""
    for one in report.left_out:
        yield f"{one.folder}: {one.reason}"


# --------------------------------------------------------------------------- files


def markdown(report: Report, figures: Sequence[Mapping[str, str]] = ()) -> str:
    """The report as a markdown document.

    Args:
        report: what to write.
        figures: for each comparison, caption to file name.
    """
    parts = ["# Report"]
    for i, comparison in enumerate(report.comparisons):
        parts.append(f"## {comparison.title}")
        parts.append(_markdown_table(result_table(comparison)))
        parts.append("\n".join(f"- {note}" for note in notes(comparison)).replace("- * ", "- \\* "))
        parts.append(_markdown_table(cost_table(comparison)))
        if i < len(figures):
            parts += [f"![{caption}]({name})" for caption, name in figures[i].items()]
    if report.left_out:
        parts.append("## Left out")
        parts.append("\n".join(f"- {line}" for line in left_out_lines(report)))
    return "\n\n".join(parts) + "\n"


def csv_rows(report: Report) -> list[dict[str, float | int | str | None]]:
    """A row for each arm; accuracies in per cent, differences in points, None where unknown."""
    rows = []
    for comparison in report.comparisons:
        for arm in comparison.arms:
            row: dict[str, float | int | str | None] = {
                "setting": comparison.title,
                "model": comparison.model,
                "data": comparison.data,
                "images": comparison.images,
                "order": arm.order,
                "method": arm.method,
                "seeds": len(arm.seeds),
            }
            for name, score in (("top1", arm.top1), ("top5", arm.top5)):
                row |= {name: score.value, f"{name}_se": score.se, f"{name}_std": score.std}
            for name, test in (("vs_row", arm.vs_row), ("vs_start", arm.vs_start)):
                for field in ("difference", "se", "p", "seeds"):
                    row[f"{name}_{field}"] = getattr(test, field) if test else None
            row |= {name: arm.cost(name) for name in _COSTS}
            row["accepted"] = arm.accepted[0] / arm.accepted[1] if arm.accepted else None
            row["kendall_to_start"] = arm.kendall
            rows.append(row)
    return rows


# --------------------------------------------------------------------------- cells


def _score(score: Score) -> tuple[str, str]:
    std = "" if score.std is None else f"{score.std:.2f}"
    return f"{score.value:.2f} ±{score.se:.2f}", std


def _test(test: PairedTest | None) -> tuple[str, str]:
    if test is None:
        return "", ""
    p = f"{test.p:.3f}" if test.p >= 0.0005 else "<0.001"
    mark = ONE_SEED if test.seeds == 1 else BY_LUCK if test.by_luck else ""
    return f"{test.difference:+.2f} ±{test.se:.2f}", p + mark


def _policy(arm: Arm) -> tuple[str, str]:
    accepted = "{} of {}".format(*arm.accepted) if arm.accepted else ""
    return accepted, "" if arm.kendall is None else f"{arm.kendall:.2f}"


def _markdown_table(table: TextTable) -> str:
    ruler = ["---", "---", *["---:"] * (len(table.header) - 2)]
    lines = [table.header, ruler, *table.rows]
    escaped = [[cell.replace("|", "\\|").replace("*", "\\*") for cell in line] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in escaped)
