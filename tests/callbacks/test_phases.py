"""Phases: epochs and shares to optimiser steps."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reorder_lightning.callbacks import phases
from reorder_lightning.callbacks.phases import Phases, plan_phases


@given(st.floats(0, 1), st.integers(1, 10_000), st.integers(1, 100))
def test_shares_that_fill_the_training_fit(share, total, per_epoch):
    planned = plan_phases(share, 1.0 - share, total, per_epoch)
    assert planned.warmup >= 0
    assert planned.policy >= 0
    assert planned.warmup + planned.policy <= total
    assert abs(planned.warmup - share * total) <= 0.5


@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 50))
def test_phases_follow_each_other(warmup, policy, per_epoch):
    total = per_epoch * (warmup + policy + 1)
    planned = plan_phases(warmup, policy, total, per_epoch)
    names = [planned.at(step) for step in range(total)]
    expected = ["warmup"] * (warmup * per_epoch) + ["policy"] * (policy * per_epoch)
    assert names == expected + ["frozen"] * per_epoch


@pytest.mark.parametrize(
    ("args", "match"),
    [
        ((2, 9, 100, 10), r"`warmup=2` and `policy=9` take 110 .* training has 100 \(10 epochs\)"),
        ((0.6, 0.6, 100, 10), "take 120"),
        ((1.5, 1, 100, 10), r"`warmup` to be a share .* but got 1.5"),
        ((0, -1, 100, 10), "`policy` to be 0 or more epochs, but got -1"),
        ((0.1, 1, float("inf"), 10), r"`warmup=0.1` cannot .* no end"),
        ((1, 1, 100, float("inf")), r"`warmup=1` cannot .* no known length"),
    ],
)
def test_what_does_not_fit_is_an_error(args, match):
    with pytest.raises(ValueError, match=match):
        plan_phases(*args)


def test_an_endless_training_takes_whole_epochs():
    assert plan_phases(1, 2, float("inf"), 10) == Phases(10, 20)
    assert plan_phases(0.0, 0, float("inf"), float("inf")) == Phases(0, 0)


def test_examples():
    assert doctest.testmod(phases).failed == 0
