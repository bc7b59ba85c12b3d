"""The ranking of the fixed orders on a data set, made once and kept."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

from torch import Tensor
from torch.nn.functional import interpolate

import reorder_lightning
from reorder_lightning.order_files import Grid
from reorder_lightning.orders import ORDERS
from reorder_lightning.patch_tokens import KMeansTokenizer, tokenize
from reorder_lightning.prior import order_prior

ReadImages: TypeAlias = Callable[[int], Iterator[Tensor]]
"""From how many images at most to their batches, float32 ``(B, C, H, W)``; the same each time."""

_IMAGES = 2000  # as `reorder prior`
_DIGESTED = 256  # images that tell one data set from another, read at every start
_CODES = 1024
_PATCHES_PER_CODE = 25
_ORDERS = [name for name in ORDERS if name != "random"]


class Ranking(NamedTuple):
    """What is kept of a prior.

    Attributes:
        saved: % saved by LZMA in each fixed order, the most compressible first.
        tied: orders that the images do not tell apart from the first.
        shuffled: % saved on shuffled patches.
        informative: whether any order differs from shuffled patches.
        images: number of images.
    """

    saved: dict[str, float]
    tied: list[str]
    shuffled: float
    informative: bool
    images: int


def rank_orders(read: ReadImages, grid: Grid) -> tuple[Ranking, str]:
    """Rank the fixed orders on images, or read the ranking if it was made before.

    Up to 2,000 images are cut into the patches of the grid, as tokens of up to 1,024 k-means codes.
    The kept file is found by a digest of the package's version, the grid and the first 256 images.

    Args:
        read: gives the images.
        grid: rows and columns of patches.

    Returns:
        The ranking, and in words where it came from.

    Raises:
        ValueError: no images, or scikit-learn is not installed.
    """
    began = time.monotonic()
    digest = hashlib.sha256(repr((reorder_lightning.__version__, grid, _IMAGES)).encode())
    seen, size = 0, grid
    for images in read(_DIGESTED):
        digest.update(repr(tuple(images.shape)).encode())
        digest.update(images.numpy().tobytes())
        seen += len(images)
        size = _divisible_size(images, grid)
    if not seen:
        raise ValueError('`start="auto"` finds no images in the training data.')
    path = cache_folder() / f"{digest.hexdigest()[:16]}.json"
    known = _load(path)
    if known is not None:
        return known, f"Read from {path}."
    ranking = _measure(read, grid, size, seen if seen < _DIGESTED else _IMAGES)
    taken = f"Ranked in {time.monotonic() - began:.0f} s"
    try:
        _save(path, ranking)
    except OSError as error:
        return ranking, f"{taken}, not kept for the next time ({error})."
    return ranking, f"{taken}, kept in {path}."


def cache_folder() -> Path:
    """Where rankings are kept: ``reorder_lightning/prior`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Each of them is a small JSON file that may be deleted at any time.
    """
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(root, "reorder_lightning", "prior")


def _measure(read: ReadImages, grid: Grid, size: tuple[int, int], images: int) -> Ranking:
    def batches() -> Iterator[Tensor]:
        for batch in read(_IMAGES):
            same = tuple(batch.shape[-2:]) == size
            yield batch if same else interpolate(batch, size, mode="bilinear", antialias=True)

    patch = (size[0] // grid[0], size[1] // grid[1])
    codes = max(2, min(_CODES, images * grid[0] * grid[1] // _PATCHES_PER_CODE))
    tokens = tokenize(batches, KMeansTokenizer(patch, codes))
    prior = order_prior(tokens, codes, {name: ORDERS[name](*grid) for name in _ORDERS})
    return Ranking(
        {row.order: row.score.value for row in prior.orders},
        prior.tied,
        prior.control.score.value,
        prior.informative,
        prior.images,
    )


def _divisible_size(images: Tensor, grid: Grid) -> tuple[int, int]:
    """The size nearest to that of the images that divides into the patches of the grid."""
    height, width = (
        n * max(1, round(side / n)) for n, side in zip(grid, images.shape[-2:], strict=True)
    )
    return height, width


def _load(path: Path) -> Ranking | None:
    """A kept ranking; None if there is none, or what there is can't be used."""
    try:
        ranking = Ranking(**json.loads(path.read_text(encoding="utf-8")))
        return ranking if set(ranking.saved) == set(_ORDERS) else None
    except (OSError, ValueError, TypeError):
        return None


def _save(path: Path, ranking: Ranking) -> None:
    """Write in one step, so that trainings that start at the same time read whole files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(ranking._asdict(), indent=1) + "\n", encoding="utf-8")
    part.replace(path)
