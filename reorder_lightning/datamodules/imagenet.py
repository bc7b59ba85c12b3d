"""ImageNet (Deng et al., CVPR 2009; Russakovsky et al., IJCV 2015), and folders like it."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reorder_lightning.datamodules import parquet
from reorder_lightning.datamodules.base import ImageDataModule, Split
from reorder_lightning.datamodules.classes import (
    class_folders,
    folder_targets,
    imagenet_wnids,
    shorten,
    wanted_classes,
)
from reorder_lightning.datamodules.flat_labels import flat_targets
from reorder_lightning.datamodules.images import IMAGENET_MEAN, IMAGENET_STD, Augment
from reorder_lightning.datamodules.listing import Listing, list_images
from reorder_lightning.datamodules.loader import ImageSource
from reorder_lightning.datamodules.sampling import BoolArray, IntArray, held_out
from reorder_lightning.datamodules.sources import ListedImages

_log = logging.getLogger(__name__)


class ImageNet(ImageDataModule):
    """ImageNet-1K, or any images in class folders, as they lie on people's disks.

    - Class folders: `train/<wnid>/*.JPEG` and `val/<wnid>/*.JPEG`.
    - A flat `val/*.JPEG` with the devkit's ground truth (and `meta.mat`), a `val.txt`, or a csv
      (Kaggle's `LOC_val_solution.csv` too), found in or beside `val` or named by `val_labels`.
    - Parquet shards `train-*.parquet`, `validation-*.parquet`, in `root` or `root/data`.

    The class index is the rank of the wnid among the training folders; all splits share this
    table. `test` and `predict` read the validation images.

    Args:
        root: The folder with `train` and `val`.
        classes: Use these classes alone: names, a file with one a line, or "imagenet-1k" for the
            full table of 1,000 even where folders are missing. None: the folders of `train`.
        fraction: Share of the training images of each class to use.
        val_split: Share of the training images to validate on, where there is no `val`.
        val_labels: Label file of a flat validation folder.
        image_size: Side, or height and width, that the model sees.
        augment: Training transform; "paper" is resize 256, centre crop 224, flip.
        **options: `batch_size`, `num_workers`, `seed`, `predict_path`, `on_bad_image`, `exif`,
            see `ImageDataModule`.

    Raises:
        FileNotFoundError: If there is no such data.
        ValueError: If it contradicts itself; the message says where.

    Example:
        >>> ImageNet("/data/imagenet").setup("fit")  # doctest: +SKIP
    """

    crop_ratio = 224 / 256

    def __init__(
        self,
        root: str,
        classes: str | list[str] | None = None,
        fraction: float = 1.0,
        val_split: float = 0.0,
        val_labels: str | None = None,
        image_size: int | tuple[int, int] = 224,
        augment: Augment = "paper",
        **options: Any,
    ) -> None:
        if not 0 < fraction <= 1:
            raise ValueError(f"Expected argument `fraction` to be in (0, 1] but got {fraction}.")
        self.root = Path(root).expanduser()
        self.classes = classes
        self.fraction = fraction
        self.val_split = val_split
        self.val_labels = val_labels
        self._rows: dict[str, Any] = {}
        _check_layout(self.root)
        super().__init__(
            class_names=self._class_names(),
            image_size=image_size,
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            augment=augment,
            **options,
        )

    @property
    def _in_shards(self) -> bool:
        return not (self.root / "train").is_dir()

    def _class_names(self) -> list[str]:
        found = self._names_of_shards() if self._in_shards else class_folders(self.root / "train")
        if self.classes is None:
            _say_if_incomplete(found)
            return found
        wanted = wanted_classes(self.classes)
        missing = sorted(set(wanted) - set(found))
        if missing and self.classes != "imagenet-1k":
            raise ValueError(
                f"Expected argument `classes` to name classes of {self.root} but it has no"
                f" {shorten(missing)}."
            )
        if missing:
            _log.warning("%s has no images of %s.", self.root, shorten(missing))
        return wanted

    def _names_of_shards(self) -> list[str]:
        return parquet.label_names(self._open_rows("train"), "label")

    def _open_rows(self, split: str) -> Any:
        if split not in self._rows:
            shards = parquet.find_shards(self.root, split)
            if not shards:
                raise FileNotFoundError(self._no_split(split))
            self._rows[split] = parquet.open_shards(shards)
        return self._rows[split]

    def prepare_data(self) -> None:
        """Lists the folders once on each node; the other processes find the result cached."""
        for split in ("train", "val"):
            if not self._in_shards and (self.root / split).is_dir():
                self._list(split)

    def source(self, split: Split) -> ImageSource:
        """Opens the training or, for all others, the validation images."""
        if split == "train" or self.val_split:
            files, targets = self._labelled("train")
            keep = self._keep(targets, train=split == "train")
        else:
            files, targets = self._labelled("val")
            keep = targets >= 0
        which = np.flatnonzero(keep).astype(np.int64)
        if not len(which):
            raise ValueError(f"{self.root} has no images of the classes to use in {split!r}.")
        if isinstance(files, Listing):
            return ListedImages(files, which, targets[which], **self.decoding)
        return parquet.ParquetImages(files, which, targets[which], **self.decoding)

    def _keep(self, targets: IntArray, *, train: bool) -> BoolArray:
        """Which training files belong to the training or validation part."""
        index = np.arange(len(targets), dtype=np.int64)
        val = held_out(index, targets, self.val_split)
        if not train:
            return val & (targets >= 0)
        # Another seed than the split's: the two choices must not depend on each other.
        dropped = held_out(index, targets, 1 - self.fraction, self.seed + 1)
        return ~dropped & ~val & (targets >= 0)

    def _labelled(self, split: str) -> tuple[Any, IntArray]:
        """Files of a split, and the class index of each, -1 for classes that aren't used."""
        if self._in_shards:
            rows = self._open_rows(split)
            index = {name: i for i, name in enumerate(self.class_names)}
            table = np.array([index.get(n, -1) for n in self._names_of_shards()], dtype=np.int64)
            labels = parquet.label_column(rows, "label")
            if labels.min() < 0 or labels.max() >= len(table):
                raise ValueError(
                    f"The parquet shards of {split!r} in {self.root} have labels from"
                    f" {labels.min()} to {labels.max()}, out of range: expected 0 to"
                    f" {len(table) - 1}."
                )
            return rows, table[labels]
        listing = self._list(split)
        if split == "val" and listing.folders == [""]:
            return listing, flat_targets(listing, self.class_names, self.val_labels)
        strict = split == "val" and self.classes is None
        return listing, folder_targets(listing, self.class_names, strict=strict)

    def _list(self, split: str) -> Listing:
        folder = self.root / split
        if not folder.is_dir():
            raise FileNotFoundError(self._no_split(split))
        listing = list_images(folder, depth=1)
        if split == "val" and not len(listing):
            listing = list_images(folder, depth=0)
        if not len(listing):
            raise FileNotFoundError(f"The folder {folder} holds no image.")
        return listing

    def _no_split(self, split: str) -> str:
        return (
            f"There are no {split!r} images in {self.root}. Put them into {self.root / split}"
            + (
                ", or set `val_split` to validate on a part of the training images."
                if split == "val"
                else "."
            )
        )


def _check_layout(root: Path) -> None:
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder {root} (argument `root`).")
    if not (root / "train").is_dir() and not parquet.find_shards(root, "train"):
        raise FileNotFoundError(
            f"Found no training images in {root}. Expected {root}/train/<class>/<image>, or"
            f" {root}/train-*.parquet."
        )


def _say_if_incomplete(found: Sequence[str]) -> None:
    """A missing folder shifts all class indices behind it; no error, as subsets are common."""
    wnids = set(imagenet_wnids())
    missing = sorted(wnids - set(found))
    if missing and set(found) <= wnids:
        _log.warning(
            "Found %d of the 1,000 classes of ImageNet-1K; class indices are ranks among these."
            " For the usual indices set classes='imagenet-1k'. Missing: %s",
            len(found),
            shorten(missing),
        )
