"""Functional Map of the World (Christie et al., CVPR 2018), and its copy in WILDS (2021)."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from reorder_lightning.datamodules.base import ImageDataModule, Split, write_csv
from reorder_lightning.datamodules.classes import folder_targets, shorten
from reorder_lightning.datamodules.fmow_boxes import BoxTable, read_box_table
from reorder_lightning.datamodules.fmow_classes import ALPHABETICAL, CHALLENGE
from reorder_lightning.datamodules.fmow_wilds import METADATA, WildsImages, read_metadata
from reorder_lightning.datamodules.images import IMAGENET_MEAN, IMAGENET_STD, Augment, Box
from reorder_lightning.datamodules.listing import Listing, list_images
from reorder_lightning.datamodules.loader import ImageSource
from reorder_lightning.datamodules.sampling import BoolArray, IntArray, held_out
from reorder_lightning.datamodules.sources import EncodedImages

_log = logging.getLogger(__name__)

_SUFFIX = "_rgb.jpg"


class FMoW(ImageDataModule):
    """fMoW-rgb as released, or the WILDS copy (`rgb_metadata.csv` in `root`).

    Released: `{train,val}/<category>/<category>_<location>/<...>_<view>_rgb.jpg` with a `.json`
    beside each, `{test,seq}/<id>/<id>_<view>_rgb.jpg` with `{test,seq}_gt_mapping.json` and the
    ground truth in `{test,seq}_gt`, which is an archive of its own. `_msrgb` files are left out.
    Images of any size are read; PIL's global limit stays as it is.

    The class index is that of `class_names`, which each checkpoint holds: the two orders in use
    differ in 18 of 62 indices.

    Args:
        root: The folder with `train` and `val`, or `fmow_v1.1` of WILDS.
        crop: "full" takes the whole image, as REOrder does. "box" takes each bounding box with
            the challenge baseline's margin; boxes of 2 pixels and less are left out.
        classes: "alphabetical", the 62 classes, or "challenge", the baseline's 63, of which the
            first is false_detection.
        test: Images for `test` and `predict`: "test", "seq", or "val".
        val_split: Share of the training places to validate on instead of `val`. All views of a
            place stay together.
        shift: For WILDS: validate and test on later years (2013 to 2015, 2016 on), not on those
            of the training.
        image_size: Side, or height and width, that the model sees.
        augment: Training transform; "paper" is resize 256, centre crop 224, flip.
        **options: `batch_size`, `num_workers`, `seed`, `predict_path`, `on_bad_image`, `exif`,
            see `ImageDataModule`.

    Raises:
        FileNotFoundError: If there is no such data.
        ValueError: If an argument or a file is wrong; the message says where.

    Example:
        >>> FMoW("/data/fmow-rgb").setup("fit")  # doctest: +SKIP
    """

    def __init__(
        self,
        root: str,
        crop: Literal["full", "box"] = "full",
        classes: Literal["alphabetical", "challenge"] = "alphabetical",
        test: Literal["test", "seq", "val"] = "val",
        val_split: float = 0.0,
        shift: bool = True,
        image_size: int | tuple[int, int] = 224,
        augment: Augment = "paper",
        **options: Any,
    ) -> None:
        for name, value, allowed in (
            ("crop", crop, ("full", "box")),
            ("classes", classes, ("alphabetical", "challenge")),
            ("test", test, ("test", "seq", "val")),
        ):
            if value not in allowed:
                raise ValueError(
                    f"Expected argument `{name}` to be one of {allowed} but got {value!r}."
                )
        super().__init__(
            class_names=ALPHABETICAL if classes == "alphabetical" else CHALLENGE,
            image_size=image_size,
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
            augment=augment,
            **options,
        )
        self.root = Path(root).expanduser()
        self.crop = crop
        self.test = test
        self.val_split = val_split
        self.shift = shift
        # A box is resized as it is, whatever its aspect.
        self.crop_ratio = None if crop == "box" else 224 / 256

    @property
    def decoding(self) -> dict[str, Any]:
        """Options for `EncodedImages`; satellite images may be larger than PIL's limit."""
        return {**super().decoding, "any_size": True}

    @property
    def _wilds(self) -> bool:
        return (self.root / METADATA).is_file()

    def prepare_data(self) -> None:
        """Lists folders and reads boxes once on each node; other processes find them cached."""
        if not self._wilds:
            for split in ("train", "val"):
                if (self.root / split).is_dir():
                    self._released(split)

    def source(self, split: Split) -> ImageSource:
        """Opens the images of one split."""
        folder = {"train": "train", "val": "val"}.get(split, self.test)
        from_train = split == "train" or (self.val_split > 0 and folder == "val")
        source: FMoWImages | WildsImages
        if self._wilds:
            years = {"train": "train", "val": "val" if self.shift else "id_val"}
            years |= {"test": "test" if self.shift else "id_test"}
            folder = "train" if from_train else years.get(folder, folder)
            rows = read_metadata(self.root, self.class_names)[folder]
            source = WildsImages(self.root, *rows, **self.decoding)
        else:
            table = self._released("train" if from_train else folder)
            source = FMoWImages(*table, **self.decoding)
        keep = np.ones(len(source), dtype=np.bool_)
        if from_train:
            val = held_out(source.places, source.targets, self.val_split)
            keep = ~val if split == "train" else val
        if split != "predict":
            keep &= self._labelled(source.targets, split)
        source.select(np.flatnonzero(keep))
        return source

    def _labelled(self, targets: IntArray, split: str) -> BoolArray:
        """Which images have a class in the table; -2 are classes outside of it, -1 unknown."""
        outside = int((targets == -2).sum())
        if outside:
            _log.warning(
                "%s, %s: left out %d images of classes outside of the %d (false_detection).",
                self.root,
                split,
                outside,
                self.num_classes,
            )
        if (targets == -1).any():
            raise ValueError(
                f"{int((targets == -1).sum())} images of {self.test!r} in {self.root} have no"
                f" label. The ground truth is an archive of its own: unpack {self.test}_gt and"
                f" {self.test}_gt_mapping.json into {self.root}, or use `reorder predict`."
            )
        return np.asarray(targets >= 0)

    def _released(self, split: str) -> tuple[Listing, BoxTable]:
        """Files of one split, and an item for each image or box."""
        if not (self.root / split).is_dir():
            raise FileNotFoundError(
                f"There is no folder {self.root / split}. Expected the folders train and val of"
                f" fMoW-rgb, or {METADATA} of WILDS, in {self.root}."
            )
        by_category = split in ("train", "val")
        listing = list_images(self.root / split, depth=2 if by_category else 1)
        images = _rgb_files(listing)
        if not len(images):
            raise FileNotFoundError(f"The folder {self.root / split} holds no image *{_SUFFIX}.")
        if not by_category or self.crop == "box":
            return listing, read_box_table(self.root, split, listing, images, self.class_names)
        targets = self._folder_targets(listing)[images]
        places = listing.folder_of[images].astype(np.int64)
        return listing, BoxTable(images, targets, places, None, None)

    def _folder_targets(self, listing: Listing) -> IntArray:
        categories = [folder.split("/")[0] for folder in listing.folders]
        unknown = sorted(set(categories) - set(ALPHABETICAL) - {"false_detection"})
        if unknown:
            raise ValueError(
                f"{listing.root} has folders that are no categories of fMoW: {shorten(unknown)}."
            )
        flat = Listing(listing.root, categories, listing.folder_of, listing.names, listing.ends)
        targets = folder_targets(flat, self.class_names, strict=False)
        targets[targets < 0] = -2
        return targets

    def write_tables(self, folder: Path, names: Sequence[str], probabilities: Tensor) -> list[Path]:
        """Writes `places.csv`, one class for all views of a place, and the challenge's csv.

        `challenge.csv` has a line `<box ID>,<category>` for each box of "test" or "seq" and no
        header, as the challenge asked for.
        """
        source = self.open("predict")
        if not isinstance(source, FMoWImages):
            return []
        rows = place_table([source.place_name(n) for n in names], probabilities, self.class_names)
        files = [write_csv(folder / "places.csv", rows)]
        if self.test in ("test", "seq"):
            lines = [f"{row['place']},{row['class']}\n" for row in rows]
            files.append(folder / "challenge.csv")
            files[-1].write_text("".join(lines), encoding="utf-8")
        return files


def place_table(
    places: Sequence[str], probabilities: Tensor, class_names: Sequence[str]
) -> list[dict[str, Any]]:
    """One class for each place: that of the largest sum of probabilities over its views.

    Args:
        places: Place of each image.
        probabilities: float `(N, C)`.
        class_names: The C names.

    Returns:
        Rows of place, class, probability (mean over the views) and views, sorted by place.

    Example:
        >>> place_table(["a", "a"], torch.tensor([[0.6, 0.4], [0.1, 0.9]]), ["dam", "zoo"])[0]
        {'place': 'a', 'class': 'zoo', 'probability': 0.65, 'views': 2}
    """
    unique, index = np.unique(np.asarray(places), return_inverse=True)
    inverse = torch.from_numpy(index.reshape(-1))
    probabilities = probabilities.double().cpu()
    sums = torch.zeros(len(unique), probabilities.shape[1], dtype=torch.float64)
    sums.index_add_(0, inverse, probabilities)
    views = inverse.bincount(minlength=len(unique))
    best, which = (sums / views[:, None]).max(dim=1)
    return [
        {"place": str(place), "class": class_names[c], "probability": round(p, 6), "views": v}
        for place, c, p, v in zip(
            unique, which.tolist(), best.tolist(), views.tolist(), strict=True
        )
    ]


class FMoWImages(EncodedImages):
    """Images, or boxes in images, of the released tree.

    Args:
        listing: The files.
        table: The items.
        **options: As for `EncodedImages`.
    """

    def __init__(self, listing: Listing, table: BoxTable, **options: Any) -> None:
        super().__init__(**options)
        self.listing = listing
        self.table = table
        self.crop = options["crop_ratio"] is None

    @property
    def targets(self) -> IntArray:
        """Class indices; -1 unknown, -2 outside of the table."""
        return self.table.targets

    @property
    def places(self) -> IntArray:
        """A number for each place."""
        return self.table.places

    def select(self, which: IntArray) -> None:
        """Keeps some items."""
        self.table = self.table.select(which)

    def __len__(self) -> int:
        return len(self.table.images)

    def name(self, index: int) -> str:
        """Path of an image, with `#<box ID>` where the item is a box."""
        path = self._path(index)
        return path if self.table.ids is None else f"{path}#{self.table.ids[index]}"

    def _path(self, index: int) -> str:
        return f"{self.listing.root}/{self.listing.path(int(self.table.images[index]))}"

    def place_name(self, name: str) -> str:
        """Box ID for "test" and "seq", else the folder of the place, from an item's name."""
        if self.table.ids is None:
            return Path(name).parent.name
        path, _, number = name.rpartition("#")
        return Path(path).parent.name if self.listing.root.name in ("train", "val") else number

    def read(self, index: int) -> bytes:
        """Content of an image file."""
        return Path(self._path(index)).read_bytes()

    def target(self, index: int) -> int:
        """Class index of an item."""
        return int(self.table.targets[index])

    def box(self, index: int) -> Box | None:
        """Left, top, width and height of the crop."""
        if not self.crop or self.table.boxes is None:
            return None
        x, y, w, h = self.table.boxes[index].tolist()
        return x, y, w, h


def _rgb_files(listing: Listing) -> IntArray:
    """Indices of the `_rgb.jpg` files, found without a Python string for each file."""
    suffix = np.frombuffer(_SUFFIX.encode(), dtype=np.uint8)
    lengths = np.diff(listing.ends, prepend=0)
    matches = lengths > len(suffix)
    for i, letter in enumerate(suffix[::-1]):
        matches &= listing.names[np.maximum(listing.ends - 1 - i, 0)] == letter
    return np.flatnonzero(matches)
