"""Case 9: SLURM starts another number of tasks than Lightning counts on."""

import pytest

from reorder_lightning.cli.slurm import task_mismatch


def slurm(tasks, per_node, nodes="1"):
    return {"SLURM_NTASKS": tasks, "SLURM_NTASKS_PER_NODE": per_node, "SLURM_NNODES": nodes}


def test_matching_tasks_are_fine():
    assert task_mismatch({}) is None
    assert task_mismatch({"SLURM_NTASKS": "1"}) is None
    assert task_mismatch(slurm("2", "2")) is None
    assert task_mismatch(slurm("8", "4", "2")) is None


@pytest.mark.parametrize("given", [("1", "2", "1"), ("4", "4", "2"), ("16", "4", "2")])
def test_mismatch_is_said_with_its_numbers(given):
    """Case 9."""
    warning = task_mismatch(slurm(*given))
    assert f"SLURM_NTASKS={given[0]}, but SLURM_NTASKS_PER_NODE={given[1]}" in warning
    assert "srun" in warning


def test_command_warns_before_the_training(fit, monkeypatch):
    """Case 9."""
    for name, value in slurm("1", "2").items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_NNODES")
    # Interactive jobs: Lightning ignores SLURM's settings, and the warning still comes.
    monkeypatch.setenv("SLURM_JOB_NAME", "interactive")
    with pytest.warns(UserWarning, match="SLURM_NTASKS=1, but SLURM_NTASKS_PER_NODE=2"):
        fit("quickstart")
