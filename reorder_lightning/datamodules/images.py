"""Reading images, and the transforms that each have one word.

Images are uint8 tensors `(3, H, W)` until a whole batch is normalised, on the device where it is
used: a quarter of the memory traffic of float32 between worker processes and to the GPU.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms import v2

from reorder_lightning.datamodules.sampling import AUGMENT, IntArray, random_bits, uniform

Augment = Literal["none", "flip", "paper", "modern"]
Transform = Callable[[Tensor], Tensor]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm")


def decode_image(data: bytes | str | Path, *, exif: bool = False) -> Tensor:
    """Decodes a file or its bytes to RGB.

    Args:
        data: Path or file content, in any format that PIL reads, of any colour mode.
        exif: Turn the image upright as its EXIF orientation says. Off by default, as in the
            published ImageNet figures.

    Returns:
        uint8 tensor `(3, H, W)`.

    Raises:
        OSError: If it isn't a whole image (PIL's `UnidentifiedImageError` included).
    """
    with Image.open(io.BytesIO(data) if isinstance(data, bytes) else data) as image:
        upright = ImageOps.exif_transpose(image) if exif else image
        pixels = np.array(upright.convert("RGB"))
    return torch.from_numpy(pixels).permute(2, 0, 1)


def build_transform(
    augment: Augment, image_size: tuple[int, int], *, crop_ratio: float, train: bool
) -> v2.Compose:
    """The transform of one word, from uint8 `(3, h, w)` to uint8 `(3, H, W)`.

    Evaluation, and the base of "none", "flip" and "paper": resize the short side to
    `image_size / crop_ratio`, crop the centre. "flip" and "paper" then flip horizontally with
    probability 0.5; that is the whole recipe of REOrder (Kutscher et al., 2025), there with
    `crop_ratio` 224 / 256, which "paper" always uses. "modern" is a random-resized crop, flip,
    RandAugment (Cubuk et al., 2020) and random erasing (Zhong et al., 2020); mixup and cutmix
    belong to whole batches and are added by the DataModule.

    Args:
        augment: The word.
        image_size: Height and width of the result.
        crop_ratio: Side of the crop over side of the resized image.
        train: False gives the evaluation transform.

    Returns:
        A function that draws from torch's global generator; see `seeded`.

    Raises:
        ValueError: If the word isn't known.
    """
    if augment not in ("none", "flip", "paper", "modern"):
        raise ValueError(
            f"Expected argument `augment` to be 'none', 'flip', 'paper' or 'modern' but got"
            f" {augment!r}."
        )
    ratio = 224 / 256 if augment == "paper" else crop_ratio
    if train and augment == "modern":
        return v2.Compose(
            [
                v2.RandomResizedCrop(image_size, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.RandAugment(fill=128),
                v2.RandomErasing(p=0.25, value=128),
            ]
        )
    steps: list[Transform] = [_ResizeShortSide(image_size, ratio), v2.CenterCrop(image_size)]
    if train and augment != "none":
        steps.append(v2.RandomHorizontalFlip())
    return v2.Compose(steps)


class _ResizeShortSide:
    """Resizes so that a box of `image_size / ratio` is just covered; squares: the short side."""

    def __init__(self, image_size: tuple[int, int], ratio: float) -> None:
        self.height, self.width = (round(side / ratio) for side in image_size)

    def __call__(self, image: Tensor) -> Tensor:
        h, w = image.shape[-2:]
        scale = max(self.height / h, self.width / w)
        size = [max(self.height, round(h * scale)), max(self.width, round(w * scale))]
        return v2.functional.resize(image, size, antialias=True)  # type: ignore[no-any-return]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Runs torchvision's transforms, which know only the global generator, from `seed`.

    The generator's state is put back, so nothing outside notices.
    """
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state)


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
        self._plain = augment in ("none", "flip") and tuple(images.shape[-2:]) == image_size

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        """File name of an image."""
        return self.names[index]

    def batch(self, indices: IntArray, epoch: int | None) -> tuple[Tensor, Tensor, list[str]]:
        """See `ImageSource.batch`."""
        which = torch.from_numpy(indices)
        images, targets = self.images[which], self.targets[which]
        if not self._plain:
            images = self._each(images, indices, epoch)
        elif epoch is not None and self.augment == "flip":
            flip_(images, -1, uniform(AUGMENT, self.seed, epoch, indices, 0) < 0.5)
            if self.vertical:
                flip_(images, -2, uniform(AUGMENT, self.seed, epoch, indices, 1) < 0.5)
        return images, targets, []

    def _each(self, images: Tensor, indices: IntArray, epoch: int | None) -> Tensor:
        if epoch is None:
            return torch.stack([self._eval(image) for image in images])
        seeds = random_bits(AUGMENT, self.seed, epoch, indices) >> np.uint64(1)
        out = []
        for image, seed in zip(images, seeds, strict=True):
            with seeded(int(seed)):
                out.append(self._transform(image))
        return torch.stack(out)


def flip_(images: Tensor, dim: int, where: npt.NDArray[np.bool_]) -> None:
    """Flips the images `(B, 3, H, W)` that `where` `(B,)` chooses, in place."""
    which = torch.from_numpy(np.flatnonzero(where))
    images[which] = images[which].flip(dim)
