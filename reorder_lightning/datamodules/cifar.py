"""CIFAR-100 (Krizhevsky, "Learning multiple layers of features from tiny images", 2009)."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision.datasets.utils import download_and_extract_archive

from reorder_lightning.datamodules import parquet
from reorder_lightning.datamodules.base import ImageDataModule, Split
from reorder_lightning.datamodules.cifar_classes import COARSE, COARSE_OF_FINE, FINE
from reorder_lightning.datamodules.classes import folder_targets
from reorder_lightning.datamodules.images import decode_image
from reorder_lightning.datamodules.listing import list_images
from reorder_lightning.datamodules.loader import ImageSource
from reorder_lightning.datamodules.sampling import IntArray, held_out
from reorder_lightning.datamodules.sources import TensorImages

URL = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
MD5 = "eb9058c3a382ffc7106e4002c42a8d85"
SIDE = 32

Labels = Literal["fine", "coarse"]
Images = tuple[Tensor, IntArray, list[str]]  # uint8 (N, 3, 32, 32), fine labels, names


class CIFAR100(ImageDataModule):
    """CIFAR-100 from whatever copy of it there is, decoded once and kept in memory.

    In `root`: the python pickles `train` and `test` (or a folder `cifar-100-python` with them),
    class folders `train/<class>/*.png` and `test/<class>/*.png`, or parquet shards
    `train-*.parquet` and `test-*.parquet`. Validation is a part of the training images, the same
    for every `seed`, and shown without augmentation; `test` and `predict` read the test images.

    Args:
        root: The folder.
        labels: "fine", 100 classes, or "coarse", their 20 superclasses.
        val_split: Share of the training images of each class for validation. 0 validates on the
            test images.
        per_class: Use only the first so many training images of each fine class, by file name.
            null: all 500.
        download: Fetch the pickles (169 MB) into `root` if nothing is there.
        image_size: Side, or height and width, that the model sees.
        **options: `batch_size`, `num_workers` (0 is the fastest here), `augment`, `seed` and
            `predict_path`, see `ImageDataModule`.

    Raises:
        FileNotFoundError: If there is no such data (at `setup`).
        ValueError: If it is damaged, or a pickle holds anything but arrays, lists and text.

    Example:
        >>> CIFAR100("/data/cifar100", labels="coarse").num_classes
        20
    """

    def __init__(
        self,
        root: str,
        labels: Labels = "fine",
        val_split: float = 0.1,
        per_class: int | None = None,
        download: bool = False,
        image_size: int | tuple[int, int] = SIDE,
        **options: Any,
    ) -> None:
        if per_class is not None and per_class < 1:
            raise ValueError(f"Expected argument `per_class` to be at least 1 but got {per_class}.")
        if labels not in ("fine", "coarse"):
            raise ValueError(
                f"Expected argument `labels` to be 'fine' or 'coarse' but got {labels!r}."
            )
        super().__init__(
            class_names=FINE if labels == "fine" else COARSE,
            image_size=image_size,
            mean=(0.50708, 0.48655, 0.44092),
            std=(0.26733, 0.25644, 0.27615),
            **options,
        )
        self.root = Path(root).expanduser()
        self.labels: Labels = labels
        self.val_split = val_split
        self.per_class = per_class
        self.download = download

    def prepare_data(self) -> None:
        """Downloads the pickles where the user asks for it; once on each node."""
        if self.download and _reader(self.root, "train") is None:
            download_and_extract_archive(URL, str(self.root), md5=MD5)

    def source(self, split: Split) -> ImageSource:
        """Decodes the images of one split."""
        from_train = split == "train" or (split == "val" and self.val_split > 0)
        images, fine, names = self._read("train" if from_train else "test")
        if from_train and self.per_class is not None:
            few = first_of_each(fine, names, self.per_class)
            images, fine, names = images[few], fine[few], [names[i] for i in few]
        if from_train:
            val = held_out(np.arange(len(fine)), fine, self.val_split)
            which = np.flatnonzero(val if split == "val" else ~val)
            images, fine, names = images[which], fine[which], [names[i] for i in which]
        targets = fine if self.labels == "fine" else COARSE_OF_FINE[fine]
        return TensorImages(
            images,
            torch.from_numpy(targets),
            names,
            augment=self.augment,
            image_size=self.image_size,
            seed=self.seed,
        )

    def _read(self, part: str) -> Images:
        read = _reader(self.root, part)
        if read is None:
            raise FileNotFoundError(
                f"Found no {part!r} images of CIFAR-100 in {self.root}. Expected the pickles"
                f" cifar-100-python/{part}, class folders {part}/<class>/<image>, or"
                f" {part}-*.parquet; or set download=True."
            )
        images, fine, names = read()
        if fine.min() < 0 or fine.max() >= len(FINE):
            raise ValueError(
                f"The {part!r} images of CIFAR-100 in {self.root} have labels from {fine.min()} to"
                f" {fine.max()}, out of range: expected 0 to {len(FINE) - 1}."
            )
        return images, fine, names


def first_of_each(targets: IntArray, names: list[str], count: int) -> IntArray:
    """Indices of the first `count` images of each class by file name, ascending.

    Args:
        targets: int64 `(N,)`.
        names: File names, whose folders don't count.
        count: Images of a class; all where there are fewer.

    Example:
        >>> first_of_each(np.array([0, 1, 0]), ["b", "c", "a"], 1).tolist()
        [1, 2]
    """
    order = np.lexsort((np.array([Path(name).name for name in names]), targets))
    _, starts, counts = np.unique(targets[order], return_index=True, return_counts=True)
    place = np.arange(len(order)) - np.repeat(starts, counts)
    return np.sort(order[place < count])


def _reader(root: Path, part: str) -> Callable[[], Images] | None:
    """The function that reads one part, by what lies in `root`."""
    for pickled in (root / part, root / "cifar-100-python" / part):
        if pickled.is_file():
            return lambda: read_pickle(pickled)
    if (root / part).is_dir():
        return lambda: _read_folders(root / part)
    shards = parquet.find_shards(root, part)
    return (lambda: _read_parquet(shards)) if shards else None


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class _PlainUnpickler(pickle.Unpickler):
    """Rebuilds arrays and text, and refuses to call anything else that a foreign pickle names."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks to run {module}.{name}")
        if name == "_reconstruct":
            module = "numpy._core.multiarray" if hasattr(np, "_core") else "numpy.core.multiarray"
        return super().find_class(module, name)


def read_pickle(path: Path) -> Images:
    """Reads one of the original pickles without executing what a foreign one may carry.

    Args:
        path: File with the keys `data` (uint8 `(N, 3072)`, channel planes), `fine_labels` and
            `filenames`.

    Returns:
        Images uint8 `(N, 3, 32, 32)`, fine labels int64 `(N,)`, file names.

    Raises:
        ValueError: If it is damaged, of another kind, or asks to run code.
    """
    try:
        with path.open("rb") as file:
            content = _PlainUnpickler(file, encoding="latin1").load()
        data = np.asarray(content["data"], dtype=np.uint8).reshape(-1, 3, SIDE, SIDE)
        fine = np.asarray(content["fine_labels"], dtype=np.int64)
        names = [str(name) for name in content["filenames"]]
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f"The file {path} is no intact pickle of CIFAR-100 ({error}). Get it again from {URL}."
        ) from error
    if not len(data) == len(fine) == len(names):
        raise ValueError(
            f"The file {path} has {len(data)} images, {len(fine)} labels and {len(names)} names."
        )
    return torch.from_numpy(data), fine, names


def _read_folders(folder: Path) -> Images:
    listing = list_images(folder, depth=1)
    fine = folder_targets(listing, FINE, strict=True)
    paths = [f"{listing.root}/{listing.path(i)}" for i in range(len(listing))]
    return _stack([decode_image(Path(path).read_bytes()) for path in paths], folder), fine, paths


def _read_parquet(shards: list[Path]) -> Images:
    rows = parquet.open_shards(shards)
    column = parquet.image_column(rows)
    fine = parquet.label_column(
        rows, "fine_label" if "fine_label" in rows.column_names else "label"
    )
    cells = [row[column] for row in rows]
    names = [cell["path"] or f"row {i}" for i, cell in enumerate(cells)]
    return _stack([decode_image(cell["bytes"]) for cell in cells], shards[0].parent), fine, names


def _stack(images: list[Tensor], where: Path) -> Tensor:
    sizes = {tuple(image.shape[1:]) for image in images}
    if sizes != {(SIDE, SIDE)}:
        raise ValueError(f"Expected images of {SIDE}x{SIDE} in {where} but found {sorted(sizes)}.")
    return torch.stack(images)


def read_npy(path: Path) -> npt.NDArray[Any]:
    """Maps a `.npy` file into memory, without ever unpickling objects.

    Raises:
        FileNotFoundError: If it doesn't exist.
        ValueError: If it is no intact array.
    """
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"The file {path} is no intact array ({error}). Copy it again.") from error
