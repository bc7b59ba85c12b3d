import numpy as np
import pytest
import torch
from PIL import Image

from reorder_lightning.datamodules import CIFAR100, ImageNet
from reorder_lightning.datamodules.check import check, read_split
from tests.data import layouts
from tests.data.layouts import WNIDS

SMALL = {"image_size": 16, "batch_size": 4}


def test_report_of_a_sound_data_set(tmp_path, capsys):
    root = layouts.imagenet(tmp_path)
    layouts.write(root / "train" / WNIDS[0] / "grey.JPEG", layouts.encoded(1, (60, 50), "PNG", "L"))
    sheet = tmp_path / "sheet.png"
    assert check(ImageNet(str(root), **SMALL), str(sheet))
    text = capsys.readouterr().out
    assert "train: 13 images, 3 classes of 4 to 5" in text
    assert "smallest 24x32, median 24x32, largest 50x60" in text
    assert "stored as: 12 JPEG RGB, 1 PNG L" in text
    assert "val: 6 images, 3 classes of 2 to 2" in text
    assert text.endswith("fit for training\n")
    with Image.open(sheet) as image:
        pixels = np.asarray(image.convert("RGB"))
    assert pixels.shape[0] > 300
    assert (pixels.std(axis=2) > 10).mean() > 0.05  # pictures, not an empty page


def test_mean_and_std_are_those_of_the_pixels(tmp_path):
    data = CIFAR100(str(layouts.cifar_pickles(tmp_path)))
    report = read_split(data, "train")
    pixels = data.open("train").images.double() / 255
    torch.testing.assert_close(torch.tensor(report.mean), pixels.mean((0, 2, 3)))
    std = pixels.transpose(0, 1).flatten(1).std(1, correction=0)
    torch.testing.assert_close(torch.tensor(report.std), std)


def test_bad_files_make_it_unfit(tmp_path, capsys):
    root = layouts.imagenet(tmp_path)
    bad = root / "train" / WNIDS[0] / f"{WNIDS[0]}_0.JPEG"
    bad.write_bytes(bad.read_bytes()[:150])
    assert not check(ImageNet(str(root), **SMALL), str(tmp_path / "sheet.png"))
    text = capsys.readouterr().out
    assert f"    {bad}: " in text
    assert text.endswith("NOT FIT: 1 unreadable files in train\n")
    data = ImageNet(str(root), on_bad_image="skip", **SMALL)
    assert check(data, str(tmp_path / "sheet.png"))


def test_a_class_without_images_makes_it_unfit(tmp_path, capsys):
    root = layouts.imagenet(tmp_path)
    (root / "train" / WNIDS[3]).mkdir()
    assert not check(ImageNet(str(root), **SMALL), str(tmp_path / "sheet.png"))
    assert "1 classes have no training image: n15075141" in capsys.readouterr().out


def test_images_in_both_splits_are_said(tmp_path, capsys):
    root = layouts.imagenet(tmp_path)
    image = (root / "train" / WNIDS[0] / f"{WNIDS[0]}_0.JPEG").read_bytes()
    layouts.write(root / "val" / WNIDS[0] / "again.JPEG", image)
    check(ImageNet(str(root), **SMALL), str(tmp_path / "sheet.png"))
    assert "1 images are in both train and val" in capsys.readouterr().out


def test_a_part_of_the_images(tmp_path, capsys):
    data = ImageNet(str(layouts.imagenet(tmp_path)), **SMALL)
    check(data, str(tmp_path / "sheet.png"), images=5)
    assert "read: 5 of them, chosen at random" in capsys.readouterr().out


def test_missing_data_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="Found no 'train' images"):
        check(CIFAR100(str(tmp_path)), str(tmp_path / "sheet.png"))
