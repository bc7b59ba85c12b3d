"""One class table for all splits, and a check of what lies on disk against it."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from timm.data import ImageNetInfo

from reorder_lightning.datamodules.listing import Listing
from reorder_lightning.datamodules.sampling import IntArray

IMAGENET_1K = "imagenet-1k"


def imagenet_wnids() -> list[str]:
    """The 1,000 wnids of ImageNet-1K in the order of their class indices (timm's copy)."""
    return list(ImageNetInfo(IMAGENET_1K).label_names())


def class_folders(folder: Path) -> list[str]:
    """Names of the class folders, sorted: the place is the class index.

    Raises:
        FileNotFoundError: If there is no such folder, or none in it.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}.")
    with os.scandir(folder) as entries:
        names = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    if not names:
        raise FileNotFoundError(
            f"The folder {folder} has no class folders. Expected {folder}/<class>/<image>."
        )
    return names


def wanted_classes(classes: str | Sequence[str]) -> list[str]:
    """The class names that a user asks for, sorted.

    Args:
        classes: "imagenet-1k", the path of a text file with one class a line, or the names.

    Raises:
        FileNotFoundError: If the file doesn't exist.
        ValueError: If a class is named twice, or none.
    """
    if classes == IMAGENET_1K:
        return imagenet_wnids()
    if isinstance(classes, str):
        path = Path(classes).expanduser()
        if not path.is_file():
            raise FileNotFoundError(
                f"Expected argument `classes` to be '{IMAGENET_1K}', a list of class names or a"
                f" file with one a line but there is no file {path}."
            )
        lines = path.read_text(encoding="utf-8").splitlines()
        classes = [line.split()[0] for line in lines if line.strip()]
    names = sorted(set(classes))
    if not names or len(names) < len(classes):
        raise ValueError(
            f"Expected argument `classes` to name each class once but got {len(classes)} names of"
            f" {len(names)} classes."
        )
    return names


def folder_targets(listing: Listing, names: Sequence[str], *, strict: bool) -> IntArray:
    """Class index of each file from its class folder; -1 for folders outside of the table.

    Args:
        listing: Files in class folders.
        names: The class table.
        strict: A folder outside of the table is an error.

    Returns:
        int64 `(N,)`.

    Raises:
        ValueError: If there is no image, or an unknown class and `strict`.
    """
    if not len(listing):
        raise ValueError(f"The folder {listing.root} holds no image in its class folders.")
    index = {name: i for i, name in enumerate(names)}
    unknown = [f for f in listing.folders if f not in index]
    if unknown and strict:
        raise ValueError(
            f"The folder {listing.root} has classes that the training images don't have:"
            f" {shorten(unknown)}. Remove them, or list the classes to use in `classes`."
        )
    of_folder = np.array([index.get(f, -1) for f in listing.folders], dtype=np.int64)
    return np.asarray(of_folder[listing.folder_of])


def shorten(names: Sequence[str], most: int = 5) -> str:
    """The first few of many names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
