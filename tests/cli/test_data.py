"""`reorder data check` reads a DataModule given as in the other verbs."""

import pytest


def test_shipped_config_is_checked(reorder, tmp_path, capsys):
    reorder("data check -c configs/data/ucmerced.yaml --images 2 --output sheet.png")
    shown = capsys.readouterr().out
    assert "train: 1,680 images, 21 classes" in shown
    assert "fit for training" in shown
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")


def test_class_and_its_arguments_can_be_given(reorder, capsys):
    reorder("data check --data UCMerced --data.image_size 32 --images 1")
    assert "val: 420 images" in capsys.readouterr().out


def test_bad_data_ends_with_code_1(reorder, monkeypatch):
    monkeypatch.setattr("reorder_lightning.cli.data.check_data", lambda *args: False)
    with pytest.raises(SystemExit) as stop:
        reorder("data check --data UCMerced")
    assert stop.value.code == 1


def test_missing_data_is_one_message(reorder, fails):
    assert "nowhere" in fails(reorder, "data check --data ImageNet --data.root nowhere")
