"""Standard errors against closed forms, and the paired test on data without a difference."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from reorder_lightning.report_statistics import bootstrap_errors, paired_test


@pytest.mark.parametrize(("images", "accuracy"), [(400, 0.5), (420, 0.1), (5000, 0.77)])
def test_bootstrap_error_is_that_of_a_proportion(images, accuracy):
    correct = np.arange(images) < round(accuracy * images)
    (error,) = bootstrap_errors(correct[:, None])
    assert error == pytest.approx(math.sqrt(accuracy * (1 - accuracy) / images), rel=0.05)


def test_seeds_of_an_image_stay_together():
    # Three seeds that agree on every image say no more about the images than one.
    alike = np.repeat(np.random.default_rng(0).random((1000, 1)) < 0.4, 3, axis=1)
    apart = np.random.default_rng(1).random((1000, 3)) < 0.4
    values = np.stack([alike[:, 0], alike.mean(1), apart.mean(1)], axis=1)
    one, three_alike, three_apart = bootstrap_errors(values)
    assert three_alike == one  # also: columns share their resamples
    assert three_apart == pytest.approx(one / math.sqrt(3), rel=0.1)


def test_bootstrap_in_parts_is_the_same_as_in_one(monkeypatch):
    values = np.random.default_rng(0).random((70, 2))
    whole = bootstrap_errors(values, resamples=50)
    monkeypatch.setattr("reorder_lightning.report_statistics._AT_ONCE", 1)
    assert bootstrap_errors(values, resamples=50) == pytest.approx(whole, rel=1e-12)


def test_one_seed_is_the_paired_t_test():
    random = np.random.default_rng(0)
    one, other = random.random((2, 1, 300)) < [[[0.5]], [[0.4]]]
    found = paired_test(one, other)
    d = one[0].astype(float) - other[0]
    assert found.difference == pytest.approx(100 * d.mean())
    assert found.se == pytest.approx(100 * d.std(ddof=1) / math.sqrt(300))
    assert found.p == pytest.approx(ttest_1samp(d, 0).pvalue, rel=1e-6)
    assert found.seeds == 1


def test_seeds_alone_are_the_t_test_of_their_means():
    # No image differs from another by itself, so that only the noise of seeds is left.
    gains = np.array([0.1, 0.3, 0.2, 0.45])
    d = np.repeat(gains[:, None], 50, axis=1)
    found = paired_test(d, np.zeros_like(d))
    assert found.se == pytest.approx(100 * gains.std(ddof=1) / 2)
    assert found.p == pytest.approx(ttest_1samp(gains, 0).pvalue, rel=1e-6)


def test_error_of_crossed_noise_is_that_of_the_formula():
    # d[s, i] = seed + image + rest: the variance of the mean is known.
    random = np.random.default_rng(0)
    seeds, images, s, b, e = 4, 60, 0.3, 1.0, 0.8
    known = s**2 / seeds + b**2 / images + e**2 / (seeds * images)
    found = []
    for _ in range(400):
        d = random.normal(0, s, (seeds, 1)) + random.normal(0, b, (1, images))
        d += random.normal(0, e, (seeds, images))
        found.append((paired_test(d, np.zeros_like(d)).se / 100) ** 2)
    assert np.mean(found) == pytest.approx(known, rel=0.07)


def null_results(random, seeds, images, seed_noise, image_noise):
    """Two methods of equal merit: trainings differ, and each method has images that suit it."""
    hard = random.normal(0.5, 1.5, images)
    methods = []
    for _ in range(2):
        suits = random.normal(0, image_noise, images)
        luck = random.normal(0, seed_noise, (seeds, 1)) + random.normal(0, 0.7, (seeds, images))
        methods.append(luck - hard - suits > 0)
    return methods


@pytest.mark.parametrize(
    ("seeds", "seed_noise", "image_noise"),
    [(1, 0, 0), (1, 0, 1), (2, 0, 0), (2, 0.2, 0.5), (3, 0, 0), (3, 0.1, 0.5), (3, 0.3, 0.5),
     (5, 0, 1), (5, 0.1, 0.5), (5, 0.3, 0)],
)  # fmt: skip
def test_false_positives_are_5_per_cent(seeds, seed_noise, image_noise):
    random = np.random.default_rng(0)
    draws = (null_results(random, seeds, 300, seed_noise, image_noise) for _ in range(1200))
    p = np.array([paired_test(*draw).p for draw in draws])
    assert 0.03 <= (p < 0.05).mean() <= 0.07


def test_one_pair_of_trainings_says_nothing_of_the_methods():
    # Why seeds have to count: with one, trainings that differ by luck look like better methods.
    random = np.random.default_rng(0)
    p = [paired_test(*null_results(random, 1, 300, 0.3, 0)).p for _ in range(500)]
    assert np.mean(np.array(p) < 0.05) > 0.3


def test_seeds_that_agree_by_chance_are_marked():
    """Three pairs of trainings, each 1 point apart, to which chance alone would add 5."""
    rng = np.random.default_rng(0)
    one, other = (
        np.stack([rng.permutation(np.arange(200) < n) for _ in range(3)]) for n in (102, 100)
    )
    found = paired_test(one, other)
    assert found.difference == pytest.approx(1.0)
    assert found.se < 0.1 < 2 < found.image_se < 4
    assert found.by_luck
    alone = paired_test(one[:1], other[:1])
    assert alone.se == pytest.approx(alone.image_se)
    assert not alone.by_luck


def test_a_real_difference_is_found():
    random = np.random.default_rng(0)
    one, other = null_results(random, 3, 2000, 0.02, 0.2)
    better = one | (random.random(one.shape) < 0.1)
    assert paired_test(better, other).p < 0.01


def test_equal_results_are_no_difference():
    correct = np.random.default_rng(0).random((2, 40)) < 0.5
    found = paired_test(correct, correct)
    assert (found.difference, found.se, found.p) == (0, 0, 1)
    assert paired_test(np.ones((1, 9)), np.zeros((1, 9))).p == 0


results = st.tuples(st.integers(1, 4), st.integers(2, 30), st.integers(0, 10**6))


@given(results)
@settings(max_examples=60, deadline=None)
def test_swapping_arms_changes_the_sign_alone(shape_and_seed):
    seeds, images, seed = shape_and_seed
    random = np.random.default_rng(seed)
    one, other = random.random((2, seeds, images)) < 0.6
    there, back = paired_test(one, other), paired_test(other, one)
    assert there.difference == pytest.approx(-back.difference)
    assert (there.se, there.p) == pytest.approx((back.se, back.p))
    assert 0 <= there.p <= 1
    shuffled = random.permutation(images)
    again = paired_test(one[::-1, shuffled], other[::-1, shuffled])
    assert (again.difference, again.se, again.p) == pytest.approx(
        (there.difference, there.se, there.p), rel=1e-6, abs=1e-9
    )


def test_results_that_are_no_pair_are_refused():
    with pytest.raises(ValueError, match=r"of \(2, 9\) and \(1, 9\)"):
        paired_test(np.zeros((2, 9)), np.zeros((1, 9)))
    with pytest.raises(ValueError, match="two or more images"):
        paired_test(np.zeros((2, 1)), np.zeros((2, 1)))
