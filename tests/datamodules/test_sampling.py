import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reorder_lightning.datamodules.sampling import (
    eval_batches,
    held_out,
    random_bits,
    train_batches,
    uniform,
)

sizes = {"length": st.integers(1, 60), "batch_size": st.integers(1, 9), "world": st.integers(1, 5)}


@given(**sizes, seed=st.integers(-5, 2**62), epoch=st.integers(0, 200), shuffle=st.booleans())
def test_train_batches_share_an_epoch(length, batch_size, world, seed, epoch, shuffle):
    kwargs = {"seed": seed, "epoch": epoch, "shuffle": shuffle, "world_size": world}
    if length < world:
        with pytest.raises(ValueError, match=f"each of the {world} processes but got {length}"):
            train_batches(length, batch_size, **kwargs)
        return
    parts = [train_batches(length, batch_size, rank=rank, **kwargs) for rank in range(world)]
    assert len({part.shape for part in parts}) == 1
    seen = np.concatenate(parts, axis=None)
    assert len(set(seen.tolist())) == len(seen)  # nothing twice
    # Only what doesn't fill another global batch is left out.
    assert 0 <= length - len(seen) < max(batch_size * world, world)
    assert parts[0].shape[1] == min(batch_size, length // world)


@given(length=st.integers(1, 60), world=st.integers(1, 4), batch_size=st.integers(1, 9))
def test_train_order_is_the_same_for_any_number_of_processes(length, world, batch_size):
    if length < batch_size * world:
        return
    parts = [
        train_batches(length, batch_size, seed=3, epoch=2, rank=r, world_size=world)
        for r in range(world)
    ]
    together = np.stack(parts, axis=-1).reshape(-1)
    alone = train_batches(length, batch_size * world, seed=3, epoch=2).reshape(-1)
    assert together.tolist() == alone.tolist()


@given(**sizes)
def test_eval_batches_hold_each_image_once(length, batch_size, world):
    if length < world:
        with pytest.raises(ValueError, match="Use fewer devices"):
            eval_batches(length, batch_size, world_size=world)
        return
    parts = [eval_batches(length, batch_size, rank=r, world_size=world) for r in range(world)]
    assert sorted(i for part in parts for batch in part for i in batch) == list(range(length))
    assert all(1 <= len(batch) <= batch_size for part in parts for batch in part)
    counts = [len(part) for part in parts]
    assert max(counts) - min(counts) <= (batch_size == 1)


def test_epochs_and_seeds_differ():
    orders = [train_batches(50, 50, seed=s, epoch=e).tolist() for s in (0, 1) for e in (0, 1)]
    assert all(orders.count(order) == 1 for order in orders)


def test_random_bits_are_uniform_and_independent_of_each_other():
    grid = uniform(7, np.arange(200)[:, None], np.arange(200)[None, :])
    assert grid.shape == (200, 200)
    assert abs(grid.mean() - 0.5) < 4 / np.sqrt(12 * grid.size)
    counts = np.histogram(grid, 64, (0, 1))[0]
    assert ((counts - grid.size / 64) ** 2 / (grid.size / 64)).sum() < 110  # 63 degrees, p < 3e-4
    neighbours = np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]
    assert abs(neighbours) < 4 / np.sqrt(grid.size)
    assert random_bits(1, 2).shape == ()
    assert len(set(random_bits(1, np.arange(10_000)).tolist())) == 10_000


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=12),
    classes=st.integers(1, 4),
    fraction=st.floats(0, 0.99),
    seed=st.integers(0, 99),
)
def test_held_out_keeps_groups_together(sizes, classes, fraction, seed):
    groups = np.repeat(np.arange(len(sizes)), sizes)
    targets = groups % classes
    chosen = held_out(groups, targets, fraction, seed)
    for group in range(len(sizes)):
        assert len(set(chosen[groups == group].tolist())) == 1
    for c in range(min(classes, len(sizes))):
        whole = {g for g in range(len(sizes)) if g % classes == c}
        out = {g for g in whole if chosen[groups == g][0]}
        if fraction == 0 or len(whole) == 1:
            assert not out
        else:
            assert 1 <= len(out) < len(whole)
            assert abs(len(out) - fraction * len(whole)) <= 1


@pytest.mark.parametrize("fraction", [-0.1, 1.0])
def test_held_out_fraction(fraction):
    with pytest.raises(ValueError, match=r"`val_split` to be in \[0, 1\) but got"):
        held_out(np.arange(3), np.zeros(3, dtype=np.int64), fraction, 0)
