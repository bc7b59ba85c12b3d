import math
import statistics

import pytest
import torch

from reorder_lightning.acceptance import Decision, paired_gain


def test_independent_differences_have_the_usual_standard_error():
    values = torch.randn(4000, generator=torch.Generator().manual_seed(0)).tolist()
    mean, error = paired_gain(values)
    assert mean == pytest.approx(statistics.mean(values))
    assert error == pytest.approx(statistics.stdev(values) / math.sqrt(4000), rel=0.3)


def test_correlated_differences_have_a_larger_one():
    noise = torch.randn(500, generator=torch.Generator().manual_seed(0))
    _, error = paired_gain(noise.repeat_interleave(8).tolist())
    naive = noise.std().item() / math.sqrt(4000)
    assert error == pytest.approx(naive * math.sqrt(8), rel=0.3)


def test_noise_passes_the_threshold_in_at_most_one_of_a_hundred():
    generator = torch.Generator().manual_seed(0)
    passed = 0
    for _ in range(1000):
        gain, error = paired_gain(torch.randn(60, generator=generator).tolist())
        passed += gain > 2.75 * error
    assert passed <= 10


def test_a_short_trial_says_nothing():
    gain, error = paired_gain([1.0] * 7)
    assert gain == 0
    assert math.isnan(error)


def test_what_the_log_says():
    assert str(Decision(True, 0.12345, 0.01)).startswith(
        "The learned order is accepted: gain 0.123"
    )
    assert str(Decision(False, -0.1, 0.01)).startswith("The start order is kept")


def test_a_decision_says_what_happened():
    assert "kept: gain -0.1, standard error 0.2" in str(Decision(False, -0.1, 0.2))
    assert "accepted: gain 0.5" in str(Decision(True, 0.5, 0.1))
    assert "nothing was found" in str(Decision(False, 0.0, math.nan))
    assert "without a trial" in str(Decision(True, 0.0, math.nan))
