"""UC Merced Land Use at 64x64, the data set inside the package.

Yi Yang and Shawn Newsam, "Bag-of-visual-words and spatial extensions for land-use classification",
ACM SIGSPATIAL 2010. The images are from the USGS National Map and in the public domain.
"""

import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from reorder_lightning.datamodules.base import ImageDataModule, Split
from reorder_lightning.datamodules.images import decode_image
from reorder_lightning.datamodules.loader import ImageSource
from reorder_lightning.datamodules.sources import TensorImages

ARCHIVE = Path(__file__).with_name("ucmerced64.zip")
SIDE = 64

CLASSES = (
    "agricultural",
    "airplane",
    "baseballdiamond",
    "beach",
    "buildings",
    "chaparral",
    "denseresidential",
    "forest",
    "freeway",
    "golfcourse",
    "harbor",
    "intersection",
    "mediumresidential",
    "mobilehomepark",
    "overpass",
    "parkinglot",
    "river",
    "runway",
    "sparseresidential",
    "storagetanks",
    "tenniscourt",
)


class UCMerced(ImageDataModule):
    """2,100 aerial images of 21 land uses, 64x64, from a file inside the package.

    Train are the images 00 to 79 of each class, validation 80 to 99: neighbours in number often
    show the same place, so a split at random would leak. There is no third part; `test` and
    `predict` read the validation images. A demonstration: 420 validation images give a standard
    error of up to 2.4 points. All images are decoded once and kept in memory (26 MB).

    Args:
        image_size: Side, or height and width, that the model sees.
        **options: `batch_size`, `num_workers` (0 is the fastest here), `augment` ("flip" flips both
            ways, as these are views from above), `seed` and `predict_path`, see `ImageDataModule`.

    Example:
        >>> data = UCMerced(batch_size=8)
        >>> images, targets = next(iter(data.train_dataloader()))
        >>> images.shape, targets.dtype
        (torch.Size([8, 3, 64, 64]), torch.int64)
    """

    def __init__(self, image_size: int | tuple[int, int] = SIDE, **options: Any) -> None:
        super().__init__(
            class_names=CLASSES,
            image_size=image_size,
            mean=(0.4872, 0.4950, 0.4545),
            std=(0.2016, 0.1862, 0.1842),
            **options,
        )

    def source(self, split: Split) -> ImageSource:
        """Decodes the images of one split."""
        images, targets, names = read_archive("train" if split == "train" else "val")
        return TensorImages(
            images,
            targets,
            names,
            augment=self.augment,
            image_size=self.image_size,
            vertical=True,
            seed=self.seed,
        )


def read_archive(folder: str) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Reads `<folder>/<class>/<name>.jpg` from the package's zip.

    Args:
        folder: "train" or "val".

    Returns:
        Images uint8 `(N, 3, 64, 64)`, targets int64 `(N,)`, file names.

    Raises:
        ValueError: If the zip is missing, damaged, or not the one that was shipped.
    """
    try:
        with zipfile.ZipFile(ARCHIVE) as archive:
            names = sorted(name for name in archive.namelist() if name.startswith(f"{folder}/"))
            images = torch.stack([decode_image(archive.read(name)) for name in names])
        targets = torch.tensor([CLASSES.index(PurePosixPath(name).parent.name) for name in names])
    except (OSError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"The data set UCMerced can't be read from {ARCHIVE} ({error}). The file belongs to"
            " the package and is missing or damaged: install reorder-lightning again."
        ) from error
    return images, targets, names
