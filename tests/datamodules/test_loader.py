import pytest
import torch

from reorder_lightning.datamodules.loader import EpochLoader


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
