"""Two real processes: each draws its own orders, both learn the same policy."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.toys import Classifier, digest, images

ROOT = Path(__file__).parents[2]
SAME = ("order", "logits", "weights", "updates", "phase")


def run(
    folder, strategy="ddp", epochs=2, precision="32-true", bad="none", accumulate=1, start="row"
):
    return processes("ddp_script", folder, strategy, epochs, precision, bad, accumulate, start)


def processes(script, folder, *args):
    """Run a script in two processes; what each of them wrote."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", f"tests.callbacks.{script}", str(folder), *map(str, args)]
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def compare(ranks, steps):
    """Both ranks agree on all but data and draws; returns the policy's batches, with a table."""
    pairs = list(zip(*(rank["rows"] for rank in ranks), strict=True))
    assert len(pairs) == steps
    print(f"\n{'step':>4} {'phase':7} {'draw, rank 0':12} {'draw, rank 1':12} logits     policy")
    for step, (a, b) in enumerate(pairs):
        assert [a[key] for key in SAME] == [b[key] for key in SAME], step
        if step == 0 or a["updates"] != pairs[step - 1][0]["updates"]:  # else each has its sums
            assert a["policy"] == b["policy"], step
        assert a["data"] != b["data"]
        assert a["own"], f"rank 0 ran another order in step {step}"
        assert b["own"], f"rank 1 ran another order in step {step}"
        print(f"{step:4} {a['phase']:7} {a['draw']:12} {b['draw']:12} {a['logits']} {a['policy']}")
    policy = [(a, b) for a, b in pairs if a["phase"] == "policy"]
    same = sum(a["draw"] == b["draw"] for a, b in policy)
    assert same <= 0.4 * len(policy), "only those of the trial are alike"
    assert len({a["policy"] for a, _ in policy}) > len(policy) // 2
    return policy


def test_plain_ddp(tmp_path):
    """Cases 6, 7 and 8: no unused parameters, no buffer broadcast, no shared random numbers."""
    ranks = run(tmp_path)
    compare(ranks, steps=10)
    assert ranks[0]["parameters"] == len(list(Classifier().parameters()))


@pytest.mark.slow
def test_plain_ddp_for_100_steps(tmp_path):
    compare(run(tmp_path, epochs=20), steps=100)


@pytest.mark.slow
def test_a_race(tmp_path):
    """4 updates of warm-up and 3/4 of 32, on rewards of both ranks."""
    ranks = run(tmp_path, epochs=8, bad="uneven", start="column")
    for step, (a, b) in enumerate(zip(*(rank["rows"] for rank in ranks), strict=True)):
        assert [a[key] for key in SAME] == [b[key] for key in SAME], step
        assert a["policy"] == b["policy"], step
        assert a["own"], step
        assert b["own"], step
        if step < 28:
            assert a["draw"] == b["draw"], "start and rival, two of each"
    assert ranks[0]["race"] == ranks[1]["race"]
    assert ranks[0]["race"]["gain_se"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "kwargs",
    [
        {"bad": "nan"},
        {"bad": "uneven"},
        {"accumulate": 2},
        {"precision": "bf16-mixed"},
        {"precision": "bf16-true"},
        {"bad": "nan", "accumulate": 2, "precision": "bf16-mixed"},
    ],
    ids=str,
)
def test_trouble_on_one_rank(tmp_path, kwargs):
    compare(run(tmp_path, epochs=2, **kwargs), steps=10)


@pytest.mark.slow
@pytest.mark.parametrize("data_parallel", [1, 2])
def test_sharded_models(tmp_path, data_parallel):
    """FSDP2 on CPU; processes that share their data share their draws too."""
    ranks = processes("sharded_script", tmp_path, data_parallel)
    for a, b in zip(*ranks, strict=True):
        assert [a[key] for key in SAME] == [b[key] for key in SAME]
        assert (a["data"] == b["data"]) == (data_parallel == 1)
    policy = [(a, b) for a, b in zip(*ranks, strict=True) if a["phase"] == "policy"]
    same = sum(a["draw"] == b["draw"] for a, b in policy)
    assert same == len(policy) if data_parallel == 1 else same <= len(policy) // 2
    state = torch.load(tmp_path / "full.ckpt", weights_only=True)["state_dict"]
    order = state["net.blocks.0.reorder_lightning_patch_order._extra_state"]
    assert digest(order) == ranks[0][-1]["order"]


@pytest.mark.slow
def test_results_of_two_processes_are_those_of_one(tmp_path):
    """11 images in batches of 2 for each of 2 processes: the sampler repeats one."""
    predicted, _ = processes("result_script", tmp_path)
    with (tmp_path / "images.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["image"]) for row in rows] == list(range(11))
    assert [int(row["target"]) for row in rows] == images(11).tensors[1].tolist()
    assert [int(row["predicted"]) for row in rows] == predicted
    assert json.loads((tmp_path / "result.json").read_text())["images"] == 11
