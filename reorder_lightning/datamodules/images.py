"""Reading images, and the transforms that each have one word.

Images are uint8 tensors `(3, H, W)` until a whole batch is normalised, on the device where it is
used: a quarter of the memory traffic of float32 between worker processes and to the GPU.
"""

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError
from torch import Tensor
from torchvision.transforms import v2

try:
    import simplejpeg
except ImportError:  # an extra
    simplejpeg = None

Augment = Literal["none", "flip", "paper", "modern"]
Transform = Callable[[Tensor], Tensor]
Box = tuple[int, int, int, int]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".gif")

# A reduced image is still this many times larger than what it must cover, so that the smooth
# resizing after it gives nearly the pixels that the whole image gives, as in PIL's thumbnails.
_GAP = 2.0

# What PIL's decoders raise at damaged files, besides OSError.
_DAMAGE = (
    SyntaxError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


def decode_image(
    data: bytes,
    *,
    exif: bool = False,
    box: Box | None = None,
    cover: tuple[int, int] | None = None,
    any_size: bool = False,
) -> Tensor:
    """Decodes the bytes of an image file to 8-bit RGB, whatever its format and colour mode.

    16-bit grey is scaled, not clipped. A large JPEG is decoded at 1/2, 1/4 or 1/8 of its size,
    and other large images are averaged over squares, as far as `cover` allows: less work and far
    less memory for the same picture after resizing.

    Args:
        data: File content.
        exif: Turn the image upright as its EXIF orientation says. Off by default, as in the
            published ImageNet figures.
        box: Left, top, width and height of the part to keep, in pixels of the whole image.
        cover: Height and width that the result must not fall below if the file doesn't.
        any_size: Open images above `PIL.Image.MAX_IMAGE_PIXELS` too (which stays as it is).

    Returns:
        uint8 tensor `(3, H, W)`.

    Raises:
        OSError: If it isn't a whole image; PIL's `UnidentifiedImageError` is one.
    """
    pixels = None if exif else _turbo(data, box, cover)
    if pixels is not None:
        return pixels if box is None else _crop(pixels, box, (pixels.shape[2], pixels.shape[1]))
    try:
        with _open(io.BytesIO(data), any_size) as image:
            full = image.size
            image = _reduce(image, _factor(full, box, cover))
            upright = ImageOps.exif_transpose(image) if exif else image
            pixels = torch.from_numpy(np.array(_to_rgb(upright))).permute(2, 0, 1)
    except _DAMAGE as error:
        raise OSError(f"damaged image: {error}") from error
    return pixels if box is None else _crop(pixels, box, full)


def _factor(full: tuple[int, int], box: Box | None, cover: tuple[int, int] | None) -> float:
    """How many times smaller an image of size `full` `(width, height)` may be read."""
    if cover is None:
        return 1.0
    width, height = full if box is None else box[2:]
    return min(height / cover[0], width / cover[1]) / _GAP


def _turbo(data: bytes, box: Box | None, cover: tuple[int, int] | None) -> Tensor | None:
    """Reads a JPEG in full by simplejpeg, where installed: PIL's pixels in less time.

    None leaves an image to PIL: other formats, CMYK (whose conversion differs), those to be read
    at reduced scale, and damaged ones, for PIL's message.
    """
    if simplejpeg is None or data[:2] != b"\xff\xd8":
        return None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        if colours not in ("YCbCr", "Gray") or _factor((width, height), box, cover) >= 2:
            return None
        return torch.from_numpy(simplejpeg.decode_jpeg(data, "RGB")).permute(2, 0, 1)
    except ValueError:
        return None


def _open(file: io.BytesIO, any_size: bool) -> Image.Image:
    """`Image.open`; `any_size` asks PIL's format plugins directly, past its global size limit."""
    if not any_size:
        return Image.open(file)
    Image.init()
    prefix = file.read(16)
    for name in Image.ID:
        factory, accept = Image.OPEN[name]
        if accept is not None and accept(prefix) is not True:
            continue
        file.seek(0)
        try:
            return factory(file, "")
        except (SyntaxError, IndexError, TypeError, struct.error):
            continue
    raise UnidentifiedImageError("cannot identify image file")


def _reduce(image: Image.Image, factor: float) -> Image.Image:
    """Makes an image up to `factor` times smaller in the cheapest way its format has."""
    if factor < 2:
        return image
    if image.format == "JPEG" and isinstance(image, ImageFile.ImageFile):
        width, height = image.size
        image.draft(None, (int(width / factor), int(height / factor)))
        return image
    if image.mode == "1":
        image = image.convert("L")
    return image.reduce(int(factor)) if image.mode in ("L", "RGB", "RGBA") else image


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        eight = values >> 8 if image.mode != "I" or values.max(initial=0) > 255 else values
        image = Image.fromarray(eight.clip(0, 255).astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # PIL warns at the direct way
    return image.convert("RGB")


def _crop(pixels: Tensor, box: Box, full: tuple[int, int]) -> Tensor:
    """Cuts `box`, given in a picture of size `full` `(width, height)`, out of a reduced one."""
    sx, sy = pixels.shape[2] / full[0], pixels.shape[1] / full[1]
    left, top, width, height = box
    x0, x1 = round(left * sx), round((left + width) * sx)
    y0, y1 = round(top * sy), round((top + height) * sy)
    return pixels[:, y0 : max(y1, y0 + 1), x0 : max(x1, x0 + 1)]


def build_transform(
    augment: Augment, image_size: tuple[int, int], *, crop_ratio: float | None, train: bool
) -> Transform:
    """The transform of one word, from uint8 `(3, h, w)` to uint8 `(3, H, W)`.

    Evaluation, and the base of "none", "flip" and "paper": resize the short side to
    `image_size / crop_ratio`, crop the centre. "flip" and "paper" then flip horizontally with
    probability 0.5; that is the whole recipe of REOrder (Kutscher et al., 2025), there with
    `crop_ratio` 224 / 256, which "paper" always uses. "modern" is a random-resized crop, flip,
    RandAugment (Cubuk et al., 2020) and random erasing (Zhong et al., 2020); mixup and cutmix
    belong to whole batches, see `mix`.

    Args:
        augment: The word.
        image_size: Height and width of the result.
        crop_ratio: Side of the crop over side of the resized image. None: the whole image is
            resized whatever its aspect, for images that are crops already.
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
    if train and augment == "modern":
        modern: Transform = v2.Compose(
            [
                v2.RandomResizedCrop(image_size, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.RandAugment(fill=128),
                v2.RandomErasing(p=0.25, value=128),
            ]
        )
        return modern
    cover = None if crop_ratio is None else covering_size(augment, image_size, crop_ratio)
    return _Plain(image_size, cover, flip=train and augment != "none")


def covering_size(
    augment: Augment, image_size: tuple[int, int], crop_ratio: float | None
) -> tuple[int, int]:
    """Height and width that an image is resized to cover before it is cropped to `image_size`."""
    ratio = 224 / 256 if augment == "paper" and crop_ratio else crop_ratio or 1.0
    return round(image_size[0] / ratio), round(image_size[1] / ratio)


class _Plain:
    """Resize, centre crop and perhaps a flip; torchvision's, without its cost for each call."""

    def __init__(
        self, image_size: tuple[int, int], cover: tuple[int, int] | None, *, flip: bool
    ) -> None:
        self.height, self.width = image_size
        self.cover = cover
        self.flip = flip

    def __call__(self, image: Tensor) -> Tensor:
        h, w = self._size(*image.shape[-2:])
        if (h, w) != tuple(image.shape[-2:]):
            image = v2.functional.resize(image, [h, w], antialias=True)
        top, left = round((h - self.height) / 2), round((w - self.width) / 2)
        image = image[..., top : top + self.height, left : left + self.width]
        return image.flip(-1) if self.flip and torch.rand(1).item() < 0.5 else image

    def _size(self, h: int, w: int) -> tuple[int, int]:
        """Height and width to resize to: just covering `cover`, or `image_size` itself."""
        if self.cover is None:
            return self.height, self.width
        scale = max(self.cover[0] / h, self.cover[1] / w)
        # Cut off, not rounded, as torchvision's Resize does.
        return max(self.cover[0], int(h * scale)), max(self.cover[1], int(w * scale))


def mix(images: Tensor, targets: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Mixup (Zhang et al., 2018, alpha 0.8) or cutmix (Yun et al., 2019, alpha 1), half each.

    Args:
        images: `(B, 3, H, W)`.
        targets: int64 `(B,)`.
        num_classes: Number of classes C.

    Returns:
        Mixed images and soft targets, float32 `(B, C)`.
    """
    either = v2.RandomChoice(
        [
            v2.MixUp(alpha=0.8, num_classes=num_classes),
            v2.CutMix(alpha=1.0, num_classes=num_classes),
        ]
    )
    mixed, soft = either(images, targets)
    return mixed, soft


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
