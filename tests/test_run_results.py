"""Reading runs: what counts as one, and why the rest is left out."""

import os

import pytest

from reorder_lightning.run_results import find_runs, read_run
from tests.report_runs import POLICY, correct, write_run

TOP1 = correct(20, 0.4, seed=0)


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", TOP1, seed=3, order="hilbert")


def test_a_run_is_read(tmp_path):
    folder = write_run(
        tmp_path / "run", TOP1, order="hilbert", seed=3, reorder=POLICY, curve=(0.1, 0.2, 0.4),
        accepted=True, movement=[(1, 0.8), (2, 0.7)], costs={"peak_memory_mb": 812.5},
    )  # fmt: skip
    found = read_run(folder)
    assert (found.order, found.method, found.seed, found.accepted) == (
        "hilbert",
        "reorder",
        3,
        True,
    )
    assert found.policy == {"lr": 0.1}
    assert found.top1.tolist() == TOP1.tolist()
    assert found.top5.mean() > found.top1.mean()
    assert found.costs == {"parameters": 123456, "gflops": 0.0123, "peak_memory_mb": 812.5}
    assert found.accuracy == pytest.approx({1: 10, 2: 20, 3: 40})
    assert found.movement == {2: 0.8, 3: 0.7}
    assert found.setting["trainer.max_epochs"] == 8
    assert not {"seed_everything", "reorder"} & {*found.setting}


def test_method_is_fixed_without_reorder_and_else_what_the_study_says(tmp_path):
    assert read_run(write_run(tmp_path / "a", TOP1)).method == "fixed"
    studied = write_run(tmp_path / "b", TOP1, reorder=POLICY, study={"method": "paper", "seed": 7})
    assert (read_run(studied).method, read_run(studied).seed) == ("paper", 7)


def test_images_may_be_in_any_order_in_the_file(run):
    head, *lines = (run / "images.csv").read_text().splitlines()
    (run / "images.csv").write_text("\n".join([head, *lines[::-1]]))
    assert read_run(run).top1.tolist() == TOP1.tolist()


def test_parts_of_a_resumed_run_are_joined_the_later_one_counts(run):
    # Killed three times, once while writing a line.
    parts = {
        "metrics.1.csv": "epoch,step,val/top1\n0,9,0.10\n1,19,0.99\n2,29,0.99\n",
        "metrics.2.csv": "epoch,step,val/top1,reorder/accepted\n1,12,,1.0\n1,19,0.20,\n2,2",
        "metrics.10.csv": "epoch,step,val/top1\n2,29,0.30\n",
        "metrics.csv": "epoch,step,reorder/accepted,val/top1\n3,39,,0.40\n3,35,0.0,\n",
    }
    for name, text in parts.items():
        (run / name).write_text(text)
    assert read_run(run).accuracy == pytest.approx({1: 10, 2: 20, 3: 30, 4: 40})
    assert read_run(run).accepted is False


def test_runs_are_found_below_folders_and_once(tmp_path):
    for name in ("study/row-fixed-0", "study/row-fixed-1", "other/version_0"):
        write_run(tmp_path / name, TOP1)
    runs, left_out = find_runs([tmp_path, tmp_path / "study", tmp_path / "study" / "row-fixed-0"])
    assert [str(one.folder.relative_to(tmp_path)) for one in runs] == [
        "other/version_0", "study/row-fixed-0", "study/row-fixed-1"
    ]  # fmt: skip
    assert left_out == []


def _write(name, text):
    return lambda folder: (folder / name).write_text(text)


def _remove(name):
    return lambda folder: (folder / name).unlink()


HEAD = "image,target,predicted,top1,top5,loss\n"
BROKEN = {
    "unfinished": (_remove("result.json"), "unfinished: no result.json"),
    "not started": (_remove("config.yaml"), "no config.yaml"),
    "half a config": (_write("config.yaml", "trainer: {max_ep"), r"broken: config.yaml \(while"),
    "binary config": (lambda f: (f / "config.yaml").write_bytes(b"\xff\xfe\x00"), "config.yaml"),
    "foreign": (_write("config.yaml", "lr: 0.1\n"), "not that of a run of `reorder fit`"),
    "no model": (
        _write("config.yaml", "{trainer: {}, model: 3, data: {}, reorder: null}"),
        r"broken: config.yaml \(model is 3\)",
    ),
    "no seed": (
        _write(
            "config.yaml", "{seed_everything: false, trainer: {}, model: {}, data: {}, reorder: }"
        ),
        "seed_everything is False",
    ),
    "no images": (_remove("images.csv"), "no images.csv"),
    "empty images": (_write("images.csv", ""), r"broken: images.csv \(0 images\)"),
    "cut images": (_write("images.csv", HEAD + "0,1,1,1,1,0.5\n1,1,1"), "broken: images.csv"),
    "no numbers": (_write("images.csv", HEAD + "0,1,1,1,1,0.5\n1,1,1,x,1,0.5"), "images.csv"),
    "doubled": (_write("images.csv", HEAD + 2 * "0,1,1,1,1,0.5\n"), "missing or doubled"),
    "not 0 or 1": (
        _write("images.csv", HEAD + "0,1,1,2,1,0.5\n1,1,1,1,1,0.5\n"),
        "top1 is not always 0 or 1",
    ),
    "other columns": (_write("images.csv", "image,a\n0,1\n1,1\n"), r"images.csv \(no 'top1'\)"),
    "other images": (
        _write("images.csv", HEAD + "0,1,1,1,1,0.5\n1,1,1,1,1,0.5\n"),
        "2 images in images.csv, 20 in",
    ),
    "half a result": (_write("result.json", '{"model": "Ma'), r"broken: result.json \(Unterm"),
    "listed result": (_write("result.json", "[]"), "result.json"),
    "half a study": (_write("study.json", "{"), "broken: study.json"),
    "no metrics": (_write("metrics.csv", "epoch,step\n0,nine\n"), "broken: metrics.csv"),
    "other metrics": (_write("metrics.csv", "a,b\n0,9\n"), r"metrics.csv \(no 'step'\)"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_read_is_left_out_with_its_reason(run, tmp_path, name):
    damage, reason = BROKEN[name]
    damage(run)
    good = write_run(tmp_path / "good", TOP1)
    runs, left_out = find_runs([tmp_path])
    assert [one.folder for one in runs] == [good]
    assert [one.folder for one in left_out] == [run]
    with pytest.raises((ValueError, FileNotFoundError), match=reason):
        read_run(run)
    assert "\n" not in left_out[0].reason


def test_folders_without_runs_are_named(tmp_path):
    (tmp_path / "empty").mkdir()
    _, left_out = find_runs([tmp_path / "empty", tmp_path / "nowhere"])
    assert [one.reason for one in left_out] == ["no run in it", "no such folder"]


def test_result_of_a_run_knows_when_it_was_written(run):
    os.utime(run / "result.json", (1000, 1000))
    assert read_run(run).written == 1000


def test_targets_are_a_part_of_the_setting(tmp_path):
    one, other = write_run(tmp_path / "a", TOP1), write_run(tmp_path / "b", TOP1)
    assert read_run(one).setting == read_run(other).setting
    rows = (other / "images.csv").read_text().replace("\n3,3,", "\n3,4,")
    (other / "images.csv").write_text(rows)
    assert read_run(one).setting != read_run(other).setting
