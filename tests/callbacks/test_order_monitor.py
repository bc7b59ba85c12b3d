"""OrderMonitor: what it draws, tabulates and hands to loggers, and that it follows a resume."""

import csv
import json

import pytest
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader

from reorder_lightning.callbacks import REOrder
from reorder_lightning.callbacks.order_monitor import OrderMonitor
from reorder_lightning.orders import kendall_tau, load_order
from reorder_lightning.patch_order import PatchOrder

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*is smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
]


class Reader(LightningModule):
    """Rewards orders that read patch 0 late; no labels needed."""

    def __init__(self):
        super().__init__()
        self.patch_order = PatchOrder(None, (2, 3))
        self.weight = nn.Parameter(torch.zeros(()))

    def training_step(self, batch, batch_idx):
        place = torch.arange(6.0).view(1, 6, 1).expand(len(batch), 6, 1)
        first = (self.patch_order(place)[..., 0] == 0).float().argmax(1)
        return {"loss": self.weight.square(), "reorder_reward": first.float()}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def fit(folder, callbacks, logger=False, ckpt_path=None, **kwargs):
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=4,
        callbacks=callbacks,
        logger=logger,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        **kwargs,
    )
    trainer.fit(Reader(), DataLoader(torch.zeros(16, 1), batch_size=8), ckpt_path=ckpt_path)
    return trainer


def reorder():
    learner = {"estimator": "score", "lr": 0.2, "peak_temperature": 1.0, "acceptance": False}
    return REOrder(warmup=1, policy=2, **learner)


def table(folder):
    with (folder / "order" / "order.csv").open() as file:
        return list(csv.DictReader(file))


def test_pictures_and_table_of_each_policy_epoch_and_the_end(tmp_path):
    learner = reorder()
    fit(tmp_path, [OrderMonitor(), learner])
    made = sorted(p.name for p in (tmp_path / "order").iterdir())
    assert made == ["epoch_001.png", "epoch_002.png", "final.png", "order.csv", "order.json"]
    rows = table(tmp_path)
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert list(rows[0]) == ["epoch", "temperature", "reward", "baseline", "kendall_to_start"]
    assert all(0 <= float(row["reward"]) <= 5 for row in rows)
    distance = [float(row["kendall_to_start"]) for row in rows]
    assert distance[0] < 1
    assert distance[2] == kendall_tau(learner.order, learner.start_order)
    saved = load_order(tmp_path / "order" / "order.json")
    assert torch.equal(saved.order, learner.order)
    assert saved.grid == (2, 3)
    assert saved.source == "REOrder, 4 epochs, 8 steps"


def test_table_is_the_same_whichever_callback_comes_first(tmp_path):
    fit(tmp_path / "a", [OrderMonitor(), reorder()])
    fit(tmp_path / "b", [reorder(), OrderMonitor()])
    assert table(tmp_path / "a") == table(tmp_path / "b")


def test_resumed_run_continues_the_table(tmp_path):
    fit(tmp_path / "whole", [reorder(), OrderMonitor()])
    saver = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    fit(tmp_path / "first", [reorder(), OrderMonitor(), saver])
    fit(tmp_path / "rest", [reorder(), OrderMonitor()], ckpt_path=tmp_path / "epoch=1.ckpt")
    assert table(tmp_path / "rest") == table(tmp_path / "whole")
    assert not (tmp_path / "rest" / "order" / "epoch_001.png").exists()


def test_without_a_policy_phase_only_the_end_is_drawn(tmp_path):
    fit(tmp_path, [REOrder(warmup=1, policy=0), OrderMonitor(dirpath=str(tmp_path / "mine"))])
    assert {p.name for p in (tmp_path / "mine").iterdir()} == {
        "final.png",
        "order.csv",
        "order.json",
    }
    assert json.loads((tmp_path / "mine" / "order.json").read_text())["order"] == list(range(6))


def test_files_lie_in_the_folder_of_the_run(tmp_path):
    for _ in range(2):
        fit(tmp_path, [reorder(), OrderMonitor()], CSVLogger(tmp_path, name="mine"))
    for version in ("version_0", "version_1"):
        folder = tmp_path / "mine" / version
        assert {p.name for p in folder.iterdir()} >= {"order", "checkpoints"}


def test_tensorboard_gets_the_pictures(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path)
    fit(tmp_path, [reorder(), OrderMonitor()], logger)
    events = EventAccumulator(logger.log_dir, size_guidance={"images": 0}).Reload()
    images = events.Images("reorder/order")
    assert [image.step for image in images] == [4, 6, 8]
    assert images[0].width > images[0].height > 100


def test_logger_with_log_image_gets_the_pictures(tmp_path):
    class Images(CSVLogger):  # takes images as Weights & Biases' logger does
        def log_image(self, key, images, step=None):
            seen.append((key, images[0].shape[2], step))

    seen = []
    fit(tmp_path, [reorder(), OrderMonitor()], Images(tmp_path))
    assert seen == [("reorder/order", 3, step) for step in (4, 6, 8)]


def test_nothing_to_draw_is_said_once(tmp_path):
    with pytest.warns(UserWarning, match="there is no REOrder callback"):
        fit(tmp_path, [OrderMonitor()])
    assert not (tmp_path / "order").exists()
