"""Which files lie in a big folder: found out once, remembered, and noticed when it changes.

A list of 1.3 million paths as Python strings costs 150 MB and is copied into each worker process
as reference counts touch its pages. Here the names are one block of bytes with offsets.
"""

import hashlib
import os
import sys
import time
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import track

from reorder_lightning.datamodules.images import SUFFIXES
from reorder_lightning.datamodules.sampling import IntArray

# A folder that changed so shortly before it was read may change again without a new time stamp.
_SETTLED_NS = 2_000_000_000
_T = TypeVar("_T")

# Waiting for a network file system, not computing.
_THREADS = 16


@dataclass(frozen=True)
class Listing:
    """The image files of a folder, ordered by folder and name.

    Attributes:
        root: The folder.
        folders: Folders that hold files, relative to the root, in order.
        folder_of: Index into `folders` of each file, int32 `(N,)`.
        names: All file names, one after the other, in UTF-8: uint8 `(bytes,)`.
        ends: Where each name ends in `names`, int64 `(N,)`.
    """

    root: Path
    folders: list[str]
    folder_of: npt.NDArray[np.int32]
    names: npt.NDArray[np.uint8]
    ends: IntArray

    def __len__(self) -> int:
        return len(self.ends)

    def name(self, index: int) -> str:
        """File name without folder."""
        start = self.ends[index - 1] if index else 0
        return self.names[start : self.ends[index]].tobytes().decode("utf-8", "surrogateescape")

    def path(self, index: int) -> str:
        """Path from the root, with `/`."""
        folder = self.folders[self.folder_of[index]]
        return f"{folder}/{self.name(index)}" if folder else self.name(index)


def list_images(root: Path, depth: int) -> Listing:
    """Lists the image files exactly `depth` folders below `root`.

    The result is remembered in the user's cache folder (`$XDG_CACHE_HOME/reorder_lightning`, by
    default `~/.cache/reorder_lightning`) and used again as long as no folder's time stamp has
    changed, that is, as long as no file was added, removed or renamed.

    Args:
        root: The folder.
        depth: 0 for files in `root` itself, 1 for class folders, 2 for folders in class folders.

    Returns:
        The listing. Hidden files and folders, and files that are no images by name, are left out.

    Raises:
        FileNotFoundError: If there is no such folder.
        PermissionError: If a folder can't be read.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder {root}.")
    cache = cache_file(f"{root.resolve()}\n{depth}")
    return _load(root, cache) or _scan(root, depth, cache)


def cache_file(key: str) -> Path:
    """Path in the user's cache folder for a key."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:24]
    return Path(home) / "reorder_lightning" / f"{digest}.npz"


def save_arrays(path: Path, **arrays: npt.NDArray[Any]) -> None:
    """Writes arrays to a cache file, all or nothing; a full or read-only disk is no error."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)


def load_arrays(path: Path) -> dict[str, npt.NDArray[Any]] | None:
    """Reads a cache file; None if it is missing or damaged."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return None


def _load(root: Path, cache: Path) -> Listing | None:
    arrays = load_arrays(cache)
    if arrays is None:
        return None
    every = arrays["every"].tobytes().decode("utf-8", "surrogateescape").split("\n")
    with ThreadPoolExecutor(_THREADS) as pool:
        now = list(pool.map(_stamp, (root / folder for folder in every)))
    if now != arrays["stamps"].tolist():
        return None
    counts = arrays["counts"]
    folders = [f for f, count in zip(every, counts.tolist(), strict=True) if count]
    return _listing(root, folders, counts[counts > 0], arrays["names"], arrays["ends"])


def _listing(
    root: Path, folders: list[str], counts: IntArray, names: npt.NDArray[np.uint8], ends: IntArray
) -> Listing:
    folder_of = np.repeat(np.arange(len(folders), dtype=np.int32), counts)
    return Listing(root, folders, folder_of, names, ends)


def _stamp(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return -1


def _scan(root: Path, depth: int, cache: Path) -> Listing:
    start = time.time_ns()
    every: list[str] = []
    stamps: list[int] = []
    blocks: list[tuple[bytes, list[int]]] = []
    level = [""]
    with ThreadPoolExecutor(_THREADS) as pool:
        for below in range(depth, -1, -1):
            reader = _read_files if below == 0 else _read_folders
            results = pool.map(reader, (root / folder for folder in level))
            every += level
            found = []
            for folder, (stamp, content) in zip(
                level, progress(results, f"Listing {root}", len(level)), strict=True
            ):
                stamps.append(stamp)
                if isinstance(content, tuple):
                    blocks.append(content)
                else:
                    blocks.append((b"", []))
                    found += [f"{folder}/{name}" if folder else name for name in content]
            level = sorted(found)
    counts = np.array([len(lengths) for _, lengths in blocks], dtype=np.int64)
    names = np.frombuffer(b"".join(block for block, _ in blocks), dtype=np.uint8)
    ends = np.cumsum([n for _, lengths in blocks for n in lengths], dtype=np.int64)
    if max(stamps) < start - _SETTLED_NS:
        text = "\n".join(every).encode("utf-8", "surrogateescape")
        save_arrays(
            cache,
            every=np.frombuffer(text, dtype=np.uint8),
            stamps=np.array(stamps, dtype=np.int64),
            counts=counts,
            names=names,
            ends=ends,
        )
    folders = [f for f, count in zip(every, counts.tolist(), strict=True) if count]
    return _listing(root, folders, counts[counts > 0], names, ends)


def progress(results: Iterable[_T], text: str, total: int) -> Iterator[_T]:
    """Shows a progress bar on a terminal while long results come in."""
    quiet = total < 100 or not sys.stderr.isatty()
    console = Console(stderr=True)
    yield from track(results, text, total, console=console, transient=True, disable=quiet)


_Content = tuple[int, "list[str] | tuple[bytes, list[int]]"]


def _read_folders(folder: Path) -> _Content:
    stamp = _stamp(folder)
    with os.scandir(folder) as entries:
        names = [e.name for e in entries if not e.name.startswith(".") and e.is_dir()]
    return stamp, sorted(names)


def _read_files(folder: Path) -> _Content:
    stamp = _stamp(folder)
    with os.scandir(folder) as entries:
        names = [e.name for e in entries if e.name.lower().endswith(SUFFIXES)]
    coded = sorted(n.encode("utf-8", "surrogateescape") for n in names if not n.startswith("."))
    return stamp, (b"".join(coded), [len(n) for n in coded])
