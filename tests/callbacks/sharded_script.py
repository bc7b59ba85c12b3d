"""Trains a model that FSDP2 shards, or two processes that share their data; run by test_ddp.py.

usage: sharded_script.py FOLDER DATA_PARALLEL_SIZE
"""

import json
import sys
from pathlib import Path

from lightning import seed_everything
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from reorder_lightning.callbacks.reorder import REOrder
from tests.toys import Classifier, Record, loader, trainer


class Sharded(Classifier):
    sharded = False

    def configure_model(self):
        if not self.sharded:
            for part in (*self.net.blocks, self.net):
                fully_shard(part, mesh=self.device_mesh["data_parallel"])
            self.sharded = True

    def training_step(self, batch, batch_idx):
        losses = F.cross_entropy(self(batch[0]), batch[1], reduction="none")
        return {"loss": losses.mean(), "reorder_reward": -losses.detach()}


def main(folder, data_parallel):
    seed_everything(1)
    reorder = REOrder(warmup=0.1, policy=0.8, draws_per_batch=3)
    record = Record(reorder)
    sizes = {"data_parallel_size": data_parallel, "tensor_parallel_size": 2 // data_parallel}
    strategy = ModelParallelStrategy(**sizes, save_distributed_checkpoint=False)
    run = trainer(folder, reorder, record, strategy=strategy, devices=2, max_epochs=3)
    run.fit(Sharded(), loader())
    run.save_checkpoint(folder / "full.ckpt")
    (folder / f"rank{run.global_rank}.json").write_text(json.dumps(record.rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
