"""The DataModule that all data sets share."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from lightning import LightningDataModule
from torch import Tensor

from reorder_lightning.datamodules.images import Augment
from reorder_lightning.datamodules.sampling import EpochLoader, ImageSource

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

    Attributes:
        class_names: As given.
        image_size: Height and width.
        mean: As given.
        std: As given.

    Raises:
        ValueError: If a size is not positive.
    """

    def __init__(
        self,
        *,
        class_names: Sequence[str],
        image_size: int | tuple[int, int],
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
        batch_size: int,
        num_workers: int,
        augment: Augment,
        seed: int,
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
        self.augment = augment
        self.seed = seed
        self._sources: dict[Split, ImageSource] = {}

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    def source(self, split: Split) -> ImageSource:
        """Opens the images of one split; called once for each, on every process."""
        raise NotImplementedError

    def setup(self, stage: str | None = None) -> None:
        """Opens the splits that the stage needs, so that missing data is an error at the start."""
        for split in _SPLITS[stage]:
            self._open(split)

    def _open(self, split: Split) -> ImageSource:
        if split not in self._sources:
            self._sources[split] = self.source(split)
        return self._sources[split]

    def _loader(self, split: Split) -> EpochLoader:
        trainer = self.trainer
        return EpochLoader(
            self._open(split),
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
        return self._loader("train")

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
        """Normalises a batch on its device, in the Trainer's precision."""
        images, second = batch
        images = self.normalize(images)
        if self.trainer is not None:
            images = self.trainer.precision_plugin.convert_input(images)
        return images, second

    def teardown(self, stage: str | None = None) -> None:
        """Lets go of the images, and so of the worker processes that hold them."""
        self._sources.clear()
