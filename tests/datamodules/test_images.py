import io
import struct
import warnings
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from reorder_lightning.datamodules import images as images_module
from reorder_lightning.datamodules.images import build_transform, decode_image, mix, seeded
from tests.data.layouts import encoded, picture


def png(array):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(params=["simplejpeg", "pil"])
def _decoder(request, monkeypatch):
    if request.param == "pil":
        monkeypatch.setattr(images_module, "simplejpeg", None)
    else:
        pytest.importorskip("simplejpeg")


@pytest.mark.usefixtures("_decoder")
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_jpeg_has_the_pixels_of_pil(mode):
    data = encoded(1, (40, 30), mode=mode)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert decode_image(data).permute(1, 2, 0).numpy().tolist() == expected.tolist()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_png_of_any_mode_is_rgb(mode):
    data = encoded(1, (8, 6), "PNG", mode)
    image = decode_image(data)
    assert (image.shape, image.dtype) == ((3, 6, 8), torch.uint8)
    assert image.float().std() > 20


def test_palette_with_transparency_does_not_warn():
    data = encoded(1, (8, 6), "PNG", "P", transparency=bytes(range(256)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decode_image(data).shape == (3, 6, 8)


def test_16_bit_grey_is_scaled_not_clipped():
    values = np.array([[0, 256, 32768, 65535]], dtype=np.uint16)
    assert decode_image(png(values))[0].tolist() == [[0, 1, 128, 255]]


def test_exif_orientation_is_a_choice():
    """Case 20: no transpose by default, as in the published figures."""
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(1, (8, 4), exif=exif)
    assert decode_image(data).shape == (3, 4, 8)
    assert decode_image(data, exif=True).shape == (3, 8, 4)


@pytest.mark.usefixtures("_decoder")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("keep", [0.0, 0.5])
def test_cut_files_raise(kind, keep):
    """Case 19, the kinds of files."""
    data = encoded(1, (64, 64), kind)
    with pytest.raises(OSError):  # noqa: PT011 - PIL's messages differ
        decode_image(data[: int(keep * len(data))])


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_large_images_are_reduced_but_cover(kind):
    data = encoded(1, (1280, 960), kind)
    whole = decode_image(data)
    small = decode_image(data, cover=(100, 100))
    assert whole.shape == (3, 960, 1280)
    assert min(small.shape[1:]) >= 100
    assert max(small.shape[1:]) <= 400
    to_100 = build_transform("none", (100, 100), crop_ratio=1.0, train=False)
    difference = (to_100(whole).int() - to_100(small).int()).abs().float().mean()
    assert difference < 2


def test_box_of_a_reduced_image_is_the_same_place():
    image = np.zeros((400, 600, 3), dtype=np.uint8)
    image[100:300, 200:500] = 255
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=100)
    crop = decode_image(buffer.getvalue(), box=(200, 100, 300, 200), cover=(25, 25))
    assert crop.shape == (3, 50, 75)
    assert crop.float().mean() > 250


def huge_png(width, height):
    """A 1-bit PNG in a few kilobytes: rows of zeros compress well."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    pixels = zlib.compress(bytes(height * (1 + (width + 7) // 8)), 1)
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", pixels), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("size", [(15000, 13000), (12000, 8000)])
@pytest.mark.filterwarnings("error::PIL.Image.DecompressionBombWarning")
def test_huge_images_need_no_global_switch(size):
    """Case 21: opened past PIL's limit, without a warning, and the limit stays as it is."""
    limit = Image.MAX_IMAGE_PIXELS
    data = huge_png(*size)
    with pytest.raises((OSError, Warning)):
        decode_image(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        image = decode_image(data, cover=(224, 224), any_size=True)
    assert min(image.shape[1:]) >= 224
    assert image.numel() < 1e7
    assert limit == Image.MAX_IMAGE_PIXELS == 89_478_485


def test_unknown_content_past_the_limit_is_an_error_too():
    with pytest.raises(OSError, match="cannot identify"):
        decode_image(b"no image at all", any_size=True)


def test_the_papers_transform_is_torchvisions():
    from torchvision.transforms import v2

    reference = v2.Compose([v2.Resize(256, antialias=True), v2.CenterCrop(224)])
    ours = build_transform("paper", (224, 224), crop_ratio=1.0, train=False)
    for size in ((500, 375), (375, 500), (224, 224), (300, 1000)):
        image = torch.from_numpy(np.asarray(picture(1, size)).copy()).permute(2, 0, 1)
        assert torch.equal(ours(image), reference(image))


@pytest.mark.parametrize("word", ["none", "flip", "paper", "modern"])
@pytest.mark.parametrize("size", [(16, 16), (12, 20)])
def test_each_word_gives_the_size(word, size):
    transform = build_transform(word, size, crop_ratio=0.875, train=True)
    image = torch.randint(256, (3, 40, 30), dtype=torch.uint8)
    assert transform(image).shape == (3, *size)
    assert transform(image).dtype == torch.uint8


def test_unknown_word():
    with pytest.raises(ValueError, match="'modern' but got 'moddern'"):
        build_transform("moddern", (8, 8), crop_ratio=1.0, train=True)


def test_seeded_is_repeatable_and_leaves_no_trace():
    before = torch.get_rng_state()
    with seeded(5):
        first = torch.rand(3)
    with seeded(5):
        assert torch.equal(first, torch.rand(3))
    assert torch.equal(before, torch.get_rng_state())


def test_mix_keeps_the_weight_of_the_targets():
    images, targets = torch.rand(6, 3, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    for seed in range(6):
        with seeded(seed):
            mixed, soft = mix(images, targets, 3)
        assert mixed.shape == images.shape
        torch.testing.assert_close(soft.sum(1), torch.ones(6))
        assert not torch.equal(mixed, images)


def test_training_images_are_the_plain_ones_or_their_mirror():
    image = torch.randint(256, (3, 40, 30), dtype=torch.uint8)
    plain = build_transform("paper", (16, 16), crop_ratio=0.875, train=False)(image)
    train = build_transform("paper", (16, 16), crop_ratio=0.875, train=True)
    flipped = 0
    for seed in range(64):
        with seeded(seed):
            found = train(image)
        assert torch.equal(found, plain) or torch.equal(found, plain.flip(-1))
        flipped += not torch.equal(found, plain)
    assert 16 < flipped < 48
