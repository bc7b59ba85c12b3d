import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reorder_lightning.datamodules.sampling import (
    EpochLoader,
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


class Numbers:
    """A source whose "image" is its index, epoch and a constant."""

    def __init__(self, length=22, bad=()):
        self.length = length
        self.bad = bad

    def __len__(self):
        return self.length

    def name(self, index):
        return f"{index}.png"

    def batch(self, indices, epoch):
        which = torch.from_numpy(indices)
        images = torch.stack([which, torch.full_like(which, -1 if epoch is None else epoch)], 1)
        return images, which % 3, [self.name(i) for i in indices if i in self.bad]


def rows(loader, count=None):
    out = []
    for images, targets in loader:
        out.append((images.tolist(), targets.tolist()))
        if len(out) == count:
            break
    return out


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_resumes_at_any_batch(workers):
    whole = EpochLoader(Numbers(), 4, train=True, seed=5)
    epochs = [rows(whole), rows(whole)]
    assert len(epochs[0]) == len(whole) == 5
    assert epochs[0] != epochs[1]
    assert {row[1] for batch in epochs[1] for row in batch[0]} == {1}
    first = EpochLoader(Numbers(), 4, train=True, seed=5, num_workers=workers)
    first.set_epoch(1)
    assert rows(first, count=2) == epochs[1][:2]
    state = first.state_dict()
    assert all(type(value) is int for value in state.values())
    second = EpochLoader(Numbers(), 4, train=True, seed=5, num_workers=workers)
    second.load_state_dict(state)
    assert second.state_dict() == state
    iter(second)  # Lightning does this before set_epoch
    second.set_epoch(1)
    assert len(second) == 5
    assert rows(second) == epochs[1][2:]
    assert rows(second) == rows(whole)  # and goes on with epoch 2


def test_each_process_resumes_its_own_part_from_the_state_of_one():
    wholes = [EpochLoader(Numbers(), 3, train=True, rank=r, world_size=2) for r in (0, 1)]
    epochs = [rows(whole) for whole in wholes]
    first = EpochLoader(Numbers(), 3, train=True, rank=0, world_size=2)
    rows(first, count=1)
    for rank, epoch in enumerate(epochs):
        second = EpochLoader(Numbers(), 3, train=True, rank=rank, world_size=2)
        second.load_state_dict(first.state_dict())
        assert rows(second) == epoch[1:]


def test_state_at_the_end_of_an_epoch_is_the_start_of_the_next():
    whole = EpochLoader(Numbers(), 4, train=True)
    epochs = [rows(whole), rows(whole)]
    first = EpochLoader(Numbers(), 4, train=True)
    rows(first)
    second = EpochLoader(Numbers(), 4, train=True)
    second.load_state_dict(first.state_dict())
    second.set_epoch(1)
    assert rows(second) == epochs[1]


def test_resuming_with_other_data_is_said(caplog):
    loader = EpochLoader(Numbers(), 4, train=True)
    rows(loader, count=1)
    EpochLoader(Numbers(30), 4, train=True).load_state_dict(loader.state_dict())
    assert "'images': 22" in caplog.text
    assert "'images': 30" in caplog.text


def test_loader_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    rows(EpochLoader(Numbers(), 4, train=True))
    assert torch.equal(before, torch.get_rng_state())


def test_evaluation_is_plain_and_in_order():
    loader = EpochLoader(Numbers(5), 2, train=False)
    assert [row for images, _ in rows(loader) for row in images] == [[i, -1] for i in range(5)]
    assert rows(loader) == rows(loader)


def test_names_for_predictions():
    loader = EpochLoader(Numbers(3), 2, train=False, names=True)
    assert [names for _, names in loader] == [["0.png", "1.png"], ["2.png"]]


def test_replaced_files_are_logged_once(caplog):
    loader = EpochLoader(Numbers(6, bad=(1, 3)), 2, train=False)
    rows(loader)
    rows(loader)
    assert loader.replaced == {"1.png", "3.png"}
    assert len(caplog.records) == 2
    assert "(2 so far): 3.png" in caplog.text


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
