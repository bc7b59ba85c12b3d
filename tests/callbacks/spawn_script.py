"""Trains in spawned processes and prints what the parent knows of it; run by test_checkpoints.py.

usage: spawn_script.py FOLDER
"""

import json
import sys
from pathlib import Path

import torch
from lightning import Callback

from reorder_lightning import attach
from reorder_lightning.callbacks.reorder import REOrder
from tests.toys import Classifier, loader, trainer


class SetOrder(Callback):
    """Learns for sure: the policy of a run this short might keep the start."""

    def __init__(self, reorder, folder):
        self.reorder = reorder
        self.folder = folder

    def on_train_end(self, trainer, pl_module):
        self.reorder.layer.order = torch.arange(15, -1, -1)
        if trainer.is_global_zero:
            (self.folder / "child").write_text(str(self.reorder.order.tolist()))


def fit(folder, model):
    reorder = REOrder(warmup=0, policy=1.0, draws_per_batch=3)
    args = {"strategy": "ddp_spawn", "devices": 2, "max_epochs": 1}
    trainer(folder, reorder, SetOrder(reorder, folder), **args).fit(model, loader())
    return reorder


def main(folder):
    told = {}
    try:
        fit(folder, Classifier())
    except Exception as error:  # it comes out of the child as a ProcessRaisedException
        told["without"] = str(error)
    model = Classifier()
    layer = attach(model)
    told["start"] = str(layer.order.tolist())
    reorder = fit(folder, model)
    told["parent"] = str(layer.order.tolist())
    told["child"] = (folder / "child").read_text()
    try:
        told["callback"] = str(reorder.order)
    except RuntimeError as error:
        told["callback"] = str(error)
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
