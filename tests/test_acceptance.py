import doctest
import math
import statistics

import pytest
import torch

from reorder_lightning import acceptance
from reorder_lightning.acceptance import Decision, Trial, paired_gain


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


# ------------------------------------------------------------------ trials


@pytest.mark.parametrize("k", [1, 2, 5, 8])
def test_both_orders_have_equal_shares(k):
    trial = Trial(10, adapting=0.5, z=2.0, challenger="rival")
    controls = []
    for _ in range(10):
        controls.append(trial.controls(k, rank=0))
        other = trial.controls(k, rank=1)
        assert controls[-1] + other == k, "two ranks share an odd one"
        trial.record([0.0] * 4)
    assert sum(controls) == 10 * k / 2


def test_what_is_earned_while_the_model_adapts_does_not_count():
    trial = Trial(40, adapting=0.5, z=2.0, challenger="rival")
    generator = torch.Generator().manual_seed(0)
    for step in range(40):
        noise = 0.1 * torch.randn(1, generator=generator).item()
        gain = (-5.0 if step < 20 else 1.0) + noise
        assert trial.record([4.0, 4 * gain, 2.0, 0.0]) == {"difference": pytest.approx(gain)}
    assert trial.decision.accepted
    assert trial.decision.gain == pytest.approx(1.0, abs=0.1)
    assert trial.decision.challenger == "rival"


def test_with_one_draw_a_difference_takes_two_updates():
    trial = Trial(4, adapting=0.0, z=2.0, challenger="rival")
    assert trial.record([8.0, 16.0, 0.0, 0.0]) == {}
    assert trial.record([0.0, 0.0, 8.0, 8.0]) == {"difference": 1.0}


def test_a_trial_goes_on_from_its_state():
    def new():
        return Trial(30, adapting=0.2, z=2.0, challenger="rival")

    sums = torch.rand(30, 4, generator=torch.Generator().manual_seed(0)).tolist()
    whole, first, rest = new(), new(), new()
    for step, one in enumerate(sums):
        whole.record(one)
        if step < 17:
            first.record(one)
    rest.load_state_dict(first.state_dict())
    for one in sums[17:]:
        rest.record(one)
    assert rest.decision == whole.decision


def test_examples():
    assert doctest.testmod(acceptance).failed == 0
