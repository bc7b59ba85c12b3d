"""ResultWriter: one row for each validation image, and a summary of a finished training."""

import csv
import json

import pytest
import torch
from torch.nn import functional as F

from reorder_lightning.callbacks import ResultWriter
from tests.toys import Classifier, images, loader, trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


class Scored(Classifier):
    def validation_step(self, batch, batch_idx):
        return {"logits": self(batch[0]), "targets": batch[1]}


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def fit(folder, model, **kwargs):
    runner = trainer(folder, ResultWriter(), **kwargs)
    runner.fit(model, loader(), loader(10, batch_size=4))
    return runner


def test_rows_are_the_models_own_answers(tmp_path):
    model = Scored()
    fit(tmp_path, model, max_epochs=2, num_sanity_val_steps=1)
    x, y = images(10).tensors
    logits = model(x)
    loss = F.cross_entropy(logits, y, reduction="none")
    found = rows(tmp_path / "images.csv")
    assert [int(row["image"]) for row in found] == list(range(10))
    assert [int(row["target"]) for row in found] == y.tolist()
    assert [int(row["predicted"]) for row in found] == logits.argmax(1).tolist()
    assert [int(row["top1"]) for row in found] == (logits.argmax(1) == y).int().tolist()
    assert all(row["top5"] == "1" for row in found), "there are three classes"
    torch.testing.assert_close(torch.tensor([float(row["loss"]) for row in found]), loss.detach())

    result = json.loads((tmp_path / "result.json").read_text())
    assert result["model"] == "Scored"
    assert result["parameters"] == sum(p.numel() for p in model.parameters())
    assert (result["epochs"], result["steps"], result["images"]) == (2, 8, 10)
    assert result["top1"] == pytest.approx((logits.argmax(1) == y).float().mean().item())
    assert result["loss"] == pytest.approx(loss.mean().item(), rel=1e-5)
    assert result["gflops"] > 0
    assert result["seconds_per_epoch"] > 0
    assert result["peak_memory_mb"] > 10


def test_unfinished_training_has_no_summary(tmp_path):
    fit(tmp_path, Scored())
    assert (tmp_path / "result.json").exists()

    class Fails(Scored):
        def on_train_epoch_end(self):
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fit(tmp_path, Fails())
    assert not (tmp_path / "result.json").exists(), "that of the training before is gone too"


def test_model_that_returns_nothing_has_no_files(tmp_path):
    class Silent(Scored):
        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)

    fit(tmp_path, Silent())
    assert not list(tmp_path.glob("*.csv"))
    assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize("targets", [lambda y: F.one_hot(y, 3).float(), lambda y: y.float()])
def test_targets_that_are_no_classes_are_left_out(tmp_path, targets):
    class Soft(Scored):
        def validation_step(self, batch, batch_idx):
            return {"logits": self(batch[0]), "targets": targets(batch[1])}

    fit(tmp_path, Soft())
    assert list(tmp_path.iterdir()) == []


def test_fast_dev_run_writes_nothing(tmp_path):
    fit(tmp_path, Scored(), fast_dev_run=True)
    assert list(tmp_path.iterdir()) == []


def test_validation_alone_writes_nothing(tmp_path):
    trainer(tmp_path, ResultWriter()).validate(Scored(), loader(10), verbose=False)
    assert not (tmp_path / "images.csv").exists()
