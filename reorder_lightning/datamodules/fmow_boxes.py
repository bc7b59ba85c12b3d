"""The bounding boxes of fMoW's JSON files."""

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from reorder_lightning.datamodules.images import Box
from reorder_lightning.datamodules.listing import (
    Listing,
    cache_file,
    load_arrays,
    progress,
    save_arrays,
)
from reorder_lightning.datamodules.sampling import IntArray

_THREADS = 16
_SMALLEST = 3  # pixels; the challenge's baseline left smaller boxes out

# Margin around a box, as a share of its size, by its share of the image (fMoW/baseline).
_MARGINS = ((0.5, 0.15), (0.4, 0.2), (0.3, 0.3), (0.2, 0.5), (0.1, 1.0), (0.0, 2.0))


@dataclass(frozen=True)
class BoxTable:
    """One item for each image or box.

    Attributes:
        images: Index of the file in its listing, int64 `(N,)`.
        targets: Class index, int64 `(N,)`; -1 unknown, -2 outside of the class table.
        places: A number for each place, int64 `(N,)`.
        boxes: Left, top, width, height with margin, int64 `(N, 4)`; None for whole images.
        ids: The boxes' IDs, int64 `(N,)`; None for whole images.
    """

    images: IntArray
    targets: IntArray
    places: IntArray
    boxes: IntArray | None
    ids: IntArray | None

    def select(self, which: IntArray) -> "BoxTable":
        """Some of the items."""
        boxes = None if self.boxes is None else self.boxes[which]
        ids = None if self.ids is None else self.ids[which]
        return BoxTable(self.images[which], self.targets[which], self.places[which], boxes, ids)


def with_margin(box: Box, width: int, height: int) -> Box:
    """The challenge baseline's crop: a box with context, the more the smaller it is.

    Each side is moved out by `int(size * margin / 2)` and clipped to the image; the margin of each
    axis follows from the box's share of the image along the same axis. (The baseline divides the
    box's width by the image's height and the other way round.)

    Args:
        box: Left, top, width and height in pixels.
        width: Width of the image.
        height: Height of the image.

    Returns:
        Left, top, width and height of the crop.

    Example:
        >>> with_margin((400, 300, 200, 100), 1000, 1000)
        (350, 250, 300, 200)
    """
    x, y, w, h = box
    left, right = _widen(x, w, width)
    top, bottom = _widen(y, h, height)
    return left, top, right - left, bottom - top


def _widen(start: int, size: int, whole: int) -> tuple[int, int]:
    margin = next(m for share, m in _MARGINS if size / whole >= share)
    pad = int(size * margin / 2)
    return max(0, start - pad), min(whole, start + size + pad)


def read_boxes(path: Path) -> tuple[list[tuple[int, str | None, Box]], int, int]:
    """Reads ID, category and box of each bounding box, and the image's width and height.

    The box of ID -1, which is the whole image, is left out.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it isn't JSON of fMoW's form.
    """
    try:
        content = json.loads(path.read_bytes())
        found = content["bounding_boxes"]
        size = int(content["img_width"]), int(content["img_height"])
        boxes = []
        for item in found if isinstance(found, list) else [found]:
            if int(item["ID"]) != -1:
                x, y, w, h = (int(v) for v in item["box"])
                boxes.append((int(item["ID"]), item.get("category"), (x, y, w, h)))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"There is no {path} beside its image.") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"The file {path} is no JSON of fMoW ({error!r}).") from error
    return boxes, *size


def read_box_table(
    root: Path, split: str, listing: Listing, images: IntArray, class_names: Sequence[str]
) -> BoxTable:
    """Reads all boxes of a split; the result is cached as long as no file comes or goes.

    Args:
        root: Folder of the data set.
        split: "train", "val", "test" or "seq".
        listing: The files of the split.
        images: Which of them are the images.
        class_names: The class table.
    """
    digest = hashlib.sha256(listing.names.tobytes() + "\n".join(listing.folders).encode())
    truth = split in ("train", "val") or _truth_stamp(root, split)
    key = f"{(root / split).resolve()}\n{digest.hexdigest()}\n{len(class_names)}\n{truth}"
    cache = cache_file(key)
    arrays = load_arrays(cache)
    if arrays is None:
        arrays = _read_all(root, split, listing, images, class_names)
        save_arrays(cache, **arrays)
    return BoxTable(**arrays)


def _truth_stamp(root: Path, split: str) -> str:
    files = (root / f"{split}_gt_mapping.json", root / f"{split}_gt")
    return str([f.stat().st_mtime_ns if f.exists() else 0 for f in files])


def _read_all(
    root: Path, split: str, listing: Listing, images: IntArray, class_names: Sequence[str]
) -> dict[str, npt.NDArray[Any]]:
    index = {name: i for i, name in enumerate(class_names)}
    truth = None if split in ("train", "val") else _Truth(root, split)

    def read(image: int) -> list[tuple[int, ...]]:
        path = Path(f"{listing.root}/{listing.path(image)}").with_suffix(".json")
        boxes, width, height = read_boxes(path)
        rows: list[tuple[int, ...]] = []
        for number, category, box in boxes:
            if min(box[2:]) < _SMALLEST:
                continue
            if truth is not None:
                category = truth.category(path, number)
            target = -1 if category is None else index.get(category, -2)
            place = number if truth is not None else int(listing.folder_of[image])
            rows.append((image, target, place, number, *with_margin(box, width, height)))
        return rows

    with ThreadPoolExecutor(_THREADS) as pool:
        results = pool.map(read, images.tolist(), chunksize=64)
        shown = progress(results, f"Reading boxes of {listing.root}", len(images))
        rows = [row for image_rows in shown for row in image_rows]
    table = np.array(rows, dtype=np.int64).reshape(-1, 8)
    return {
        "images": table[:, 0],
        "targets": table[:, 1],
        "places": table[:, 2],
        "ids": table[:, 3],
        "boxes": table[:, 4:],
    }


class _Truth:
    """Categories of test boxes, from the ground-truth archive, by ID."""

    def __init__(self, root: Path, split: str) -> None:
        self.root = root
        mapping = root / f"{split}_gt_mapping.json"
        self.source: dict[str, str] = {}
        if mapping.is_file():
            try:
                entries = json.loads(mapping.read_bytes())
                self.source = {Path(e["output"]).name: e["input"] for e in entries}
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"The file {mapping} is no mapping of fMoW ({error!r})."
                ) from error

    def category(self, path: Path, number: int) -> str | None:
        """Category of a box, or None where there is no ground truth.

        Args:
            path: The test image's JSON, `<id>/<id>_<view>_rgb.json`.
            number: The box's ID.
        """
        folder = self.source.get(path.parent.name)
        if folder is None:
            return None
        view = path.name.removeprefix(path.parent.name)
        truth = self.root / folder / f"{Path(folder).name}{view}"
        if not truth.is_file():
            return Path(folder).parent.name
        return next((category for i, category, _ in read_boxes(truth)[0] if i == number), None)
