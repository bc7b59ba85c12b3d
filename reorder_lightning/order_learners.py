"""What `OrderPolicy` needs of a learner: orders to try, and how their rewards move the logits.

``evidence`` is a sum over the draws of a batch, so that micro-batches and ranks can be added up;
``step`` turns the sum of an optimiser step into new logits.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = ["Evidence", "Learner"]


class Evidence(NamedTuple):
    """What the draws of a batch say.

    Attributes:
        sums: float64 ``(N,)``, to be added up over batches and ranks.
        weight: float64 ``(A,)``, the images behind each advantage.
        advantage: float64 ``(A,)``, for logging.
    """

    sums: Tensor
    weight: Tensor
    advantage: Tensor


class Learner(Protocol):
    """What `OrderPolicy` needs of a learner.

    Attributes:
        found: from 0, nothing but noise so far, to 1, there is surely something to learn.
    """

    found: float

    def exploring(self, k: int) -> int:
        """How many of the ``k`` draws of a batch explore; the others are the start order."""
        ...

    def explore(self, logits: Tensor, tau: float, k: int, generator: torch.Generator) -> Tensor:
        """``k`` orders around the logits, int64 ``(k, N)``."""
        ...

    def evidence(
        self,
        orders: Tensor,
        count: Tensor,
        total: Tensor,
        logits: Tensor,
        tau: float,
        moving: float | None,
    ) -> Evidence:
        """What explored orders ``(k, N)`` earned: images and summed rewards, each ``(k,)``.

        ``moving`` is the moving average of the reward, None before the first update.
        """
        ...

    def step(self, logits: Tensor, sums: Tensor, images: float, tau: float, done: float) -> Tensor:
        """New logits; ``images``: the weight in ``sums``; ``done``: share of the exploration."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain numbers."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of ``state_dict``."""
        ...
