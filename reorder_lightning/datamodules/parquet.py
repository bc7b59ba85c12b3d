"""Parquet shards with encoded images, as Hugging Face writes them; needs the `data` extra."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from reorder_lightning.datamodules.sampling import IntArray
from reorder_lightning.datamodules.sources import EncodedImages

_SPLIT = {"train": "train", "val": "val|valid|validation", "test": "test"}


def find_shards(root: Path, split: str) -> list[Path]:
    """The shards of one split in `root` or `root/data`: `train-00000-of-00294.parquet`.

    Args:
        root: Folder.
        split: "train", "val" or "test".
    """
    pattern = re.compile(rf"(?:{_SPLIT[split]})(?:[-_.].*)?\.parquet", re.IGNORECASE)
    folders = (root, root / "data")
    return sorted(
        p for f in folders if f.is_dir() for p in f.iterdir() if pattern.fullmatch(p.name)
    )


def open_shards(shards: list[Path]) -> Any:
    """Opens shards as a `datasets.Dataset` that gives encoded images.

    The `datasets` package copies them once into its cache (`$HF_HOME`), as a file that all
    processes map into memory.

    Raises:
        ValueError: If the package is missing, or a shard is damaged.
    """
    try:
        from datasets import Image, load_dataset
        from datasets.exceptions import DatasetGenerationError
    except ImportError as error:
        raise ValueError(
            "Reading parquet shards needs the datasets package: pip install"
            " 'reorder-lightning[data]'."
        ) from error
    for shard in shards:
        _check_whole(shard)
    try:
        rows = load_dataset("parquet", data_files=[str(s) for s in shards], split="train")
    except DatasetGenerationError as error:
        raise ValueError(
            f"The parquet shards in {shards[0].parent} can't be read ({error.__cause__})."
        ) from error
    return rows.cast_column(image_column(rows), Image(decode=False))


def _check_whole(shard: Path) -> None:
    """A parquet file starts and ends with the same four letters."""
    with shard.open("rb") as file:
        start = file.read(4)
        file.seek(max(0, shard.stat().st_size - 4))
        if start != b"PAR1" or file.read(4) != b"PAR1":
            raise ValueError(f"The parquet shard {shard} is damaged or cut short. Copy it again.")


def image_column(rows: Any) -> str:
    """The column with the images, "image" or "img".

    Raises:
        ValueError: If there is none.
    """
    for name in ("image", "img"):
        if name in rows.column_names:
            return name
    raise ValueError(
        f"Expected a column `image` or `img` in the parquet shards but found {rows.column_names}."
    )


def label_column(rows: Any, name: str) -> IntArray:
    """A column of class indices, int64 `(N,)`.

    Raises:
        ValueError: If there is no such column.
    """
    if name not in rows.column_names:
        raise ValueError(
            f"Expected a column `{name}` in the parquet shards but found {rows.column_names}."
        )
    return np.asarray(rows.with_format("numpy")[name][:], dtype=np.int64)


def label_names(rows: Any, name: str) -> list[str]:
    """Class names of a label column, or the indices as text where the shards have none."""
    names = getattr(rows.features[name], "names", None)
    return list(names or (str(i) for i in range(int(label_column(rows, name).max()) + 1)))


class ParquetImages(EncodedImages):
    """Some rows of parquet shards.

    Args:
        rows: From `open_shards`.
        which: Rows to use, int64 `(N,)`.
        targets: Their class indices, int64 `(N,)`.
        **options: As for `EncodedImages`.
    """

    def __init__(self, rows: Any, which: IntArray, targets: IntArray, **options: Any) -> None:
        super().__init__(**options)
        self.rows = rows
        self.which = which
        self.targets = targets
        self._column = image_column(rows)

    def __len__(self) -> int:
        return len(self.which)

    def name(self, index: int) -> str:
        """File name where the shards keep it, else the row's number."""
        row = int(self.which[index])
        return self.rows[row][self._column]["path"] or f"row {row}"

    def read(self, index: int) -> bytes:
        """Content of an image."""
        data: bytes = self.rows[int(self.which[index])][self._column]["bytes"]
        return data

    def target(self, index: int) -> int:
        """Class index of an image."""
        return int(self.targets[index])
