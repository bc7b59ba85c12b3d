"""Labels of ImageNet's flat validation folder, from the files that people have for it."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reorder_lightning.datamodules.classes import imagenet_wnids, shorten
from reorder_lightning.datamodules.listing import Listing
from reorder_lightning.datamodules.sampling import IntArray

_DEVKIT = "ILSVRC2012_validation_ground_truth.txt"
_USUAL = (
    "val.txt",
    "val.csv",
    "LOC_val_solution.csv",
    _DEVKIT,
    f"ILSVRC2012_devkit_t12/data/{_DEVKIT}",
)
_FILE_COLUMNS = ("file", "filename", "file_name", "path", "image", "imageid")
_CLASS_COLUMNS = ("wnid", "synset", "class", "label", "target", "class_index", "predictionstring")


def flat_targets(listing: Listing, names: Sequence[str], labels: str | None) -> IntArray:
    """Class index of each file of a flat folder; -1 for classes outside of the table.

    Args:
        listing: The files.
        names: The class table, wnids as a rule.
        labels: The label file. None: the first of the usual ones in or beside the folder.

    Returns:
        int64 `(N,)`.

    Raises:
        FileNotFoundError: If there is no label file.
        ValueError: If it lacks a column, a file, or has a label out of range.
    """
    path = _find(listing.root, labels)
    table = names if not set(names) <= set(imagenet_wnids()) else imagenet_wnids()
    if path.suffix == ".txt" and _is_devkit(path):
        found = _read_devkit(path, listing)
    elif path.suffix == ".csv":
        found = _read_csv(path)
    else:
        found = _read_pairs(path)
    index = {name: i for i, name in enumerate(names)}
    targets = np.full(len(listing), -1, dtype=np.int64)
    missing = []
    for i in range(len(listing)):
        name = listing.name(i)
        label = found.get(name, found.get(Path(name).stem))
        if label is None:
            missing.append(name)
        else:
            targets[i] = index.get(_class_name(label, table, path), -1)
    if missing:
        raise ValueError(f"The label file {path} has no line for {shorten(missing)}.")
    return targets


def _find(folder: Path, labels: str | None) -> Path:
    if labels is not None:
        path = Path(labels).expanduser()
        if path.is_file():
            return path
        raise FileNotFoundError(f"There is no label file {path} (argument `val_labels`).")
    for place in (folder.parent, folder, folder.parent.parent):
        for name in _USUAL:
            if (place / name).is_file():
                return place / name
    raise FileNotFoundError(
        f"The images in {folder} lie flat, so their labels must come from a file, and there is"
        f" none. Put one of {', '.join(_USUAL[:4])} into {folder.parent}, name it in"
        f" `val_labels`, or sort the images into class folders: {folder}/<wnid>/<image>."
    )


def _class_name(label: str, table: Sequence[str], path: Path) -> str:
    """A label is a class name or the index of one."""
    if not label.lstrip("-").isdigit():
        if label not in table:
            raise ValueError(f"The label file {path} has the unknown class {label!r}.")
        return label
    if not 0 <= int(label) < len(table):
        raise ValueError(
            f"The label file {path} has the label {label}, out of range: expected 0 to"
            f" {len(table) - 1}."
        )
    return table[int(label)]


def _read_pairs(path: Path) -> dict[str, str]:
    """Caffe's `val.txt`: a file and its class in each line."""
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        parts = line.split()
        if len(parts) >= 2:
            found[Path(parts[0]).name] = parts[1]
        elif parts:
            raise ValueError(f"Expected a file and a class in line {number} of {path}: {line!r}.")
    return found


def _read_csv(path: Path) -> dict[str, str]:
    """A table with a column of files and one of classes; Kaggle's solution file is one."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        columns = {(c or "").strip().lower(): c for c in reader.fieldnames or ()}
        file_column = next((columns[c] for c in _FILE_COLUMNS if c in columns), None)
        class_column = next((columns[c] for c in _CLASS_COLUMNS if c in columns), None)
        for column, allowed in ((file_column, _FILE_COLUMNS), (class_column, _CLASS_COLUMNS)):
            if column is None:
                raise ValueError(
                    f"The label file {path} has the columns {', '.join(columns)} but none of"
                    f" {', '.join(allowed)}."
                )
        assert file_column is not None
        assert class_column is not None
        # Kaggle's PredictionString goes on with boxes.
        return {Path(r[file_column]).name: r[class_column].split()[0] for r in reader}


def _is_devkit(path: Path) -> bool:
    with path.open(encoding="utf-8") as file:
        return len(file.readline().split()) == 1


def _read_devkit(path: Path, listing: Listing) -> dict[str, str]:
    """The devkit's ground truth: an ILSVRC2012_ID for each image, in the order of their names.

    These ids are not in the order of the wnids; `meta.mat` beside the file has the table.
    """
    ids = path.read_text(encoding="utf-8").split()
    if len(ids) != len(listing):
        raise ValueError(
            f"{path} has {len(ids)} lines but {listing.root} has {len(listing)} images. They go"
            " together line by line, so all images must be there."
        )
    wnids = _read_meta(path.with_name("meta.mat"))
    unknown = sorted({i for i in ids if int(i) not in wnids})
    if unknown:
        raise ValueError(f"{path} has ids out of range: {shorten(unknown)}.")
    return {listing.name(i): wnids[int(number)] for i, number in enumerate(ids)}


def _read_meta(path: Path) -> dict[int, str]:
    if not path.is_file():
        raise FileNotFoundError(
            f"The ids in {_DEVKIT} need the devkit's meta.mat beside it, and there is no {path}."
        )
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise ValueError(
            f"Reading {path} needs SciPy: pip install 'reorder-lightning[data]', or give a val.txt."
        ) from error
    synsets = loadmat(path, squeeze_me=True)["synsets"]
    return {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in np.atleast_1d(synsets)}
