"""Errors of the user are short; bugs keep their traceback."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from reorder_lightning.cli.errors import short_user_errors
from reorder_lightning.orders import get_order


def test_own_error_is_one_message(fails):
    def act():
        with short_user_errors():
            get_order([0, 0], 1, 2)

    assert fails(act) == (
        "reorder: error: Argument `order` is not a permutation of 0..1: missing 1; doubled 0.\n"
    )


def test_other_errors_keep_their_traceback():
    with pytest.raises(ValueError, match="could not convert"), short_user_errors():
        float("x")
    with pytest.raises(RuntimeError), short_user_errors():
        torch.zeros(2) @ torch.zeros(3)


class Broken(Dataset):
    def __init__(self, act):
        self.act = act

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.act("x")


def bad_order(order):
    get_order(order, 2, 2)


def test_error_in_a_worker_process_is_one_message(fails):
    def act():
        with short_user_errors():
            next(iter(DataLoader(Broken(bad_order), num_workers=1)))

    message = fails(act)
    assert message.startswith("reorder: error: Expected argument `order` to be one of row")
    assert len(message.splitlines()) == 1


def test_bug_in_a_worker_process_keeps_its_traceback():
    with pytest.raises(ValueError, match="Original Traceback"), short_user_errors():
        next(iter(DataLoader(Broken(float), num_workers=1)))
