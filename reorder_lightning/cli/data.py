"""`reorder data check`: look at a data set before training."""

import reorder_lightning.datamodules  # noqa: F401  # so that its classes are known by name
from reorder_lightning.datamodules.base import ImageDataModule
from reorder_lightning.datamodules.check import check as check_data


def check(data: ImageDataModule, output: str = "data_check.png", images: int | None = None) -> None:
    """Print what is in a data set and draw a contact sheet.

    Args:
        data: the DataModule, e.g. UCMerced.
        output: PNG file for the contact sheet.
        images: read this many images of each split, chosen at random; null for all.

    Raises:
        SystemExit: with code 1 if the data is not fit for training.
    """
    if not check_data(data, output, images):
        raise SystemExit(1)
