"""fMoW in WILDS (Koh et al., ICML 2021): `fmow_v1.1`, images of 224x224 numbered by a csv."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reorder_lightning.datamodules.sampling import IntArray
from reorder_lightning.datamodules.sources import EncodedImages

METADATA = "rgb_metadata.csv"
_COLUMNS = ("split", "img_filename", "category", "timestamp")

# First year of the out-of-distribution validation and test images.
_VAL_YEAR, _TEST_YEAR = 2013, 2016

Rows = tuple[IntArray, IntArray, IntArray]  # row in the csv, class index, place


def read_metadata(root: Path, class_names: Sequence[str]) -> dict[str, Rows]:
    """Reads which images belong to which split.

    Images are numbered by the rows of the csv, those of split `seq` included, which are then left
    out. "train", "id_val" and "id_test" are from before 2013; "val" is of 2013 to 2015, "test" of
    2016 on.

    Args:
        root: The folder `fmow_v1.1`.
        class_names: The class table.

    Returns:
        Rows, class indices and place numbers, int64 each, by split.

    Raises:
        ValueError: If a column is missing or a category unknown.
    """
    path = root / METADATA
    index = {name: i for i, name in enumerate(class_names)}
    places: dict[str, int] = {}
    parts: dict[str, list[tuple[int, int, int]]] = {
        name: [] for name in ("train", "id_val", "id_test", "val", "test")
    }
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [c for c in _COLUMNS if c not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(f"The file {path} lacks the columns {', '.join(missing)}.")
        for number, row in enumerate(reader):
            part = _part(row["split"], int(row["timestamp"][:4]))
            if part is None:
                continue
            if row["category"] not in index:
                raise ValueError(
                    f"The file {path} has the unknown category {row['category']!r} in row {number}."
                )
            name = row["img_filename"].removesuffix("_rgb.jpg").rpartition("_")[0]
            place = places.setdefault(f"{row['split']}/{name}", len(places))
            parts[part].append((number, index[row["category"]], place))
    tables = {part: np.array(rows, dtype=np.int64).reshape(-1, 3) for part, rows in parts.items()}
    return {part: (t[:, 0], t[:, 1], t[:, 2]) for part, t in tables.items()}


def _part(split: str, year: int) -> str | None:
    if split == "train" and year < _VAL_YEAR:
        return "train"
    if split == "val":
        return "id_val" if year < _VAL_YEAR else "val" if year < _TEST_YEAR else None
    if split == "test":
        return "id_test" if year < _VAL_YEAR else "test" if year >= _TEST_YEAR else None
    return None


class WildsImages(EncodedImages):
    """Some of the numbered images.

    Args:
        root: The folder `fmow_v1.1`.
        rows: Their numbers, int64 `(N,)`.
        targets: Their class indices, int64 `(N,)`.
        places: A number for each place, int64 `(N,)`.
        **options: As for `EncodedImages`.

    Raises:
        ValueError: If there is none.
    """

    def __init__(
        self, root: Path, rows: IntArray, targets: IntArray, places: IntArray, **options: Any
    ) -> None:
        super().__init__(**options)
        if not len(rows):
            raise ValueError(f"The file {root / METADATA} has no row of the split to open.")
        self.root = root
        self.rows = rows
        self.targets = targets
        self.places = places

    def select(self, which: IntArray) -> None:
        """Keeps some images."""
        self.rows, self.targets = self.rows[which], self.targets[which]
        self.places = self.places[which]

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        """Path of an image."""
        return f"{self.root}/images/rgb_img_{self.rows[index]}.png"

    def read(self, index: int) -> bytes:
        """Content of an image file."""
        return Path(self.name(index)).read_bytes()

    def target(self, index: int) -> int:
        """Class index of an image."""
        return int(self.targets[index])
