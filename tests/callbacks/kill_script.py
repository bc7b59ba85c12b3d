"""Trains once in peace, and once killed ten times; run by test_checkpoints.py.

usage: kill_script.py FOLDER
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from lightning import Callback
from lightning.pytorch.callbacks import ModelCheckpoint

from reorder_lightning.callbacks.reorder import REOrder
from tests.toys import Classifier, Record, ToyData, trainer

EPOCHS = 60  # of 4 batches


class Progress(Callback):
    def __init__(self, path):
        self.path = path

    def on_train_batch_end(self, trainer, *args):
        self.path.write_text(str(trainer.global_step))
        time.sleep(0.005)


def train(folder, name):
    """Train from the last checkpoint on, if there is one, and write what comes out."""
    folder.mkdir(exist_ok=True)
    reorder = REOrder(warmup=0.1, policy=0.8, draws_per_batch=4)
    record = Record(reorder)
    save = ModelCheckpoint(folder, save_last=True, every_n_train_steps=20, save_top_k=0)
    progress = Progress(folder / "step")
    run = trainer(
        folder, reorder, record, save, progress, max_epochs=EPOCHS, enable_checkpointing=True
    )
    last = folder / "last.ckpt"
    run.fit(Classifier(), ToyData(), ckpt_path=last if last.exists() else None)
    keys = ("order", "logits", "policy", "weights", "updates")
    (folder / "end.json").write_text(json.dumps({key: record.rows[-1][key] for key in keys}))


def main(root):
    train(root / "whole", "whole")
    folder = root / "killed"
    folder.mkdir()
    kills, chance = 0, random.Random(5)
    moments = sorted(chance.sample(range(5, 4 * EPOCHS - 5), 10))
    while not (folder / "end.json").exists():
        child = os.fork()
        if child == 0:
            train(folder, "killed")
            os._exit(0)
        done = 0
        while not done and kills < len(moments):
            step = folder / "step"
            if step.exists() and int(step.read_text() or 0) >= moments[kills]:
                time.sleep(chance.random() * 0.02)
                os.kill(child, signal.SIGKILL)
                kills += 1
                step.unlink()
                break
            time.sleep(0.002)
            done, _ = os.waitpid(child, os.WNOHANG)
        if not done:
            os.waitpid(child, 0)
    for name, count in (("whole", 0), ("killed", kills)):
        end = json.loads((root / name / "end.json").read_text())
        (root / f"{name}.json").write_text(json.dumps({"kills": count, "end": end}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
