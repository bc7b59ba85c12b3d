"""OrderMonitor: what it draws, tabulates and hands to loggers, and that it follows a resume."""

import csv
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from lightning import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from PIL import Image
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
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
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

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def fit(folder, callbacks, logger=False, ckpt_path=None, val=None, data=None, **kwargs):
    trainer = Trainer(
        accelerator="cpu",
        callbacks=callbacks,
        logger=logger,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        **({"max_epochs": 4} | kwargs),
    )
    train = DataLoader(torch.zeros(16, 1), batch_size=8)
    loaders = {"datamodule": data} if data else {"train_dataloaders": train, "val_dataloaders": val}
    trainer.fit(Reader(), ckpt_path=ckpt_path, **loaders)
    return trainer


def reorder(warmup=1, policy=2, **learner):
    score = {"estimator": "score", "lr": 0.2, "peak_temperature": 1.0, "acceptance": False}
    return REOrder(warmup=warmup, policy=policy, **(score | learner))


def images(pack=lambda image: image):
    return DataLoader([pack(torch.rand(3, 8, 12))], batch_size=1)


def made(folder):
    return sorted(path.name for path in (folder / "order").iterdir())


@pytest.fixture
def drawn(monkeypatch):
    """What was drawn last, by which function: quicker than drawing it."""
    seen = {}

    def replace(name, result):
        def keep(*args):
            seen[name] = args
            return result

        monkeypatch.setattr(f"reorder_lightning.callbacks.order_monitor.{name}", keep)

    for name in ("draw_order", "draw_puzzle", "draw_movement"):
        replace(name, None)
    for name in ("to_png", "animate"):
        replace(name, b"")
    return seen


ALWAYS = ["final.png", "order.csv", "order.json"]
COURSE = ["movement.png", "order.gif"]


def table(folder):
    with (folder / "order" / "order.csv").open() as file:
        return list(csv.DictReader(file))


def test_pictures_and_table_of_each_policy_epoch_and_the_end(tmp_path):
    learner = reorder()
    fit(tmp_path, [OrderMonitor(), learner])
    assert made(tmp_path) == sorted(["epoch_001.png", "epoch_002.png", *ALWAYS, *COURSE])
    with Image.open(tmp_path / "order" / "order.gif") as film:
        assert film.n_frames == 4  # start, two epochs, end
    assert all(p.read_bytes()[:4] == b"\x89PNG" for p in (tmp_path / "order").glob("*.png"))
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


def test_table_is_the_same_whichever_callback_comes_first(tmp_path, drawn):
    fit(tmp_path / "a", [OrderMonitor(), reorder()])
    fit(tmp_path / "b", [reorder(), OrderMonitor()])
    assert table(tmp_path / "a") == table(tmp_path / "b")


def test_resumed_run_continues_the_table(tmp_path, drawn):
    fit(tmp_path / "whole", [reorder(), OrderMonitor()])
    whole = drawn["animate"][0]
    saver = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    fit(tmp_path / "first", [reorder(), OrderMonitor(), saver])
    fit(tmp_path / "rest", [reorder(), OrderMonitor()], ckpt_path=tmp_path / "epoch=1.ckpt")
    assert table(tmp_path / "rest") == table(tmp_path / "whole")
    assert not (tmp_path / "rest" / "order" / "epoch_001.png").exists()

    assert list(whole) == ["Start order", "Epoch 1", "Epoch 2", "Final order: learned"]
    assert all(torch.equal(drawn["animate"][0][title], whole[title]) for title in whole)


@pytest.mark.parametrize("at_train_end", [True, False])
def test_checkpoint_holds_orders_that_load_with_weights_only(tmp_path, drawn, at_train_end):
    saver = ModelCheckpoint(
        tmp_path, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=at_train_end
    )
    fit(tmp_path / "whole", [reorder(), OrderMonitor(), saver], val=images())
    path = tmp_path / "epoch=2.ckpt"
    state = torch.load(path, weights_only=True)["callbacks"]["OrderMonitor"]
    assert all(order.dtype == torch.int32 for order in state["orders"].values())
    fit(tmp_path / "rest", [reorder(), OrderMonitor()], ckpt_path=path, val=images())
    assert list(drawn["draw_movement"][1]) == [1, 2, 3]
    moved = [
        [row["kendall_to_start"] for row in table(tmp_path / run)] for run in ("rest", "whole")
    ]
    assert moved[0] == moved[1]


def test_without_a_policy_phase_only_the_end_is_drawn(tmp_path, drawn):
    fit(tmp_path, [reorder(policy=0), OrderMonitor(dirpath=str(tmp_path / "order"))])
    assert made(tmp_path) == ALWAYS
    assert json.loads((tmp_path / "order" / "order.json").read_text())["order"] == list(range(6))


@pytest.mark.parametrize("length", [{"max_epochs": 1}, {"max_epochs": -1, "max_steps": 3}])
def test_policy_phase_within_one_epoch(tmp_path, drawn, length):
    fit(tmp_path, [reorder(0.0, 0.5), OrderMonitor()], val=images(), **length)
    assert set(made(tmp_path)) >= {"epoch_000.png", "puzzle.png", *ALWAYS, *COURSE}
    assert list(drawn["draw_movement"][1]) == list(range(len(table(tmp_path))))


def test_kept_start_is_named_and_not_drawn_as_a_movement(tmp_path, drawn):
    # At a temperature of zero nothing is tried, so nothing is found.
    learner = reorder(peak_temperature=0.0)
    fit(tmp_path, [learner, OrderMonitor()], val=images())
    _, orders, grid, title = drawn["draw_puzzle"]
    assert (list(orders), grid) == (["start order"], (2, 3))
    assert title == "Final order: start kept"
    start, course, *_ = drawn["draw_movement"]
    assert all(torch.equal(order, start.int()) for order in course.values())
    assert list(drawn["animate"][0])[-1] == "Final order: start kept"


def test_learned_order_stands_beside_the_start(tmp_path, drawn):
    learner = reorder()
    fit(tmp_path, [learner, OrderMonitor()], val=images())
    _, orders, _, title = drawn["draw_puzzle"]
    assert torch.equal(orders["start order"], learner.start_order)
    assert torch.equal(orders["final order"], learner.order)
    assert title.startswith("Final order: learned; Kendall tau to the start")


def test_unfinished_policy_is_named(tmp_path, drawn):
    stop = EarlyStopping("reorder/phase", patience=1)
    with pytest.warns(UserWarning, match="ended within the policy phase"):
        fit(tmp_path, [reorder(warmup=0, policy=4), OrderMonitor(), stop])
    assert drawn["draw_movement"][3].startswith("Final order: policy not finished; Kendall")
    assert list(drawn["animate"][0])[-1] == "Final order: policy not finished"


@pytest.mark.parametrize(
    "pack",
    [
        lambda x: x,
        lambda x: (x, 0),
        lambda x: {"y": 1, "pixel_values": x},
        lambda x: ("a.png", [x]),
    ],
)
def test_puzzle_of_a_foreign_batch(tmp_path, drawn, pack):
    fit(tmp_path, [reorder(), OrderMonitor()], val=images(pack))
    assert drawn["draw_puzzle"][0].shape == drawn["animate"][2].shape == (8, 12, 3)


def test_no_images_leave_the_puzzle_out_with_one_note(tmp_path, drawn, caplog):
    caplog.set_level("INFO")
    fit(tmp_path, [reorder(), OrderMonitor()], val=DataLoader(torch.zeros(3, 5)))
    assert "puzzle.png" not in made(tmp_path)
    assert drawn["animate"][2] is None
    assert caplog.text.count("OrderMonitor draws no puzzle") == 1


@pytest.mark.parametrize("mean", [(0.5, 0.5, 0.5), None, lambda: 0.5])
def test_colours_are_those_before_normalisation(tmp_path, drawn, mean):
    class Data(LightningDataModule):
        def train_dataloader(self):
            return DataLoader(torch.zeros(16, 1), batch_size=8)

        def val_dataloader(self):
            shown = torch.tensor([0.0, 0.25, 0.5, 0.75]).expand(1, 3, 4, 4)
            return DataLoader((shown - 0.5) / 0.1)

    data = Data()
    data.mean, data.std = mean, (0.1, 0.1, 0.1)
    fit(tmp_path, [reorder(), OrderMonitor()], data=data)
    expected = [0, 64, 128, 191] if isinstance(mean, tuple) else [0, 85, 170, 255]
    assert drawn["draw_puzzle"][0][0, :, 0].tolist() == expected


def test_only_rank_zero_draws(tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "is_global_zero", False)
    monitor = OrderMonitor()
    fit(tmp_path, [reorder(), monitor], val=images())
    assert not (tmp_path / "order").exists()
    assert [row["epoch"] for row in monitor.state_dict()["rows"]] == [1, 2, 3]


def test_files_lie_in_the_folder_of_the_run(tmp_path, drawn):
    for _ in range(2):
        fit(tmp_path, [reorder(), OrderMonitor()], CSVLogger(tmp_path, name="mine"))
    for version in ("version_0", "version_1"):
        folder = tmp_path / "mine" / version
        assert {p.name for p in folder.iterdir()} >= {"order", "checkpoints"}


def test_tensorboard_gets_the_pictures(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path)
    fit(tmp_path, [reorder(policy=1), OrderMonitor()], logger, val=images())
    events = EventAccumulator(logger.log_dir, size_guidance={"images": 0}).Reload()
    steps = {tag: [image.step for image in events.Images(tag)] for tag in events.Tags()["images"]}
    assert steps == {"reorder/order": [4, 8], "reorder/puzzle": [8], "reorder/movement": [8]}
    for tag in steps:
        image = events.Images(tag)[0]
        assert min(image.width, image.height) > 100
        assert image.encoded_image_string.startswith(b"\x89PNG")


class FakeRun:
    """What Lightning's WandbLogger uses of a W&B run."""

    id, name, offline = "r1", "run", True

    def __init__(self):
        self.config, self.logged = SimpleNamespace(update=lambda *a, **k: None), []

    def log(self, values):
        self.logged.append(values)

    def project_name(self):
        return "project"

    define_metric = None


@pytest.fixture
def wandb_run(monkeypatch):
    """Lightning's own WandbLogger upon a stand-in for the package, which is not installed."""
    run, wandb = FakeRun(), ModuleType("wandb")
    wandb.run, wandb.init = None, lambda **kwargs: run
    wandb.Image = lambda image: ("image", np.asarray(image).shape[2], np.asarray(image).dtype)
    wandb.Video = lambda path: ("video", Path(path).read_bytes()[:6])
    parts = {"wandb.sdk": {}, "wandb.sdk.lib": {"RunDisabled": FakeRun}}
    parts["wandb.wandb_run"] = {"Run": FakeRun}
    for name, content in {"wandb": vars(wandb), **parts}.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("lightning.pytorch.loggers.wandb._WANDB_AVAILABLE", True)
    return run


def test_wandb_gets_the_pictures_and_the_animation(tmp_path, wandb_run):
    logger = WandbLogger(save_dir=tmp_path, project="project", version="r1", offline=True)
    fit(tmp_path, [reorder(policy=1), OrderMonitor()], logger, val=images())
    media = [
        (key, value[0], values["trainer/global_step"])
        for values in wandb_run.logged
        for key, value in values.items()
        if isinstance(value, list)
    ]
    image = ("image", 3, np.dtype("uint8"))
    assert media == [
        ("reorder/order", image, 4),
        ("reorder/order", image, 8),
        ("reorder/puzzle", image, 8),
        ("reorder/movement", image, 8),
        ("reorder/animation", ("video", b"GIF89a"), 8),
    ]
    assert (tmp_path / "project" / "r1" / "order" / "order.gif").exists()


def test_csv_logger_takes_no_pictures_but_the_folder_does(tmp_path, drawn):
    fit(tmp_path, [reorder(), OrderMonitor()], CSVLogger(tmp_path, name="mine"), val=images())
    assert set(made(tmp_path / "mine" / "version_0")) >= {"puzzle.png", *ALWAYS, *COURSE}


def test_nothing_to_draw_is_said_once(tmp_path):
    with pytest.warns(UserWarning, match="there is no REOrder callback"):
        fit(tmp_path, [OrderMonitor()])
    assert not (tmp_path / "order").exists()


def test_fast_dev_run_writes_nothing(tmp_path):
    fit(tmp_path, [reorder(), OrderMonitor()], fast_dev_run=True)
    assert list(tmp_path.iterdir()) == []
