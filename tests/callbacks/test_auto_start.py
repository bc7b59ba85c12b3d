"""REOrder(start="auto"): the prior's choice, found without touching what the training sees."""
# ruff: noqa: NPY002  # the generators that people use are what is tested

import json
import logging
import random
import sys

import numpy as np
import pytest
import torch
from lightning import LightningDataModule
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from reorder_lightning import prior_cache
from reorder_lightning.callbacks.reorder import REOrder
from reorder_lightning.orders import ORDERS, get_order
from reorder_lightning.patch_order import PatchOrder
from reorder_lightning.patch_tokens import KMeansTokenizer, tokenize
from reorder_lightning.prior import order_prior
from tests.callbacks.test_ddp import processes
from tests.toys import Classifier, KnownAnswer, ToyData, Validated, images, loader, trainer

pytest.importorskip("sklearn")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*is smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:.*Replacing the sampler"),
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "reorder_lightning" / "prior"


@pytest.fixture
def no_ranking(monkeypatch):
    """From here on, nothing may be ranked."""

    def ranks(*args, **kwargs):
        raise AssertionError("ranked again")

    return lambda: monkeypatch.setattr(prior_cache, "order_prior", ranks)


def fit(root, data, start="auto", model=None, ckpt_path=None, **kwargs):
    callback = REOrder(start, warmup=0, policy=0)
    run = trainer(root, callback, **kwargs)
    model = model or Classifier()
    run.fit(model, data, ckpt_path=ckpt_path)
    return callback, model, run


def striped(standing=False, n=40):
    """Images of 4x4 patches; every row of patches (or column) has one of two patterns."""
    rng = np.random.default_rng(0)
    patterns = torch.from_numpy(rng.permutation(8).reshape(2, 4) / 7).float()
    grey = patterns[torch.from_numpy(rng.integers(2, size=(n, 4)))]
    grey = grey.mT if standing else grey
    pixels = grey.repeat_interleave(2, 1).repeat_interleave(2, 2)
    return TensorDataset(pixels[:, None].expand(-1, 3, -1, -1).contiguous(), torch.arange(n) % 3)


def told(caplog):
    return [r.message for r in caplog.records if "REOrder: starts from" in r.message]


# ------------------------------------------------------------------ what is chosen


@pytest.mark.parametrize(
    ("start", "standing", "expected"),
    [("auto", False, "row"), ("auto", True, "column"), ("auto:most", False, "row")],
)
def test_planted_stripes_choose_their_direction(tmp_path, start, standing, expected, caplog):
    with caplog.at_level(logging.INFO):
        callback, *_ = fit(tmp_path, DataLoader(striped(standing), 8), start)
    assert callback.order.equal(get_order(expected, 4, 4))
    assert callback.start_order.equal(callback.order)
    (line,) = told(caplog)
    assert f"starts from {expected}, the most compressible of 9 fixed orders on 40 " in line
    assert "training images of 4x4 patches. LZMA saves" in line
    assert "kept in" in line


def test_the_choice_is_that_of_the_prior(tmp_path, cache):
    data = images(60)
    tokens = tokenize(lambda: [data.tensors[0]], KMeansTokenizer(2, 60 * 16 // 25))
    prior = order_prior(tokens, 38, {n: f(4, 4) for n, f in ORDERS.items() if n != "random"})
    least, *_ = fit(tmp_path, DataLoader(data, 8), "auto:least")
    most, *_ = fit(tmp_path, DataLoader(data, 8), "auto")
    assert most.order.equal(get_order(prior.choose("most"), 4, 4))
    assert least.order.equal(get_order(prior.choose("least"), 4, 4))
    (file,) = cache.iterdir()  # one ranking for both
    saved = json.loads(file.read_text())["saved"]
    assert list(saved) == [row.order for row in prior.orders]


def test_images_that_do_not_divide_into_the_grid_are_resized(tmp_path):
    class Resizing(Classifier):
        def forward(self, x):
            return super().forward(torch.nn.functional.interpolate(x, (8, 8)))

    callback, *_ = fit(tmp_path, loader(size=15), model=Resizing())
    assert sorted(callback.order.tolist()) == list(range(16))


def test_only_images_that_are_trained_on_are_measured(tmp_path, caplog):
    data = DataLoader(images(), 8, sampler=SubsetRandomSampler(range(20)))
    with caplog.at_level(logging.INFO):
        fit(tmp_path, data)
    assert "on 20 training images" in told(caplog)[0]


# ------------------------------------------------------------------ the cache


def test_a_second_start_reads_the_ranking(tmp_path, no_ranking, caplog):
    first, *_ = fit(tmp_path, loader())
    no_ranking()
    with caplog.at_level(logging.INFO):
        second, *_ = fit(tmp_path, loader())
    assert "Read from" in told(caplog)[-1]
    assert first.order.equal(second.order)
    for other in (loader(n=31), DataLoader(Subset(images(), range(1, 32)), 8)):
        with pytest.raises(AssertionError, match="ranked again"):
            fit(tmp_path, other)


@pytest.mark.parametrize(
    "content",
    ["", "[1]", "{", '{"saved": {}, "tied": [], "shuffled": 0, "informative": 1, "images": 9}'],
)
def test_a_broken_file_is_made_again(tmp_path, cache, content):
    first, *_ = fit(tmp_path, loader())
    (file,) = cache.iterdir()
    good = file.read_text()
    file.write_text(content)
    second, *_ = fit(tmp_path, loader())
    assert second.order.equal(first.order)
    assert [f.read_text() for f in cache.iterdir()] == [good]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, caplog):
    (tmp_path / "cache").write_text("a file")
    with caplog.at_level(logging.INFO):
        fit(tmp_path, loader())
    assert "not kept for the next time" in told(caplog)[0]


# ------------------------------------------------------------------ nothing else changes


class Random(Dataset):
    """Draws from all global generators, as people's transforms do."""

    def __init__(self, n=32):
        self.data = images(n)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        x, y = self.data[index]
        return {"y": y, "x": x + random.random() + np.random.rand() + torch.rand(3, 1, 1)}


class Stream(IterableDataset):
    """Never starts from the beginning, and has random numbers of its own."""

    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.position = 0

    def __iter__(self):
        data = images(64)
        for _ in range(32):
            x, y = data[self.position % 64]
            self.position += 1
            yield x + self.rng.random(), y


class Batches:
    """A loader of the user's own making."""

    def __init__(self):
        self.stream = Stream()

    def __len__(self):
        return 4

    def __iter__(self):
        return iter(DataLoader(self.stream, 8))


class Users(LightningDataModule):
    """Splits at random, and counts how often it is asked."""

    def setup(self, stage):
        self.data, _ = torch.utils.data.random_split(images(40), [32, 8])

    def train_dataloader(self):
        self.last = DataLoader(Subset(self.data, torch.randperm(32).tolist()), 8, shuffle=True)
        return self.last


class DictClassifier(Classifier):
    def training_step(self, batch, batch_idx):
        if isinstance(batch, dict):
            batch = (batch["x"], batch["y"])
        return super().training_step(batch, batch_idx)


class Scheduled(Classifier):
    """Asks for the length of the training before it begins, which makes the loader."""

    def configure_optimizers(self):
        assert self.trainer.estimated_stepping_batches == 8
        return super().configure_optimizers()


DATA = {
    "shuffled": lambda: DataLoader(Random(), 8, shuffle=True),
    "own generator": lambda: DataLoader(
        Random(), 8, shuffle=True, generator=torch.Generator().manual_seed(5)
    ),
    "workers": lambda: DataLoader(Random(), 8, shuffle=True, num_workers=1),
    "stream": lambda: DataLoader(Stream(), 8),
    "own loader": Batches,
    "datamodule": Users,
    "ours": ToyData,
    "loader of ours": lambda: ToyData().train_dataloader(),
}


@pytest.mark.parametrize(
    ("data", "model"),
    [*((d, DictClassifier) for d in DATA), ("datamodule", Scheduled), ("ours", Scheduled)],
)
def test_a_training_is_that_from_the_same_start_by_name(tmp_path, data, model):
    runs, start = [], "auto"
    for _ in range(2):
        seed_all(3)
        net = model()
        seed_all(4)
        callback, *_ = fit(tmp_path, DATA[data](), start, net, max_epochs=2)
        after = [random.random(), np.random.rand(), torch.rand(()).item()]
        runs.append((callback.order.tolist(), torch.stack(net.losses).tolist(), after))
        start = next(n for n in ORDERS if get_order(n, 4, 4).equal(callback.order))
    assert len(runs[0][1]) == 8
    assert runs[0] == runs[1]


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def test_images_that_are_augmented_at_random_are_known_again(tmp_path, no_ranking):
    for seed in (1, 2):
        seed_all(seed)
        fit(tmp_path, DataLoader(Random(), 8), model=DictClassifier())
        no_ranking()


@pytest.mark.parametrize(
    ("data", "model", "calls"), [(Users, Classifier, 2), (Users, Scheduled, 1), (ToyData, None, 1)]
)
def test_loaders_are_asked_for_no_more_than_needed(tmp_path, monkeypatch, data, model, calls):
    """Ours remembers the loader that it gave last: that must be the one of the training."""
    made, make = [], data.train_dataloader
    monkeypatch.setattr(data, "train_dataloader", lambda self: made.append(1) or make(self))
    fit(tmp_path, data(), model=model and model(), max_epochs=2)
    assert len(made) == calls


# ------------------------------------------------------------------ only at a start


def test_resumed_and_evaluated_models_keep_the_order_of_the_checkpoint(tmp_path, no_ranking):
    data = DataLoader(striped(standing=True), 8)
    callback, _, run = fit(tmp_path, data)
    path = tmp_path / "some.ckpt"
    run.save_checkpoint(path)
    no_ranking()
    other = DataLoader(striped(), 8)  # row would be chosen
    resumed, *_ = fit(tmp_path, other, ckpt_path=path, max_epochs=2)
    assert resumed.order.equal(callback.order)
    assert resumed.start_order.equal(callback.order)
    for verb in ("validate", "test"):
        evaluated = REOrder("auto")
        getattr(trainer(tmp_path, evaluated), verb)(
            Validated(), other, ckpt_path=path, verbose=False
        )
        assert evaluated.order.equal(callback.order)


def test_a_checkpoint_from_before_has_no_start(tmp_path):
    run = trainer(tmp_path)
    data = DataLoader(striped(standing=True), 8)
    run.fit(Classifier(), data)
    run.save_checkpoint(tmp_path / "before.ckpt")
    with pytest.warns(UserWarning, match="checkpoint holds no patch order"):
        callback, *_ = fit(tmp_path, data, ckpt_path=tmp_path / "before.ckpt", max_epochs=2)
    assert callback.start_order.equal(get_order("column", 4, 4))


def test_a_second_training_goes_on_from_the_first(tmp_path, no_ranking):
    callback, model, run = fit(tmp_path, loader())
    callback.layer.order = "spiral"  # as if it had been learned
    no_ranking()
    run.fit_loop.max_epochs = 2
    run.fit(model, loader())
    assert callback.order.equal(get_order("spiral", 4, 4))


# ------------------------------------------------------------------ errors


def test_missing_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(ValueError, match=r'start="auto".*reorder-lightning\[prior\]'):
        fit(tmp_path, loader())


def test_a_model_with_an_order_of_its_own(tmp_path):
    model = KnownAnswer(side=3)
    model.patch_order = PatchOrder("column", (3, 3))
    with pytest.raises(ValueError, match="must not have an order of its own"):
        fit(tmp_path, loader(), model=model)


def test_data_without_images(tmp_path):
    with pytest.raises(ValueError, match=r"images \(B, C, H, W\), but .* \[\(8, 5\), \(8,\)\]"):
        fit(tmp_path, DataLoader(TensorDataset(torch.rand(8, 5), torch.arange(8)), 8))


def test_a_loader_that_cannot_be_copied(tmp_path):
    with pytest.raises(ValueError, match="Cannot look at the images of a generator"):
        fit(tmp_path, (batch for batch in loader()))


# ------------------------------------------------------------------ two processes


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_two_processes_start_alike(tmp_path, fails):
    """And an error on rank zero ends both."""
    ranks = processes("auto_start_script", tmp_path, int(fails))
    if fails:
        assert [rank["error"] for rank in ranks] == ["rank zero found something wrong"] * 2
        return
    assert ranks[0]["order"] == ranks[1]["order"] == get_order("column", 4, 4).tolist()
    assert ranks[0]["start"] == ranks[1]["start"] == ranks[0]["order"]
    assert [rank["ranked"] for rank in ranks] == [1, 0]
