"""The order prior on sequences whose compressibility is known."""

import lzma

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from reorder_lightning.orders import ORDERS, get_order
from reorder_lightning.prior import MEASURES, compress, decompress, order_prior, symbols


def striped(images=40, height=8, width=8, seed=0):
    """Every row of a picture is painted with one of three patterns."""
    random = np.random.default_rng(seed)
    patterns = random.permutation(3 * width).reshape(3, width)
    return patterns[random.integers(3, size=(images, height))]


def banded(images=40, height=8, width=8, seed=0):
    """Every picture has three horizontal bands of one token each, two or more rows thick."""
    random = np.random.default_rng(seed)
    made = np.empty((images, height, width), dtype=np.int64)
    for picture in made:
        cuts = np.sort(random.choice(np.arange(2, height - 1, 2), size=2, replace=False))
        band = np.searchsorted(cuts, np.arange(height), side="right")
        picture[:] = random.permutation(50)[band][:, None]
    return made


# --------------------------------------------------------------------------- symbols


@pytest.mark.parametrize("codes", [2, 3, 16, 30, 256])
def test_every_pair_has_a_number_of_its_own(codes):
    pairs = np.stack(np.meshgrid(*[np.arange(codes)] * 2), axis=-1).reshape(-1, 2)
    assert sorted(symbols(pairs, codes, "bigram")[:, 0].tolist()) == list(range(codes**2))


def test_symbols_have_the_smallest_width():
    tokens = np.array([[0, 1, 2], [2, 2, 0]])
    widths = {k: symbols(tokens, k, "unigram").itemsize for k in (3, 256, 257, 1024, 2**16 + 1)}
    assert widths == {3: 1, 256: 1, 257: 2, 1024: 2, 2**16 + 1: 4}
    assert symbols(tokens, 1024, "bigram").dtype.str == "<u4"


@settings(max_examples=30, deadline=None)
@given(data=st.data(), codes=st.sampled_from([2, 256, 1024, 2**17]))
def test_tokens_come_back_from_the_compressor(data, codes):
    shape = data.draw(hnp.array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=9))
    tokens = data.draw(hnp.arrays(np.int64, shape, elements=st.integers(0, codes - 1)))
    for gram in ("unigram", "bigram"):
        values = symbols(tokens, codes, gram)
        assert np.array_equal(decompress(compress(values), values), values)
    assert np.array_equal(symbols(tokens, codes, "unigram"), tokens)
    assert (symbols(tokens, codes, "bigram").astype(np.int64) < codes**2).all()


def test_there_is_no_container():
    values = symbols(np.random.default_rng(0).integers(1024, size=(1, 64)), 1024, "unigram")
    size = len(compress(values))
    assert size <= values.nbytes + 4  # a chunk's header of 3 bytes, and an end of 1
    assert len(lzma.compress(values.tobytes())) > size + 40


# --------------------------------------------------------------------------- ranking


@pytest.mark.parametrize("by", ["image", "corpus"])
@pytest.mark.parametrize("planted", [striped, banded])
def test_horizontal_stripes_rank_row_above_column_and_transposed_ones_below(planted, by):
    tokens = planted()
    lying = {row.order: row for row in order_prior(tokens, 50, by=by, resamples=200).orders}
    standing = order_prior(tokens.transpose(0, 2, 1), 50, by=by, resamples=200).orders
    upright = {row.order: row for row in standing}
    assert lying["row"].behind.value == 0
    assert lying["column"].behind.low > 0
    assert upright["column"].behind.value == 0
    assert upright["row"].behind.low > 0
    # The row scan of a picture is the column scan of its transpose, so all numbers are the same.
    assert upright["column"].saved["unigram_image"] == lying["row"].saved["unigram_image"]


def test_shuffled_patches_show_no_difference_between_orders():
    tokens = np.random.default_rng(1).permuted(striped(60).reshape(60, -1), axis=1)
    orders = order_prior(tokens.reshape(60, 8, 8), 24, resamples=500).orders
    inside = [row.over_shuffled.low <= 0 <= row.over_shuffled.high for row in orders]
    assert sum(inside) >= 9  # of ten 95 % intervals
    assert orders[0].score.value - orders[-1].score.value < 1.0  # striped: 40 points


@pytest.mark.parametrize("codes", [256, 1000, 1024])
def test_runs_beat_shuffled_patches_in_every_measure(codes):
    """Not so with 256 codes and pairs as they are: LZMA then finds the byte that pairs share."""
    random = np.random.default_rng(0)
    tokens = random.integers(codes, size=(60, 8, 2)).repeat(4, axis=2)
    prior = order_prior(tokens, codes, {"row": get_order("row", 8, 8)}, resamples=50)
    assert all(prior.orders[0].gained[measure].low > 0 for measure in MEASURES)


def test_any_grid_and_any_order():
    tokens = striped(10, 6, 7)
    mine = {"mine": get_order("random:5", 6, 7), "row": get_order("row", 6, 7)}
    prior = order_prior(tokens, 21, mine, resamples=50)
    assert prior.grid == (6, 7)
    assert [row.order for row in prior.orders] == ["row", "mine"]
    assert prior.symbol_bytes == {"unigram": 1, "bigram": 2}


def test_chance_is_never_chosen():
    tokens = np.random.default_rng(0).integers(5, size=(6, 4, 4))
    names = {n: get_order(n, 4, 4) for n in ("random", "spiral", "random:3", "row")}
    prior = order_prior(tokens, 5, names, resamples=20)
    assert {prior.choose("most"), prior.choose("least")} == {"spiral", "row"}
    assert len(order_prior(tokens, 5, resamples=20).orders) == len(ORDERS)
    only = order_prior(tokens, 5, {"random": names["random"]}, resamples=20)
    with pytest.raises(ValueError, match="no order to choose from"):
        only.choose()


# --------------------------------------------------------------------------- intervals


def test_numbers_are_those_of_the_compressor():
    tokens = striped(12)
    prior = order_prior(tokens, 24, {"column": get_order("column", 8, 8)}, resamples=50)
    values = symbols(tokens.transpose(0, 2, 1).reshape(12, -1), 24, "unigram")
    each = [100 * (1 - len(compress(v)) / 64) for v in values]
    assert prior.orders[0].saved["unigram_image"].value == pytest.approx(np.mean(each))
    score = np.mean([prior.orders[0].saved[f"{g}_image"].value for g in ("unigram", "bigram")])
    assert prior.orders[0].score.value == pytest.approx(score)
    assert all(e.low <= e.value <= e.high for e in prior.orders[0].saved.values())


@pytest.mark.parametrize("measure", MEASURES)
def test_intervals_cover(measure):
    """About 95 of 100 intervals hold the mean over many data sets of the same kind."""
    orders = {"row": get_order("row", 4, 6)}
    made = [
        order_prior(striped_mix(48, seed), 36, orders, resamples=200, seed=seed)
        for seed in range(60)
    ]
    found = [prior.orders[0].saved[measure] for prior in made]
    truth = np.mean([e.value for e in found])
    covered = np.mean([e.low <= truth <= e.high for e in found])
    assert covered >= 0.85


def striped_mix(images, seed):
    """Pictures that differ in how striped they are."""
    random = np.random.default_rng(seed)
    patterns = np.arange(36).reshape(6, 6)
    kinds = random.integers(1, 7, size=images)
    return np.stack([patterns[random.integers(k, size=4)] for k in kinds])


# --------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        (np.zeros((3, 4), int), {}, r"integers \(images, rows, columns\)"),
        (np.zeros((3, 2, 2)), {}, "float64"),
        (np.zeros((1, 2, 2), int), {}, "two or more images"),
        (np.full((2, 2, 2), 9), {}, r"tokens in 0\.\.8"),
        (np.zeros((2, 2, 2), int), {"by": "picture"}, "'image' or 'corpus'"),
        (np.zeros((2, 2, 2), int), {"orders": {"x": [0, 1, 1, 2]}}, "missing 3; doubled 1"),
    ],
)
def test_bad_input_is_named(tokens, options, message):
    with pytest.raises(ValueError, match=message):
        order_prior(tokens, 9, **options)
