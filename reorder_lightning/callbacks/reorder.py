"""REOrder: learn the patch order while the model trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor

from reorder_lightning.attachment import describe
from reorder_lightning.callbacks.attaching import Pending, refuse_lost_order, share_with_copies
from reorder_lightning.callbacks.auto_start import AutoStart
from reorder_lightning.callbacks.early_read import EarlyRead
from reorder_lightning.callbacks.loops import LoopCheck
from reorder_lightning.callbacks.messages import NEVER_RAN, announce, warn_of_missing
from reorder_lightning.callbacks.phases import RACE_SHARE, Phase, Phases, plan_phases
from reorder_lightning.callbacks.rewards import (
    LogitCapture,
    RewardFn,
    batch_rewards,
    capture_logits,
)
from reorder_lightning.callbacks.trainer_facts import (
    count_epoch,
    data_rank,
    log_is_due,
    steps_done,
    training_length,
)
from reorder_lightning.order_policy import OrderPolicy
from reorder_lightning.orders import get_order, kendall_tau
from reorder_lightning.patch_order import PatchOrder


class REOrder(Callback):
    """Learns the order in which a model reads its patches, by REINFORCE, during its training.

    Three phases: in the warm-up the model trains on the start order; in the policy phase each batch
    is read in orders drawn from a Plackett-Luce policy, which moves towards those that earn more
    (Kutscher et al., "REOrdering Patches Improves Vision Models", NeurIPS 2025,
    arXiv 2505.23751, section 4); after it, the model trains on with the order frozen. A start order
    other than row by row has to beat that one first: see ``rival``.

    The model needs no change: the order is put in front of the first block of a timm
    VisionTransformer or of what ``target`` names, or into the model's own `PatchOrder`. The policy
    has its own Adam in float32 and its own random numbers: the user's optimiser, gradients and
    global random state are never touched. The learned order is saved in the model's ``state_dict``,
    the policy in this callback's state, and a resumed training continues exactly. Load such a
    checkpoint without a Trainer by `reorder_lightning.load_from_checkpoint`.

    The policy moves at every optimiser step; with manual optimisation, at every batch.

    Logged every ``Trainer(log_every_n_steps)`` steps, at the end of an epoch and at that of the
    policy phase: ``reorder/phase`` (0 warm-up, 1 policy, 2 frozen),
    ``reorder/temperature``, ``reorder/reward``, ``reorder/baseline``, ``reorder/advantage_std``,
    ``reorder/entropy_proxy`` (entropy of the first choice, as a share of the largest possible),
    ``reorder/drawn_share`` (share of the images that were read in a drawn order: what exploring
    costs) and ``reorder/kendall_to_start`` (1: the order has not moved; 0: unrelated). In the trial
    ``reorder/difference``, the learned order's reward minus the start order's; at its end
    ``reorder/accepted`` (1: the start order was replaced), ``reorder/gain`` and
    ``reorder/gain_se``, the mean of these differences and its standard error; at the end of the
    race the same of the rival, ``reorder/rival_accepted``, ... See `OrderPolicy` for when to expect
    a gain.

    Args:
        start: order to start from: a name, a file, a checkpoint, or a list. None: the model's own.
            ``"auto"``: the fixed order whose patch sequences compress best, measured on up to 2,000
            training images when a training starts (needs the ``prior`` extra), as `reorder prior`
            does; ``"auto:least"``: the one that compresses worst. The ranking is kept in
            ``~/.cache/reorder_lightning``.
        warmup: length of the warm-up; an int is epochs, a float a share of the training.
        policy: length of the policy phase, likewise. 0 switches the policy off.
        draws_per_batch: orders drawn for a batch; image ``i`` reads in draw ``i % K``.
            ``"image"``: one draw for each image.
        estimator: how rewards move the policy: ``"rank"``, or ``"score"`` as published; this and
            the arguments down to ``acceptance`` are explained by `OrderPolicy`.
        lr: learning rate of ``estimator="score"``. None: follows the number of updates.
        peak_temperature: largest temperature of the draws.
        schedule: of the temperature over the policy phase: ``"constant"``, ``"triangular"``,
            ``"linear"`` or ``"cosine"``.
        log_prob: ``"exact"``: of the distribution that the draws come from; ``"paper"``: of the
            logits without temperature, as published.
        baseline: what a reward is compared with: ``"leave-one-out"`` or ``"ema"``.
        acceptance: keep the start order unless the learned one wins a paired trial at the end of
            the policy phase. False: take what was learned, as published, and race no rival.
        rival: an order, given like ``start``, that races against the start order in the warm-up and
            the first three quarters of the policy phase: half of the images are read in each. If it
            earns more, it becomes the start order. So a poor start is repaired where the policy
            alone would have too few images to find anything. None, or equal to the start: no race.
        warmup_order: ``"start"``, or ``"row"`` as in the paper's text, which leaves no fair race:
            it needs ``rival=None`` or ``acceptance=False``.
        reward_fn: ``(outputs of training_step, batch) -> rewards (B,)``, larger is better. None:
            ``pl_module.reorder_reward(outputs, batch)``, ``outputs["reorder_reward"]``, or minus
            the cross-entropy of the model's logits with the targets of the batch. A training step
            that mixes images (MixUp) must give one of the others.
        target: where the tokens are, see `reorder_lightning.attach`.
        grid_size: rows and columns of patches, likewise.
        num_prefix_tokens: tokens in front of the patches, likewise.
        restore: put the tokens back into raster order after the last block, likewise.
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
        estimator: str = "rank",
        lr: float | None = None,
        peak_temperature: float = 0.7,
        schedule: str = "constant",
        log_prob: str = "exact",
        baseline: str = "leave-one-out",
        acceptance: bool = True,
        rival: str | list[int] | Tensor | None = "row",
        warmup_order: Literal["start", "row"] = "start",
        reward_fn: RewardFn | None = None,
        target: str | None = None,
        grid_size: tuple[int, int] | None = None,
        num_prefix_tokens: int | None = None,
        restore: bool = False,
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
        if draws_per_batch == 1 and baseline == "leave-one-out":
            raise ValueError(
                'With `draws_per_batch=1` and `baseline="leave-one-out"` the advantage is exactly '
                'zero: there is nothing to leave out. Take 2 or more draws, or `baseline="ema"`.'
            )
        self.rival = rival if acceptance else None
        if self.rival is not None and warmup_order == "row":
            raise ValueError(
                'With `warmup_order="row"` a race against the start order would not be fair. Give '
                f"`rival=None`, not {rival!r}, or leave out `warmup_order`."
            )
        self.start = start
        self._auto = AutoStart.parse(start)
        self.warmup_span = warmup
        self.policy_span = policy
        self.draws_per_batch = draws_per_batch
        self.policy_args: dict[str, Any] = {
            "estimator": estimator,
            "lr": lr,
            "peak_temperature": peak_temperature,
            "schedule": schedule,
            "log_prob": log_prob,
            "baseline": baseline,
            "acceptance": acceptance,
            "seed": seed,
        }
        self.warmup_order = warmup_order
        self.reward_fn = reward_fn
        self.where: dict[str, Any] = {
            "target": target,
            "grid_size": grid_size,
            "num_prefix_tokens": num_prefix_tokens,
            "restore": restore,
        }
        self.name = name

        self.policy: OrderPolicy | None = None  # from the start of the training on
        self.phases: Phases | None = None
        self._pending: Pending | None = (
            None  # holds the layer, from `setup` or `configure_model` on
        )
        self._site: dict[str, Any] | None = None  # where the layer is attached
        self._capture: LogitCapture | None = None
        self._start_order: Tensor | None = None
        self._draw: Tensor | None = None  # of the current batch, in the policy phase only
        self._read = EarlyRead()
        self._loops: LoopCheck | None = None  # in the first batch
        self._step = 0  # optimiser steps (batches with manual optimisation) until now
        self._used = False  # whether the layer ran in this training
        self._loaded: dict[str, Any] | None = None  # state of a checkpoint, until the policy exists

    # ------------------------------------------------------------------ what users ask for

    @property
    def state_key(self) -> str:
        """The key of this callback's state in a checkpoint."""
        return self._generate_state_key(name=self.name)

    @property
    def layer(self) -> PatchOrder:
        """The `PatchOrder` whose order is learned."""
        if self._pending is None or self._pending.layer is None:
            raise RuntimeError(
                "REOrder knows no model yet: it meets it when the Trainer starts. After a training "
                "in spawned processes, ask the model for its order, e.g. by "
                "reorder_lightning.export_order."
            )
        return self._pending.layer

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
        """Attach to the model, or find its own `PatchOrder`, and set the start order."""
        refuse_lost_order(trainer, pl_module, self.where["target"])
        known = self._pending.layer if self._pending else None
        if known is not None and any(m is known for m in pl_module.modules()):
            # Not the first time: the order may have been learned since.
            if stage == "fit":
                self._loaded = self.state_dict() if self.policy and trainer.global_step else None
            return
        self._loaded = None
        self._pending = Pending(None if self._auto else self.start, **self.where)
        self._pending.attach_to(pl_module)
        layer = self._pending.layer
        if layer is not None:
            share_with_copies(trainer, pl_module, layer, self.where)
        others = [c for c in trainer.callbacks if isinstance(c, REOrder) and c is not self]  # type: ignore[attr-defined]
        if layer is not None and any(c._pending and c._pending.layer is layer for c in others):
            raise ValueError(
                "Two REOrder callbacks have the same PatchOrder. Give each its own part of the "
                "model as `target`, and a `name`."
            )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the start order if asked for, and watch the classifier if it gives the reward."""
        if self._auto is not None:
            self._auto.settle(trainer, self.layer)
        self._start_order = self.layer.order.cpu().clone()
        self._site = describe(pl_module, self.layer)
        if self.reward_fn is None and not hasattr(pl_module, "reorder_reward"):
            self._capture = capture_logits(pl_module, self.layer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Plan the phases and build the policy; take over a checkpoint's state."""
        warmup, policy = self.warmup_span, self.policy_span
        if trainer.fast_dev_run and policy:  # type: ignore[attr-defined]
            warmup, policy = 0.0, 1.0  # one batch, and it should try the policy
        self.phases = plan_phases(warmup, policy, *training_length(trainer))
        self._step = steps_done(trainer)
        self._used = False
        state, self._loaded = self._loaded, None
        # Not before: some strategies load a checkpoint only after `on_fit_start`.
        self._start_order = self.layer.order.cpu().clone() if state is None else state["start"]
        if trainer.ckpt_path is not None and self._step:
            warn_of_missing(no_policy=state is None, no_order=self.layer.loaded is False)
        self.policy = None
        if self.phases.policy:
            self.policy = OrderPolicy(
                self.start_order,
                grid_size=self.grid_size,
                **self._race(self.phases),
                **self.policy_args,
            )
            if state is not None and "policy" in state:
                self.policy.load_state_dict(state["policy"])

    def _race(self, phases: Phases) -> dict[str, Any]:
        """The policy's number of updates, and its rival."""
        if self.rival is not None:
            rival = get_order(self.rival, *self.grid_size)
            length = phases.warmup + int(RACE_SHARE * phases.policy)
            if length and not rival.equal(self.start_order.cpu()):
                total = phases.warmup + phases.policy
                return {"total_updates": total, "rival": rival, "race_updates": length}
        return {"total_updates": phases.policy}

    @property
    def _drawing(self) -> bool:
        """Whether the policy draws the next step's orders: in the warm-up if it has a rival."""
        if self.policy is None:
            return False
        return self.phase == "policy" or (self.phase == "warmup" and self.policy.racing)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set the orders that this batch is read in.

        The draw has the same shape in all phases, so that a compiled model is compiled once.
        """
        count_epoch(trainer)
        self.layer.used = False
        self._read.forget()
        if not self._used:
            self._loops = LoopCheck(pl_module, self.layer)
        if self._capture is not None:
            self._capture.start(batch)
        if self.policy is None and self.warmup_order == "start":
            return  # one order for the whole training
        count = self.draws_per_batch
        k = extract_batch_size(batch) if count == "image" else count
        if self._drawing:
            assert self.policy is not None
            draw = self._draw = self.policy.draw(k, rank=data_rank(trainer))
        else:
            row_warmup = self.phase == "warmup" and self.warmup_order == "row"
            order = get_order("row", *self.grid_size) if row_warmup else self.layer.order
            draw = order.repeat(k, 1)
        self.layer.draw = draw.to(self.layer.order.device)

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Note that the rewards are computed by now, unless code of the user's computes them later.

        With manual optimisation there may be forward passes behind this one.
        """
        if self._loops is not None:
            self._loops.stop()
        own = self.reward_fn is not None or hasattr(pl_module, "reorder_reward")
        if self._draw is not None and pl_module.automatic_optimization and not own:
            self._read.mark(loss.device)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Learn from the rewards of this batch; move the policy after every optimiser step."""
        self.layer.draw, draw, self._draw = None, self._draw, None
        if self._loops is not None:
            self._loops.stop()
            self._loops = None
        first = not self._used and self.layer.used
        self._used |= self.layer.used
        ran = outputs or not pl_module.automatic_optimization  # not skipped by returning None
        if ran and not self._used:
            raise RuntimeError(NEVER_RAN.format(type(pl_module).__name__))
        # The first batch only shows that there are rewards, lest that fails after the warm-up.
        if self.policy is not None and self.layer.used and (first or draw is not None):
            accumulated = trainer.accumulate_grad_batches
            with self._read.reading(pl_module.device):
                rewards = batch_rewards(
                    outputs, batch, pl_module, self.reward_fn, self._capture, accumulated
                )
                if draw is not None:
                    self.policy.observe(draw, rewards)
        step = steps_done(trainer)
        if step != self._step:
            phase, drawing, self._step = self.phase, self._drawing, step
            # Logging costs more than learning.
            due = not trainer.barebones and (self._decides(phase) or log_is_due(trainer, step))
            values = self._update(trainer, pl_module, due) if drawing else {}
            if due:
                values["phase"] = float(("warmup", "policy", "frozen").index(phase))
                pl_module.log_dict({f"reorder/{k}": v for k, v in values.items()}, batch_size=1)

    def _decides(self, phase: Phase) -> bool:
        """Whether the step just done, in ``phase``, ends the race or the policy phase."""
        if self.policy is None or phase == "frozen":
            return False
        return self.phase == "frozen" or self.policy.updates + 1 == self.policy.race_updates

    def _update(self, trainer: Trainer, pl_module: LightningModule, log: bool) -> dict[str, float]:
        """One update of the policy, the same on all ranks; returns what to log, if that is due."""
        assert self.policy is not None

        def reduce(sums: Tensor) -> Tensor:
            with self._read.reading(pl_module.device):
                total = trainer.strategy.reduce(sums.to(pl_module.device), reduce_op="sum")
                assert isinstance(total, Tensor)
                return total.cpu()

        values = {}
        if log:  # what the draws of this step were made with
            values["temperature"] = self.policy.temperature
            values["entropy_proxy"] = self.policy.entropy_proxy
        values |= self.policy.update(None if trainer.world_size == 1 else reduce)
        self.layer.order = self.policy.order
        if not log:
            return {}
        values["kendall_to_start"] = kendall_tau(self.policy.mode, self.start_order)
        if self.policy.updates == self.policy.race_updates:
            announce(pl_module, "race", "rival_", self.policy.judge_rival())
        if self.phase == "frozen":
            announce(pl_module, "policy phase", "", self.policy.decide())
        return values

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say so if the training ends in the middle of the policy phase."""
        if self.phase == "policy" and self.policy is not None and self.policy.updates:
            rank_zero_warn(
                "REOrder: the training ended within the policy phase. The model has the order "
                "learned so far, which was not yet compared with the start order; resume the "
                "training, or shorten `warmup` and `policy`."
            )

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave no draw and no hook of the training behind in the model."""
        self._clean_up()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave no draw and no hook of the training behind in the model."""
        self._clean_up()

    def _clean_up(self) -> None:
        if self._pending is not None and self._pending.layer is not None:
            self._pending.layer.draw = None
        self._draw = None
        if self._loops is not None:
            self._loops.remove()
            self._loops = None
        if self._capture is not None:
            self._capture.remove()
            self._capture = None

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Start order and policy, as tensors and plain values (``weights_only=True`` loads it)."""
        if self._start_order is None:
            return {}
        state: dict[str, Any] = {"start": self._start_order, "site": self._site}
        if self.policy is not None:
            state["policy"] = self.policy.state_dict()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Keep the state until the training starts and the policy is built."""
        self._loaded = dict(state_dict) or None
