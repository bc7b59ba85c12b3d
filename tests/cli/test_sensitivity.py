"""`reorder sensitivity`: a checkpoint in many orders."""

import csv

import torch

CKPT = "runs/quickstart/version_0/checkpoints/last.ckpt"


def test_checkpoint_of_a_training_is_evaluated(fit, reorder, fails, tmp_path, capsys):
    fit("quickstart", "--model.order=hilbert", "--reorder=null")
    capsys.readouterr()
    reorder(f"sensitivity {CKPT} -c configs/data/ucmerced.yaml --images 12 --random 2")
    shown = capsys.readouterr().out
    assert "last.ckpt, 12 validation images" in shown
    assert "points from best to worst" in shown
    with (tmp_path / "sensitivity.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1 + 9 + 2
    scores = {row["order"]: row for row in rows}
    assert rows[0]["order"] == "(its own)"
    assert scores["hilbert"]["loss"] == rows[0]["loss"]
    assert "There is no data" in fails(reorder, f"sensitivity {CKPT}")
    assert "no LightningModule torch.Tensor" in fails(
        reorder, f"sensitivity {CKPT} --data UCMerced --model torch.Tensor"
    )


def test_bad_checkpoint_is_one_message(reorder, fails, tmp_path):
    assert "no checkpoint at no.ckpt" in fails(reorder, "sensitivity no.ckpt --data UCMerced")
    torch.save({"state_dict": {}}, tmp_path / "no.ckpt")
    assert "--model MODULE.CLASS" in fails(reorder, "sensitivity no.ckpt --data UCMerced")
