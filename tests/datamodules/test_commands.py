"""Each shipped data config trains a step on its layout in miniature, through the command."""

import csv
from pathlib import Path

import pytest

from reorder_lightning.cli import main
from reorder_lightning.cli.configs import configs_folder
from tests.data import layouts

_TINY = (
    "--trainer.accelerator=cpu --trainer.devices=1 --trainer.logger=false"
    " --trainer.enable_checkpointing=false --trainer.enable_progress_bar=false"
    " --trainer.enable_model_summary=false --model=ViT --model.depth=1 --model.embed_dim=24"
    " --model.num_heads=2 --model.patch_size=16 --data.image_size=32 --data.batch_size=4"
    " --data.num_workers=0"
)
TINY = _TINY.split()


def build_imagenet(root):
    layouts.imagenet(root)


def build_flat(root):
    layouts.class_folders(root / "train", layouts.WNIDS, each=2)
    layouts.flat_val(root, 2)
    layouts.write(root / "val.txt", "ILSVRC2012_val_00000001 0\nILSVRC2012_val_00000002 999\n")


def build_shards(root):
    items = [(layouts.encoded(i), f"{i}.JPEG", i) for i in range(4)]
    for split in ("train", "validation"):
        layouts.parquet(root / f"{split}-00000-of-00001.parquet", items, layouts.WNIDS)


LAYOUTS = {
    "folders": ("imagenet", build_imagenet, ()),
    "flat": ("imagenet", build_flat, ()),
    "shards": ("imagenet", build_shards, ()),
    "modern": ("imagenet", build_imagenet, ("--data.augment=modern",)),
    "fmow": ("fmow", layouts.fmow, ()),
    "fmow boxes": ("fmow", layouts.fmow, ("--data.crop=box",)),
    "wilds": ("fmow", layouts.wilds, ("--data.batch_size=2",)),
    "cifar": ("cifar100", layouts.cifar_pickles, ()),
}


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")  # so that what seed_everything sets does not outlive the test


@pytest.mark.parametrize("name", LAYOUTS)
def test_fit(tmp_path, name, monkeypatch):
    config, build, arguments = LAYOUTS[name]
    if name == "shards":
        datasets = pytest.importorskip("datasets")
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    build(tmp_path / "root")
    main(
        [
            "fit",
            f"--config={configs_folder()}/data/{config}.yaml",
            *TINY,
            "--data.root=root",
            "--trainer.fast_dev_run=1",
            *arguments,
        ]
    )


def test_predict_names_the_files(tmp_path):
    layouts.imagenet(tmp_path / "root")
    config = f"--config={configs_folder()}/data/imagenet.yaml"
    main(["predict", config, *TINY, "--data.root=root"])
    (found,) = tmp_path.rglob("predictions.csv")
    rows = list(csv.DictReader(found.read_text().splitlines()))
    assert [Path(row["file"]).name for row in rows] == sorted(
        f"{w}_{j}.JPEG" for w in layouts.WNIDS[:3] for j in (0, 1)
    )
    assert {row["class"] for row in rows} <= set(layouts.WNIDS[:3])


def test_predict_writes_the_tables_of_the_data_set(tmp_path):
    layouts.cifar_pickles(tmp_path / "root")
    layouts.cifar_corrupted(tmp_path / "corrupted")
    config = f"--config={configs_folder()}/data/cifar100c.yaml"
    main(["predict", config, *TINY, "--data.root=root", "--data.corrupted=corrupted"])
    (found,) = tmp_path.rglob("corruptions.csv")
    rows = list(csv.DictReader(found.read_text().splitlines()))
    assert (rows[0]["corruption"], rows[-1]["corruption"], len(rows)) == ("clean", "mean", 17)


def test_missing_data_is_one_clear_error(capsys):
    config = f"--config={configs_folder()}/data/imagenet.yaml"
    with pytest.raises(SystemExit) as stop:
        main(["fit", config, *TINY])
    assert stop.value.code == 1
    assert "There is no folder imagenet (argument `root`)." in capsys.readouterr().err
