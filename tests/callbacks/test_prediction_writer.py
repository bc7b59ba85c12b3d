"""PredictionWriter: one row for each file, whatever the batches."""

import csv

import pytest
import torch
from lightning import LightningDataModule, LightningModule, Trainer
from torch.utils.data import DataLoader

from reorder_lightning.callbacks import PredictionWriter

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


class Model(LightningModule):
    """Predicts the class that the image says."""

    def predict_step(self, batch, batch_idx):
        return torch.nn.functional.one_hot(batch[0], 3) * 0.7 + 0.1


class Data(LightningDataModule):
    class_names = ("forest", "harbor", "river")

    def predict_dataloader(self):
        return DataLoader([(2, "b.jpg"), (0, "c.jpg"), (1, "a, b.jpg")], batch_size=2)


def predict(folder, model, data, **kwargs):
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        callbacks=[PredictionWriter(**kwargs)],
        default_root_dir=folder,
        enable_progress_bar=False,
    )
    trainer.predict(model, data, return_predictions=False)


def rows(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_rows_are_sorted_by_file_and_named(tmp_path):
    for _ in range(2):  # a second run in the folder starts anew
        predict(tmp_path, Model(), Data())
    assert rows(tmp_path / "predictions.csv") == [
        ["file", "class", "probability"],
        ["a, b.jpg", "harbor", "0.800000"],
        ["b.jpg", "river", "0.800000"],
        ["c.jpg", "forest", "0.800000"],
    ]


def test_without_class_names_the_index_is_written(tmp_path):
    path = tmp_path / "new" / "p.csv"
    predict(tmp_path, Model(), Data().predict_dataloader(), path=str(path))
    assert [row[1] for row in rows(path)[1:]] == ["1", "2", "0"]


def test_other_predictions_are_refused(tmp_path):
    class Scores(Model):
        def predict_step(self, batch, batch_idx):
            return super().predict_step(batch, batch_idx)[:1]

    with pytest.raises(ValueError, match=r"but got shape \(1, 3\) for 2 file names"):
        predict(tmp_path, Scores(), Data())
