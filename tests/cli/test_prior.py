"""`reorder prior`: table, csv, JSON, figure and the chosen order."""

import csv
import json
from importlib.util import find_spec

import pytest
from torch import Tensor

from reorder_lightning import prior_cache
from reorder_lightning.callbacks import REOrder
from reorder_lightning.orders import ORDERS, get_order, load_order
from tests.test_vq_tokens import save_diffusers, save_vq


class Grey:
    """A tokenizer of the user's: 16 shades of 16x16 pixels."""

    num_codes = 16

    def encode(self, images: Tensor) -> Tensor:
        means = images.mean(1).unfold(1, 16, 16).unfold(2, 16, 16).mean((3, 4))
        return (means * 15.99).long()


def test_ranking_is_printed_and_written(reorder, tmp_path, capsys):
    reorder(
        "prior -c configs/data/ucmerced.yaml --images 30 --output found "
        f"--tokenizer {__name__}.Grey --choose least"
    )
    shown = capsys.readouterr().out
    assert "UCMerced: 30 images of 4x4 tokens, 16 codes" in shown
    assert "Symbols of 1 bytes (unigram) and 1 bytes (bigram)" in shown
    assert "--reorder.start found/order.json" in shown
    with (tmp_path / "found" / "prior.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["order"] for row in rows} == {*ORDERS, "(shuffled)"}
    assert all(float(r["score_low"]) <= float(r["score"]) <= float(r["score_high"]) for r in rows)
    content = json.loads((tmp_path / "found" / "prior.json").read_text())
    assert content["images"] == 30
    assert content["grid"] == [4, 4]
    ranked = [row["order"] for row in content["orders"] if row["order"] != "random"]
    assert content["chosen"] == ranked[-1]
    assert (tmp_path / "found" / "prior.png").read_bytes().startswith(b"\x89PNG")
    saved = load_order(tmp_path / "found" / "order.json")
    assert saved.order.equal(get_order(ranked[-1], 4, 4))
    assert REOrder(start="found/order.json").start == "found/order.json"


def test_kmeans_is_the_default(reorder, tmp_path, capsys):
    pytest.importorskip("sklearn")
    reorder(
        "prior --data UCMerced --images 12 --by corpus "
        "--tokenizer.num_codes 8 --tokenizer.patch_size 16"
    )
    assert "12 images of 4x4 tokens, 8 codes" in capsys.readouterr().out
    assert (tmp_path / "prior" / "order.json").exists()


def test_a_training_starts_from_the_choice(fit, tmp_path, monkeypatch, caplog):
    pytest.importorskip("sklearn")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(prior_cache, "_IMAGES", 60)
    monkeypatch.setattr(prior_cache, "_CODES", 16)
    fit("quickstart", "--reorder.start=auto:least", "--reorder.policy=0")
    told = caplog.text
    assert "the least compressible of 9 fixed orders on 60 training images of 4x4 patches" in told
    (file,) = (tmp_path / "reorder_lightning" / "prior").iterdir()
    last = list(json.loads(file.read_text())["saved"])[-1]
    assert f"starts from {last}" in told
    (saved,) = tmp_path.rglob("order.json")
    assert load_order(saved).order.equal(get_order(last, 4, 4))


@pytest.mark.parametrize("name", ["TransformersVQ", "DiffusersVQ"])
def test_vq_models_by_short_name(reorder, tmp_path, name, capsys):
    (save_vq if name == "TransformersVQ" else save_diffusers)(tmp_path / "vq")
    reorder(
        f"prior --data UCMerced --images 6 --tokenizer {name} --tokenizer.model vq "
        "--tokenizer.grid_size [3,5]"
    )
    assert "6 images of 3x5 tokens, 17 codes" in capsys.readouterr().out
    assert load_order(tmp_path / "prior" / "order.json").grid == (3, 5)


def test_bad_input_is_one_message(reorder, fails):
    assert "nowhere" in fails(reorder, "prior --data ImageNet --data.root nowhere")
    empty = "prior --data UCMerced --tokenizer TransformersVQ --tokenizer.model ."
    if find_spec("transformers"):
        assert "`model='.'` " in fails(reorder, empty)
    few = f"prior --data UCMerced --images 0 --tokenizer {__name__}.Grey"
    assert "`images` to be at least 1 but got 0" in fails(reorder, few)
