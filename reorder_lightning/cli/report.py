"""`reorder report`: what finished runs have shown, with errors and paired tests."""

import json
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reorder_lightning.datamodules.base import write_csv
from reorder_lightning.order_figures import to_png
from reorder_lightning.prior import Estimate
from reorder_lightning.report_figures import (
    draw_accuracy,
    draw_compressibility,
    draw_curves,
    draw_movements,
)
from reorder_lightning.report_tables import (
    TextTable,
    cost_table,
    csv_rows,
    left_out_lines,
    markdown,
    notes,
    result_table,
)
from reorder_lightning.reports import Comparison, Report, make_report
from reorder_lightning.run_results import find_runs

_CAPTIONS = {
    "accuracy": "Top-1 by start order",
    "curves": "Validation top-1 over the epochs",
    "movement": "How far the orders moved",
    "compressibility": "Compressibility of the start order against top-1",
}


def run(runs: list[str], output: Path = Path("report"), prior: Path | None = None) -> None:
    """Compare finished trainings: accuracy with errors, paired tests, cost, and figures.

    Runs that differ in more than start order, `reorder` and seed are never compared: each setting
    has its own table. Folders that are broken, unfinished or of something else are named and left
    out. Writes report.md, report.csv, and figures as PNG.

    Args:
        runs: run folders, or folders above them.
        output: folder for the files.
        prior: prior.json of `reorder prior`, to draw compressibility against accuracy.

    Raises:
        FileNotFoundError: there is no `prior`.
        ValueError: no finished run is left, or `prior` is not what `reorder prior` writes.
    """
    saved = _read_prior(prior) if prior else {}
    report = make_report(*find_runs(runs))
    _print(report)
    figures = [
        _draw(comparison, saved, output, f"_{i}" if len(report.comparisons) > 1 else "")
        for i, comparison in enumerate(report.comparisons, start=1)
    ]
    (output / "report.md").write_text(markdown(report, figures), encoding="utf-8")
    write_csv(output / "report.csv", csv_rows(report))
    names = [name for group in figures for name in group.values()]
    print(f"files: {output}/report.md, report.csv, {', '.join(names)}")
    if prior and not any(name.startswith("compressibility") for name in names):
        print(f"No figure of compressibility: {prior} has less than two of the start orders.")


def _read_prior(path: Path) -> dict[str, Estimate]:
    """% saved of each order."""
    if not path.exists():
        raise FileNotFoundError(f"`prior`: there is no {path}; `reorder prior` writes it.")
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["orders"]
        return {row["order"]: Estimate(*map(float, row["score"])) for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"`prior`: {path} is not a prior.json of `reorder prior`.") from error


def _draw(
    comparison: Comparison, saved: Mapping[str, Estimate], folder: Path, suffix: str
) -> dict[str, str]:
    """Write the figures; returns caption to file name."""
    figures: dict[str, Figure | None] = {
        "accuracy": draw_accuracy(comparison),
        "curves": draw_curves(comparison),
        "movement": draw_movements(comparison),
        "compressibility": draw_compressibility(comparison, saved),
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, figure in figures.items():
        if figure is not None:
            (folder / f"{name}{suffix}.png").write_bytes(to_png(figure))
            written[_CAPTIONS[name]] = f"{name}{suffix}.png"
    return written


def _print(report: Report) -> None:
    console = Console(highlight=False)
    for comparison in report.comparisons:
        _print_table(result_table(comparison), comparison.title)
        for note in notes(comparison):
            console.print(note, markup=False)
        _print_table(cost_table(comparison), "cost")
    if report.left_out:
        console.print(f"left out ({len(report.left_out)}):", style="bold yellow")
        for line in left_out_lines(report):
            console.print(f"  {line}", markup=False, soft_wrap=True)


def _print_table(text: TextTable, title: str) -> None:
    """All of the table, in long lines if the terminal is narrow: no number is cut off."""
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    for i, name in enumerate(text.header):
        style = "bold cyan" if i == 0 else None
        table.add_column(name, style=style, justify="right" if i > 1 else "left", no_wrap=True)
    for row, following in zip(text.rows, [*text.rows[1:], None], strict=True):
        table.add_row(*map(Text, row), end_section=following is not None and following[0] != row[0])
    needed = Console(width=10_000).measure(table).maximum
    Console(width=max(needed, Console().width)).print(table)
