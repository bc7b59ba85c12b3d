import pytest
import torch

from reorder_lightning.order_policy import OrderPolicy


def run(policy, steps, k=4, images=16, noise=0.1):
    goal = torch.arange(len(policy.start)).flip(0).argsort()
    generator = torch.Generator().manual_seed(policy.updates)
    for _ in range(steps):
        orders = policy.draw(k)
        reward = -(orders.argsort(-1) - goal).abs().float().mean(-1) / len(goal)
        rewards = reward[torch.arange(images) % k]
        policy.observe(orders, rewards + noise * torch.randn(images, generator=generator))
        policy.update()
    return policy


def test_one_draw_with_leave_one_out_is_refused():
    """Case 34: https://github.com/rllm-org/rllm/issues/916."""
    with pytest.raises(ValueError, match="exactly zero"):
        OrderPolicy(torch.arange(4), total_updates=10).draw(1)


def test_resume_is_exact():
    whole = run(run(OrderPolicy(torch.arange(9), total_updates=20), 7), 13)
    half = run(OrderPolicy(torch.arange(9), total_updates=20), 7)
    rest = OrderPolicy(torch.arange(9), total_updates=20)
    rest.load_state_dict(half.state_dict())
    assert torch.equal(run(rest, 13).logits, whole.logits)
