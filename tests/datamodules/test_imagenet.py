import logging
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from reorder_lightning.datamodules import ImageNet
from reorder_lightning.datamodules.classes import imagenet_wnids
from tests.data import layouts
from tests.data.layouts import WNIDS

SMALL = {"image_size": 16, "batch_size": 4}


def targets(data, split):
    source = data.open(split)
    return {Path(source.name(i)).name: source.target(i) for i in range(len(source))}


def test_class_folders(tmp_path):
    data = ImageNet(str(layouts.imagenet(tmp_path)), **SMALL)
    assert data.class_names == WNIDS[:3]
    assert data.num_classes == 3
    assert data.image_size == (16, 16)
    assert len(data.open("train")) == 12
    assert targets(data, "val") == {
        f"{w}_{j}.JPEG": i for i, w in enumerate(WNIDS[:3]) for j in (0, 1)
    }
    images, labels = next(iter(data.train_dataloader()))
    assert (images.shape, images.dtype) == ((4, 3, 16, 16), torch.float32)
    assert (labels.shape, labels.dtype) == ((4,), torch.int64)
    _, names = next(iter(data.predict_dataloader()))
    assert names[0] == str(tmp_path / "val" / WNIDS[0] / f"{WNIDS[0]}_0.JPEG")


def test_splits_share_one_class_table(tmp_path):
    """Case 17: a class that is missing in val doesn't shift the others."""
    root = layouts.imagenet(tmp_path, val=WNIDS[1:3])
    assert set(targets(ImageNet(str(root), **SMALL), "val").values()) == {1, 2}


def test_a_class_without_training_images_is_an_error(tmp_path):
    """Case 17: val has a class that train doesn't have."""
    root = layouts.imagenet(tmp_path, val=WNIDS)
    with pytest.raises(ValueError, match="classes that the training images don't have: n15075141"):
        ImageNet(str(root), **SMALL).setup("fit")


@pytest.mark.parametrize("kind", ["val.txt", "index", "csv", "kaggle", "devkit"])
def test_flat_validation_folder(tmp_path, kind):
    """Case 16: labels of a flat folder from the files that people have."""
    layouts.class_folders(tmp_path / "train", WNIDS)
    layouts.flat_val(tmp_path, 4)
    true = [3, 0, 2, 0]  # places in WNIDS
    index = [0, 1, 2, 999]  # class indices of ImageNet-1K
    names = [f"ILSVRC2012_val_{i:08d}" for i in range(1, 5)]
    rows = list(zip(names, true, strict=True))
    options = {}
    if kind == "val.txt":
        layouts.write(tmp_path / "val.txt", "".join(f"{n}.JPEG {WNIDS[c]}\n" for n, c in rows))
    elif kind == "index":
        layouts.write(tmp_path / "my.txt", "".join(f"{n}.JPEG {index[c]}\n" for n, c in rows))
        options = {"val_labels": str(tmp_path / "my.txt")}
    elif kind == "csv":
        lines = "".join(f"{n}.JPEG,{WNIDS[c]}\n" for n, c in rows)
        layouts.write(tmp_path / "val" / "val.csv", "filename,label\n" + lines)
    elif kind == "kaggle":
        lines = "".join(f"{n},{WNIDS[c]} 85 1 499 272 \n" for n, c in rows)
        layouts.write(tmp_path / "LOC_val_solution.csv", "ImageId,PredictionString\n" + lines)
    else:  # ids are not in the order of the wnids
        ids = {7: WNIDS[0], 3: WNIDS[1], 900: WNIDS[2], 1: WNIDS[3]}
        id_of = {wnid: number for number, wnid in ids.items()}
        layouts.devkit(tmp_path, [id_of[WNIDS[c]] for c in true], ids)
    data = ImageNet(str(tmp_path), **SMALL, **options)
    assert list(targets(data, "val").values()) == true


def test_flat_validation_folder_without_labels(tmp_path):
    """Case 16: an error that says how to arrange val."""
    layouts.class_folders(tmp_path / "train", WNIDS)
    layouts.flat_val(tmp_path, 2)
    with pytest.raises(FileNotFoundError, match=r"val_labels.*or sort.*val/<wnid>/<image>"):
        ImageNet(str(tmp_path), **SMALL).setup("fit")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("val.csv", "filename,width\na.JPEG,3\n", "columns filename, width but none of wnid"),
        ("val.csv", "id,wnid\n1,n01440764\n", "none of file, filename"),
        ("val.txt", "ILSVRC2012_val_00000001.JPEG 1000\n", "label 1000, out of range.*0 to 999"),
        ("val.txt", "ILSVRC2012_val_00000001.JPEG n00000000\n", "unknown class 'n00000000'"),
        ("val.txt", "ILSVRC2012_val_00000009.JPEG 0\n", "no line for ILSVRC2012_val_00000001"),
    ],
)
def test_wrong_label_files(tmp_path, name, content, message):
    layouts.class_folders(tmp_path / "train", WNIDS)
    layouts.flat_val(tmp_path, 1)
    layouts.write(tmp_path / name, content)
    with pytest.raises(ValueError, match=message):
        ImageNet(str(tmp_path), **SMALL).setup("fit")


def test_devkit_without_its_table(tmp_path):
    layouts.class_folders(tmp_path / "train", WNIDS)
    layouts.flat_val(tmp_path, 1)
    layouts.write(tmp_path / "ILSVRC2012_validation_ground_truth.txt", "490\n")
    with pytest.raises(FileNotFoundError, match=r"meta\.mat beside it"):
        ImageNet(str(tmp_path), **SMALL).setup("fit")


def shards(root, names=WNIDS, labels=(0, 1, 2, 3)):
    items = [(layouts.encoded(i), f"{c}_{i}.JPEG", c) for i, c in enumerate(labels)]
    layouts.parquet(root / "data/train-00000-of-00002.parquet", items, names)
    layouts.parquet(root / "data/train-00001-of-00002.parquet", items, names)
    layouts.parquet(root / "data/validation-00000-of-00001.parquet", items[::-1], names)


@pytest.fixture
def _hf_cache(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")


@pytest.mark.usefixtures("_hf_cache")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_parquet_shards(tmp_path):
    shards(tmp_path)
    data = ImageNet(str(tmp_path), **SMALL)
    assert data.class_names == WNIDS
    assert len(data.open("train")) == 8
    assert next(iter(targets(data, "val").items())) == ("3_3.JPEG", 3)
    images, _ = next(iter(data.val_dataloader()))
    assert images.shape == (4, 3, 16, 16)
    subset = ImageNet(str(tmp_path), classes=[WNIDS[1], WNIDS[3]], **SMALL)
    assert list(targets(subset, "val").values()) == [1, 0]


@pytest.mark.usefixtures("_hf_cache")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_shard_cut_short(tmp_path):
    shards(tmp_path)
    path = tmp_path / "data/train-00001-of-00002.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"00001-of-00002\.parquet is damaged or cut short"):
        ImageNet(str(tmp_path), **SMALL)


def test_subset_by_class(tmp_path):
    root = layouts.imagenet(tmp_path, WNIDS)
    data = ImageNet(str(root), classes=[WNIDS[3], WNIDS[1]], **SMALL)
    assert data.class_names == (WNIDS[1], WNIDS[3])
    assert len(data.open("train")) == 8
    assert set(targets(data, "val").values()) == {0, 1}
    names = layouts.write(tmp_path / "classes.txt", f"{WNIDS[1]} goldfish\n{WNIDS[3]}\n")
    assert ImageNet(str(root), classes=str(names), **SMALL).class_names == data.class_names
    with pytest.raises(ValueError, match="it has no n00000000"):
        ImageNet(str(root), classes=["n00000000"], **SMALL)


def test_full_table_for_a_part_of_the_folders(tmp_path, caplog):
    root = layouts.imagenet(tmp_path, WNIDS)
    data = ImageNet(str(root), classes="imagenet-1k", **SMALL)
    assert list(data.class_names) == imagenet_wnids()
    assert set(targets(data, "train").values()) == {0, 1, 2, 999}
    assert "has no images of n01491361" in caplog.text


def test_missing_classes_are_said(tmp_path, caplog):
    """A class index is the rank among the found; that is said when some are missing."""
    caplog.set_level(logging.WARNING)
    ImageNet(str(layouts.imagenet(tmp_path)), **SMALL)
    assert "Found 3 of the 1,000 classes" in caplog.text


def test_fraction_of_each_class(tmp_path):
    root = layouts.imagenet(tmp_path, each=8)
    data = ImageNet(str(root), fraction=0.5, **SMALL)
    counts = np.bincount(data.open("train").targets)
    assert counts.tolist() == [4, 4, 4]
    other = ImageNet(str(root), fraction=0.5, seed=1, **SMALL)
    assert targets(data, "train") != targets(other, "train")
    with pytest.raises(ValueError, match=r"`fraction` to be in \(0, 1\] but got 0"):
        ImageNet(str(root), fraction=0, **SMALL)


def test_validation_on_a_part_of_the_training_images(tmp_path):
    layouts.class_folders(tmp_path / "train", WNIDS, each=4)
    data = ImageNet(str(tmp_path), val_split=0.25, **SMALL)
    train, val = targets(data, "train"), targets(data, "val")
    assert len(train) == 12
    assert len(val) == 4
    assert set(val.values()) == {0, 1, 2, 3}
    assert not train.keys() & val.keys()


def damage(root):
    cut = root / "train" / WNIDS[0] / f"{WNIDS[0]}_0.JPEG"
    cut.write_bytes(cut.read_bytes()[:200])
    empty = root / "train" / WNIDS[1] / f"{WNIDS[1]}_1.JPEG"
    empty.write_bytes(b"")
    return cut, empty


@pytest.mark.parametrize("workers", [0, 1])
def test_bad_images_are_errors_that_name_them(tmp_path, workers):
    """Case 19: the default."""
    cut, empty = damage(layouts.imagenet(tmp_path))
    data = ImageNet(str(tmp_path), num_workers=workers, **SMALL)
    with pytest.raises(ValueError, match=f"{cut}|{empty}.*on_bad_image='skip'"):
        list(data.train_dataloader())


def test_bad_images_are_replaced_and_counted(tmp_path, caplog):
    """Case 19: on_bad_image=skip; the epoch completes, the batch size is kept."""
    damage(layouts.imagenet(tmp_path))
    data = ImageNet(str(tmp_path), on_bad_image="skip", **SMALL)
    loader = data.train_dataloader()
    assert [len(images) for images, _ in loader] == [4, 4, 4]
    assert len(loader.replaced) == 2
    assert "(2 so far)" in caplog.text


def test_bad_images_are_left_out_of_evaluation(tmp_path):
    """Case 19: no image counts twice there."""
    root = layouts.imagenet(tmp_path)
    bad = root / "val" / WNIDS[2] / f"{WNIDS[2]}_0.JPEG"
    bad.write_bytes(b"no image")
    data = ImageNet(str(root), on_bad_image="skip", **SMALL)
    assert sum(len(images) for images, _ in data.val_dataloader()) == 5
    batches = list(data.predict_dataloader())
    assert [len(images) for images, _ in batches] == [len(names) for _, names in batches]
    assert str(bad) not in [name for _, names in batches for name in names]


def test_png_under_a_jpeg_name_and_cmyk(tmp_path):
    root = layouts.imagenet(tmp_path)
    layouts.write(root / "train" / WNIDS[0] / "png.JPEG", layouts.encoded(1, kind="PNG"))
    layouts.write(root / "train" / WNIDS[0] / "cmyk.JPEG", layouts.encoded(1, mode="CMYK"))
    assert len(list(ImageNet(str(root), batch_size=14, image_size=16).train_dataloader())) == 1


def test_predicting_a_folder_of_ones_own(tmp_path):
    root = layouts.imagenet(tmp_path / "data")
    layouts.write(tmp_path / "mine" / "deep" / "b.png", layouts.encoded(1, kind="PNG"))
    layouts.write(tmp_path / "mine" / "a.jpg", layouts.encoded(2))
    layouts.write(tmp_path / "mine" / "notes.txt", "no image")
    data = ImageNet(str(root), predict_path=str(tmp_path / "mine"), **SMALL)
    _, names = next(iter(data.predict_dataloader()))
    assert [Path(n).name for n in names] == ["a.jpg", "b.png"]
    data = ImageNet(str(root), predict_path=str(tmp_path / "none"), **SMALL)
    with pytest.raises(FileNotFoundError, match=r"Found no image at .*none"):
        data.setup("predict")


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda r: None, FileNotFoundError, "There is no folder .*nowhere"),
        (lambda r: r.mkdir(), FileNotFoundError, "Found no training images in"),
        (lambda r: (r / "train").mkdir(parents=True), FileNotFoundError, "has no class folders"),
        (
            lambda r: (r / "train" / WNIDS[0]).mkdir(parents=True),
            FileNotFoundError,
            "train holds no image",
        ),
        (
            lambda r: layouts.class_folders(r / "train", WNIDS),
            FileNotFoundError,
            "no 'val' images in .*set `val_split`",
        ),
        (
            lambda r: (layouts.class_folders(r / "train", WNIDS), (r / "val").mkdir()),
            FileNotFoundError,
            "val holds no image",
        ),
    ],
    ids=["nowhere", "empty", "no classes", "no images", "no val", "empty val"],
)
def test_bad_trees(tmp_path, build, error, message):
    root = tmp_path / "nowhere"
    build(root)
    with pytest.raises(error, match=message):
        ImageNet(str(root), **SMALL).setup("fit")


def test_unreadable_folder(tmp_path, monkeypatch):
    root = layouts.imagenet(tmp_path)
    scandir = os.scandir

    def refuse(path):
        if Path(path).name == WNIDS[1]:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    data = ImageNet(str(root), **SMALL)
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match=f"Permission denied.*{WNIDS[1]}"):
        data.setup("fit")
