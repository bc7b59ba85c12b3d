"""The DataModule base under a real Trainer: resume, several processes, precision."""

import hashlib

import pytest
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from reorder_lightning.datamodules.base import ImageDataModule
from reorder_lightning.datamodules.sources import TensorImages


class Tiny(ImageDataModule):
    """22 training images of noise at 4x4."""

    def __init__(self, batch_size=4, num_workers=0, augment="flip", image_size=4):
        super().__init__(
            class_names="abc",
            image_size=image_size,
            mean=(0.5, 0.5, 0.5),
            std=(0.25, 0.25, 0.25),
            batch_size=batch_size,
            num_workers=num_workers,
            augment=augment,
            seed=3,
        )

    def source(self, split):
        n = 22 if split == "train" else 7
        g = torch.Generator().manual_seed(n)
        images = torch.randint(256, (n, 3, 4, 4), generator=g, dtype=torch.uint8)
        names = [f"{split}/{i}.png" for i in range(n)]
        return TensorImages(
            images,
            torch.arange(n) % 3,
            names,
            augment=self.augment,
            image_size=self.image_size,
            seed=self.seed,
        )


class Recorder(LightningModule):
    """Writes down a hash of the pixels of every batch."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3 * 4 * 4, 3)
        self.seen = []
        self.val_seen = []
        self.dtype_seen = set()

    def training_step(self, batch, batch_idx):
        images, targets = batch
        self.dtype_seen.add(images.dtype)
        digest = hashlib.sha256(images.float().numpy().tobytes()).hexdigest()[:8]
        self.seen.append((self.current_epoch, batch_idx, digest, targets.tolist()))
        return torch.nn.functional.cross_entropy(self.layer(images.flatten(1)), targets)

    def validation_step(self, batch, batch_idx):
        self.val_seen.append(batch[0].sum().item())

    def predict_step(self, batch, batch_idx):
        images, names = batch
        return dict(zip(names, self.layer(images.flatten(1)).argmax(1).tolist(), strict=True))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(root, **kwargs):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(default_root_dir=root, accelerator="cpu", devices=1, **quiet, **kwargs)


class Save(Callback):
    """Saves where ModelCheckpoint does, after each step and at the end of each epoch."""

    def __init__(self, root):
        self.root = root

    def on_train_batch_end(self, trainer, *args):
        trainer.save_checkpoint(self.root / f"step={trainer.global_step}.ckpt")

    def on_train_epoch_end(self, trainer, *args):
        trainer.save_checkpoint(self.root / f"epoch={trainer.current_epoch}.ckpt")


@pytest.mark.parametrize(
    ("limit", "workers", "augment", "steps"),
    [
        ({"max_epochs": 3}, 0, "flip", (1, 4, 5, 7)),
        ({"max_steps": 15}, 0, "flip", (4, 5, 7)),
        ({"max_epochs": 3}, 2, "modern", (7,)),
    ],
    ids=["epochs", "steps", "workers"],
)
def test_resume_at_any_step_sees_the_same_pixels(tmp_path, limit, workers, augment, steps):
    """Case 4: mid-epoch resume goes on with the next batch, with no warning."""
    whole = Recorder()
    trainer(tmp_path, callbacks=[Save(tmp_path)], enable_checkpointing=False, **limit).fit(
        whole, datamodule=Tiny(augment=augment)
    )
    assert len(whole.seen) == 15
    for step in steps:
        rest = Recorder()
        trainer(tmp_path, enable_checkpointing=False, **limit).fit(
            rest,
            datamodule=Tiny(num_workers=workers, augment=augment),
            ckpt_path=tmp_path / f"step={step}.ckpt",
        )
        assert rest.seen == whole.seen[step:]


def test_resume_at_the_end_of_an_epoch(tmp_path):
    whole = Recorder()
    trainer(tmp_path, max_epochs=3, callbacks=[Save(tmp_path)], enable_checkpointing=False).fit(
        whole, datamodule=Tiny()
    )
    rest = Recorder()
    trainer(tmp_path, max_epochs=3, enable_checkpointing=False).fit(
        rest, datamodule=Tiny(), ckpt_path=tmp_path / "epoch=1.ckpt"
    )
    assert rest.seen == whole.seen[10:]


def test_workers_do_not_change_a_pixel(tmp_path):
    runs = []
    for workers in (0, 2):
        model = Recorder()
        trainer(tmp_path, max_epochs=2, enable_checkpointing=False).fit(
            model, datamodule=Tiny(num_workers=workers, augment="modern")
        )
        runs.append(model.seen)
    assert runs[0] == runs[1]


def test_training_leaves_the_global_generator_alone(tmp_path):
    states = []

    class Watch(Recorder):
        def on_train_batch_start(self, batch, batch_idx):
            states.append(torch.get_rng_state())

    trainer(tmp_path, max_epochs=2, enable_checkpointing=False).fit(
        Watch(), datamodule=Tiny(augment="modern")
    )
    assert all(torch.equal(state, states[0]) for state in states)


def test_epochs_differ_and_validation_does_not(tmp_path):
    model = Recorder()
    trainer(tmp_path, max_epochs=2, enable_checkpointing=False, num_sanity_val_steps=0).fit(
        model, datamodule=Tiny()
    )
    first, second = model.seen[:5], model.seen[5:]
    assert {row[2] for row in first}.isdisjoint(row[2] for row in second)
    assert model.val_seen[:2] == model.val_seen[2:]


def test_overfitting_repeats_one_order(tmp_path):
    model = Recorder()
    trainer(tmp_path, max_epochs=2, enable_checkpointing=False, overfit_batches=2).fit(
        model, datamodule=Tiny(augment="none")
    )
    assert [row[3] for row in model.seen[:2]] == [row[3] for row in model.seen[2:]]


def test_prediction_names_the_files(tmp_path):
    batches = trainer(tmp_path).predict(Recorder(), datamodule=Tiny())
    assert list(batches[0] | batches[1]) == [f"predict/{i}.png" for i in range(7)]


@pytest.mark.parametrize(
    ("precision", "dtype"), [("64-true", torch.float64), ("bf16-true", torch.bfloat16)]
)
def test_images_arrive_in_the_precision_of_the_model(tmp_path, precision, dtype):
    model = Recorder()
    trainer(tmp_path, max_steps=1, enable_checkpointing=False, precision=precision).fit(
        model, datamodule=Tiny()
    )
    assert model.dtype_seen == {dtype}


def test_without_a_trainer_batches_are_the_same(tmp_path):
    model = Recorder()
    data = Tiny()
    alone = [
        (hashlib.sha256(images.numpy().tobytes()).hexdigest()[:8], targets.tolist())
        for images, targets in data.train_dataloader()
    ]
    trainer(tmp_path, max_epochs=1, enable_checkpointing=False).fit(model, datamodule=Tiny())
    assert [row[2:] for row in model.seen] == alone


@pytest.mark.parametrize("name", ["image_size", "batch_size"])
def test_sizes_must_be_positive(name):
    with pytest.raises(ValueError, match=f"argument `{name}` to be at least 1 but got 0"):
        Tiny(**{name: 0})
