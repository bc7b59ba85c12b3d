import pytest
import torch

from reorder_lightning.plackett_luce import PlackettLuce
from reorder_lightning.reinforce import Reinforce


@pytest.mark.parametrize("log_prob", ["exact", "paper"])
def test_reinforce_evidence_is_the_gradient_of_the_weighted_log_probability(log_prob):
    logits = torch.randn(6, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    tau = 0.3
    learner = Reinforce(6, 0.1, log_prob, "leave-one-out")
    orders = learner.explore(logits.detach(), tau, 3, torch.Generator().manual_seed(1))
    count = torch.tensor([2.0, 1.0, 3.0]).double()
    total = torch.tensor([1.0, 4.0, -2.0]).double()
    mean = total / count
    others = torch.stack([(total.sum() - total[i]) / (count.sum() - count[i]) for i in range(3)])
    scale = tau if log_prob == "exact" else 1.0
    log_p = PlackettLuce(logits / scale).log_prob(orders)
    (gradient,) = torch.autograd.grad((count * (mean - others) * log_p).sum(), logits)
    seen = learner.evidence(orders, count, total, logits.detach(), tau, None)
    torch.testing.assert_close(seen.sums, gradient, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(seen.advantage, mean - others)


def test_the_ema_baseline_is_the_moving_reward():
    learner = Reinforce(4, 0.1, "exact", "ema")
    one = torch.ones(1, dtype=torch.float64)
    args = (torch.arange(4)[None], 2 * one, 6 * one, torch.zeros(4), 1.0)
    assert learner.evidence(*args, 1.0).advantage.item() == 2.0
    assert learner.evidence(*args, None).advantage.item() == 0.0, "the first batch has no past"


def test_reinforce_steps_as_torch_adam_does():
    learner = Reinforce(5, 0.01, "exact", "ema")
    logits = torch.zeros(5)
    peer = torch.nn.Parameter(torch.zeros(5))
    optimizer = torch.optim.Adam([peer], lr=0.01, eps=1e-12)
    for seed in range(20):
        gradient = torch.randn(5, generator=torch.Generator().manual_seed(seed))
        logits = learner.step(logits, 4 * gradient.double(), 4.0, 1.0, 0.0)
        peer.grad = -gradient
        optimizer.step()
    torch.testing.assert_close(logits, peer.detach(), atol=1e-6, rtol=1e-5)


def test_all_draws_explore():
    learner = Reinforce(4, 0.1, "exact", "ema")
    assert [learner.exploring(k) for k in (1, 8)] == [1, 8]
