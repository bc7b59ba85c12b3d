"""`reorder study`: plans, trains, skips, goes on."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from reorder_lightning.cli import main
from reorder_lightning.cli.configs import configs_folder
from tests.cli.conftest import TINY

FOLDER = Path("runs/tiny")
process = subprocess.run
pytestmark = pytest.mark.filterwarnings("ignore:.*exists and is not empty")


@pytest.fixture
def study(monkeypatch):
    """Run `reorder study`, its trainings in this process; returns their command lines."""
    commands = []

    def in_process(command, **kwargs):
        commands.append(command[3:])
        try:
            main(command[3:])
        except (Exception, SystemExit):
            return subprocess.CompletedProcess(command, 1)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("reorder_lightning.cli.study.subprocess.run", in_process)

    def run(*more, **changes):
        plan = {
            "fit": ["-c configs/quickstart.yaml", " ".join(TINY), "--trainer.max_epochs 2"],
            "orders": ["row"],
            "seeds": [0],
            "folder": str(FOLDER),
        }
        Path("study.yaml").write_text(yaml.safe_dump(plan | changes))
        commands.clear()
        main(["study", "-c", "study.yaml", *more])
        return [*commands]

    return run


def test_one_command_trains_all_and_skips_what_is_done(study, capsys):
    assert len(study()) == 2
    for method in ("fixed", "reorder"):
        folder = FOLDER / f"row-{method}-0"
        assert json.loads((folder / "result.json").read_text())["epochs"] == 2
        assert json.loads((folder / "study.json").read_text())["method"] == method
        assert (folder / "images.csv").exists()
        used = yaml.safe_load((folder / "config.yaml").read_text())
        assert (used["reorder"] is None) == (method == "fixed")
    assert "all 2 runs are done: reorder report runs/tiny" in capsys.readouterr().out
    assert study() == []
    assert "[1/2] row-fixed-0: done before" in capsys.readouterr().out


def test_interrupted_run_goes_on_where_it_was(study, monkeypatch, capsys):
    """It keeps the metrics of the first part, too."""
    one = {"fixed": "--reorder null"}
    study(methods=one)
    whole = (FOLDER / "row-fixed-0" / "images.csv").read_bytes()

    from reorder_lightning.callbacks import ResultWriter

    with monkeypatch.context() as patch:

        def power_cut(self, trainer, pl_module):
            if trainer.current_epoch == 1:
                raise RuntimeError("power cut")

        patch.setattr(ResultWriter, "on_train_epoch_start", power_cut, raising=False)
        with pytest.raises(SystemExit) as stop:
            study(methods=one, folder="runs/cut")
    assert stop.value.code == 1
    assert "FAILED" in capsys.readouterr().out
    assert not Path("runs/cut/row-fixed-0/result.json").exists()

    (command,) = study(methods=one, folder="runs/cut")
    assert command[-2:] == ["--ckpt_path", "runs/cut/row-fixed-0/checkpoints/last.ckpt"]
    assert Path("runs/cut/row-fixed-0/images.csv").read_bytes() == whole
    epochs = []
    for name in ("metrics.1.csv", "metrics.csv"):
        with Path("runs/cut/row-fixed-0", name).open() as file:
            epochs += [row["epoch"] for row in csv.DictReader(file) if row["val/top1"]]
    assert epochs == ["0", "1"]


def test_failed_run_does_not_stop_the_others(study, capsys):
    broken = {"broken": "-c configs/reorder.yaml --reorder.draws_per_batch 1", "fixed": ""}
    with pytest.raises(SystemExit):
        study(methods=broken)
    shown = capsys.readouterr().out
    assert "row-broken-0: FAILED, see runs/tiny/row-broken-0/log.txt" in shown
    assert (FOLDER / "row-fixed-0" / "result.json").exists()
    assert "1 of 2 runs failed" in shown


def test_job_array_has_a_task_for_each_run(study, capsys):
    assert study("--slurm=true", seeds=[0, 1], orders=["row", "random"]) == []
    script = (FOLDER / "study.sbatch").read_text()
    assert "#SBATCH --array=0-7" in script
    assert "  random-reorder-1\n" in script
    process(["bash", "-n", FOLDER / "study.sbatch"], check=True)
    assert "sbatch runs/tiny/study.sbatch" in capsys.readouterr().out


def test_task_of_the_array_trains_its_run(study, tmp_path):
    study("--slurm=true", methods={"fixed": "--reorder null"}, seeds=[0, 1])
    (tmp_path / "srun").write_text('#!/bin/sh\nshift 3\necho "$@"\n')
    (tmp_path / "srun").chmod(0o755)

    def task(number):
        done = process(
            ["bash", FOLDER / "study.sbatch"],
            env={"SLURM_ARRAY_TASK_ID": str(number), "PATH": f"{tmp_path}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    config = str(Path("runs/tiny/configs/row-fixed-1.yaml").absolute())
    assert task(1) == ["fit", "-c", config]
    last = (FOLDER / "row-fixed-1/checkpoints/last.ckpt").absolute()
    last.parent.mkdir()
    last.touch()
    assert task(1) == ["fit", "-c", config, "--ckpt_path", str(last)]
    (FOLDER / "row-fixed-1/result.json").touch()
    assert task(1) == ["row-fixed-1", "is", "done"]


def test_other_plan_in_the_same_folder_is_refused(study, fails):
    study("--slurm=true")
    message = fails(study, "--slurm=true", "--fit+=--trainer.max_epochs 3")
    assert "trainer.max_epochs: 2, 3" in message
    assert "another `folder`" in message
    methods = {"fixed": "--reorder null", "longer": "--trainer.max_epochs 5"}
    assert "train differently" in fails(lambda: study(methods=methods, folder="runs/other"))


STUDIES = sorted(path.stem for path in (configs_folder() / "study").glob("*.yaml"))


@pytest.mark.parametrize("name", STUDIES)
def test_shipped_studies_are_planned(reorder, name, capsys):
    reorder(f"study -c configs/study/{name}.yaml --slurm true", "--fit+=--data.batch_size 8")
    assert "sbatch runs/" in capsys.readouterr().out


@pytest.mark.slow
def test_command_in_processes(study, tmp_path):
    study("--slurm=true")  # writes study.yaml
    command = [sys.executable, "-m", "reorder_lightning", "study", "-c", "study.yaml"]
    done = process(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "all 2 runs are done" in done.stdout
