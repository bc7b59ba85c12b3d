"""SLURM settings that make a Trainer wait for processes that never come."""

import os
from collections.abc import Mapping


def task_mismatch(environ: Mapping[str, str] = os.environ) -> str | None:
    """Say if SLURM starts another number of tasks than its tasks a node promise.

    Lightning counts on ``SLURM_NTASKS_PER_NODE`` processes on each node; if fewer run, it waits for
    the rest forever, or reads a part of the data only
    (https://github.com/Lightning-AI/pytorch-lightning/issues/20391).

    Args:
        environ: environment variables.

    Returns:
        A warning, or None where all is well.

    >>> task_mismatch({"SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "4", "SLURM_NNODES": "2"})
    """
    tasks, per_node = environ.get("SLURM_NTASKS"), environ.get("SLURM_NTASKS_PER_NODE")
    if tasks is None or per_node is None:
        return None
    nodes = environ.get("SLURM_NNODES", "1")
    if int(tasks) == int(per_node) * int(nodes):
        return None
    return (
        f"SLURM_NTASKS={tasks}, but SLURM_NTASKS_PER_NODE={per_node} on {nodes} node(s) makes "
        f"{int(per_node) * int(nodes)}: the training may hang, waiting for processes that do not "
        "run. Start it with `srun` and give --nodes and --ntasks-per-node only, as in "
        "configs/trainer/slurm.sbatch, or, outside of SLURM's control, `unset SLURM_NTASKS`."
    )
