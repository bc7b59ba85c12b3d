import doctest
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reorder_lightning.plackett_luce as module
from reorder_lightning.plackett_luce import PlackettLuce


def orders(n: int) -> torch.Tensor:
    return torch.tensor(list(itertools.permutations(range(n))))


def test_docstring_examples():
    result = doctest.testmod(module, extraglobs={"torch": torch})
    assert result.attempted > 0
    assert result.failed == 0


def test_pinned_values():
    """Case 32: https://github.com/bob-carpenter/case-studies/issues/1."""
    policy = PlackettLuce(torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64))
    order = torch.tensor([0, 1, 2])
    torch.testing.assert_close(policy.log_prob(order).item(), -0.720868, atol=1e-6, rtol=0)
    expected = torch.tensor([0.334759, 0.024213, -0.358972], dtype=torch.float64)
    torch.testing.assert_close(policy.score(order), expected, atol=1e-6, rtol=0)

    policy = PlackettLuce(torch.zeros(3, dtype=torch.float64))
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(policy.log_prob(order).item(), -1.791759, atol=1e-6, rtol=0)
    expected = torch.tensor([1 / 6, -5 / 6, 2 / 3], dtype=torch.float64)
    torch.testing.assert_close(policy.score(order), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_stay_finite(dtype):
    policy = PlackettLuce(torch.tensor([1000.0, -1000.0, 0.0], dtype=dtype))
    order = torch.tensor([0, 1, 2])
    assert policy.log_prob(order).item() == -1000
    assert policy.score(order).isfinite().all()
    worst = PlackettLuce(torch.linspace(-1e4, 1e4, 50, dtype=dtype))
    assert worst.score(torch.arange(50)).isfinite().all()
    assert torch.equal(worst.sample(), torch.arange(49, -1, -1))


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 30), seed=st.integers(0, 2**31), scale=st.sampled_from([0.1, 1.0, 30.0]))
def test_score_is_the_gradient_of_log_prob(n, seed, scale):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, n, dtype=torch.float64, generator=generator) * scale
    logits.requires_grad_()
    policy = PlackettLuce(logits)
    draws = policy.sample((3,), generator=generator)
    (gradient,) = torch.autograd.grad(policy.log_prob(draws)[1].sum(), logits)
    torch.testing.assert_close(policy.score(draws)[1], gradient, atol=1e-12, rtol=1e-12)
    row_sums = policy.score(draws).sum(-1)
    torch.testing.assert_close(row_sums, torch.zeros_like(row_sums), atol=1e-11, rtol=0)


def test_probabilities_sum_to_one():
    policy = PlackettLuce(torch.tensor([0.3, -1.2, 2.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(policy.log_prob(orders(4)).exp().sum().item(), 1.0)


def test_sampling_frequencies_are_the_probabilities():
    policy = PlackettLuce(torch.tensor([0.3, -1.2, 1.0, 0.0], dtype=torch.float64))
    draws = 20_000
    sampled = policy.sample((draws,), generator=torch.Generator().manual_seed(0))
    every = orders(4)
    counts = (sampled[:, None] == every[None]).all(-1).sum(0)
    expected = policy.log_prob(every).exp() * draws
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_square < 49.7  # the 0.1 % point of chi-square with 23 degrees of freedom


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_extreme_uniform_draws(monkeypatch, value):
    """Case 33: https://github.com/HKUDS/SSLRec/issues/26."""
    monkeypatch.setattr(torch, "rand", lambda shape, **k: torch.full(shape, value))
    policy = PlackettLuce(torch.tensor([0.0, 2.0, 1.0]))
    draw = policy.sample()
    assert draw.tolist() == [1, 2, 0]
    assert policy.log_prob(draw).isfinite()
    assert module.gumbel(torch.tensor([value, 0.5])).isfinite().all()


def test_ties_go_to_the_smaller_index():
    """Case 35: https://github.com/pytorch/pytorch/issues/103909."""
    assert torch.equal(PlackettLuce(torch.zeros(1000)).mode, torch.arange(1000))


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 400), seed=st.integers(0, 2**31))
def test_from_order_has_the_order_as_its_mode(n, seed):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    policy = PlackettLuce.from_order(order, spread=0.7)
    assert torch.equal(policy.mode, order)
    assert policy.logits.max() == 0
    assert n == 1 or policy.logits.min().item() == pytest.approx(-0.7)


def test_from_order_takes_a_batch():
    batch = torch.stack([torch.arange(5), torch.arange(5).flip(0)])
    assert torch.equal(PlackettLuce.from_order(batch).mode, batch)


def test_shapes():
    policy = PlackettLuce(torch.randn(2, 1, 7))
    assert policy.batch_shape == (2, 1)
    assert policy.event_shape == (7,)
    draws = policy.sample((4,))
    assert draws.shape == (4, 2, 1, 7)
    assert draws.dtype == torch.int64
    assert policy.log_prob(draws).shape == (4, 2, 1)
    assert policy.score(draws).shape == (4, 2, 1, 7)
    half = PlackettLuce(torch.randn(100).to(torch.bfloat16))
    assert sorted(half.sample().tolist()) == list(range(100))


def test_sampling_with_a_generator_leaves_the_global_one_alone():
    policy = PlackettLuce(torch.zeros(5))
    state = torch.get_rng_state()
    first = policy.sample((3,), generator=torch.Generator().manual_seed(3))
    second = policy.sample((3,), generator=torch.Generator().manual_seed(3))
    assert torch.equal(first, second)
    assert torch.equal(state, torch.get_rng_state())


def test_bad_input_is_refused(monkeypatch):
    # torch.compile switches the validation of all distributions off for the rest of the process.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    with pytest.raises(ValueError, match="floating point"):
        PlackettLuce(torch.arange(3))
    with pytest.raises(ValueError, match="logits"):
        PlackettLuce(torch.tensor([0.0, float("nan")]))
    with pytest.raises(ValueError, match="spread"):
        PlackettLuce.from_order(torch.arange(3), spread=0.0)
    with pytest.raises(ValueError, match="each of 0"):
        PlackettLuce.from_order(torch.tensor([0, 0, 2]))
    with pytest.raises(ValueError, match="support"):
        PlackettLuce(torch.zeros(3)).log_prob(torch.tensor([0, 2, 2]))
