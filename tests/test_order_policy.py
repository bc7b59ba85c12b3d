import io
import statistics

import pytest
import torch

from reorder_lightning.acceptance import Trial
from reorder_lightning.order_policy import OrderPolicy
from reorder_lightning.orders import get_order, kendall_tau

PUBLISHED = {
    "estimator": "score",
    "log_prob": "paper",
    "baseline": "ema",
    "schedule": "triangular",
    "peak_temperature": 0.2,
    "acceptance": False,
}


def run(policy, steps, k=4, images=16, noise=0.1, signal=1.0, drift=0.0):
    """Rewards that ask for the start order backwards."""
    goal = policy.start.flip(0).argsort()
    generator = torch.Generator().manual_seed(policy.updates)
    for _ in range(steps):
        orders = policy.draw(k)
        reward = -(orders.argsort(-1) - goal).abs().float().mean(-1) / len(goal) * signal
        reward = reward[torch.arange(images) % k] + drift * policy.updates
        policy.observe(orders, reward + noise * torch.randn(images, generator=generator))
        policy.update()
    return policy


def policy(n=16, updates=200, **kwargs):
    return OrderPolicy(torch.arange(n), total_updates=updates, **kwargs)


# ------------------------------------------------------------------ it learns


def known_answer(seed, updates, **kwargs):
    """The order to find is hilbert, from row; noise 0.02 in the mean of 64 images."""
    goal = get_order("hilbert", 8, 8).argsort()
    start = get_order("row", 8, 8)
    learner = OrderPolicy(start, total_updates=updates, grid_size=(8, 8), seed=seed, **kwargs)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(updates):
        orders = learner.draw(8)
        reward = -(orders.argsort(-1) - goal).abs().float().mean(-1) / 64
        noise = 0.16 * torch.randn(64, generator=generator)
        learner.observe(orders, reward[torch.arange(64) % 8] + noise)
        learner.update()
    assert learner.decide().accepted
    return kendall_tau(learner.order, get_order("hilbert", 8, 8))


def test_it_finds_most_of_a_known_answer_in_300_updates():
    assert known_answer(seed=0, updates=300) > 0.65


@pytest.mark.slow
def test_it_finds_a_known_answer_in_3000_updates():
    taus = [known_answer(seed, 3000) for seed in range(5)]
    print(taus)
    assert statistics.mean(taus) >= 0.90
    assert min(taus) >= 0.85


def test_without_a_signal_the_start_order_stays():
    for seed in range(5):
        learner = run(policy(seed=seed, grid_size=(4, 4)), 200, signal=0.0)
        assert not learner.decide().accepted
        assert torch.equal(learner.order, learner.start)
        assert learner.drawn_share < 0.6


def test_a_rising_reward_moves_nothing():
    flat, rising = (run(policy(seed=3), 100, drift=drift) for drift in (0.0, 10.0))
    torch.testing.assert_close(flat.logits, rising.logits, atol=1e-4, rtol=1e-4)


def test_the_published_learner_learns():
    learner = policy(n=6, updates=400, lr=1e-2, **{**PUBLISHED, "peak_temperature": 1.0})
    before = kendall_tau(learner.mode, learner.start.flip(0))
    run(learner, 400, k=1, noise=0.01)
    assert kendall_tau(learner.order, learner.start.flip(0)) > before + 0.3


def test_learning_does_not_depend_on_the_scale_of_the_reward():
    one, thousand = (run(policy(), 60, signal=s, noise=0.1 * s) for s in (1.0, 1000.0))
    torch.testing.assert_close(one.logits, thousand.logits, atol=1e-3, rtol=1e-3)


# ------------------------------------------------------------------ draws


def test_draws_depend_on_seed_counter_and_rank_only():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, again, other = policy(seed=1), policy(seed=1), policy(seed=2)
    draws = [first.draw(4), first.draw(4), first.draw(4, rank=1)]
    assert torch.equal(draws[0], again.draw(4))
    everything = [*draws, other.draw(4)]
    assert len({tuple(draw.flatten().tolist()) for draw in everything}) == 4
    assert torch.equal(state, torch.get_rng_state()), "case 8"


@pytest.mark.parametrize("k", [2, 3, 8, 33])
def test_draws_are_orders_with_the_start_order_as_control(k):
    learner = policy()
    for found in (0.0, 0.5, 1.0):
        learner.learner.found = found
        orders = learner.draw(k)
        assert orders.shape == (k, 16)
        assert torch.equal(orders.sort(dim=-1).values, torch.arange(16).expand(k, -1))
        fixed = k - learner.learner.exploring(k)
        assert torch.equal(orders[:fixed], learner.start.expand(fixed, -1))
    assert fixed == k % 2, "when a signal is found all pairs explore"


def test_cold_draws_are_the_mode_order_and_teach_nothing():
    learner = policy(schedule="triangular")
    assert learner.temperature == 0
    assert torch.equal(learner.draw(4), learner.mode.expand(4, -1))
    before = learner.logits
    learner.observe(learner.draw(4), torch.randn(16))
    learner.update()
    assert torch.equal(learner.logits, before)


def test_one_draw_with_leave_one_out_is_refused():
    """Case 34: https://github.com/rllm-org/rllm/issues/916."""
    with pytest.raises(ValueError, match="exactly zero"):
        policy(n=4).draw(1)


# ------------------------------------------------------------------ sums over micro-batches, ranks


def test_rewards_that_are_not_finite_count_as_no_images():
    learner, clean = policy(), policy()
    for _ in range(30):
        orders = learner.draw(4)
        rewards = torch.randn(16, generator=torch.Generator().manual_seed(learner.updates))
        broken = torch.cat([rewards, torch.tensor([float("nan"), float("inf")] * 2)])
        learner.observe(orders, broken)
        clean.observe(clean.draw(4), rewards)
        assert learner.update() == clean.update()
    assert torch.equal(learner.logits, clean.logits)


def test_reduce_is_called_once_even_without_images_and_ranks_stay_the_same():
    ranks = [policy(), policy()]
    for step in range(40):
        for rank, learner in enumerate(ranks):
            if rank == 0 or step % 3:  # sometimes rank 1 has no batch
                generator = torch.Generator().manual_seed(100 * step + rank)
                learner.observe(learner.draw(4, rank), torch.randn(8, generator=generator))
        flats = [torch.cat([r._sums, r._evidence]) for r in ranks]
        total = flats[0] + flats[1]
        calls = []

        def reduce(flat, calls=calls, total=total):
            calls.append(flat)
            return total.clone()

        metrics = [learner.update(reduce) for learner in ranks]
        assert [torch.equal(a, b) for a, b in zip(calls, flats, strict=True)] == [True, True]
        assert metrics[0] == metrics[1]
        assert torch.equal(ranks[0].logits, ranks[1].logits)
    assert not torch.equal(ranks[0].logits, policy().logits)


# ------------------------------------------------------------------ the trial


@pytest.mark.parametrize("k", [1, 2, 5, 8])
def test_the_trial_gives_both_orders_equal_shares(k):
    kwargs = {"baseline": "ema"} if k == 1 else {}
    learner = policy(updates=40, **kwargs)
    learner.updates = learner.exploring_updates
    learner.learner.found = 1.0
    learner.logits = learner.logits.flip(0)
    seen = []
    for _ in range(10):
        orders = learner.draw(k)
        seen += [torch.equal(order, learner.start) for order in orders]
        learner.observe(orders, torch.zeros(k))
        learner.update()
    assert sum(seen) * 2 == len(seen)


def test_a_better_order_is_accepted_and_a_worse_one_is_not():
    for goal, expected in ((1.0, True), (-1.0, False)):
        learner = policy(updates=80, seed=4)
        learner.updates = learner.exploring_updates
        learner.learner.found = 1.0
        learner.logits = learner.logits.flip(0)
        run(learner, 20, signal=goal, noise=0.05)
        decision = learner.decide()
        assert decision.accepted == expected
        assert decision.gain * goal > 0
        assert torch.equal(learner.order, learner.mode if expected else learner.start)


# ------------------------------------------------------------------ the race


def race(rival_gain, seed=0, updates=60, noise=0.1, **kwargs):
    """Rewards of ``rival_gain`` for the start order backwards, 0 for every other one."""
    rival = torch.arange(16).flip(0)
    learner = policy(updates=updates, seed=seed, rival=rival, race_updates=40, **kwargs)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(updates):
        orders = learner.draw(4)
        reward = rival_gain * (orders == rival).all(-1)[torch.arange(16) % 4]
        learner.observe(orders, reward + noise * torch.randn(16, generator=generator))
        learner.update()
    return learner


@pytest.mark.parametrize("gain", [0.2, -0.2])
def test_the_better_of_two_orders_goes_on(gain):
    learner = race(gain)
    winner = learner.rival if gain > 0 else torch.arange(16)
    assert learner.judge_rival().accepted == (gain > 0)
    assert learner.judge_rival().gain == pytest.approx(gain, abs=0.1)
    assert torch.equal(learner.start, winner)
    assert torch.equal(learner.order, winner)
    assert learner.decide().accepted == (gain > 0)
    assert learner.exploring_updates == 15, "three quarters of the 20 updates behind the race"


def test_race_then_exploration_from_the_winner_then_trial():
    rival = torch.arange(16).flip(0)
    learner = policy(updates=60, rival=rival, race_updates=40, schedule="linear")
    stages, temperatures = [], []
    for _ in range(60):
        orders = learner.draw(5)
        stages.append("race" if learner.racing else "trial" if learner.on_trial else "explore")
        temperatures.append(learner.temperature)
        if learner.racing:
            assert torch.equal(learner.order, torch.arange(16))
            assert torch.equal(orders[:2], torch.arange(16).expand(2, -1))
            assert torch.equal(orders[3:], rival.expand(2, -1))
        elif learner.updates == 40:
            assert torch.equal(learner.mode, rival)
        gain = (orders == rival).all(-1) + 0.01 * (learner.updates % 2)
        learner.observe(orders, gain.float())
        learner.update()
    assert stages == ["race"] * 40 + ["explore"] * 15 + ["trial"] * 5
    assert temperatures[:40] == [0.0] * 40
    assert temperatures[40] == learner.peak_temperature
    assert temperatures[54] == pytest.approx(learner.peak_temperature / 15)
    assert temperatures[55:] == [0.0] * 5


def test_a_rival_that_is_no_better_seldom_wins():
    """2.5 standard errors: 0.8 in 100, a little more with the standard error of 20 numbers."""
    wins = sum(race(0.0, seed).judge_rival().accepted for seed in range(200))
    assert wins <= 6, "99 of 100 times, where 1.2 in 100 win"


def test_gains_of_rival_and_learned_order_add_up():
    learner = race(0.2)
    learner._trial = Trial(20, 0.0, 2.0, "learned")
    for step in range(20):
        learner._trial.record([1.0, 0.5 + 0.01 * (step % 2), 1.0, 0.0])
    learner.logits = learner.logits.roll(1)
    rival, both = learner.judge_rival(), learner.decide()
    assert both.challenger == "learned"
    assert both.gain == pytest.approx(rival.gain + 0.505)
    assert both.gain_se > rival.gain_se
    assert torch.equal(learner.order, learner.mode)


def test_a_rival_equal_to_the_start_needs_no_race():
    learner = policy(rival=torch.arange(16), race_updates=40)
    assert not learner.racing
    assert learner.exploring_updates == 150


# ------------------------------------------------------------------ state


RIVAL = {"rival": torch.arange(9).flip(0), "race_updates": 20}


@pytest.mark.parametrize("kwargs", [{}, RIVAL, {"lr": 1e-2}, {**PUBLISHED, "lr": 1e-2}])
@pytest.mark.parametrize("stop", [7, 24, 35])
def test_resume_is_exact(kwargs, stop):
    def new():
        return policy(n=9, updates=40, **kwargs)

    whole = run(run(new(), stop), 40 - stop)
    file = io.BytesIO()
    torch.save(run(new(), stop).state_dict(), file)
    file.seek(0)
    rest = new()
    rest.load_state_dict(torch.load(file, weights_only=True))
    run(rest, 40 - stop)
    assert torch.equal(rest.logits, whole.logits)
    assert str(rest.state_dict()) == str(whole.state_dict())


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"estimator": "best"}, "`estimator` to be one of"),
        ({"baseline": "mode"}, "`baseline` to be one of"),
        ({"log_prob": "both"}, "`log_prob` to be one of"),
        ({"schedule": "cubic"}, "`schedule` to be one of"),
        ({"estimator": "rank", "lr": 0.1}, "lr=0.1"),
        ({"grid_size": (3, 5)}, "16 patches"),
        ({"updates": 0}, "`total_updates` to be >= 1"),
        ({"rival": torch.arange(16)}, "race_updates=0"),
        ({"rival": torch.arange(16), "race_updates": 200}, "race_updates=200, total_updates=200"),
        ({"rival": torch.arange(16), "race_updates": 9, "acceptance": False}, "acceptance=False"),
    ],
)
def test_bad_arguments(kwargs, match):
    with pytest.raises(ValueError, match=match):
        policy(**kwargs)
