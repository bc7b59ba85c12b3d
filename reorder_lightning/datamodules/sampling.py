"""Which images come in which batch: seeded by epoch, resumable in mid-epoch, split over processes.

Everything random here is a pure function of integers, so a stopped and resumed run, a run with
other worker processes, and an uninterrupted one see the same pixels in the same order. The global
random number generators are neither read nor advanced.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# First keys of `random_bits`, so that no two uses ever share their numbers.
SHUFFLE, AUGMENT, MIX, SPLIT = range(4)

_log = logging.getLogger(__name__)


def random_bits(*keys: int | IntArray) -> npt.NDArray[np.uint64]:
    """Hashes integer keys to 64 random bits, elementwise over the broadcast keys.

    Each key is added and mixed with the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast
    splittable pseudorandom number generators", OOPSLA 2014).

    Args:
        *keys: Integers or int64 arrays that broadcast against each other.

    Returns:
        uint64 array of the broadcast shape (0-dimensional for plain integers).

    Example:
        >>> random_bits(1, 2) == random_bits(1, 2), random_bits(1, 2) == random_bits(2, 1)
        (np.True_, np.False_)
    """
    h = np.zeros((1,), dtype=np.uint64)
    for key in keys:
        k = np.atleast_1d(np.asarray(key, dtype=np.int64)).astype(np.uint64)
        h = (h ^ k) + np.uint64(0x9E3779B97F4A7C15)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        h = h ^ (h >> np.uint64(31))
    return h.reshape(np.broadcast_shapes(*(np.shape(key) for key in keys)))


def uniform(*keys: int | IntArray) -> npt.NDArray[np.float64]:
    """Uniform float64 numbers in [0, 1) from integer keys, see `random_bits`."""
    bits = random_bits(*keys) >> np.uint64(11)
    return np.asarray(bits.astype(np.float64) * 2.0**-53)


def generator(*keys: int) -> torch.Generator:
    """A CPU `torch.Generator` seeded by integer keys."""
    return torch.Generator().manual_seed(int(random_bits(*keys)) >> 1)


def train_batches(
    length: int,
    batch_size: int,
    *,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    rank: int = 0,
    world_size: int = 1,
) -> IntArray:
    """Indices of one training epoch for one process.

    The order depends on `seed` and `epoch` only. Global batch `b` holds the next `batch_size *
    world_size` indices of it, of which each process takes every `world_size`-th: all processes get
    the same number of batches of the same size, and no image twice. What doesn't fill a last batch
    is left out of this epoch; it is another part in each epoch. A data set smaller than one global
    batch gives one smaller batch.

    Args:
        length: Number of images.
        batch_size: Images a process and batch.
        seed: Seed of the run.
        epoch: Number of the epoch.
        shuffle: False keeps the order `0, 1, ...`.
        rank: Number of this process.
        world_size: Number of processes.

    Returns:
        int64 array `(batches, batch_size)`.

    Raises:
        ValueError: If there are fewer images than processes.

    Example:
        >>> train_batches(5, 2, shuffle=False).tolist()
        [[0, 1], [2, 3]]
    """
    _check_length(length, world_size)
    if shuffle:
        order = torch.randperm(length, generator=generator(SHUFFLE, seed, epoch)).numpy()
    else:
        order = np.arange(length, dtype=np.int64)
    size = min(batch_size, length // world_size)
    batches = length // (size * world_size)
    grid = order[: batches * size * world_size].reshape(batches, size, world_size)
    return np.ascontiguousarray(grid[:, :, rank])


def eval_batches(
    length: int, batch_size: int, *, rank: int = 0, world_size: int = 1
) -> list[IntArray]:
    """Indices of one evaluation pass for one process: each image exactly once over all of them.

    Nothing is repeated to fill up batches, so an accuracy over several processes is the accuracy
    over one. The number of batches is the same on all processes, as collectives need it (but for
    a `batch_size` of 1, where it can differ by one).

    Args:
        length: Number of images.
        batch_size: Most images a process and batch.
        rank: Number of this process.
        world_size: Number of processes.

    Returns:
        One int64 array of at most `batch_size` indices a batch, in ascending order.

    Raises:
        ValueError: If there are fewer images than processes.

    Example:
        >>> [batch.tolist() for batch in eval_batches(5, 2)]
        [[0, 1], [2, 3], [4]]
    """
    _check_length(length, world_size)
    mine = np.arange(rank, length, world_size, dtype=np.int64)
    batches = [mine[i : i + batch_size] for i in range(0, len(mine), batch_size)]
    most = -(-len(range(0, length, world_size)) // batch_size)
    if len(batches) < most and batch_size > 1:
        batches[-1:] = np.array_split(batches[-1], 2)
    return batches


def held_out(groups: IntArray, targets: IntArray, fraction: float, seed: int) -> BoolArray:
    """Chooses about `fraction` of each class for validation, whole groups at a time.

    Args:
        groups: int64 `(N,)`; images of one group (views of one place) stay together.
        targets: int64 `(N,)`; a group counts for the class of its first image.
        fraction: Share of each class's groups, in [0, 1). If it isn't 0, at least one group of a
            class is held out and at least one is left; a single group is left.
        seed: Seed of the choice.

    Returns:
        bool `(N,)`, True for images that are held out.

    Raises:
        ValueError: If `fraction` isn't in [0, 1).

    Example:
        >>> held_out(np.arange(4), np.array([0, 0, 1, 1]), 0.5, seed=0).sum()
        np.int64(2)
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"Expected argument `val_split` to be in [0, 1) but got {fraction}.")
    unique, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    classes = targets[first]
    order = np.lexsort((random_bits(SPLIT, seed, unique), classes))
    _, starts, counts = np.unique(classes[order], return_index=True, return_counts=True)
    wanted = np.rint(counts * fraction).astype(np.int64)
    if fraction > 0:
        wanted = wanted.clip(np.minimum(1, counts - 1), counts - 1)
    place = np.arange(len(unique)) - np.repeat(starts, counts)
    chosen = np.zeros(len(unique), dtype=np.bool_)
    chosen[order] = place < np.repeat(wanted, counts)
    return np.asarray(chosen[inverse.reshape(-1)])


def _check_length(length: int, world_size: int) -> None:
    if length < world_size:
        raise ValueError(
            f"Expected at least one image for each of the {world_size} processes but got {length}"
            " images. Use fewer devices or more data."
        )


class ImageSource(Protocol):
    """A set of labelled images that is read a batch at a time."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """File name of an image, for predictions and messages."""
        ...

    def batch(self, indices: IntArray, epoch: int | None) -> tuple[Tensor, Tensor, list[str]]:
        """Reads images `(B, 3, H, W)` uint8, targets `(B,)` int64, and names of files skipped.

        `epoch` seeds the augmentation, together with each index; None switches it off.
        """
        ...


class _Reader(Dataset[tuple[Tensor, Tensor, list[str]]]):
    """What runs in the worker processes: a key is a whole batch and carries its own epoch."""

    def __init__(self, source: ImageSource) -> None:
        self.source = source

    def __getitem__(self, key: tuple[IntArray, int | None]) -> tuple[Tensor, Tensor, list[str]]:
        return self.source.batch(*key)


class _Plan(Sampler[tuple[IntArray, int | None]]):
    """The batches still to come, replaced by `EpochLoader` at the start of each pass.

    Lightning calls `set_epoch` on `dataloader.batch_sampler.sampler`; that is this object.
    """

    def __init__(self, set_epoch: Callable[[int], None]) -> None:
        self.keys: list[tuple[IntArray, int | None]] = []
        self.set_epoch = set_epoch

    @property
    def sampler(self) -> "_Plan":
        return self

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[tuple[IntArray, int | None]]:
        return iter(self.keys)


class EpochLoader:
    """Iterates over batches of an `ImageSource`; stateful in the way Lightning looks for.

    It is deliberately no `torch.utils.data.DataLoader` (it holds one): Lightning puts its own
    samplers into those, whose order is neither resumable in mid-epoch nor without repetitions.
    A pass starts when the first batch is asked for, not at `iter()`, because Lightning calls
    `iter()` before `set_epoch()` on a resumed run. Without `set_epoch` each full pass is followed
    by the next epoch.

    Args:
        source: The images.
        batch_size: Images a process and batch.
        train: Training (shuffled, augmented, incomplete batches left out) or evaluation (in
            order, plain, each image once).
        seed: Seed of order and augmentation.
        shuffle: False keeps a training's order fixed.
        names: Yield the file names (`list[str]`) in place of the targets, for predictions.
        finish: Applied to the images of each batch, for use without a Trainer.
        num_workers: Worker processes; 0 reads in this one.
        pin_memory: Page-locked batches for fast copies to a GPU.
        rank: Number of this process.
        world_size: Number of processes.
    """

    def __init__(
        self,
        source: ImageSource,
        batch_size: int,
        *,
        train: bool,
        seed: int = 0,
        shuffle: bool = True,
        names: bool = False,
        finish: Callable[[Tensor], Tensor] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.dataset = source
        self.batch_size = batch_size
        self.train = train
        self.seed = seed
        self.shuffle = shuffle
        self.names = names
        self.finish = finish
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self.position = 0  # batches handed out in this epoch
        self.replaced: set[str] = set()
        self._resume_at: int | None = None
        self._length = len(self._indices())
        self.batch_sampler = _Plan(self.set_epoch)
        self._loader: DataLoader[Any] = DataLoader(
            _Reader(source),
            sampler=self.batch_sampler,
            batch_size=None,
            num_workers=num_workers,
            pin_memory=pin_memory,
            persistent_workers=num_workers > 0,
            # DataLoader draws a base seed at each pass: from here, not from the user's generator.
            generator=torch.Generator().manual_seed(seed & (2**63 - 1)),
        )

    def _indices(self) -> "IntArray | list[IntArray]":
        n, b, r, w = len(self.dataset), self.batch_size, self.rank, self.world_size
        if not self.train:
            return eval_batches(n, b, rank=r, world_size=w)
        return train_batches(
            n, b, seed=self.seed, epoch=self.epoch, shuffle=self.shuffle, rank=r, world_size=w
        )

    def __len__(self) -> int:
        """Batches of a whole epoch, also when resumed in the middle of one."""
        return self._length

    def set_epoch(self, epoch: int) -> None:
        """Goes to the start of `epoch`; keeps a restored position if that is the same epoch."""
        if epoch != self.epoch:
            self.epoch, self.position, self._resume_at = epoch, 0, None

    def __iter__(self) -> Iterator[tuple[Tensor, Any]]:
        if self._resume_at is None and self.position == len(self):
            self.epoch += 1
        self.position, self._resume_at = self._resume_at or 0, None
        seed_epoch = self.epoch if self.train else None
        plan = self.batch_sampler
        plan.keys = [(indices, seed_epoch) for indices in self._indices()[self.position :]]
        for (indices, _), (images, targets, replaced) in zip(plan.keys, self._loader, strict=True):
            self.position += 1
            self._note(replaced)
            images = self.finish(images) if self.finish else images
            yield images, self._names(indices, replaced) if self.names else targets

    def _names(self, indices: IntArray, left_out: list[str]) -> list[str]:
        names = [self.dataset.name(i) for i in indices.tolist()]
        return [name for name in names if name not in left_out]

    def _note(self, replaced: list[str]) -> None:
        """Logs each unreadable file once, with the count so far."""
        for name in replaced:
            if name not in self.replaced:
                self.replaced.add(name)
                _log.warning(
                    "Unreadable image skipped (%d so far): %s",
                    len(self.replaced),
                    name,
                )

    def state_dict(self) -> dict[str, int]:
        """Where this loader stands: epoch, batches handed out in it, and what that rests on."""
        position = self.position if self._resume_at is None else self._resume_at
        return {"epoch": self.epoch, "position": position, **self._basis()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continues where `state_dict` was taken.

        Warns if the seed, the number of images, the batch size or the number of processes has
        changed, because what is left of the epoch is then another selection.
        """
        self.epoch, self._resume_at = state["epoch"], min(state["position"], len(self))
        was = {key: state[key] for key in self._basis()}
        if self.train and was != self._basis():
            _log.warning(
                "Resumed in mid-epoch with other data: %s then, %s now. Some images of this epoch"
                " may be read twice or not at all.",
                was,
                self._basis(),
            )

    def _basis(self) -> dict[str, int]:
        return {
            "seed": self.seed,
            "images": len(self.dataset),
            "global_batch_size": self.batch_size * self.world_size,
        }
