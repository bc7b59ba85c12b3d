"""A look at a data set before a training is spent on it."""

import hashlib
import io
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from PIL import Image

from reorder_lightning.datamodules.base import ImageDataModule, Split
from reorder_lightning.datamodules.classes import shorten
from reorder_lightning.datamodules.listing import progress
from reorder_lightning.datamodules.loader import ImageSource
from reorder_lightning.datamodules.sampling import SPLIT, IntArray, generator
from reorder_lightning.datamodules.sources import EncodedImages

_SPLITS: tuple[Split, ...] = ("train", "val")
_COLUMNS, _ROWS = 8, 4  # of each split's part of the contact sheet


@dataclass
class SplitReport:
    """What was found in one split.

    Attributes:
        per_class: Images of each class, int64 `(num_classes,)`.
        read: Number of images that were read.
        sizes: Heights and widths of those, int64 `(read, 2)`.
        modes: How many of each format and colour mode.
        bad: Names of unreadable files.
        mean: Mean of red, green and blue, in [0, 1].
        std: Standard deviation of the same.
        digests: Hashes of the contents.
    """

    per_class: IntArray
    read: int = 0
    sizes: list[tuple[int, int]] = field(default_factory=list)
    modes: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)
    mean: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    std: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    digests: set[bytes] = field(default_factory=set)


def check(data: ImageDataModule, output: str = "data_check.png", images: int | None = None) -> bool:
    """Reads a data set through its DataModule and prints what is in it.

    Prints, for training and validation: images and classes, sizes, colour modes, unreadable
    files, mean and standard deviation of the channels; then images that are in both, byte for
    byte. Writes a contact sheet of what the model gets to see.

    Args:
        data: The DataModule.
        output: PNG file for the contact sheet.
        images: Read this many images of each split, chosen at random. None: all.

    Returns:
        Whether the data is fit for training: each class has training images, there are validation
        images, and none that was read is bad (unless `on_bad_image` is "skip").

    Raises:
        FileNotFoundError: If there is no data.
        ValueError: If it contradicts itself.

    Example:
        >>> from reorder_lightning.datamodules import UCMerced
        >>> check(UCMerced(), "ucmerced.png")  # doctest: +SKIP
        train: 1,680 images, 21 classes of 80 to 80
    """
    data.prepare_data()
    reports = {split: read_split(data, split, images) for split in _SPLITS}
    problems: list[str] = []
    for split, report in reports.items():
        print("\n".join(_describe(split, report, data)))
        problems += _problems(split, report, data)
    shared = len(reports["train"].digests & reports["val"].digests)
    if shared:
        print(f"{shared:,} images are in both train and val, byte for byte")
    contact_sheet(data).savefig(output)
    print(f"contact sheet: {output}")
    print("\n".join(problems) or "fit for training")
    return not problems


def read_split(data: ImageDataModule, split: Split, images: int | None = None) -> SplitReport:
    """Reads images of one split.

    Args:
        data: The DataModule.
        split: "train" or "val".
        images: How many, chosen at random; None for all.
    """
    source = data.open(split)
    targets = np.asarray(source.targets)  # type: ignore[attr-defined]
    report = SplitReport(np.bincount(targets, minlength=data.num_classes))
    order = torch.randperm(len(source), generator=generator(SPLIT, data.seed)).tolist()
    chosen = sorted(order[:images])
    count, total, squares = 0, np.zeros(3), np.zeros(3)
    for index, result in zip(chosen, _read_all(source, chosen, split), strict=True):
        report.read += 1
        if isinstance(result, str):
            report.bad.append(f"{source.name(index)}: {result}")
            continue
        digest, mode, size, pixels, sums, sums_of_squares = result
        report.digests.add(digest)
        report.modes[mode] += 1
        report.sizes.append(size)
        count, total, squares = count + pixels, total + sums, squares + sums_of_squares
    if count:
        report.mean = total / count
        report.std = np.sqrt(np.maximum(squares / count - report.mean**2, 0))
    return report


def _read_all(source: ImageSource, chosen: list[int], split: str) -> Iterator[Any]:
    with ThreadPoolExecutor(8) as pool:
        results = pool.map(lambda index: _read_one(source, index), chosen)
        yield from progress(results, f"Reading {split}", len(chosen))


def _read_one(source: ImageSource, index: int) -> Any:
    """Facts of one image, or a text that says what is wrong with it."""
    try:
        if isinstance(source, EncodedImages):
            content = source.read(index)
            image = source.decode(index)
            with Image.open(io.BytesIO(content)) as header:
                mode = f"{header.format} {header.mode}"
        else:
            image = source.batch(np.array([index]), None)[0][0]
            content, mode = image.numpy().tobytes(), "in memory"
    except OSError as error:
        return str(error)
    values = image.flatten(1).double() / 255
    digest = hashlib.blake2b(content, digest_size=16).digest()
    size = (image.shape[1], image.shape[2])
    sums, squares = values.sum(1).numpy(), values.square().sum(1).numpy()
    return digest, mode, size, values.shape[1], sums, squares


def _describe(split: str, report: SplitReport, data: ImageDataModule) -> list[str]:
    per_class = report.per_class
    present = per_class[per_class > 0]
    lines = [
        f"{split}: {per_class.sum():,} images, {len(present)} classes of"
        f" {min(present, default=0):,} to {max(present, default=0):,}"
    ]
    if report.read < per_class.sum():
        lines.append(f"  read: {report.read:,} of them, chosen at random")
    if report.sizes:
        low, middle, high = np.quantile(report.sizes, (0, 0.5, 1), axis=0, method="lower")
        lines.append(
            "  height x width: smallest {}x{}, median {}x{}, largest {}x{}".format(
                *low, *middle, *high
            )
        )
        lines.append(
            "  stored as: " + ", ".join(f"{n:,} {m}" for m, n in report.modes.most_common())
        )
    lines.append(f"  mean {_three(report.mean)}, used {_three(data.mean)}")
    lines.append(f"  std  {_three(report.std)}, used {_three(data.std)}")
    if report.bad:
        lines.append(f"  unreadable: {len(report.bad):,}")
        lines += [f"    {name}" for name in report.bad[:20]]
    return lines


def _three(values: Any) -> str:
    return " ".join(f"{v:.3f}" for v in values)


def _problems(split: str, report: SplitReport, data: ImageDataModule) -> list[str]:
    found = []
    empty = [n for n, c in zip(data.class_names, report.per_class, strict=True) if c == 0]
    if split == "train" and empty:
        found.append(f"NOT FIT: {len(empty)} classes have no training image: {shorten(empty)}")
    if report.bad and data.on_bad_image == "error":
        found.append(f"NOT FIT: {len(report.bad)} unreadable files in {split}")
    return found


def contact_sheet(data: ImageDataModule) -> Figure:
    """Images as the model gets them: augmented training images, then plain validation images.

    Args:
        data: The DataModule.

    Returns:
        A figure with up to 32 images of each split, and their classes.
    """
    most = max(len(data.open(split)) for split in _SPLITS)
    rows = min(_ROWS, -(-most // _COLUMNS))
    figure = Figure(figsize=(_COLUMNS * 1.5, 2 * rows * 1.7), layout="constrained")
    parts = np.asarray(figure.subfigures(2, 1, squeeze=False)).ravel()
    for part, split in zip(parts, _SPLITS, strict=True):
        source = data.open(split)
        order = torch.randperm(len(source), generator=generator(SPLIT, data.seed)).numpy()
        chosen = np.sort(order[: _COLUMNS * rows])
        part.suptitle(split)
        axes = np.ravel(part.subplots(rows, _COLUMNS))
        for axis in axes:
            axis.set_axis_off()
        for axis, index in zip(axes, chosen, strict=False):
            try:
                images, targets, _ = source.batch(
                    np.array([index]), 0 if split == "train" else None
                )
            except ValueError:  # unreadable, which is reported already
                continue
            axis.imshow(images[0].permute(1, 2, 0).numpy())
            axis.set_title(data.class_names[int(targets[0])][:22], fontsize=6)
    return figure
