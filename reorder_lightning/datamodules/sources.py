"""Sets of labelled images that are read a batch at a time: in memory, or from encoded files."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reorder_lightning.datamodules.images import (
    Augment,
    Box,
    build_transform,
    covering_size,
    decode_image,
    seeded,
)
from reorder_lightning.datamodules.listing import Listing
from reorder_lightning.datamodules.sampling import AUGMENT, IntArray, random_bits, uniform

OnBadImage = Literal["error", "skip"]

# Attempts to find a readable image in place of a bad one, before the folder is given up.
_ATTEMPTS = 20


class TensorImages:
    """Images in memory; whole batches are gathered and flipped at once.

    Args:
        images: uint8 `(N, 3, h, w)`.
        targets: int64 `(N,)`.
        names: File name of each image.
        augment: Training transform, see `build_transform`.
        image_size: Height and width that the model sees.
        vertical: "flip" also turns images upside down: right for views from above.
        seed: Seed of the augmentation.
    """

    def __init__(
        self,
        images: Tensor,
        targets: Tensor,
        names: Sequence[str],
        *,
        augment: Augment,
        image_size: tuple[int, int],
        vertical: bool = False,
        seed: int = 0,
    ) -> None:
        self.images = images
        self.targets = targets
        self.names = names
        self.augment = augment
        self.vertical = vertical
        self.seed = seed
        self._transform = build_transform(augment, image_size, crop_ratio=1.0, train=True)
        self._eval = build_transform(augment, image_size, crop_ratio=1.0, train=False)
        # Without resizing or cropping a batch needs no work for each image.
        same_size = tuple(images.shape[-2:]) == image_size
        self._whole_batches = same_size and augment in ("none", "flip")

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        """File name of an image."""
        return self.names[index]

    def batch(self, indices: IntArray, epoch: int | None) -> tuple[Tensor, Tensor, list[str]]:
        """See `ImageSource.batch`."""
        which = torch.from_numpy(indices)
        images, targets = self.images[which], self.targets[which]
        if not self._whole_batches:
            images = self._each(images, indices, epoch)
        elif epoch is not None and self.augment == "flip":
            _flip_(images, -1, uniform(AUGMENT, self.seed, epoch, indices, 0) < 0.5)
            if self.vertical:
                _flip_(images, -2, uniform(AUGMENT, self.seed, epoch, indices, 1) < 0.5)
        return images, targets, []

    def _each(self, images: Tensor, indices: IntArray, epoch: int | None) -> Tensor:
        if epoch is None:
            return torch.stack([self._eval(image) for image in images])
        out = []
        for image, seed in zip(images, image_seeds(self.seed, epoch, indices), strict=True):
            with seeded(seed):
                out.append(self._transform(image))
        return torch.stack(out)


class EncodedImages(ABC):
    """Images that are decoded when they are read. A subclass gives bytes, names and targets.

    Args:
        augment: Training transform, see `build_transform`.
        image_size: Height and width that the model sees.
        seed: Seed of the augmentation.
        crop_ratio: See `build_transform`.
        on_bad_image: "error" stops at an unreadable file and names it. "skip" puts another image
            with its own label in its place in training, and leaves it out in evaluation; it is
            named in the log.
        exif: Turn images upright as EXIF says.
        any_size: Read images above PIL's size limit.
    """

    def __init__(
        self,
        *,
        augment: Augment,
        image_size: tuple[int, int],
        seed: int = 0,
        crop_ratio: float | None = 224 / 256,
        on_bad_image: OnBadImage = "error",
        exif: bool = False,
        any_size: bool = False,
    ) -> None:
        if on_bad_image not in ("error", "skip"):
            raise ValueError(
                "Expected argument `on_bad_image` to be 'error' or 'skip' but got"
                f" {on_bad_image!r}."
            )
        self.seed = seed
        self.on_bad_image = on_bad_image
        self.exif = exif
        self.any_size = any_size
        self._transform = build_transform(augment, image_size, crop_ratio=crop_ratio, train=True)
        self._eval = build_transform(augment, image_size, crop_ratio=crop_ratio, train=False)
        self._cover = covering_size(augment, image_size, crop_ratio)
        # A random crop may need the full resolution anywhere.
        self._train_cover = None if augment == "modern" else self._cover

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def name(self, index: int) -> str:
        """File name of an image."""

    @abstractmethod
    def read(self, index: int) -> bytes:
        """Content of an image file."""

    @abstractmethod
    def target(self, index: int) -> int:
        """Class index of an image."""

    def box(self, index: int) -> Box | None:
        """Part of the image to keep: left, top, width, height."""
        return None

    def decode(self, index: int, cover: tuple[int, int] | None = None) -> Tensor:
        """The image as uint8 `(3, h, w)`, untransformed; OSError at a bad file."""
        return decode_image(
            self.read(index),
            exif=self.exif,
            box=self.box(index),
            cover=cover,
            any_size=self.any_size,
        )

    def batch(self, indices: IntArray, epoch: int | None) -> tuple[Tensor, Tensor, list[str]]:
        """See `ImageSource.batch`."""
        images, targets, replaced = [], [], []
        for index, seed in zip(
            indices.tolist(), image_seeds(self.seed, epoch, indices), strict=True
        ):
            for attempt in range(_ATTEMPTS):
                try:
                    image = self._image(index, seed, train=epoch is not None)
                except OSError as error:
                    replaced.append(self._bad(index, error))
                    if epoch is None:
                        break
                    index = int(random_bits(seed, attempt)) % len(self)
                    continue
                images.append(image)
                targets.append(self.target(index))
                break
        if not images or (epoch is not None and len(images) < len(indices)):
            raise ValueError(
                f"Found hardly any readable image: {len(replaced)} in a row are bad, the last one"
                f" is {replaced[-1]}."
            )
        return torch.stack(images), torch.tensor(targets), replaced

    def _image(self, index: int, seed: int, *, train: bool) -> Tensor:
        if not train:
            return self._eval(self.decode(index, self._cover))
        image = self.decode(index, self._train_cover)
        with seeded(seed):
            return self._transform(image)

    def _bad(self, index: int, error: OSError) -> str:
        name = self.name(index)
        if self.on_bad_image == "error":
            raise ValueError(
                f"The image {name} can't be read ({error}). Replace or remove the file, or set"
                " on_bad_image='skip'."
            ) from error
        return name


class FolderImages(EncodedImages):
    """Image files of a user's folder without labels, for predictions.

    Args:
        path: A folder, searched with all its subfolders, or one image file.
        suffixes: File name endings that count as images, in lower case.
        **options: As for `EncodedImages`.

    Raises:
        FileNotFoundError: If there is no such path, or no image below it.
    """

    def __init__(self, path: Path, suffixes: tuple[str, ...], **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        found = path.rglob("*") if path.is_dir() else [path]
        self.paths = sorted(p for p in found if p.suffix.lower() in suffixes and p.is_file())
        if not self.paths:
            raise FileNotFoundError(
                f"Found no image at {path} (argument `predict_path`). Expected a folder or a file"
                f" with one of the endings {' '.join(suffixes)}."
            )

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        """Path of an image."""
        return str(self.paths[index])

    def read(self, index: int) -> bytes:
        """Content of an image file."""
        return self.paths[index].read_bytes()

    def target(self, index: int) -> int:
        """Unknown: -1."""
        return -1


class ListedImages(EncodedImages):
    """Some files of a listing, with their class indices.

    Args:
        listing: The files.
        which: Files to use, int64 `(N,)`.
        targets: Their class indices, int64 `(N,)`.
        **options: As for `EncodedImages`.
    """

    def __init__(
        self, listing: Listing, which: IntArray, targets: IntArray, **options: Any
    ) -> None:
        super().__init__(**options)
        self.listing = listing
        self.which = which
        self.targets = targets

    def __len__(self) -> int:
        return len(self.which)

    def name(self, index: int) -> str:
        """Path of an image."""
        return f"{self.listing.root}/{self.listing.path(int(self.which[index]))}"

    def read(self, index: int) -> bytes:
        """Content of an image file."""
        return Path(self.name(index)).read_bytes()

    def target(self, index: int) -> int:
        """Class index of an image."""
        return int(self.targets[index])


def image_seeds(seed: int, epoch: int | None, indices: IntArray) -> list[int]:
    """One seed for each image, from the run's seed, the epoch and the image's index."""
    bits = random_bits(AUGMENT, seed, -1 if epoch is None else epoch, indices)
    return [int(b) for b in bits >> np.uint64(1)]


def _flip_(images: Tensor, dim: int, where: npt.NDArray[np.bool_]) -> None:
    """Flips the images `(B, 3, H, W)` that `where` `(B,)` chooses, in place."""
    which = torch.from_numpy(np.flatnonzero(where))
    images[which] = images[which].flip(dim)
