"""Trains in two processes and writes what each of them did; run by test_ddp.py.

usage: ddp_script.py FOLDER STRATEGY EPOCHS PRECISION BAD ACCUMULATE START
"""

import json
import sys
from pathlib import Path

import torch
from lightning import Callback, seed_everything
from torch.utils.data import DataLoader, Subset

from reorder_lightning.callbacks.reorder import REOrder
from tests.toys import Classifier, Record, digest, images, trainer


class Toy(Classifier):
    """Two classes of trouble on rank 1: rewards that are no numbers, and fewer images."""

    bad = "none"

    def training_step(self, batch, batch_idx):
        x, y = batch
        bad = self.global_rank == 1 and batch_idx % 3 == 1
        if bad and self.bad == "uneven":
            x, y = x[:1], y[:1]
        losses = torch.nn.functional.cross_entropy(self(x).float(), y, reduction="none")
        rewards = -losses.detach()
        if bad and self.bad == "nan":
            rewards = rewards * float("nan")
        return {"loss": losses.mean(), "reorder_reward": rewards}


class Watch(Callback):
    """The order that the first block really got, and what the user's generator gives."""

    def __init__(self, reorder):
        self.reorder = reorder
        self.rows = []

    def on_fit_start(self, trainer, pl_module):
        pl_module.net.blocks[0].read.register_forward_pre_hook(self.see)
        pl_module.net.pos_drop.register_forward_hook(self.before)

    def before(self, module, args, output):
        self.tokens = output.detach()

    def see(self, module, args):
        draw = self.reorder.layer.draw
        got, tokens = args[0].detach()[:, 1:], self.tokens[:, 1:]
        own = draw[torch.arange(len(tokens)) % len(draw)]
        expected = tokens.take_along_dim(own[..., None].expand_as(tokens), 1)
        self.rows.append({"own": torch.equal(got, expected), "rand": torch.rand(4).tolist()})


def main(folder, strategy, epochs, precision, bad, accumulate, start):
    seed_everything(1)
    reorder = REOrder(start, warmup=0.1, policy=0.8, draws_per_batch=4)
    record, watch = Record(reorder), Watch(reorder)
    Toy.bad = bad
    run = trainer(
        folder,
        reorder,
        record,
        watch,
        strategy=strategy,
        devices=2,
        max_epochs=int(epochs),
        precision=precision,
        accumulate_grad_batches=int(accumulate),
    )
    data = DataLoader(Subset(images(80), range(80)), batch_size=8)
    model = Toy()
    run.fit(model, data)
    rows = [a | b for a, b in zip(record.rows, watch.rows, strict=True)]
    content = {
        "rows": rows,
        "order": digest(reorder.order),
        "race": vars(reorder.policy.judge_rival()),
        "parameters": len([*model.parameters()]),
    }
    path = Path(folder) / f"rank{run.global_rank}.json"
    path.write_text(json.dumps(content))


if __name__ == "__main__":
    main(*sys.argv[1:])
