"""Reports: what is compared with what, and what it says."""

import csv
import io
import math
import os

import numpy as np
import pytest

from reorder_lightning.report_statistics import paired_test
from reorder_lightning.report_tables import csv_rows, markdown, notes, result_table
from reorder_lightning.reports import make_report
from reorder_lightning.run_results import LeftOut, read_run
from tests.report_runs import POLICY, correct, write_run

IMAGES = 400


@pytest.fixture
def write(tmp_path):
    """Write and read a run: `write("hilbert", "fixed", 0, accuracy=0.4)`."""

    def run(order, method, seed, accuracy=0.4, name="", **changes):
        folder = tmp_path / (name or f"{order}-{method}-{seed}")
        noise = 97 * seed + sum(map(ord, order + method))
        changes = {"reorder": None if method == "fixed" else POLICY} | changes
        top1 = correct(IMAGES, accuracy, noise)
        study = {"method": method, "order": order}
        return read_run(write_run(folder, top1, order=order, seed=seed, study=study, **changes))

    return run


def arms(comparison):
    return {(arm.order, arm.method): arm for arm in comparison.arms}


def study(write, seeds=(0, 1, 2)):
    return [
        write(order, method, seed)
        for seed in seeds
        for order in ("hilbert", "row")
        for method in ("reorder", "fixed")
    ]


def test_arms_are_order_and_method_the_baseline_first(write):
    (comparison,) = make_report(study(write)).comparisons
    assert [(arm.order, arm.method, arm.seeds) for arm in comparison.arms] == [
        ("row", "fixed", (0, 1, 2)), ("row", "reorder", (0, 1, 2)),
        ("hilbert", "fixed", (0, 1, 2)), ("hilbert", "reorder", (0, 1, 2)),
    ]  # fmt: skip
    assert comparison.title == "Mamba on CIFAR100, 400 validation images, 8 epochs"


def test_accuracy_error_of_one_seed_is_the_closed_form(write):
    (comparison,) = make_report([write("row", "fixed", 0, accuracy=0.3)]).comparisons
    top1 = comparison.arms[0].top1
    p = top1.value / 100
    assert p == pytest.approx(0.3, abs=0.05)
    assert top1.se == pytest.approx(100 * math.sqrt(p * (1 - p) / IMAGES), rel=0.05)
    assert top1.std is None


def test_deviation_is_that_of_the_seeds(write):
    runs = [write("row", "fixed", seed, accuracy=0.2 + 0.1 * seed) for seed in range(3)]
    (arm,) = make_report(runs).comparisons[0].arms
    means = [100 * run.top1.mean() for run in runs]
    assert arm.top1.value == pytest.approx(np.mean(means))
    assert arm.top1.std == pytest.approx(np.std(means, ddof=1))


def test_both_questions_are_answered_on_equal_seeds_and_images(write):
    runs = study(write)
    found = arms(make_report(runs).comparisons[0])
    results = {
        key: np.stack([run.top1 for run in arm.runs]) for key, arm in found.items()
    }  # by seed
    arm = found["hilbert", "reorder"]
    assert arm.vs_row == paired_test(results["hilbert", "reorder"], results["row", "fixed"])
    assert arm.vs_start == paired_test(results["hilbert", "reorder"], results["hilbert", "fixed"])
    assert found["row", "fixed"].vs_row is None
    assert found["row", "fixed"].vs_start is None
    assert found["hilbert", "fixed"].vs_start is None
    assert found["row", "reorder"].vs_row == found["row", "reorder"].vs_start
    assert len(make_report(runs).comparisons[0].tests) == 4  # row, reorder: one question


def test_seeds_without_a_partner_are_not_in_the_test(write):
    runs = [write("row", "fixed", 1), *(write("hilbert", "fixed", seed) for seed in (0, 1))]
    (comparison,) = make_report(runs).comparisons
    arm = arms(comparison)["hilbert", "fixed"]
    assert arm.vs_row.seeds == 1
    said = " ".join(notes(comparison))
    assert "hilbert, fixed: seeds [0] have no partner in row, fixed" in said
    assert "* One pair of trainings" in said


def test_without_the_baseline_there_is_no_test_and_a_word_about_it(write):
    (comparison,) = make_report([write("hilbert", "reorder", 0)]).comparisons
    assert comparison.tests == ()
    assert "There are no runs of order row, method fixed" in " ".join(notes(comparison))


def test_seeds_that_agree_by_chance_are_marked_and_explained(tmp_path):
    rng = np.random.default_rng(0)
    runs = []
    for seed in range(3):
        for order, hits in (("row", 100), ("hilbert", 102)):
            top1 = rng.permutation(np.arange(200) < hits)
            study = {"method": "fixed", "order": order}
            folder = tmp_path / f"{order}{seed}"
            runs.append(read_run(write_run(folder, top1, order=order, seed=seed, study=study)))
    (comparison,) = make_report(runs).comparisons
    assert [test.by_luck for test in comparison.tests] == [True]
    assert result_table(comparison).rows[1][8].endswith("?")
    assert any("The seeds agree by chance" in note for note in notes(comparison))


def test_settings_are_never_mixed(write):
    runs = [
        write("row", "fixed", 0),
        write("hilbert", "fixed", 0, name="longer", config={"trainer.max_epochs": 9}),
        write("hilbert", "fixed", 0, name="deeper", config={"model.init_args.depth": 5}),
    ]
    report = make_report(runs)
    assert [(c.title, len(c.arms)) for c in report.comparisons] == [
        ("Mamba on CIFAR100, 400 validation images, 8 epochs: depth 3", 1),
        ("Mamba on CIFAR100, 400 validation images, 8 epochs: depth 5", 1),
        ("Mamba on CIFAR100, 400 validation images, 9 epochs", 1),
    ]
    assert all(arm.vs_row is None for c in report.comparisons for arm in c.arms)


def test_of_repeated_runs_the_newest_counts_and_the_other_is_named(write):
    old, new = write("row", "fixed", 0, name="old"), write("row", "fixed", 0, 0.6, name="new")
    os.utime(old.folder / "result.json", (1000, 1000))
    report = make_report([read_run(old.folder), new], [LeftOut(old.folder.parent, "no run in it")])
    (arm,) = report.comparisons[0].arms
    assert arm.runs == (new,)
    assert [(one.folder, one.reason[:40]) for one in report.left_out] == [
        (old.folder.parent, "no run in it"),
        (old.folder, "repeated (row, fixed, seed 0), newer: " + str(new.folder)[:2]),
    ]


def test_policies_of_one_name_but_other_arguments_are_kept_apart(write):
    other = {**POLICY, "init_args": {"start": None, "lr": 0.5}}
    runs = [write("row", "reorder", 0), write("row", "reorder", 0, name="other", reorder=other)]
    (comparison,) = make_report(runs).comparisons
    assert comparison.methods == ("reorder (lr 0.1)", "reorder (lr 0.5)")
    moved = {**POLICY, "init_args": {"start": "row", "lr": 0.1, "seed": 4}}
    same = [write("row", "reorder", s, name=f"s{s}", reorder=moved) for s in (1, 2)]
    (comparison,) = make_report([runs[0], *same]).comparisons
    assert comparison.methods == ("reorder",)


def test_policy_and_cost_are_summed_up_over_seeds(write):
    runs = [
        write(
            "row", "reorder", seed, accepted=seed != 1, curve=(0.1, 0.3),
            movement=[(0, 0.9), (1, 0.5 + 0.1 * seed)], costs={"seconds_per_epoch": 10.0 + seed},
        )
        for seed in range(3)
    ]  # fmt: skip
    (comparison,) = make_report(runs).comparisons
    (arm,) = comparison.arms
    assert arm.accepted == (2, 3)
    assert arm.kendall == pytest.approx(0.6)
    assert arm.cost("seconds_per_epoch") == 11
    assert arm.cost("peak_memory_mb") is None
    assert result_table(comparison).rows[0][-2:] == ["2 of 3", "0.60"]


def test_markdown_and_csv_parse_back(write):
    report = make_report(study(write), [LeftOut("nowhere", "no such folder")])
    rows = csv_rows(report)
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    back = list(csv.DictReader(io.StringIO(file.getvalue())))
    text = markdown(report, [{"Accuracy": "accuracy.png"}])
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    header, table = [cell.strip() for cell in lines[0]], lines[2:6]
    assert len({len(line) for line in lines[:6]}) == 1
    for arm, row, cells in zip(report.comparisons[0].arms, back, table, strict=True):
        shown = dict(zip(header, (cell.strip() for cell in cells), strict=False))
        assert (row["order"], row["method"]) == (arm.order, arm.method)
        assert (shown["order"], shown["method"]) == (arm.order, arm.method)
        assert float(row["top1"]) == pytest.approx(arm.top1.value)
        assert shown["top-1 %"] == f"{arm.top1.value:.2f} ±{arm.top1.se:.2f}"
        if arm.vs_row is not None:
            assert float(row["vs_row_p"]) == pytest.approx(arm.vs_row.p)
            assert shown["vs row, fixed"].startswith(f"{arm.vs_row.difference:+.2f}")
        else:
            assert row["vs_row_p"] == shown["vs row, fixed"] == ""
    assert "![Accuracy](accuracy.png)" in text
    assert "- nowhere: no such folder" in text


def test_nothing_left_is_an_error_with_all_reasons():
    with pytest.raises(ValueError, match=r"no finished run(.|\n)*a: unfinished\n  b: no run in it"):
        make_report([], [LeftOut("a", "unfinished"), LeftOut("b", "no run in it")])
