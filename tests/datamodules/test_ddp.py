"""Two real processes share each data set."""

import json
import subprocess
import sys

from tests.data import layouts

# Images of the training, validation and prediction parts.
COUNTS = {
    "imagenet": (12, 6, 6),
    "fmow": (18, 6, 6),
    "cifar": (900, 100, 200),
    "ucmerced": (1680, 420, 420),
}


def test_two_processes(tmp_path):
    """Case 23: setup works where prepare_data ran on rank 0 only; no image is seen twice."""
    layouts.imagenet(tmp_path / "imagenet")
    layouts.fmow(tmp_path / "fmow")
    layouts.cifar_pickles(tmp_path / "cifar")
    command = ["-W", "error::UserWarning", "-m", "tests.datamodules.ddp_script", str(tmp_path)]
    subprocess.run([sys.executable, *command], check=True, timeout=600, stdout=subprocess.DEVNULL)
    ranks = [json.loads((tmp_path / f"rank{r}.json").read_text()) for r in (0, 1)]
    assert ranks[0]["pid"] != ranks[1]["pid"]
    for name, (train, val, predict) in COUNTS.items():
        for stage, count in (("val", val), ("predict", predict)):
            batches = [rank[name][stage] for rank in ranks]
            assert len(batches[0]) == len(batches[1]), (name, stage)
            assert len([i for rank in batches for b in rank for i in b]) == count, (name, stage)
        batches = [rank[name]["train"] for rank in ranks]
        sizes = [[len(b) for b in rank] for rank in batches]
        assert sizes[0] == sizes[1] == [4] * min(30, train // 8), name
        seen = [i for rank in batches for b in rank for i in b]
        assert len(set(seen)) == len(seen), name
