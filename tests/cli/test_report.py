"""`reorder report`: over folders as they are, and over trainings."""

import csv
import json
import re

import numpy as np
import pytest

from reorder_lightning.prior import order_prior
from tests.report_runs import POLICY, correct, write_run

PNG = b"\x89PNG"


@pytest.fixture
def study(tmp_path):
    """A small study of made-up results."""
    for i, order in enumerate(("row", "hilbert")):
        for seed in (0, 1):
            for method, reorder in (("fixed", None), ("reorder", POLICY)):
                more = {"movement": [(1, 0.8)], "accepted": True} if reorder else {}
                write_run(
                    tmp_path / "runs" / "study" / f"{order}-{method}-{seed}",
                    correct(120, 0.3 + 0.1 * i, 10 * i + seed),
                    order=order, seed=seed, reorder=reorder, curve=(0.1, 0.3), **more,
                )  # fmt: skip
    return tmp_path / "runs"


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_report_is_printed_and_written(reorder, study, tmp_path, capsys):
    reorder("report runs/study")
    shown = capsys.readouterr().out
    assert "Mamba on CIFAR100, 120 validation images, 8 epochs" in shown
    assert re.search(r"hilbert +reorder +2 +\d+\.\d\d ±\d", shown)
    assert "left out" not in shown
    rows = read(tmp_path / "report" / "report.csv")
    assert [(row["order"], row["method"]) for row in rows] == [
        ("row", "fixed"), ("row", "reorder"), ("hilbert", "fixed"), ("hilbert", "reorder")
    ]  # fmt: skip
    assert rows[3]["accepted"] == "1.000000"
    text = (tmp_path / "report" / "report.md").read_text()
    for name in re.findall(r"\]\((.*?)\)", text):
        assert (tmp_path / "report" / name).read_bytes().startswith(PNG)
    assert {"accuracy.png", "curves.png", "movement.png"} == {*re.findall(r"\]\((.*?)\)", text)}


def test_broken_unfinished_and_foreign_runs_are_named_and_the_rest_reported(
    reorder, study, tmp_path, capsys
):
    (study / "study" / "row-fixed-0" / "config.yaml").write_text("trainer: {")
    (study / "study" / "hilbert-reorder-1" / "result.json").unlink()
    (study / "foreign").mkdir()
    (study / "foreign" / "config.yaml").write_text("lr: 3\n")
    reorder("report runs nowhere --output found")
    shown = capsys.readouterr().out
    assert "left out (4):" in shown
    for folder, reason in {
        "runs/study/row-fixed-0": "broken: config.yaml",
        "runs/study/hilbert-reorder-1": "unfinished: no result.json",
        "runs/foreign": "config.yaml is not that of a run of `reorder fit`",
        "nowhere": "no such folder",
    }.items():
        assert f"  {folder}: {reason}" in shown
        assert f"- {folder}: {reason}" in (tmp_path / "found" / "report.md").read_text()
    rows = read(tmp_path / "found" / "report.csv")
    assert [row["seeds"] for row in rows] == ["1", "2", "2", "1"]


def test_each_setting_has_its_own_table_and_figures(reorder, study, tmp_path, capsys):
    write_run(study / "longer", correct(120, 0.5, 0), config={"trainer.max_epochs": 9})
    reorder("report --output=found runs/study runs/longer")
    shown = capsys.readouterr().out
    assert "validation images, 9 epochs" in shown
    assert len({row["setting"] for row in read(tmp_path / "found" / "report.csv")}) == 2
    assert {path.name for path in (tmp_path / "found").glob("*.png")} == {
        "accuracy_1.png", "curves_1.png", "movement_1.png", "accuracy_2.png"
    }  # fmt: skip


def test_compressibility_is_drawn_with_a_prior(reorder, study, fails, tmp_path, capsys):
    tokens = np.random.default_rng(0).integers(5, size=(8, 4, 4))
    prior = order_prior(tokens, 5, resamples=20).as_dict()
    (tmp_path / "prior.json").write_text(json.dumps(prior))
    reorder("report runs --prior prior.json")
    assert (tmp_path / "report" / "compressibility.png").read_bytes().startswith(PNG)
    prior["orders"] = [row for row in prior["orders"] if row["order"] != "hilbert"]
    (tmp_path / "prior.json").write_text(json.dumps(prior))
    capsys.readouterr()
    reorder("report runs --prior prior.json --output again")
    assert "prior.json has less than two of the start orders" in capsys.readouterr().out
    assert not (tmp_path / "again" / "compressibility.png").exists()
    (tmp_path / "prior.json").write_text("{}")
    assert "is not a prior.json" in fails(reorder, "report runs --prior prior.json")
    assert "there is no no.json" in fails(reorder, "report runs --prior no.json")


def test_no_finished_run_is_one_message(reorder, fails):
    message = fails(reorder, "report nowhere elsewhere")
    assert "no finished run" in message
    assert "elsewhere: no such folder" in message
    with pytest.raises(SystemExit) as stop:
        reorder("report")
    assert stop.value.code == 2


def test_trainings_are_reported(fit, reorder, tmp_path, capsys):
    fit("quickstart", "--reorder=null")
    fit("quickstart", "--model.order=hilbert", "--seed_everything=1")
    fit("quickstart", "--model.order=hilbert", "--reorder=null")
    capsys.readouterr()
    reorder("report runs")
    assert "left out" not in capsys.readouterr().out
    rows = {(row["order"], row["method"]): row for row in read(tmp_path / "report" / "report.csv")}
    assert set(rows) == {("row", "fixed"), ("hilbert", "fixed"), ("hilbert", "reorder")}
    assert {row["images"] for row in rows.values()} == {"16"}
    assert rows["hilbert", "fixed"]["vs_row_seeds"] == "1"
    assert rows["hilbert", "reorder"]["vs_row_seeds"] == ""  # another seed
    result = json.loads((tmp_path / "runs/quickstart/version_0/result.json").read_text())
    assert float(rows["row", "fixed"]["top1"]) == pytest.approx(100 * result["top1"])
    assert float(rows["row", "fixed"]["parameters"]) == result["parameters"]
    assert (tmp_path / "report" / "movement.png").exists()
