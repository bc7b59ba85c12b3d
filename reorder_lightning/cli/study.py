"""`reorder study`: orders x seeds x methods, as so many runs of `reorder fit`."""

import io
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import yaml

from reorder_lightning.cli.configs import find_configs
from reorder_lightning.run_config import differences, flatten
from reorder_lightning.study import StudyRun, plan_runs

METHODS = {"fixed": "--reorder null", "reorder": "-c configs/reorder.yaml"}


def run(
    fit: list[str],
    orders: list[str],
    seeds: list[int] = [0, 1, 2],  # noqa: B006  # read only; jsonargparse shows it in --help
    methods: dict[str, str] = METHODS,
    folder: Path = Path("runs/study"),
    slurm: bool = False,
) -> None:
    """Train once for each order, method and seed, skipping what is done.

    Each run is a `reorder fit` with a config of its own in FOLDER/configs, so that one alone can be
    repeated: `reorder fit -c FOLDER/configs/row-fixed-0.yaml`. Its folder is FOLDER/row-fixed-0.
    A study that was stopped or crashed is continued by the same command: finished runs are skipped,
    an interrupted one goes on from its last checkpoint. `reorder report FOLDER` compares them.

    Args:
        fit: what all runs share, as arguments of `reorder fit`, e.g. "-c configs/default.yaml".
        orders: start orders. "random" is another one for each seed.
        seeds: seeds of weights, data order and draws.
        methods: name and further arguments of each method. They may only differ in `reorder`.
        folder: where configs and runs go.
        slurm: train nothing here, but write FOLDER/study.sbatch, in which each run is a task.

    Raises:
        ValueError: the methods train differently, or the folder holds a study planned differently.
        SystemExit: with code 1, after all others are done, if runs failed.
    """
    configs = {name: fit_config([*fit, more]) for name, more in methods.items()}
    runs = plan_runs(configs, orders, seeds, folder)
    for one in runs:
        write_plan(one)
    if slurm:
        script = write_slurm(runs, folder)
        print(f"{len(runs)} runs; start or continue them with: sbatch {script}")
    else:
        _train_all(runs)


def fit_config(arguments: Sequence[str]) -> dict[str, Any]:
    """The full config that `reorder fit` makes of these arguments."""
    from reorder_lightning.cli.training import TrainingCLI  # loads Lightning

    words = [word for line in arguments for word in shlex.split(line)]
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        TrainingCLI(["fit", *find_configs(words), "--print_config"])
    config = yaml.safe_load(printed.getvalue())
    if not isinstance(config, dict):
        raise ValueError(f"The arguments {' '.join(words)!r} make no config of `reorder fit`.")
    if config.get("model") is None or config.get("data") is None:
        raise ValueError("A study needs a model and data: give them in `fit`.")
    return config


def write_plan(run: StudyRun) -> None:
    """Write a run's config and what it is; refuse to go on with another plan."""
    text = yaml.safe_dump(run.config, sort_keys=False)
    if run.config_path.exists():
        before = yaml.safe_load(run.config_path.read_text(encoding="utf-8"))
        found = differences(dict(flatten(before)), dict(flatten(run.config)))
        if found:
            raise ValueError(
                f"{run.config_path} was planned with other arguments (then, now):\n  "
                + "\n  ".join(found)
                + "\nGive another `folder`, or the arguments of then."
            )
        return
    for path in (run.config_path, run.path / "study.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
    facts = {"order": run.order, "method": run.method, "seed": run.seed}
    (run.path / "study.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
    run.config_path.write_text(text, encoding="utf-8")


def write_slurm(runs: Sequence[StudyRun], folder: Path) -> Path:
    """Write a job array of the runs; a task that is done ends at once."""
    trainer = runs[0].config["trainer"]
    devices = trainer["devices"] if isinstance(trainer["devices"], int) else 1
    gpus = f"\n#SBATCH --gpus-per-node={devices}" if trainer["accelerator"] == "gpu" else ""
    lines = "\n".join(f"  {run.name}" for run in runs)
    path = folder / "study.sbatch"
    text = _SBATCH.format(
        last=len(runs) - 1,
        nodes=trainer["num_nodes"],
        devices=devices,
        gpus=gpus,
        runs=lines,
        log=folder.absolute() / "%x-%a.log",
        folder=shlex.quote(str(folder.absolute())),
        here=shlex.quote(str(Path.cwd())),
        python=shlex.quote(sys.executable),
    )
    path.write_text(text, encoding="utf-8")
    return path


_SBATCH = """\
#!/bin/bash
# Written by `reorder study`. Submit it again to go on with what was interrupted.
# Add what your cluster needs: --partition, --account, --time, --cpus-per-task.
#SBATCH --job-name=reorder-study
#SBATCH --array=0-{last}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={devices}{gpus}
#SBATCH --signal=SIGUSR1@120
#SBATCH --output={log}

runs=(
{runs}
)
run=${{runs[$SLURM_ARRAY_TASK_ID]}}
folder={folder}
cd {here}
if [ -e "$folder/$run/result.json" ]; then
  echo "$run is done"
  exit
fi
last="$folder/$run/checkpoints/last.ckpt"
resume=()
if [ -e "$last" ]; then
  resume=(--ckpt_path "$last")
fi
srun {python} -m reorder_lightning fit -c "$folder/configs/$run.yaml" "${{resume[@]}}"
"""


def _train_all(runs: Sequence[StudyRun]) -> None:
    failed = []
    for i, one in enumerate(runs, start=1):
        label = f"[{i}/{len(runs)}] {one.name}"
        if one.done:
            print(f"{label}: done before", flush=True)
            continue
        print(f"{label}: {'goes on' if one.checkpoint.exists() else 'starts'}", flush=True)
        began = time.perf_counter()
        if _train(one):
            print(f"{label}: done in {time.perf_counter() - began:.0f} s", flush=True)
        else:
            failed.append(one)
            print(f"{label}: FAILED, see {one.path / 'log.txt'}", flush=True)
    if failed:
        print(f"{len(failed)} of {len(runs)} runs failed; the same command tries them again.")
        raise SystemExit(1)
    print(f"all {len(runs)} runs are done: reorder report {runs[0].folder}")


def _train(run: StudyRun) -> bool:
    """Run `reorder fit` in a process of its own, so that a crash ends only this run.

    Returns:
        Whether the training has ended as it should.
    """
    command = [sys.executable, "-m", "reorder_lightning", "fit", "-c", str(run.config_path)]
    if run.checkpoint.exists():
        command += ["--ckpt_path", str(run.checkpoint)]
    run.path.mkdir(parents=True, exist_ok=True)
    with (run.path / "log.txt").open("a", encoding="utf-8") as log:
        code = subprocess.run(command, stdout=log, stderr=log).returncode
    return code == 0 and run.done
