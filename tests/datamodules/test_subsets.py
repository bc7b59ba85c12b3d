"""Some images of any DataModule."""

import pytest
import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader

from reorder_lightning.datamodules.subsets import sample_batches
from tests.toys import ToyData, images


def test_ours_gives_chosen_images_without_augmentation():
    data = ToyData(n=20, batch_size=8)
    whole = torch.cat([pixels for pixels, _ in sample_batches(data, "train")])
    assert whole.dtype == torch.uint8
    assert torch.equal(whole, data.open("train").images)
    few = list(sample_batches(ToyData(n=20, batch_size=4), "train", 6))
    assert [len(pixels) for pixels, _ in few] == [4, 2]
    chosen = torch.cat([pixels for pixels, _ in few])
    at = [next(i for i, image in enumerate(whole) if image.equal(one)) for one in chosen]
    assert at == sorted(set(at))
    assert at != list(range(6))  # not just the first ones, which may be of one class
    assert torch.cat([targets for _, targets in few]).tolist() == [i % 3 for i in at]


class Foreign(LightningDataModule):
    """A DataModule that this package knows nothing of."""

    def __init__(self, wrap=lambda batch: batch):
        super().__init__()
        self.wrap = wrap

    def setup(self, stage=None):
        self.batches = [self.wrap(batch) for batch in DataLoader(images(20), batch_size=8)]

    def train_dataloader(self):
        return self.batches

    val_dataloader = train_dataloader


@pytest.mark.parametrize("wrap", [lambda b: b, lambda b: {"image": b[0], "label": b[1]}])
def test_foreign_loader_is_read_from_its_start(wrap):
    found = list(sample_batches(Foreign(wrap), "val", 10))
    assert [len(pixels) for pixels, _ in found] == [8, 2]
    assert torch.equal(torch.cat([p for p, _ in found]), images(20).tensors[0][:10])
    assert sum(len(targets) for _, targets in sample_batches(Foreign(wrap), "train")) == 20


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="`images` to be at least 1 but got 0"):
        next(sample_batches(ToyData(), "train", 0))
    with pytest.raises(ValueError, match=r"targets \(B,\), but got \[\(8, 3, 8, 8\)\]"):
        next(sample_batches(Foreign(lambda batch: batch[:1]), "val"))
