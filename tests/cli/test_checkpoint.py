"""`--ckpt_path` together with model arguments: what is compared."""

import pytest
import torch

from reorder_lightning.cli.checkpoint import check_same, differences, saved_arguments


def test_only_what_differs_is_listed():
    saved = {"size": "tiny", "order": "row", "betas": [0.9, 0.99], "compile": False, "old": 1}
    given = {"size": "tiny", "order": "hilbert", "betas": (0.9, 0.99), "compile": True, "new": 2}
    assert differences(given, saved) == [
        "order: 'row' in the checkpoint, 'hilbert' in this command"
    ]
    check_same({"size": "tiny"}, saved, "last.ckpt")
    with pytest.raises(
        ValueError, match=r"is last.ckpt, but .*\n  order: 'row'(.|\n)*--model.init_from"
    ):
        check_same(given, saved, "last.ckpt")


def test_words_and_addresses_are_left_to_lightning():
    for path in (None, "last", "best", "hpc", "registry:model", "s3://bucket/last.ckpt"):
        assert saved_arguments(path) == {}


def test_saved_arguments_are_read(tmp_path):
    path = tmp_path / "a.ckpt"
    torch.save({"hyper_parameters": {"size": "tiny", "_instantiator": "x"}}, path)
    assert saved_arguments(str(path)) == {"size": "tiny"}
    torch.save({}, path)
    assert saved_arguments(str(path)) == {}
    with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*b\.ckpt"):
        saved_arguments(str(tmp_path / "b.ckpt"))
