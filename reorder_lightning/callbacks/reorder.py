"""REOrder: learn the patch order while the model trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor

from reorder_lightning.callbacks.phases import Phase, Phases, plan_phases
from reorder_lightning.callbacks.rewards import RewardFn, batch_rewards
from reorder_lightning.order_policy import OrderPolicy
from reorder_lightning.orders import get_order, kendall_tau
from reorder_lightning.patch_order import PatchOrder


class REOrder(Callback):
    """Learns the order in which a model reads its patches, by REINFORCE, during its training.

    Three phases: in the warm-up the model trains on the start order; in the policy phase each batch
    is read in orders drawn from a Plackett-Luce policy, which moves towards those that earn more
    (Kutscher et al., "REOrdering Patches Improves Vision Models", NeurIPS 2025,
    arXiv 2505.23751, section 4); after it, the model trains on with the order frozen.

    The model must contain a `PatchOrder`, as all models of this package do. The policy has its own
    Adam in float32 and its own random numbers: the user's optimiser, gradients and global random
    state are never touched. The learned order is saved in the model's ``state_dict``, the policy in
    this callback's state, and a resumed training continues exactly.

    Logged at every policy update: ``reorder/phase`` (0 warm-up, 1 policy, 2 frozen),
    ``reorder/temperature``, ``reorder/reward``, ``reorder/baseline``, ``reorder/advantage_std``,
    ``reorder/entropy_proxy`` (entropy of the first choice, as a share of the largest possible) and
    ``reorder/kendall_to_start`` (1: the order has not moved; 0: unrelated).

    Args:
        start: order to start from: a name, a file, a checkpoint, or a list. None: the model's own.
        warmup: length of the warm-up; an int is epochs, a float a share of the training.
        policy: length of the policy phase, likewise. 0 switches the policy off.
        draws_per_batch: orders drawn for a batch; image ``i`` reads in draw ``i % K``.
            ``"image"``: one draw for each image.
        lr: learning rate of the policy. None: follows the number of updates.
        peak_temperature: largest temperature of the draws.
        schedule: ``"triangular"``, ``"linear"`` or ``"cosine"``: temperature over the policy phase.
        log_prob: ``"exact"``: of the distribution that the draws come from; ``"paper"``: of the
            logits without temperature, as published.
        baseline: what a reward is compared with, see `OrderPolicy`.
        warmup_order: ``"start"``, or ``"row"`` as in the paper's text.
        reward_fn: ``(outputs of training_step, batch) -> rewards (B,)``, larger is better. None:
            ``pl_module.reorder_reward(outputs, batch)`` or ``outputs["reorder_reward"]``.
        seed: of the draws.
        name: tells several callbacks in one Trainer apart.

    Raises:
        ValueError: for arguments that don't fit the model or the training.

    Example:
        >>> trainer = Trainer(callbacks=[REOrder(start="hilbert", warmup=2, policy=5)])
    """

    def __init__(
        self,
        start: str | list[int] | Tensor | None = None,
        warmup: int | float = 0.15,
        policy: int | float = 0.30,
        draws_per_batch: int | Literal["image"] = 8,
        lr: float | None = None,
        peak_temperature: float = 0.5,
        schedule: str = "triangular",
        log_prob: str = "exact",
        baseline: str = "leave-one-out",
        warmup_order: Literal["start", "row"] = "start",
        reward_fn: RewardFn | None = None,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        if warmup_order not in ("start", "row"):
            raise ValueError(f"Expected `warmup_order` 'start' or 'row', but got {warmup_order!r}.")
        if draws_per_batch != "image" and (
            not isinstance(draws_per_batch, int) or draws_per_batch < 1
        ):
            raise ValueError(
                f"Expected `draws_per_batch` to be 1 or more, or 'image', but got "
                f"{draws_per_batch!r}."
            )
        self.start = start
        self.warmup_span = warmup
        self.policy_span = policy
        self.draws_per_batch = draws_per_batch
        self.policy_args: dict[str, Any] = {
            "lr": lr,
            "peak_temperature": peak_temperature,
            "schedule": schedule,
            "log_prob": log_prob,
            "baseline": baseline,
            "seed": seed,
        }
        self.warmup_order = warmup_order
        self.reward_fn = reward_fn
        self.name = name

        self.policy: OrderPolicy | None = None  # from the start of the training on
        self.phases: Phases | None = None
        self._layer: PatchOrder | None = None
        self._start_order: Tensor | None = None
        self._draw: Tensor | None = None  # of the current batch, in the policy phase only
        self._step = 0  # optimiser steps that the policy knows of
        self._loaded: dict[str, Any] | None = None  # state of a checkpoint, until the policy exists

    # ------------------------------------------------------------------ what users ask for

    @property
    def state_key(self) -> str:
        """The key of this callback's state in a checkpoint."""
        return self._generate_state_key(name=self.name)

    @property
    def layer(self) -> PatchOrder:
        """The `PatchOrder` whose order is learned."""
        if self._layer is None:
            raise RuntimeError("REOrder knows no model yet: it meets it when the Trainer starts.")
        return self._layer

    @property
    def order(self) -> Tensor:
        """The order that the model is evaluated with, int64 ``(N,)``."""
        return self.layer.order

    @property
    def start_order(self) -> Tensor:
        """The order that the policy started from, int64 ``(N,)``."""
        assert self._start_order is not None, "known from setup on"
        return self._start_order

    @property
    def grid_size(self) -> tuple[int, int]:
        """Rows and columns of the patch grid."""
        return self.layer.grid_size

    @property
    def phase(self) -> Phase:
        """The phase of the next optimiser step."""
        return "warmup" if self.phases is None else self.phases.at(self._step)

    @property
    def temperature(self) -> float:
        """The temperature of the next draw; 0 outside the policy phase."""
        return self.policy.temperature if self.policy and self.phase == "policy" else 0.0

    # ------------------------------------------------------------------ Trainer hooks

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the model's `PatchOrder` and set the start order."""
        self._layer = _find_layer(pl_module)
        if stage != "fit":
            return
        if self.start is not None:
            start = get_order(self.start, *self.layer.grid_size)
            if self.layer.given and not torch.equal(start, self.layer.order.cpu()):
                raise ValueError(
                    f"REOrder(start={self.start!r}) and the model's own order differ. Give one of "
                    "them: leave out `start`, or build the model without an order."
                )
            self.layer.order = start
        self._start_order = self.layer.order.cpu().clone()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Plan the phases and build the policy; take over a checkpoint's state."""
        total, per_epoch = _training_length(trainer)
        warmup, policy = self.warmup_span, self.policy_span
        if trainer.fast_dev_run and policy:  # type: ignore[attr-defined]
            warmup, policy = 0.0, 1.0  # one batch, and it should try the policy
        self.phases = plan_phases(warmup, policy, total, per_epoch)
        self._step = trainer.global_step
        state, self._loaded = self._loaded, None
        if state is not None:
            self._start_order = state["start"]
        elif trainer.ckpt_path is not None:
            self._start_order = self.layer.order.cpu().clone()
            rank_zero_warn(
                "REOrder: the checkpoint holds no state of this callback; the policy starts anew "
                "from the model's order."
            )
        if trainer.ckpt_path is not None and self.layer.loaded is False:
            rank_zero_warn(
                "REOrder: the checkpoint holds no patch order; the model keeps the one that it was "
                "built with."
            )
        self.policy = None
        if self.phases.policy:
            self.policy = OrderPolicy(
                self.start_order, total_updates=self.phases.policy, **self.policy_args
            )
            if state is not None and "policy" in state:
                self.policy.load_state_dict(state["policy"])

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set the orders that this batch is read in.

        The draw has the same shape in all phases, so that a compiled model is compiled once.
        """
        count = self.draws_per_batch
        k = extract_batch_size(batch) if count == "image" else count
        if self.phase == "policy":
            assert self.policy is not None
            draw = self._draw = self.policy.draw(k, rank=trainer.global_rank)
        else:
            row_warmup = self.phase == "warmup" and self.warmup_order == "row"
            order = get_order("row", *self.grid_size) if row_warmup else self.layer.order
            draw = order.repeat(k, 1)
        self.layer.draw = draw.to(self.layer.order.device)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Learn from the rewards of this batch; move the policy after every optimiser step."""
        self.layer.draw = None
        if self._draw is not None:
            assert self.policy is not None
            rewards = batch_rewards(outputs, batch, pl_module, self.reward_fn)
            self.policy.observe(self._draw, rewards)
            self._draw = None
        if trainer.global_step != self._step:
            phase = self.phase
            self._step = trainer.global_step
            values = self._update(trainer, pl_module) if phase == "policy" else {}
            values["phase"] = float(("warmup", "policy", "frozen").index(phase))
            pl_module.log_dict({f"reorder/{k}": v for k, v in values.items()}, batch_size=1)

    def _update(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, float]:
        """One update of the policy, the same on all ranks; returns what to log."""
        assert self.policy is not None

        def reduce(sums: Tensor) -> Tensor:
            total = trainer.strategy.reduce(sums.to(pl_module.device), reduce_op="sum")
            assert isinstance(total, Tensor)
            return total.cpu()

        values = {"temperature": self.temperature, **self.policy.update(reduce)}
        self.layer.order = self.policy.mode
        values["kendall_to_start"] = kendall_tau(self.policy.mode, self.start_order)
        if self.phase == "frozen":
            rank_zero_info("REOrder: the policy phase is over; the order is frozen.")
        return values

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave no draw behind in the model."""
        if self._layer is not None:
            self._layer.draw = None

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Start order and policy, as tensors and plain numbers (``weights_only=True`` loads it)."""
        if self._start_order is None:
            return {}
        state: dict[str, Any] = {"start": self._start_order}
        if self.policy is not None:
            state["policy"] = self.policy.state_dict()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Keep the state until the training starts and the policy is built."""
        self._loaded = dict(state_dict) or None


def _find_layer(pl_module: LightningModule) -> PatchOrder:
    layers = {name: m for name, m in pl_module.named_modules() if isinstance(m, PatchOrder)}
    if len(layers) != 1:
        found = f"{len(layers)}: {', '.join(layers)}" if layers else "none"
        raise ValueError(
            f"REOrder needs a model with one PatchOrder, but found {found} in "
            f"{type(pl_module).__name__}. The models of reorder_lightning.models have one; in a "
            "model of your own, call reorder_lightning.PatchOrder(None, grid_size) on the tokens "
            "after the position embedding and before the first block."
        )
    return next(iter(layers.values()))


def _training_length(trainer: Trainer) -> tuple[float, float]:
    """Optimiser steps of the training and of one epoch."""
    batches = trainer.num_training_batches
    per_epoch = max(1, -(-batches // trainer.accumulate_grad_batches))
    return trainer.estimated_stepping_batches, per_epoch
