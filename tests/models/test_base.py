"""ImageClassifier: loss, reward, metrics, optimiser, schedule, seeding."""

import lightning as L
import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from reorder_lightning.models import Mamba, ViT


def make(**kwargs):
    args = {"num_classes": 3, "image_size": 8, "patch_size": 4, "depth": 1, "embed_dim": 16}
    return Mamba(**(args | kwargs))


def loader(count=12, classes=3, batch_size=4):
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 3, 8, 8, generator=generator)
    return DataLoader(TensorDataset(images, torch.arange(count) % classes), batch_size=batch_size)


def trainer(tmp_path, **kwargs):
    args = {"max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    args |= {"num_sanity_val_steps": 0}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(default_root_dir=tmp_path, **(args | quiet | kwargs))


class Record(L.Callback):
    """Keeps the learning rate and what training_step returned."""

    def __init__(self):
        self.rates, self.outputs = [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.outputs.append(outputs)


def test_the_reward_is_minus_the_loss_of_each_image():
    model = make(label_smoothing=0.1)
    model.log = lambda *args, **kwargs: None
    images, targets = next(iter(loader()))
    out = model.training_step((images, targets), 0)
    losses = F.cross_entropy(model(images), targets, reduction="none", label_smoothing=0.1)
    torch.testing.assert_close(out["reorder_reward"], -losses)
    assert not out["reorder_reward"].requires_grad
    torch.testing.assert_close(out["loss"], losses.mean())


def test_the_schedule_warms_up_holds_and_decays_per_step(tmp_path):
    record = Record()
    model = make(lr=1.0, warmup_epochs=1, hold_epochs=1, min_lr=0.1)
    trainer(tmp_path, max_epochs=4, callbacks=[record]).fit(model, loader(), loader())
    rates = torch.tensor(record.rates)
    torch.testing.assert_close(rates[:4], torch.tensor([0.0, 1 / 3, 2 / 3, 1.0]))
    torch.testing.assert_close(rates[3:7], torch.ones(4))
    assert (rates[6:].diff() < 0).all()
    assert rates[-1] >= 0.1


def test_a_training_without_an_end_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"max_epochs=-1.*Set `trainer.max_epochs`"):
        trainer(tmp_path, max_epochs=-1).fit(make(), loader(), loader())


def test_the_optimiser_decays_matrices_only():
    model = make()
    model.trainer = type("T", (), {"estimated_stepping_batches": 10, "max_epochs": 2})()
    groups = model.configure_optimizers()["optimizer"].param_groups
    plain = {id(p) for group in groups if group["weight_decay"] == 0 for p in group["params"]}
    names = {name for name, p in model.backbone.named_parameters() if id(p) in plain}
    assert {"pos_embed", "cls_token", "blocks.0.mixer.A_log", "norm.weight"} <= names
    assert "blocks.0.mixer.in_proj.weight" not in names


def test_case_40_fewer_classes_than_five_lower_k(tmp_path):
    results = trainer(tmp_path).validate(make(), loader(), verbose=False)[0]
    assert set(results) == {"val/loss", "val/top1", "val/top3"}
    assert results["val/top3"] == 1.0


@pytest.mark.parametrize("mix", [{"mixup": 0.8}, {"cutmix": 1.0}, {"mixup": 0.8, "cutmix": 1.0}])
def test_mixed_images_are_rewarded_by_their_mixed_targets(tmp_path, mix):
    record = Record()
    trainer(tmp_path, max_epochs=1, callbacks=[record]).fit(make(**mix), loader(), loader())
    for out in record.outputs:
        assert out["reorder_reward"].shape == (4,)
        torch.testing.assert_close(out["reorder_reward"].mean(), -out["loss"])


def test_images_are_not_mixed_twice():
    model = make(mixup=0.8)
    with pytest.raises(ValueError, match=r"mixed already.*Leave out one"):
        model.training_step((torch.zeros(2, 3, 8, 8), torch.ones(2, 3) / 3), 0)


def test_random_numbers_of_a_step_follow_from_seed_and_step(tmp_path, monkeypatch):
    """Dropout after a resume is that of an uninterrupted run."""
    monkeypatch.setenv("PL_GLOBAL_SEED", "3")
    runs = []
    for disturb in (False, True):
        torch.manual_seed(0)
        model = ViT(3, 8, patch_size=4, depth=2, embed_dim=16, num_heads=2, drop_path_rate=0.5)
        if disturb:
            torch.rand(100)
        record = Record()
        trainer(tmp_path, callbacks=[record]).fit(model, loader(), loader())
        runs.append(torch.stack([out["loss"] for out in record.outputs]))
    torch.testing.assert_close(*runs, rtol=0, atol=0)


def test_hyperparameters_rebuild_the_model(tmp_path):
    model = make(order=[3, 1, 2, 0], directions=2)
    run = trainer(tmp_path, max_epochs=1)
    run.fit(model, loader(), loader())
    run.save_checkpoint(tmp_path / "a.ckpt")
    loaded = Mamba.load_from_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    images, _ = next(iter(loader()))
    torch.testing.assert_close(loaded.eval()(images), model.eval()(images))


def test_grad_checkpointing_is_switched_on():
    assert make(grad_checkpointing=True).backbone.grad_checkpointing
