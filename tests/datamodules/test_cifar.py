import csv
import io
import pickle
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from reorder_lightning.datamodules import CIFAR100, CIFAR100C
from reorder_lightning.datamodules import cifar as cifar_module
from reorder_lightning.datamodules.cifar import read_pickle
from reorder_lightning.datamodules.cifar_c import EXTRA, MAIN, corruption_table
from reorder_lightning.datamodules.cifar_classes import COARSE, COARSE_OF_FINE, FINE
from tests.data import layouts


def write_png(array):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


def test_class_tables():
    assert (len(FINE), len(COARSE), len(COARSE_OF_FINE)) == (100, 20, 100)
    assert list(FINE) == sorted(FINE)
    assert np.bincount(COARSE_OF_FINE).tolist() == [5] * 20
    assert COARSE[COARSE_OF_FINE[FINE.index("maple_tree")]] == "trees"
    assert COARSE[COARSE_OF_FINE[FINE.index("rocket")]] == "vehicles_2"


def test_python2_pickle_is_one():
    """The miniature is read by pickle itself as the original is."""
    content = layouts.cifar_content(1, 0)
    read = pickle.loads(layouts.python2_pickle(content), encoding="latin1")
    assert (read["data"] == content["data"]).all()
    assert read["fine_labels"] == content["fine_labels"]


@pytest.mark.parametrize("form", ["python 2", "protocol 2", "protocol 4"])
def test_pickles(tmp_path, form):
    content = layouts.cifar_content(1, 0)
    if form == "python 2":
        data = layouts.python2_pickle(content)
    else:
        data = pickle.dumps(content, protocol=int(form[-1]))
    images, fine, names = read_pickle(layouts.write(tmp_path / "train", data))
    assert images.shape == (100, 3, 32, 32)
    assert images[:, 0].flatten(1).float().mean(1).tolist() == list(range(100))
    assert fine.tolist() == content["fine_labels"]
    assert names == content["filenames"]


def test_a_pickle_that_runs_code_is_refused(tmp_path):
    path = layouts.write(tmp_path / "train", layouts.evil_pickle())
    before = sys.getrecursionlimit()
    with pytest.raises(ValueError, match=r"asks to run sys\.setrecursionlimit"):
        read_pickle(path)
    assert sys.getrecursionlimit() == before


@pytest.mark.parametrize("damage", ["cut", "text", "keys", "lengths"])
def test_damaged_pickles(tmp_path, damage):
    content = layouts.cifar_content(1, 0)
    data = layouts.python2_pickle(content)
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "text":
        data = b"<html>not found</html>"
    elif damage == "keys":
        data = pickle.dumps({"data": content["data"]})
    else:
        data = pickle.dumps({**content, "fine_labels": [1, 2]})
    with pytest.raises(ValueError, match=str(tmp_path / "train")):
        read_pickle(layouts.write(tmp_path / "train", data))


def test_split(tmp_path):
    data = CIFAR100(str(layouts.cifar_pickles(tmp_path)), val_split=0.1)
    assert (data.num_classes, data.image_size) == (100, (32, 32))
    train, val, test = (data.open(s) for s in ("train", "val", "test"))
    assert (len(train), len(val), len(test)) == (900, 100, 200)
    assert val.targets.bincount().tolist() == [1] * 100
    assert not set(train.names) & set(val.names)
    other = CIFAR100(str(tmp_path), val_split=0.1, seed=1).open("val")
    assert other.names == val.names, "runs of several seeds are compared on the same images"
    assert len(CIFAR100(str(tmp_path), val_split=0).open("val")) == 200


def test_first_images_of_each_class(tmp_path):
    data = CIFAR100(str(layouts.cifar_pickles(tmp_path)), val_split=0, per_class=3)
    every = CIFAR100(str(tmp_path), val_split=0).open("train")
    few = data.open("train")
    assert few.targets.bincount().tolist() == [3] * 100

    def names(source):
        pairs = zip(source.names, source.targets, strict=True)
        return sorted(name for name, target in pairs if target == 7)

    assert names(few) == names(every)[:3]
    assert len(data.open("test")) == 200
    assert len(CIFAR100(str(tmp_path), val_split=0.5, per_class=4).open("val")) == 200
    with pytest.raises(ValueError, match="`per_class` to be at least 1 but got 0"):
        CIFAR100(str(tmp_path), per_class=0)


@pytest.mark.parametrize("augment", ["flip", "modern"])
def test_validation_is_never_augmented(tmp_path, augment):
    """Case 22: val[0] is the same at each reading, train[0] isn't."""
    data = CIFAR100(str(layouts.cifar_pickles(tmp_path)), val_split=0.1, augment=augment)
    reads = {
        split: [data.open(split).batch(np.arange(8), epoch)[0] for epoch in epochs]
        for split, epochs in {"val": (None, None), "train": (0, 1)}.items()
    }
    assert torch.equal(*reads["val"])
    assert not torch.equal(*reads["train"])
    loader = data.val_dataloader()
    assert torch.equal(next(iter(loader))[0], next(iter(loader))[0])


def test_coarse_labels(tmp_path):
    data = CIFAR100(str(layouts.cifar_pickles(tmp_path)), labels="coarse")
    assert data.num_classes == 20
    fine = CIFAR100(str(tmp_path)).open("test").targets
    assert data.open("test").targets.tolist() == COARSE_OF_FINE[fine].tolist()
    with pytest.raises(ValueError, match="'fine' or 'coarse' but got 'rough'"):
        CIFAR100(str(tmp_path), labels="rough")


def test_folders(tmp_path):
    pixels = np.full((32, 32, 3), 7, dtype=np.uint8)
    for part in ("train", "test"):
        for name in ("apple", "worm"):
            for i in range(2):
                layouts.write(tmp_path / part / name / f"{i}.png", write_png(pixels))
    data = CIFAR100(str(tmp_path), val_split=0.5)
    assert sorted(data.open("train").targets.tolist()) == [0, 99]
    assert data.open("test").images.unique().tolist() == [7]
    layouts.write(tmp_path / "test" / "worm" / "2.png", write_png(pixels[:16]))
    with pytest.raises(ValueError, match=r"images of 32x32 in .*test but found \[\(16, 32\)"):
        CIFAR100(str(tmp_path)).open("test")


def test_parquet(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    pixels = np.zeros((32, 32, 3), dtype=np.uint8)
    items = [(write_png(pixels + i), f"{i}.png", i) for i in (99, 3)]
    for part in ("train", "test"):
        path = tmp_path / f"data/{part}-00000-of-00001.parquet"
        layouts.parquet(path, items, FINE, "img", "fine_label", coarse_label=[13, 0])
    source = CIFAR100(str(tmp_path)).open("test")
    assert source.targets.tolist() == [99, 3]
    assert source.images[:, 0, 0, 0].tolist() == [99, 3]
    assert source.names == ["99.png", "3.png"]


def test_label_out_of_range(tmp_path):
    content = layouts.cifar_content(1, 0)
    content["fine_labels"][5] = 100
    layouts.write(tmp_path / "test", pickle.dumps(content))
    with pytest.raises(ValueError, match="labels from 0 to 100, out of range: expected 0 to 99"):
        CIFAR100(str(tmp_path)).setup("test")


def test_no_data(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Expected the pickles .*download=True"):
        CIFAR100(str(tmp_path)).setup("fit")


def test_download_is_only_done_where_asked(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        cifar_module, "download_and_extract_archive", lambda *args, **kw: asked.append((args, kw))
    )
    CIFAR100(str(tmp_path)).prepare_data()
    CIFAR100(str(layouts.cifar_pickles(tmp_path / "there")), download=True).prepare_data()
    assert asked == []
    CIFAR100(str(tmp_path), download=True).prepare_data()
    assert asked[0][0] == (cifar_module.URL, str(tmp_path))
    assert asked[0][1] == {"md5": "eb9058c3a382ffc7106e4002c42a8d85"}


# ------------------------------------------------------------------ CIFAR-100-C


@pytest.fixture
def corrupted(tmp_path):
    layouts.cifar_pickles(tmp_path / "c100")
    layouts.cifar_corrupted(tmp_path / "c100c", corruptions=MAIN + EXTRA)
    return CIFAR100C(str(tmp_path / "c100"), str(tmp_path / "c100c"), batch_size=128)


def test_corrupted_images(corrupted):
    test = corrupted.open("test")
    assert len(test) == 15 * 100
    index = 3 * 100 + 2 * 20 + 7
    images, targets, _ = test.batch(np.array([index]), None)
    assert test.name(index) == "defocus_blur/3/7"
    assert images.unique().tolist() == [3 + 2]
    assert targets.tolist() == [7]


def test_all_corruptions(corrupted, tmp_path):
    every = CIFAR100C(str(corrupted.root), str(corrupted.corrupted), corruptions="all")
    assert len(every.open("test")) == 19 * 100
    with pytest.raises(ValueError, match="'main' or 'all' but got 'some'"):
        CIFAR100C(str(tmp_path), str(tmp_path), corruptions="some")


def test_table(corrupted, tmp_path):
    """A model that is right on clean images and at severities 1 and 2 only."""
    names, rows = [], []
    for _, batch in corrupted.predict_dataloader():
        for name in batch:
            corruption, severity, row = name.split("/")
            right = int(row) % 100 if corruption == "clean" else int(row)
            names.append(name)
            rows.append(right if int(severity) <= 2 else (right + 1) % 100)
    probabilities = torch.nn.functional.one_hot(torch.tensor(rows), 100).float()
    (path,) = corrupted.write_tables(tmp_path, names, probabilities)
    table = {row["corruption"]: row for row in csv.DictReader(path.read_text().splitlines())}
    assert list(table) == ["clean", *MAIN, "mean"]
    assert table["clean"]["mean"] == "1.000000"
    assert [table["fog"][s] for s in "12345"] == ["1.000000"] * 2 + ["0.000000"] * 3
    assert (table["mean"]["mean"], table["mean"]["drop"]) == ("0.400000", "0.600000")


def test_mean_is_over_the_benchmarks_corruptions():
    names = ["clean/0/0", "fog/1/0", "snow/1/0", "saturate/1/0"]
    rows = corruption_table(names, np.array([1, 1, 0, 1]) > 0)
    assert rows[-1] == {"corruption": "mean", "mean": 0.5, "drop": 0.5, "1": 0.5}


@pytest.mark.parametrize("damage", ["missing", "cut", "shape"])
def test_damaged_corruptions(corrupted, damage):
    path = corrupted.corrupted / "fog.npy"
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:1000])
    else:
        np.save(path, np.zeros((10, 32, 32, 3), dtype=np.uint8))
    with pytest.raises((ValueError, FileNotFoundError), match=str(path)):
        corrupted.setup("test")
