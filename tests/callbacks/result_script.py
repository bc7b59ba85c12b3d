"""Trains in two processes with ResultWriter; run by test_ddp.py.

usage: result_script.py FOLDER
"""

import json
import sys
from pathlib import Path

import torch

from reorder_lightning.callbacks import ResultWriter
from tests.toys import Classifier, images, loader, trainer


class Scored(Classifier):
    def validation_step(self, batch, batch_idx):
        return {"logits": self(batch[0]), "targets": batch[1]}


def main(folder):
    model = Scored()
    run = trainer(folder, ResultWriter(), strategy="ddp", devices=2)
    run.fit(model, loader(), loader(11, batch_size=2))
    predicted = model(images(11).tensors[0]).argmax(1).tolist()
    (folder / f"rank{run.global_rank}.json").write_text(json.dumps(predicted))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
