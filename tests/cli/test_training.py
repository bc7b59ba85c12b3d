"""fit, validate, test and predict on the shipped configs, in process."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from lightning import LightningModule, Trainer

from reorder_lightning.cli.configs import configs_folder
from reorder_lightning.datamodules import UCMerced
from reorder_lightning.models import Mamba
from reorder_lightning.orders import hilbert, load_order

FIRST = Path("runs/quickstart/version_0")
LAST = FIRST / "checkpoints" / "last.ckpt"
HERE = "--trainer.logger=false"  # the run's folder is the working directory
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:You passed in a `val_dataloader` but have no"),
]


def read(path):
    return torch.load(path, weights_only=True)


def config(name, text):
    Path(name).write_text(text)
    return f"--config={name}"


@pytest.mark.parametrize("model", ["vit", "mamba"])
def test_composed_configs_run(fit, model):
    more = ["--model.num_heads=3"] if model == "vit" else []
    fit("default", f"model/{model}", "data/ucmerced", "reorder", "trainer/cpu", *more)
    saved = read("runs/default/version_0/checkpoints/best.ckpt")
    assert [key for key in saved["callbacks"] if key.startswith("REOrder")]
    assert saved["hyper_parameters"]["size"] == "base"


def test_published_recipe_runs(fit):
    files = ("default", "model/mamba", "data/ucmerced", "reorder_paper", "trainer/cpu")
    fit(*files, "--trainer.fast_dev_run=true")


def test_last_checkpoint_is_of_the_last_epoch(fit):
    """Also where an earlier epoch was the best; Lightning's `save_last` keeps that one."""
    fit("default", "model/mamba", "data/ucmerced", "--model.lr=0", "--trainer.max_epochs=3")
    folder = Path("runs/default/version_0/checkpoints")
    assert {path.name for path in folder.iterdir()} == {"best.ckpt", "last.ckpt"}
    assert [read(folder / f"{name}.ckpt")["epoch"] for name in ("best", "last")] == [0, 2]


@pytest.mark.parametrize("name", ["cpu", "gpu", "ddp", "slurm"])
def test_trainer_configs_parse(reorder, name, capsys):
    with pytest.raises(SystemExit) as stop:
        reorder(f"fit -c configs/quickstart.yaml -c configs/trainer/{name}.yaml --print_config")
    assert stop.value.code == 0
    assert yaml.safe_load(capsys.readouterr().out)["model"]["class_path"].endswith("Mamba")


def test_summary_says_what_came_out_and_where(fit, capsys):
    fit("quickstart")
    shown = capsys.readouterr().out
    assert "Mamba, 1 epochs, 2 steps" in shown
    assert "order       " in shown
    assert f"{FIRST}/order/order.json\n" in shown
    pictures = ["final.png", "puzzle.png", "movement.png", "order.gif"]
    assert f"pictures    {', '.join(pictures)} beside it" in shown
    assert str(LAST) in shown
    assert LAST.exists()
    assert all((FIRST / "order" / name).exists() for name in pictures)


def test_accuracy_comes_with_its_standard_error(fit, capsys):
    fit("quickstart", "--trainer.limit_val_batches=1.0")
    assert "on 420 images (standard error 0." in capsys.readouterr().out


def test_two_runs_in_one_folder(fit):
    """Case 13: with the config's own logger each run gets its folder."""
    fit("quickstart")
    fit("quickstart")
    assert {p.name for p in Path("runs/quickstart").iterdir()} == {"version_0", "version_1"}


@pytest.mark.parametrize("logger", ["false", "CSVLogger"])
def test_two_runs_with_the_same_files(fit, logger):
    """Case 13: without a logger, or with a fixed version, both runs succeed."""
    more = ["--trainer.logger.init_args.version=3", "--trainer.logger.init_args.save_dir=runs"]
    for _ in range(2):
        fit("quickstart", f"--trainer.logger={logger}", *(more if logger == "CSVLogger" else []))
    folder = Path("runs/quickstart/version_3") if logger == "CSVLogger" else Path()
    folder = folder if folder.exists() else Path("runs/lightning_logs/version_3")
    assert (folder / "config.yaml").exists()
    assert {p.name for p in (folder / "checkpoints").iterdir()} == {"last.ckpt", "last-v1.ckpt"}


def test_evaluation_leaves_the_config_of_the_training_alone(fit, reorder):
    fit("quickstart", HERE, "--model.lr=0.5")
    reorder("validate -c config.yaml")
    assert yaml.safe_load(Path("config.yaml").read_text())["model"]["init_args"]["lr"] == 0.5


def test_callbacks_of_a_later_config_do_not_drop_reorder(fit):
    """Case 14."""
    own = config("mine.yaml", "trainer: {callbacks: [{class_path: LearningRateMonitor}]}")
    fit("quickstart", own)
    (checkpoint,) = (FIRST / "checkpoints").iterdir()  # Lightning's own ModelCheckpoint
    kinds = {key.split("{")[0] for key in read(checkpoint)["callbacks"]}
    assert kinds >= {"REOrder", "OrderMonitor"}
    assert (FIRST / "order" / "final.png").exists()


def test_reorder_is_changed_and_switched_off_by_arguments(fit):
    fit("quickstart", "--reorder.peak_temperature=0.25", HERE)
    saved = yaml.safe_load(Path("config.yaml").read_text())["reorder"]["init_args"]
    assert saved["peak_temperature"] == 0.25
    assert saved["warmup"] == 0.2
    fit("quickstart", "--reorder=null")
    assert not (FIRST / "order").exists()
    assert [k for k in read(LAST)["callbacks"] if k.startswith("REOrder")] == []


def test_linked_arguments_are_in_the_checkpoint(fit):
    """Case 15: a fresh process without any config restores them."""
    fit("quickstart", "--model.order=hilbert")
    code = (
        "from reorder_lightning.models import Mamba\n"
        f"model = Mamba.load_from_checkpoint({str(LAST)!r})\n"
        "print(model.hparams.num_classes, model.backbone.grid_size, model.backbone.num_classes)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "21 (4, 4) 21"


def logged(folder, name):
    """The last value of a metric in a folder of CSVLogger."""
    with (Path(folder) / "metrics.csv").open() as file:
        return [float(row[name]) for row in csv.DictReader(file) if row.get(name)][-1]


def test_validate_gives_the_accuracy_of_the_training(fit, reorder):
    fit("quickstart", "--trainer.limit_val_batches=1.0")
    logger = "--trainer.accelerator=cpu --trainer.logger=CSVLogger --trainer.logger.save_dir=again"
    reorder(f"validate --ckpt_path {LAST} --data UCMerced {logger}")
    trained = logged(FIRST, "val/top1")
    assert logged("again/lightning_logs/version_0", "val/top1") == pytest.approx(trained, abs=1e-6)
    # A plain Python program gives the same.
    trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    model = Mamba.load_from_checkpoint(LAST)
    (again,) = trainer.validate(model, UCMerced(batch_size=50), verbose=False)
    assert again["val/top1"] == pytest.approx(trained, abs=1e-6)


def test_exported_order_is_the_final_order(fit, reorder):
    fit("quickstart", "--model.order=hilbert")
    reorder(f"export {LAST}")
    exported = load_order(LAST.with_suffix(".order.json"))
    monitored = load_order(FIRST / "order" / "order.json")
    assert torch.equal(exported.order, monitored.order)
    (policy,) = [v["policy"] for k, v in read(LAST)["callbacks"].items() if k.startswith("REOrder")]
    mode = policy["logits"].argsort(descending=True, stable=True)
    assert torch.equal(exported.order, mode)
    assert exported.grid == monitored.grid == (4, 4)


def test_predictions_are_written(fit, reorder, capsys):
    fit("quickstart")
    reorder(
        f"predict -c {FIRST}/config.yaml --ckpt_path {LAST} --trainer.limit_predict_batches=null"
    )
    (path,) = Path("runs").rglob("predictions.csv")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 420
    assert list(rows[0]) == ["file", "class", "probability"]
    assert rows[0]["file"].startswith("val/agricultural/")
    assert {row["class"] for row in rows} <= set(UCMerced().class_names)
    assert all(1 / 21 <= float(row["probability"]) <= 1 for row in rows)


@pytest.mark.slow
def test_two_processes_write_the_same_predictions(fit, tmp_path):
    fit("quickstart")
    verb = [sys.executable, "-m", "reorder_lightning", "predict", "-c", f"{FIRST}/config.yaml"]
    common = [f"--ckpt_path={LAST}", "--trainer.logger=false"]
    written = []
    for number, more in enumerate(([], ["--trainer.strategy=ddp", "--trainer.devices=2"])):
        folder = f"--trainer.default_root_dir={tmp_path / str(number)}"
        subprocess.run([*verb, *common, *more, folder], check=True)
        written.append((tmp_path / str(number) / "predictions.csv").read_text().splitlines())
    one, two = written
    assert len(one) == 421
    assert [row.split(",")[:2] for row in one] == [row.split(",")[:2] for row in two]


def test_test_verb_runs(fit, reorder):
    fit("quickstart")
    reorder(f"test -c {FIRST}/config.yaml --ckpt_path {LAST} --trainer.limit_test_batches=1")


def test_what_is_not_given_comes_from_the_checkpoint(fit):
    fit("quickstart", "--model.order=hilbert", "--model.directions=2")
    fit("quickstart", "--trainer.max_epochs=2", f"--ckpt_path={LAST}")
    arguments = read("runs/quickstart/version_1/checkpoints/last.ckpt")["hyper_parameters"]
    assert arguments["order"] == "hilbert"
    assert arguments["directions"] == 2
    assert arguments["num_classes"] == 21


@pytest.mark.parametrize("path", [str(LAST), "last"])
def test_other_model_arguments_than_the_checkpoints_are_refused(fit, fails, path):
    fit("quickstart", *([HERE] if path == "last" else []), "--model.order=hilbert")
    told = fails(
        fit, "quickstart", "--model.order=row", f"--ckpt_path={path}", HERE,
        "--trainer.max_epochs=2",
    )  # fmt: skip
    assert "order: 'hilbert' in the checkpoint, 'row' in this command" in told
    assert "--model.init_from" in told


def test_other_data_than_the_checkpoints_are_refused(fit, fails):
    fit("quickstart")
    told = fails(fit, "quickstart", "--data.image_size=32", f"--ckpt_path={LAST}")
    assert "image_size: [64, 64] in the checkpoint, [32, 32] in this command" in told


def test_missing_checkpoint_is_one_message(fit, reorder, fails):
    for verb in ("fit", "validate", "predict"):
        told = fails(reorder, f"{verb} -c configs/quickstart.yaml --ckpt_path no.ckpt")
        assert told == "reorder: error: There is no checkpoint at no.ckpt.\n"
    assert "no.ckpt" in fails(fit, "quickstart", "--model.init_from=no.ckpt")


def test_weights_of_a_checkpoint_start_a_new_training(fit):
    fit("quickstart", "--model.order=hilbert", "--reorder=null")
    fit("quickstart", f"--model.init_from={LAST}", "--reorder=null", "--model.lr=1e-9")
    first, second = (read(f"runs/quickstart/version_{i}/checkpoints/last.ckpt") for i in (0, 1))
    assert second["hyper_parameters"]["lr"] == 1e-9
    assert torch.equal(second["state_dict"]["backbone.patch_order._extra_state"], hilbert(4, 4))
    old, new = (state["state_dict"]["backbone.head.weight"] for state in (first, second))
    assert torch.allclose(old, new, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fit --data UCMerced", "There is no model. Give one, e.g. -c configs/model/mamba.yaml"),
        ("validate --data UCMerced", "or --ckpt_path"),
        ("fit --model Mamba", "There is no data. Give some"),
        ("fit --model Mamba --model.num_classes 7 --data UCMerced", "comes from the data"),
        ("fit --model Mamba --model.patch_size 7 --data UCMerced", "multiples of `patch_size`"),
        ("fit --model Mamba --model.order [0,1] --data UCMerced", r"shape (16,)"),
        ("fit --model Mamba --model.order no.json --data UCMerced", "no saved order at no.json"),
        ("fit --model Mamba --model.size giant --data UCMerced", "`size` to be one of"),
    ],
)
def test_bad_arguments_are_one_message(reorder, fails, arguments, message):
    assert message in fails(reorder, arguments)


def test_phases_longer_than_the_training_are_one_message(fit, fails):
    told = fails(fit, "quickstart", "--reorder.warmup=3", "--reorder.policy=4", HERE)
    assert "take 14 optimiser steps, but the training has 2" in told


class Foreign(LightningModule):
    """A user's module that knows nothing of this package."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.head = torch.nn.Linear(3 * 64 * 64, width)

    def training_step(self, batch, batch_idx):
        return self.head(batch[0].flatten(1)).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def test_foreign_model_runs(reorder):
    reorder("fit --data UCMerced --trainer.fast_dev_run true --trainer.accelerator cpu "
            "--model tests.cli.test_training.Foreign")  # fmt: skip


def test_policy_on_a_model_without_an_order_is_one_message(reorder, fails):
    told = fails(reorder, "fit --data UCMerced --reorder REOrder --model "
                 "tests.cli.test_training.Foreign --trainer.fast_dev_run true")  # fmt: skip
    assert "REOrder" in told
    assert "Foreign" in told


def test_shipped_configs_folder_has_what_readme_names():
    names = {str(p.relative_to(configs_folder())) for p in configs_folder().rglob("*.yaml")}
    assert names >= {"quickstart.yaml", "default.yaml", "reorder.yaml", "reorder_paper.yaml"}
