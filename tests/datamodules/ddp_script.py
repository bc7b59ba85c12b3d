"""Trains and predicts in two processes on each data set and writes what each of them saw.

usage: ddp_script.py FOLDER
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
from lightning import LightningModule, Trainer

from reorder_lightning.datamodules import CIFAR100, FMoW, ImageNet, UCMerced


class Watch(LightningModule):
    """A linear model that writes down what it sees."""

    def __init__(self, num_classes):
        super().__init__()
        self.layer = torch.nn.Linear(3 * 16 * 16, num_classes)
        self.seen = {"train": [], "val": [], "predict": []}

    def note(self, stage, images):
        hashes = [hashlib.sha256(i.numpy().tobytes()).hexdigest()[:12] for i in images]
        self.seen[stage].append(hashes)

    def training_step(self, batch, batch_idx):
        self.note("train", batch[0])
        return torch.nn.functional.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])

    def validation_step(self, batch, batch_idx):
        self.note("val", batch[0])

    def predict_step(self, batch, batch_idx):
        self.seen["predict"].append(list(batch[1]))
        return batch_idx

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def datamodules(folder):
    options = {"image_size": 16, "batch_size": 4, "augment": "none"}
    return {
        "imagenet": ImageNet(f"{folder}/imagenet", **options),
        "fmow": FMoW(f"{folder}/fmow", crop="box", **options),
        "cifar": CIFAR100(f"{folder}/cifar", **options),
        "ucmerced": UCMerced(**options),
    }


def run(data):
    model = Watch(data.num_classes)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        limit_train_batches=30,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, datamodule=data)
    trainer.predict(model, datamodule=data, return_predictions=False)
    return trainer.global_rank, model.seen


def main(folder):
    seen = {"pid": os.getpid()}
    for name, data in datamodules(folder).items():
        rank, seen[name] = run(data)
    Path(folder, f"rank{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
