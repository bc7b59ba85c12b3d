import csv

import torch
from lightning import LightningModule, Trainer

from reorder_lightning.datamodules import CIFAR100C, FMoW, UCMerced
from reorder_lightning.datamodules.tables import PredictionTables
from tests.data import layouts


class Red(LightningModule):
    """Knows the class of CIFAR's miniature: the mean of its red plane."""

    def predict_step(self, batch, batch_idx):
        red = batch[0][:, 0].mean((1, 2)) * 0.26733 + 0.50708
        return torch.nn.functional.one_hot((red * 255).round().long(), 100).float()


class Constant(LightningModule):
    def predict_step(self, batch, batch_idx):
        return torch.eye(62)[:1].expand(len(batch[0]), -1)


def predict(root, model, data):
    trainer = Trainer(
        default_root_dir=root,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        callbacks=[PredictionTables()],
    )
    trainer.predict(model, datamodule=data, return_predictions=False)


def read(root, name):
    (path,) = root.rglob(name)
    return list(csv.DictReader(path.read_text().splitlines()))


def test_corruptions(tmp_path):
    """Severity k of corruption c shows red c + k - 1, which is right for one class of twenty."""
    layouts.cifar_pickles(tmp_path / "a")
    layouts.cifar_corrupted(tmp_path / "b")
    data = CIFAR100C(str(tmp_path / "a"), str(tmp_path / "b"), batch_size=100)
    predict(tmp_path / "run", Red(), data)
    rows = read(tmp_path / "run", "corruptions.csv")
    clean = {"corruption": "clean", "mean": "1.000000", "drop": "0.000000"}
    assert rows[0] == clean | dict.fromkeys("12345", "")
    assert [rows[1][s] for s in "12345"] == ["0.050000"] * 5
    assert rows[-1]["drop"] == "0.950000"


def test_places_and_challenge(tmp_path):
    root = layouts.fmow_test(layouts.fmow(tmp_path / "fmow"))
    predict(tmp_path / "run", Constant(), FMoW(str(root), test="test", image_size=16, batch_size=4))
    assert [row["place"] for row in read(tmp_path / "run", "places.csv")] == ["11978", "7", "8"]
    (challenge,) = tmp_path.rglob("challenge.csv")
    assert challenge.read_text() == "11978,airport\n7,airport\n8,airport\n"


def test_other_data_sets_write_nothing(tmp_path):
    predict(tmp_path / "run", Constant(), UCMerced(batch_size=210))
    assert not list(tmp_path.rglob("*.csv"))
