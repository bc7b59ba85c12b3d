"""Checkpoints of foreign models: loud without the order, exact with it, after any interruption."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from reorder_lightning import load_from_checkpoint
from reorder_lightning.attachment import NAME
from reorder_lightning.callbacks.reorder import REOrder
from tests.callbacks.test_dropin import Late, reorder
from tests.toys import Classifier, loader, sequence_vit, trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
]
ROOT = Path(__file__).parents[2]
X = torch.randn(4, 3, 8, 8)


def train(root, model, callback=None, **kwargs):
    """Train, save, and return the model's logits at the time of saving."""
    callback = callback or reorder(start="hilbert")
    save = ModelCheckpoint(root, "last", **kwargs)
    run = trainer(root, callback, save, max_epochs=4, enable_checkpointing=True)
    run.fit(model, loader())
    return root / "last.ckpt", model.eval()(X)


class Configured(Classifier):
    def __init__(self, depth, lr=0.05):
        super().__init__(sequence_vit(depth=depth), lr)
        self.save_hyperparameters()


class Recurrent(Classifier):
    """Needs all of `target`, `grid_size` and `num_prefix_tokens`."""

    def __init__(self):
        super().__init__(nn.Identity())
        self.embed = nn.Conv2d(3, 4, 2, 2)
        self.first = nn.Parameter(torch.zeros(1, 2, 4))
        self.rnn = nn.GRU(4, 4, batch_first=True)
        self.classifier = nn.Linear(4, 3)

    def forward(self, x):
        tokens = self.embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(x), -1, -1), tokens], 1)
        return self.classifier(self.rnn(tokens)[0].mean(1))


WHERE = {"target": "rnn", "grid_size": (4, 4), "num_prefix_tokens": 2}


@pytest.mark.parametrize("cls", [Classifier, Late])
def test_loading_without_the_callback(tmp_path, cls):
    """Case 2: https://github.com/Lightning-Universe/paper-AAVAE/issues/2."""
    path, logits = train(tmp_path, cls())
    with pytest.raises(RuntimeError, match=f"Unexpected key.*net.blocks.0.{NAME}"):
        cls.load_from_checkpoint(path)
    model = load_from_checkpoint(cls, path).eval()
    assert type(model) is cls
    torch.testing.assert_close(model(X), logits, rtol=0, atol=1e-6)
    assert (model(X) - cls_without_order(cls, path)(X)).abs().max() > 1e-6


def cls_without_order(cls, path):
    """What `strict=False` silently gives."""
    with pytest.warns(UserWarning, match="not in the model state dict"):
        return cls.load_from_checkpoint(path, strict=False).eval()


def test_a_weight_file_that_does_not_fit_is_still_an_error(tmp_path):
    path, _ = train(tmp_path, Configured(2))
    with pytest.raises(RuntimeError, match=r"Missing key.*blocks.2"):
        load_from_checkpoint(Configured, path, depth=3)


def test_hyperparameters(tmp_path):
    path, logits = train(tmp_path, Configured(3))
    model = load_from_checkpoint(Configured, path, lr=0.5).eval()
    assert torch.equal(model(X), logits)
    assert model.lr == 0.5
    assert model.hparams.depth == 3


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("restore", [False, True])
def test_where_the_tokens_are_is_saved(tmp_path, weights, restore):
    callback = reorder(**WHERE, restore=restore, start="spiral")
    path, logits = train(tmp_path, Recurrent(), callback, save_weights_only=weights)
    if weights:  # then no callback could save it
        with pytest.raises(ValueError, match=r"Cannot tell the patch grid .*'rnn'.*`grid_size"):
            load_from_checkpoint(Recurrent, path)
        given = {"grid_size": (4, 4), "num_prefix_tokens": 2, "restore": restore}
        model = load_from_checkpoint(Recurrent, path, **given)
    else:
        model = load_from_checkpoint(Recurrent, path)
    assert torch.equal(model.eval()(X), logits)


def test_a_checkpoint_without_an_order_loads_as_ever(tmp_path):
    run = trainer(tmp_path, max_epochs=1)
    model = Classifier()
    run.fit(model, loader())
    run.save_checkpoint(tmp_path / "plain.ckpt")
    loaded = load_from_checkpoint(Classifier, tmp_path / "plain.ckpt").eval()
    assert torch.equal(loaded(X), model.eval()(X))


def test_a_missing_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*none.ckpt"):
        load_from_checkpoint(Classifier, tmp_path / "none.ckpt")
    with pytest.raises(FileNotFoundError, match=r"none.ckpt"):
        trainer(tmp_path, REOrder(start=str(tmp_path / "none.ckpt"))).fit(Classifier(), loader())


def run_script(name, *args, timeout=400):
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", f"tests.callbacks.{name}", *map(str, args)]
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.mark.slow
def test_killed_at_ten_moments(tmp_path):
    """A run that is killed and resumed ten times ends as the one that never was."""
    run_script("kill_script", tmp_path)
    whole, killed = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("whole", "killed"))
    assert killed["kills"] == 10
    assert killed["end"] == whole["end"]


@pytest.mark.slow
def test_spawned_processes(tmp_path):
    """ddp_spawn gives the parent the weights only: attached before, or an error."""
    done = run_script("spawn_script", tmp_path)
    told = json.loads(done.stdout.splitlines()[-1])
    assert "Call `reorder_lightning.attach(model)` before `trainer.fit(model)`" in told["without"]
    assert "knows no model yet" in told["callback"]
    assert told["parent"] == told["child"] != told["start"]
