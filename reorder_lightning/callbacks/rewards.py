"""Where the reward of each image comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor

RewardFn = Callable[[Any, Any], Tensor]
"""``(outputs of training_step, batch) -> rewards (B,)``, larger is better."""

_KEY = "reorder_reward"
_CURE = (
    f"Return {{'loss': loss, '{_KEY}': rewards}} from `training_step`, define "
    f"`{_KEY}(self, outputs, batch)` on the LightningModule, or pass `reward_fn` to REOrder; each "
    "gives one number per image, larger is better, e.g. minus the cross-entropy with "
    "reduction='none'."
)


def batch_rewards(
    outputs: Any, batch: Any, pl_module: LightningModule, reward_fn: RewardFn | None = None
) -> Tensor:
    """The reward of each image of a batch, float32 ``(B,)``, without a graph.

    The first of these that there is: ``reward_fn(outputs, batch)``,
    ``pl_module.reorder_reward(outputs, batch)``, ``outputs["reorder_reward"]``. A ``training_step``
    that skipped its batch (it returned None) gives an empty tensor.

    Raises:
        ValueError: if there is none, or it is not one number per image.
    """
    method = getattr(pl_module, _KEY, None)
    if reward_fn is not None:
        rewards = reward_fn(outputs, batch)
    elif callable(method):
        rewards = method(outputs, batch)
    elif isinstance(outputs, Mapping) and _KEY in outputs:
        rewards = outputs[_KEY]
    elif not outputs:
        return torch.empty(0)
    else:
        raise ValueError(f"REOrder found no reward for this batch. {_CURE}")
    if not isinstance(rewards, Tensor) or rewards.ndim != 1:
        got = tuple(rewards.shape) if isinstance(rewards, Tensor) else type(rewards).__name__
        raise ValueError(f"Expected a reward of shape (B,), one per image, but got {got}. {_CURE}")
    return rewards.detach().float()
