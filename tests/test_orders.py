"""Orders: what each scan is defined to be, and what is said about a bad one."""

import itertools
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from reorder_lightning import orders
from reorder_lightning.orders import (
    ORDERS,
    check_order,
    get_order,
    load_checkpoint_order,
    load_order,
    resize_order,
    save_order,
)

GRIDS = [(h, w) for h in range(1, 21) for w in range(1, 21)]
SIDE = st.integers(1, 12)


def cells(order: Tensor, width: int) -> list[tuple[int, int]]:
    """Row and column of each patch, in the order's sequence."""
    return [divmod(i, width) for i in order.tolist()]


def jumps(order: Tensor, width: int) -> int:
    path = cells(order, width)
    return sum(abs(a - c) + abs(b - d) != 1 for (a, b), (c, d) in itertools.pairwise(path))


def is_permutation(order: Tensor, count: int) -> bool:
    return order.dtype == torch.int64 and order.sort().values.tolist() == list(range(count))


@pytest.mark.parametrize("name", ORDERS)
def test_every_grid_gives_a_permutation(name):
    assert all(is_permutation(ORDERS[name](h, w), h * w) for h, w in GRIDS)


@pytest.mark.parametrize("name", ["hilbert", "boustrophedon", "spiral"])
def test_unit_steps_only(name):
    """Case 31: no jump on any grid up to 20x20, whatever its parity."""
    assert {(h, w): jumps(ORDERS[name](h, w), w) for h, w in GRIDS} == dict.fromkeys(GRIDS, 0)


@pytest.mark.parametrize("grid", [(14, 14), (5, 4), (4, 5)])
def test_hilbert_is_a_bijection_without_a_jump(grid):
    """Case 31, https://github.com/galtay/hilbertcurve/issues/47."""
    order = orders.hilbert(*grid)
    assert is_permutation(order, math.prod(grid))
    assert jumps(order, grid[1]) == 0


def test_cropped_hilbert_jumps():
    """Case 31: the usual way out, a cropped 16x16 curve, has five jumps on 14x14."""
    kept = [r * 14 + c for r, c in cells(orders.hilbert(16, 16), 16) if r < 14 and c < 14]
    assert jumps(torch.tensor(kept), 14) == 5


def test_hilbert_is_the_hilbert_curve_on_powers_of_two():
    """Each quarter of 8x8 is visited in one go, and so is each of its quarters."""
    path = cells(orders.hilbert(8, 8), 8)
    for size in (4, 2):
        blocks = [(r // size, c // size) for r, c in path]
        assert all(len(set(blocks[i : i + size**2])) == 1 for i in range(0, 64, size**2))


DEFINITIONS = {
    "row": lambda r, c: (r, c),
    "column": lambda r, c: (c, r),
    "boustrophedon": lambda r, c: (r, c if r % 2 == 0 else -c),
    "diagonal": lambda r, c: (c - r, c),
    "anti_diagonal": lambda r, c: (r + c, r),
    "snake": lambda r, c: (r + c, c if (r + c) % 2 == 0 else -c),
    "morton": lambda r, c: sum((c >> b & 1) << 2 * b | (r >> b & 1) << 2 * b + 1 for b in range(8)),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_sorted_as_defined(name):
    for h, w in GRIDS:
        expected = sorted(
            ((r, c) for r in range(h) for c in range(w)), key=lambda x: DEFINITIONS[name](*x)
        )
        assert cells(ORDERS[name](h, w), w) == expected


def test_snake_steps_stay_on_a_diagonal_or_cross_to_the_next():
    path = cells(orders.snake(5, 7), 7)
    steps = {(c - a, d - b) for (a, b), (c, d) in itertools.pairwise(path)}
    assert steps == {(1, -1), (-1, 1), (0, 1), (1, 0)}


@given(SIDE, SIDE)
def test_spiral_turns_right_only(height, width):
    path = cells(orders.spiral(height, width), width)
    assert path[0] == (0, 0)
    steps = [(c - a, d - b) for (a, b), (c, d) in itertools.pairwise(path)]
    turns = {(s, t) for s, t in itertools.pairwise(steps) if s != t}
    assert turns <= {((0, 1), (1, 0)), ((1, 0), (0, -1)), ((0, -1), (-1, 0)), ((-1, 0), (0, 1))}


def test_random_is_seeded_and_leaves_the_global_state_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    first, again, other = (orders.random(6, 5, seed=s) for s in (1, 1, 2))
    assert torch.equal(torch.rand(4), expected)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(get_order("random:2", 6, 5), other)
    assert torch.equal(get_order("random", 6, 5), orders.random(6, 5, seed=0))


@pytest.mark.parametrize("name", ORDERS)
def test_empty_grid_is_an_error(name):
    with pytest.raises(ValueError, match="at least 1x1 patches, but got 0x3"):
        ORDERS[name](0, 3)


def test_get_order_takes_names_sequences_and_tensors():
    assert torch.equal(get_order("hilbert", 4, 6), orders.hilbert(4, 6))
    given_order = torch.tensor([2, 0, 1, 3], dtype=torch.int32)
    for order in ([2, 0, 1, 3], (2, 0, 1, 3), given_order):
        assert get_order(order, 2, 2).tolist() == [2, 0, 1, 3]
        assert get_order(order, 2, 2).dtype == torch.int64
    explicit = torch.arange(4)
    assert get_order(explicit, 2, 2).data_ptr() != explicit.data_ptr()


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("zigzag", "row, column, .*random:SEED.*but got 'zigzag'"),
        ("random:x", "`random:SEED` with a whole number"),
        ([0, 1, 1, 7], "not a permutation of 0..3: missing 2, 3; doubled 1; outside 7"),
        ([0, 1, -1, 2], "missing 3; outside -1"),
        ([0, 1, 2], r"shape \(4,\), but its shape is \(3,\)"),
        ([0.0, 1.0, 2.0, 3.0], "must hold integers, but its dtype is torch.float32"),
    ],
)
def test_bad_order_is_named(order, message):
    with pytest.raises(ValueError, match=message):
        get_order(order, 2, 2)


def test_long_list_of_faults_is_cut():
    with pytest.raises(ValueError, match=r"missing 1, 2, .*, \.\.\. \(399 in all\); doubled 0\.$"):
        check_order([0] * 400, 400)


@given(st.tuples(SIDE, SIDE), st.tuples(SIDE, SIDE), st.integers(0, 99))
def test_resized_order_is_a_permutation_and_keeps_the_old_sequence(old, new, seed):
    order = orders.random(*old, seed=seed)
    resized = resize_order(order, old, new)
    assert is_permutation(resized, math.prod(new))
    # The old patch of each new one, in the new sequence: never back to an earlier one.
    rank = order.argsort().view(old)
    r = ((torch.arange(new[0]) + 0.5) * old[0] / new[0]).long()
    c = ((torch.arange(new[1]) + 0.5) * old[1] / new[1]).long()
    visited = rank[r][:, c].flatten()[resized]
    assert (visited.diff() >= 0).all()


@given(st.tuples(SIDE, SIDE), st.sampled_from(list(ORDERS)))
def test_resize_to_the_same_grid_changes_nothing(grid, name):
    order = ORDERS[name](*grid)
    assert torch.equal(resize_order(order, grid, grid), order)


@pytest.mark.parametrize("name", ["row", "column"])
def test_row_and_column_survive_a_smaller_grid(name):
    resized = resize_order(ORDERS[name](24, 18), (24, 18), (14, 7))
    assert torch.equal(resized, ORDERS[name](14, 7))


def test_resize_keeps_the_direction_inside_a_patch():
    assert torch.equal(resize_order(orders.row(1, 4), (1, 4), (1, 12)), orders.row(1, 12))
    backwards = orders.row(1, 4).flip(0)
    assert torch.equal(resize_order(backwards, (1, 4), (1, 12)), orders.row(1, 12).flip(0))


def test_resize_refuses_an_order_of_another_grid():
    with pytest.raises(ValueError, match=r"shape \(6,\)"):
        resize_order(orders.row(2, 2), (2, 3), (4, 4))


def test_saved_order_comes_back(tmp_path):
    order = orders.random(3, 4, seed=5)
    path = save_order(tmp_path / "new" / "learned.json", order, (3, 4), "a test")
    saved = load_order(path)
    assert torch.equal(saved.order, order)
    assert saved.grid == (3, 4)
    assert saved.source == "a test"
    assert torch.equal(get_order(path, 3, 4), order)
    assert torch.equal(get_order(str(path), 3, 4), order)
    assert set(json.loads(path.read_text())) == {"order", "grid", "source"}


def test_saved_order_for_another_grid_is_refused(tmp_path):
    path = save_order(tmp_path / "o.json", orders.row(3, 4), (3, 4), "a test")
    with pytest.raises(
        ValueError, match=r"grid of 3x4 patches, but the model has 4x3.*resize_order"
    ):
        get_order(path, 4, 3)


def test_only_a_permutation_is_saved(tmp_path):
    with pytest.raises(ValueError, match="missing 1; doubled 0"):
        save_order(tmp_path / "o.json", torch.tensor([0, 0]), (1, 2), "a test")
    assert not (tmp_path / "o.json").exists()


@pytest.mark.parametrize(
    "text", ["", "[]", '{"order": [0]}', '{"order": [0], "grid": [1], "source": ""}']
)
def test_broken_file_is_named(tmp_path, text):
    path = tmp_path / "o.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"o\.json is not a saved order"):
        load_order(path)


def test_file_with_a_bad_order_is_named(tmp_path):
    path = tmp_path / "o.json"
    path.write_text('{"order": [0, 0], "grid": [1, 2], "source": ""}')
    with pytest.raises(ValueError, match=r"The order in .*o\.json is not a permutation"):
        load_order(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no saved order at"):
        get_order(tmp_path / "o.json", 2, 2)
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        get_order(tmp_path / "o.ckpt", 2, 2)


def test_order_from_a_checkpoint(tmp_path):
    path = tmp_path / "last.ckpt"
    key = "backbone.patch_order._extra_state"
    torch.save({"state_dict": {"head.weight": torch.zeros(2), key: orders.column(2, 3)}}, path)
    assert torch.equal(load_checkpoint_order(path), orders.column(2, 3))
    assert torch.equal(get_order(path, 2, 3), orders.column(2, 3))
    with pytest.raises(
        ValueError, match=r"The order in .*last.ckpt must have one index for each of the 4"
    ):
        get_order(path, 2, 2)


def test_checkpoint_without_one_order_is_named(tmp_path):
    path = tmp_path / "last.ckpt"
    torch.save({"state_dict": {"head.weight": torch.zeros(2)}}, path)
    with pytest.raises(ValueError, match="holds no order"):
        load_checkpoint_order(path)
    two = {
        f"{n}.patch_order._extra_state": o
        for n, o in {"a": orders.row(2, 2), "b": orders.column(2, 2)}.items()
    }
    torch.save({"state_dict": two}, path)
    with pytest.raises(ValueError, match=r"different orders: a.*, b"):
        load_checkpoint_order(path)
    path.write_bytes(b"no checkpoint")
    with pytest.raises(ValueError, match="cannot be read as a checkpoint"):
        load_checkpoint_order(path)
