"""What is said about the order after a training."""

from types import SimpleNamespace

import torch

from reorder_lightning.acceptance import Decision
from reorder_lightning.cli.summary import order_result


def after(phase, accepted, acceptance=True, error=0.004, challenger="learned"):
    decision = Decision(accepted, 0.0123, error, challenger)
    policy = SimpleNamespace(acceptance=acceptance, decide=lambda: decision)
    orders = torch.tensor([3, 2, 1, 0]), torch.tensor([0, 1, 2, 3])
    return order_result(
        SimpleNamespace(phase=phase, policy=policy, order=orders[0], start_order=orders[1])
    )


def test_kept_learned_and_unfinished_orders_are_told_apart():
    gain = "reward +0.0123 in the trial (standard error 0.0040)"
    assert after("frozen", False) == f"the start order was kept; the learned one: {gain}"
    assert "nothing was found" in after("frozen", False, error=float("nan"))
    assert after("frozen", True) == f"learned; Kendall tau to the start -1.000, {gain}"
    assert after("frozen", True, challenger="rival").startswith("rival; Kendall tau")
    assert after("frozen", True, False) == "learned; Kendall tau to the start -1.000"
    assert after("policy", True).startswith("not final")
    assert order_result(SimpleNamespace(policy=None)) == "no policy phase: the start order"
