import pytest
import torch

from reorder_lightning.rank_regression import RankRegression, _Waves


def test_pairs_are_mirrored():
    """Of flat logits the mirrored smooth draw is the draw backwards."""
    learner = RankRegression((4, 4), 16, 100)
    orders = learner.explore(torch.zeros(16), 0.5, 6, torch.Generator().manual_seed(0))
    assert torch.equal(orders[:3], orders[3:].flip(-1))


def test_smooth_fields_have_variance_one_and_neighbours_alike():
    noise = torch.randn(2000, 64, generator=torch.Generator().manual_seed(0))
    field = _Waves((8, 8), 64).smooth(noise).view(-1, 8, 8)
    assert field.square().mean().item() == pytest.approx(1, abs=0.05)
    assert (field[:, 1:] * field[:, :-1]).mean() > 0.4


@pytest.mark.parametrize("grid", [(1, 1), (1, 7), (5, 4), (8, 8), None])
def test_waves_are_orthonormal(grid):
    size = grid[0] * grid[1] if grid else 12
    waves = _Waves(grid, size)
    values = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    split = waves.split(values)
    torch.testing.assert_close(waves.join(split), values)
    torch.testing.assert_close(split.norm(), values.norm())
    torch.testing.assert_close((waves.power(split) * waves.members).sum(), values.square().sum())


def test_evidence_is_the_reward_of_an_earlier_place():
    learner = RankRegression(None, 4, 100)
    orders = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]])
    count, total = torch.tensor([2.0, 2.0]), torch.tensor([4.0, 0.0])
    seen = learner.evidence(orders, count.double(), total.double(), torch.zeros(4), 1.0, None)
    assert seen.weight.tolist() == [4.0]
    assert seen.advantage.tolist() == [1.0]
    torch.testing.assert_close(seen.sums, 4 * torch.tensor([3.0, 1, -1, -3]).double() / 8)
    lonely = learner.evidence(
        orders, torch.tensor([2.0, 0.0]).double(), total.double(), torch.zeros(4), 1.0, None
    )
    assert lonely.sums.abs().sum() == 0, "half a pair says nothing"


def test_noise_is_rarely_taken_for_a_signal():
    """``found`` over 200 series of pure noise."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(200):
        learner = RankRegression((3, 3), 9, 100)
        logits = torch.zeros(9)
        for step in range(100):
            noise = torch.randn(9, generator=generator).double()
            logits = learner.step(logits, noise - noise.mean(), 8.0, 0.5, step / 100)
        found.append(learner.found)
    assert sum(value > 0 for value in found) <= 30
    assert sum(value > 0.5 for value in found) <= 6


def test_a_clear_signal_is_found_and_followed_at_full_speed():
    learner = RankRegression((3, 3), 9, 100, travel=6.0)
    direction = torch.tensor([1.0, -1, 1, -1, 0, 1, -1, 1, -1]).double()
    logits = torch.zeros(9)
    for step in range(100):
        noise = 0.01 * torch.randn(9, generator=torch.Generator().manual_seed(step)).double()
        logits = learner.step(logits, direction + noise - noise.mean(), 8.0, 0.5, step / 100)
    assert learner.found == 1.0
    length = logits.square().mean().sqrt().item()
    assert length == pytest.approx(6.0 * 0.5, rel=0.15)
    assert torch.nn.functional.cosine_similarity(logits, direction.float(), dim=0) > 0.99


def test_the_share_of_exploring_draws_grows_with_what_is_found():
    learner = RankRegression((3, 3), 9, 100, explore_share=0.25)
    assert [learner.exploring(k) for k in (1, 2, 3, 8, 64)] == [0, 2, 2, 2, 16]
    learner.found = 0.5
    assert learner.exploring(16) == 10
    learner.found = 1.0
    assert [learner.exploring(k) for k in (2, 3, 8, 64)] == [2, 2, 8, 64]
