"""Which images come in which batch, as pure functions of seed, epoch and process.

A stopped and resumed run, a run with other worker processes, and an uninterrupted one therefore
see the same pixels in the same order. The global random number generators are neither read nor
advanced.
"""

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# First keys of `random_bits`, so that no two uses ever share their numbers.
SHUFFLE, AUGMENT, MIX, SPLIT = range(4)


def random_bits(*keys: int | IntArray) -> npt.NDArray[np.uint64]:
    """Hashes integer keys to 64 random bits, elementwise over the broadcast keys.

    Each key is added and mixed with the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast
    splittable pseudorandom number generators", OOPSLA 2014).

    Args:
        *keys: Integers or int64 arrays that broadcast against each other.

    Returns:
        uint64 array of the broadcast shape (0-dimensional for plain integers).

    Example:
        >>> int(random_bits(1, 2)) == int(random_bits(2, 1))
        False
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


def held_out(groups: IntArray, targets: IntArray, fraction: float, seed: int = 0) -> BoolArray:
    """Chooses about `fraction` of each class for validation, whole groups at a time.

    Args:
        groups: int64 `(N,)`; images of one group (views of one place) stay together.
        targets: int64 `(N,)`; a group counts for the class of its first image.
        fraction: Share of each class's groups, in [0, 1). If it isn't 0, at least one group of a
            class is held out and at least one is left; a single group is left.
        seed: Seed of the choice. Not that of the run: runs of several seeds are compared on the
            same images.

    Returns:
        bool `(N,)`, True for images that are held out.

    Raises:
        ValueError: If `fraction` isn't in [0, 1).

    Example:
        >>> int(held_out(np.arange(4), np.array([0, 0, 1, 1]), 0.5, seed=0).sum())
        2
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
