import zipfile

import pytest
import torch

from reorder_lightning.datamodules import ucmerced
from reorder_lightning.datamodules.ucmerced import CLASSES, UCMerced


def test_facts_are_known_at_construction():
    data = UCMerced(image_size=(64, 32))
    assert (data.num_classes, data.class_names[1]) == (21, "airplane")
    assert data.image_size == (64, 32)


def test_split_is_honest():
    data = UCMerced()
    train, val = data.source("train"), data.source("val")
    assert (len(train), len(val)) == (1680, 420)
    assert train.targets.bincount().tolist() == [80] * 21
    assert val.targets.bincount().tolist() == [20] * 21
    numbers = {int(val.name(i)[-6:-4]) for i in range(420)}
    assert numbers == set(range(80, 100))
    assert all(f"/{CLASSES[val.targets[i]]}/" in val.name(i) for i in range(420))


def test_statistics_are_those_of_the_training_images():
    data = UCMerced(augment="none")
    pixels = data.normalize(data.source("train").images)
    torch.testing.assert_close(pixels.mean((0, 2, 3)), torch.zeros(3), atol=1e-3, rtol=0)
    torch.testing.assert_close(pixels.std((0, 2, 3)), torch.ones(3), atol=1e-3, rtol=0)


def test_other_image_sizes():
    images, _ = next(iter(UCMerced(image_size=(32, 48), batch_size=3).train_dataloader()))
    assert images.shape == (3, 3, 32, 48)


@pytest.mark.parametrize("damage", ["missing", "cut", "foreign"])
def test_broken_zip_is_one_clear_error(tmp_path, monkeypatch, damage):
    path = tmp_path / "ucmerced64.zip"
    if damage == "cut":
        path.write_bytes(ucmerced.ARCHIVE.read_bytes()[:100_000])
    elif damage == "foreign":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("train/cat/cat00.jpg", b"not an image")
    monkeypatch.setattr(ucmerced, "ARCHIVE", path)
    with pytest.raises(ValueError, match="install reorder-lightning again") as error:
        UCMerced().setup("fit")
    assert str(path) in str(error.value)
