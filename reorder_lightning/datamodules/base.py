"""The DataModule that all data sets share."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from lightning import LightningDataModule
from torch import Tensor

from reorder_lightning.datamodules.images import SUFFIXES, Augment, mix, seeded
from reorder_lightning.datamodules.loader import EpochLoader, ImageSource
from reorder_lightning.datamodules.sampling import MIX, random_bits
from reorder_lightning.datamodules.sources import FolderImages, OnBadImage

Split = Literal["train", "val", "test", "predict"]

_SPLITS: dict[str | None, tuple[Split, ...]] = {
    "fit": ("train", "val"),
    "validate": ("val",),
    "test": ("test",),
    "predict": ("predict",),
    None: (),
}


class ImageDataModule(LightningDataModule):
    """Owns the facts of a data set and feeds its images to a Trainer.

    A batch is `(images, targets)`: float32 `(B, 3, H, W)`, normalised, and int64 `(B,)`; for
    predictions `(images, names)` with the file name of each image. The order of epoch `e` depends
    on `(seed, e)` alone and the augmentation of image `i` on `(seed, e, i)`, whatever the number
    of workers; training resumes in mid-epoch at the very batch where it was stopped. Several
    processes share each epoch without repetitions, and the Trainer needs no setting for it.

    With `augment="modern"` and a Trainer, training batches are mixed on the device and targets
    are float32 `(B, num_classes)`.

    A subclass gives `class_names` and reads its images in `source`.

    Args:
        class_names: Names of the classes; the place is the class index.
        image_size: Side of the square images that the model sees, or their height and width.
        mean: Mean of red, green and blue, with 1.0 the brightest.
        std: Standard deviation of the same.
        batch_size: Images a batch, in each process.
        num_workers: Worker processes that read images.
        augment: Training transform: "none", "flip", "paper" or "modern".
        seed: Seed of order and augmentation.
        predict_path: Folder or image file for predictions, instead of the test images.
        on_bad_image: At an unreadable file: "error", or "skip" it and say so in the log.
        exif: Turn images upright as their EXIF orientation says.

    Attributes:
        class_names: As given.
        image_size: Height and width.
        mean: As given.
        std: As given.

    Raises:
        ValueError: If a size is not positive.
    """

    crop_ratio: float | None = 1.0  # see `build_transform`

    def __init__(
        self,
        *,
        class_names: Sequence[str],
        image_size: int | tuple[int, int],
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
        batch_size: int = 64,
        num_workers: int = 0,
        augment: Augment = "flip",
        seed: int = 0,
        predict_path: str | None = None,
        on_bad_image: OnBadImage = "error",
        exif: bool = False,
    ) -> None:
        super().__init__()
        height, width = (image_size,) * 2 if isinstance(image_size, int) else image_size
        for name, value in {"image_size": min(height, width), "batch_size": batch_size}.items():
            if value < 1:
                raise ValueError(f"Expected argument `{name}` to be at least 1 but got {value}.")
        self.class_names = tuple(class_names)
        self.image_size = (height, width)
        self.mean = mean
        self.std = std
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.augment: Augment = augment
        self.seed = seed
        self.predict_path = predict_path
        self.on_bad_image: OnBadImage = on_bad_image
        self.exif = exif
        self._sources: dict[Split, ImageSource] = {}
        self._train_loader: EpochLoader | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    def source(self, split: Split) -> ImageSource:
        """Opens the images of one split; called once for each, on every process."""
        raise NotImplementedError

    def write_tables(self, folder: Path, names: Sequence[str], probabilities: Tensor) -> list[Path]:
        """Writes what this data set's people read off predictions, beside a class for each image.

        Args:
            folder: Where to write.
            names: File names, as the prediction batches give them.
            probabilities: float `(N, num_classes)`.

        Returns:
            The files. None by default.
        """
        return []

    @property
    def decoding(self) -> dict[str, Any]:
        """Options of this DataModule for `EncodedImages`."""
        return {
            "augment": self.augment,
            "image_size": self.image_size,
            "seed": self.seed,
            "crop_ratio": self.crop_ratio,
            "on_bad_image": self.on_bad_image,
            "exif": self.exif,
        }

    def setup(self, stage: str | None = None) -> None:
        """Opens the splits that the stage needs, so that missing data is an error at the start."""
        for split in _SPLITS[stage]:
            self.open(split)

    def open(self, split: Split) -> ImageSource:
        """The images of one split, from `source` or `predict_path`; kept until `teardown`."""
        if split not in self._sources:
            if split == "predict" and self.predict_path is not None:
                path = Path(self.predict_path).expanduser()
                self._sources[split] = FolderImages(path, SUFFIXES, **self.decoding)
            else:
                self._sources[split] = self.source(split)
        return self._sources[split]

    def _loader(self, split: Split) -> EpochLoader:
        trainer = self.trainer
        return EpochLoader(
            self.open(split),
            self.batch_size,
            train=split == "train",
            seed=self.seed,
            shuffle=not getattr(trainer, "overfit_batches", 0),
            names=split == "predict",
            # With a Trainer, `on_after_batch_transfer` does this on the device.
            finish=self.normalize if trainer is None else None,
            num_workers=self.num_workers,
            pin_memory=torch.cuda.is_available(),
            rank=trainer.global_rank if trainer else 0,
            world_size=trainer.world_size if trainer else 1,
        )

    def train_dataloader(self) -> EpochLoader:
        """Shuffled and augmented training batches."""
        self._train_loader = self._loader("train")
        return self._train_loader

    def val_dataloader(self) -> EpochLoader:
        """Validation batches, each image once, without augmentation."""
        return self._loader("val")

    def test_dataloader(self) -> EpochLoader:
        """Test batches, each image once, without augmentation."""
        return self._loader("test")

    def predict_dataloader(self) -> EpochLoader:
        """Batches of images and their file names."""
        return self._loader("predict")

    def normalize(self, images: Tensor) -> Tensor:
        """Maps uint8 images to float32 of zero mean and unit standard deviation.

        Args:
            images: uint8 `(B, 3, H, W)`.

        Returns:
            `(images / 255 - mean) / std`, float32 of the same shape.
        """
        mean, std = (
            torch.tensor(values, device=images.device).view(3, 1, 1)
            for values in (self.mean, self.std)
        )
        return images.float().mul_(1 / (255 * std)).sub_(mean / std)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Normalises (and, for "modern", mixes) a batch on its device, in the Trainer's dtype."""
        images, second = batch
        images = self.normalize(images)
        trainer = self.trainer
        if trainer is None:
            return images, second
        loader = self._train_loader
        if self.augment == "modern" and loader is not None and getattr(trainer, "training", False):
            keys = (MIX, self.seed, loader.epoch, loader.position, loader.rank)
            with seeded(int(random_bits(*keys)) >> 1):
                images, second = mix(images, second, self.num_classes)
        return trainer.precision_plugin.convert_input((images, second))

    def teardown(self, stage: str | None = None) -> None:
        """Lets go of the images, and so of the worker processes that hold them."""
        self._sources.clear()
        self._train_loader = None

    def state_dict(self) -> dict[str, Any]:
        """The class table, which a checkpoint's class indices mean."""
        return {"class_names": list(self.class_names)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Refuses a checkpoint whose class indices mean other classes.

        Raises:
            ValueError: If the class tables differ.
        """
        saved = state_dict["class_names"]
        if saved == list(self.class_names):
            return
        place = next(
            (
                i
                for i, pair in enumerate(zip(saved, self.class_names, strict=False))
                if len({*pair}) > 1
            ),
            min(len(saved), self.num_classes),
        )
        raise ValueError(
            f"The checkpoint was trained for other classes: {len(saved)} then, {self.num_classes}"
            f" now; they differ from class index {place} on"
            f" ({_at(saved, place)!r} then, {_at(self.class_names, place)!r} now). Use the data"
            " arguments of that training."
        )


def _at(names: Sequence[str], index: int) -> str | None:
    return names[index] if index < len(names) else None


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Writes rows with all their keys as header; floats with 6 digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.6f}" if isinstance(v, float) else v for k, v in row.items()})
    return path
