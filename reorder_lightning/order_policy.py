"""OrderPolicy: learn an order from rewards. Plain PyTorch: no Lightning, no model.

The learner of REOrder (Kutscher et al., arXiv 2505.23751, section 4) drifts to a random order when
the rewards say nothing, and all of its images are read in orders that the model will not keep. This
one first races a start order that is not the usual one against the usual one, row by row; explores
with few images until it finds something, moves as far as the evidence goes (`RankRegression`), and
keeps the start order unless the learned one beats it in a fair trial.

When to expect a gain
    Where the model reads the sequence with little memory (a causal scan, a window) and the start
    order is poor for it: a known answer of 64 patches is mostly found within 300 updates if the
    noise in a batch's mean reward is a tenth of what the order can gain. Where the order changes
    the reward by a few hundredths and single images scatter by one, as in small-scale image
    classification, hundreds of updates are not enough to tell: nothing is found and the start
    order is kept. A race needs fewer, since it compares two orders instead of all: where the two
    differ by 0.03 and single images scatter by one, some 50,000 images behind the time that the
    model needs to learn reading both. Full attention gains nothing.

What to look at, in this order
    ``accepted``, ``gain``, ``gain_se``
        The decision at the end: reward of the order that replaces the start order minus that of
        the start order, with its standard error; both had equal shares of the training for that
        span. A ``gain`` of 0 with ``gain_se`` nan means that there was no trial, since nothing was
        found. This is the number to report; rewards of explored draws are not.
    ``rival_accepted``, ``rival_gain``, ``rival_gain_se``
        The same for the race, at its end. If the rival wins, the rest starts from it, and its gain
        is in ``gain`` too. It is the gain on training images; on new ones it can be larger, since a
        model learns its training images by heart in any order.
    ``found``
        From 0 (rewards look like noise) to 1 (past evidence surely foretells new rewards). Still
        0 after half of the exploration: a longer policy phase or larger batches are needed, or
        there is nothing to find.
    ``drawn_share``
        Share of the images read in another order than the start order: what exploring costs. Half
        in a race, else a fifth while nothing is found, up to nine tenths when all draws explore.
    ``kendall_to_start``
        How far the learned order has moved (1: not at all). It also moves a little on noise, so
        it is no evidence by itself.
    ``reward``, ``baseline``, ``advantage_std``, ``difference``
        For curiosity: mean reward of the update, its moving average, the scatter of the draws'
        advantages, the paired difference of this update in race or trial.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from reorder_lightning.acceptance import Decision, Trial
from reorder_lightning.order_learners import Learner
from reorder_lightning.plackett_luce import PlackettLuce
from reorder_lightning.rank_regression import RankRegression
from reorder_lightning.reinforce import Reinforce
from reorder_lightning.schedules import temperature_share

__all__ = ["OrderPolicy"]

_RIVAL_Z = 2.5  # a rival that is no better wins one race of 120; then little is lost
_COLD = 1e-3  # below this temperature draws are the mode order and nothing is learned
_CHOICES = {
    "estimator": ("rank", "score"),
    "log_prob": ("exact", "paper"),
    "baseline": ("leave-one-out", "ema"),
}


class OrderPolicy:
    """A Plackett-Luce policy over orders, learned from the rewards that its draws earn.

    In a training loop::

        policy = OrderPolicy(start, total_updates=3000, grid_size=(14, 14))
        for images, labels in loader:                     # 3000 times
            orders = policy.draw(8)                       # image i is read in orders[i % 8]
            loss = ...                                    # per image
            policy.observe(orders, -loss)
            policy.update()                               # after each optimiser step
        order = policy.order

    **The trial.** The last ``trial`` share of the updates does not explore: half of the draws are
    the learned order and half the start order, so that the model trains equally on both. After a
    third of it, for the model to adapt, the paired differences of their rewards are recorded, and
    the learned order is accepted if their mean is more than ``z`` standard errors above zero. Where
    the exploration has found nothing, there is no trial: its updates use the start order.

    **The race.** If a ``rival`` is given, it comes before all this: in the first ``race_updates``
    half of the draws are the rival and half the start order, and the rival becomes the start order
    if it earned more in the second half of the race, by 2.5 standard errors. A rival is an order
    that is good elsewhere, such as row by row. Exploring finds what is near the start order; a race
    mends a start that is poor as a whole, from far fewer images.

    Args:
        start: int64 ``(N,)``, the order to start from, which the learned one has to beat.
        total_updates: planned number of calls of `update`, race and trial included.
        grid_size: rows and columns of the patch grid, so that neighbours can learn together. None:
            each patch learns for itself.
        estimator: ``"rank"``, see `RankRegression`, or ``"score"``, see `Reinforce`. None: rank,
            unless ``lr``, ``log_prob`` or ``baseline``, which belong to the score, are given.
        peak_temperature: largest temperature of the draws; the logits start with ``spread``.
        schedule: of the temperature: ``"constant"``, ``"triangular"``, ``"linear"``, ``"cosine"``.
        baseline: what a draw's reward is compared with: ``"leave-one-out"``, the batch's other
            draws; or ``"ema"``, a moving average with ``momentum`` (``"score"`` only).
        momentum: of the moving average.
        lr: Adam's learning rate, ``"score"`` only. None: 0.05 * sqrt(1000 / updates).
        log_prob: ``"score"`` only: ``"exact"``, of logits / temperature, from which the draws
            come; or ``"paper"``, of the logits, as in the published code.
        acceptance: False leaves out the trial and accepts whatever is learned, as published.
        trial: share of the updates that the trial takes.
        z: standard errors by which the learned order must be better.
        explore_share: ``"rank"`` only: share of the draws that explore while nothing is found; the
            others are the start order.
        spread: difference between the largest and the smallest logit at the start.
        seed: of the draws.
        rival: int64 ``(N,)``, the order of the race. None, or equal to the start: no race.
        race_updates: length of the race, with a rival.

    Raises:
        ValueError: for arguments out of range, or that don't go together.
    """

    def __init__(
        self,
        start: Tensor,
        *,
        total_updates: int,
        grid_size: tuple[int, int] | None = None,
        estimator: str | None = None,
        peak_temperature: float = 0.7,
        schedule: str = "constant",
        baseline: str = "leave-one-out",
        momentum: float = 0.99,
        lr: float | None = None,
        log_prob: str = "exact",
        acceptance: bool = True,
        trial: float = 0.25,
        z: float = 2.75,
        explore_share: float = 0.25,
        spread: float = 1.0,
        seed: int = 0,
        rival: Tensor | None = None,
        race_updates: int = 0,
    ) -> None:
        given = {"estimator": estimator or "rank", "log_prob": log_prob, "baseline": baseline}
        for name, value in given.items():
            if value not in _CHOICES[name]:
                raise ValueError(
                    f"Expected argument `{name}` to be one of {_CHOICES[name]} but got {value!r}"
                )
        published = baseline != "leave-one-out" or log_prob != "exact" or lr is not None
        if estimator == "rank" and published:
            raise ValueError(
                "Arguments `lr`, `log_prob` and `baseline` are those of estimator='score' but got "
                f"lr={lr}, log_prob={log_prob!r}, baseline={baseline!r} with estimator='rank'"
            )
        if total_updates < 1:
            raise ValueError(
                f"Expected argument `total_updates` to be >= 1 but got {total_updates}"
            )
        size = start.numel()
        if grid_size is not None and grid_size[0] * grid_size[1] != size:
            raise ValueError(
                f"Expected argument `grid_size` to hold {size} patches, as `start` does, but got "
                f"{grid_size}"
            )
        if rival is not None and not (acceptance and 0 < race_updates < total_updates):
            raise ValueError(
                "A `rival` needs `acceptance` and a race of 1 or more updates that leaves some to "
                f"learn in, but got acceptance={acceptance}, race_updates={race_updates}, "
                f"total_updates={total_updates}"
            )
        temperature_share(schedule, 0.0)
        self.start = start.detach().cpu().long().clone()
        self.logits = PlackettLuce.from_order(self.start, spread).logits
        self.spread = spread
        self.rival = self.start if rival is None else rival.detach().cpu().long().clone()
        self.race_updates = 0 if self.rival.equal(self.start) else race_updates
        self.total_updates = total_updates
        learning = total_updates - self.race_updates
        self.exploring_updates = max(1, round(learning * (1 - trial * acceptance)))
        self._race = Trial(self.race_updates, 1 / 2, _RIVAL_Z, "rival")
        self._trial = Trial(learning - self.exploring_updates, 1 / 3, z, "learned")
        self.peak_temperature = peak_temperature
        self.schedule = schedule
        self.baseline = baseline
        self.momentum = momentum
        self.acceptance = acceptance
        self.seed = seed
        self.learner: Learner
        if estimator == "rank" or (estimator is None and not published):
            steps = self.exploring_updates
            self.learner = RankRegression(grid_size, size, steps, explore_share)
        else:
            lr = 0.05 * (1000 / self.exploring_updates) ** 0.5 if lr is None else lr
            self.learner = Reinforce(size, lr, log_prob, baseline)
        self.updates = 0
        self.draws = 0
        self.images = 0.0  # seen so far, and those of them that saw a drawn order
        self.explored = 0.0
        self.moving_reward: float | None = None
        self._rank = 0
        # Of this update: images, reward, images in a drawn order; weight, advantage, its square;
        # in race and trial: images and reward of the challenger, of the start order.
        self._sums = torch.zeros(10, dtype=torch.float64)
        self._evidence = torch.zeros(size, dtype=torch.float64)

    @property
    def mode(self) -> Tensor:
        """The learned order, int64 ``(N,)``."""
        return PlackettLuce(self.logits).mode

    @property
    def order(self) -> Tensor:
        """The order to evaluate with: after the last update the accepted one.

        Until then the learned one, but the start order while nothing is found, since logits move a
        little on noise as well.
        """
        if self.updates >= self.total_updates:
            learned = self._judge_learned().accepted
        else:
            learned = not self.acceptance or self.learner.found > 0
        return self.mode if learned else self.start.clone()

    @property
    def racing(self) -> bool:
        """Whether the rival is compared with the start order."""
        return self.updates < self.race_updates

    @property
    def on_trial(self) -> bool:
        """Whether exploration is over and the learned order is compared with the start order."""
        return self.acceptance and self.updates >= self.race_updates + self.exploring_updates

    @property
    def temperature(self) -> float:
        """Scale of the Gumbel noise of the next draw; 0 in race and trial."""
        if self.racing or self.on_trial:
            return 0.0
        done = min((self.updates - self.race_updates) / self.exploring_updates, 1.0)
        return self.peak_temperature * temperature_share(self.schedule, done)

    @property
    def entropy_proxy(self) -> float:
        """Entropy of the first patch of the next draw, as a share of the largest possible."""
        if self.temperature < _COLD or len(self.logits) < 2:
            return 0.0
        first = torch.distributions.Categorical(logits=self._tempered().logits)
        return float(first.entropy()) / math.log(len(self.logits))

    @property
    def drawn_share(self) -> float:
        """Share of the images so far that were read in a drawn order: what exploring costs."""
        return self.explored / self.images if self.images else 0.0

    def draw(self, k: int, rank: int = 0) -> Tensor:
        """Orders for the next batch.

        Args:
            k: number of orders; image ``i`` of the batch is to be read in ``orders[i % k]``. One
                order per image: ``k`` = the batch size.
            rank: of this process; other ranks get other draws.

        Returns:
            int64 ``(k, N)`` on the CPU. The first ones are the start order, if there are controls.

        Raises:
            ValueError: for ``k=1`` where the draws of a batch are compared with each other.
        """
        if k == 1 and self.baseline == "leave-one-out":
            raise ValueError(
                "One draw per batch has no other to be compared with: its leave-one-out advantage "
                'is exactly zero. Take 2 or more draws per batch, or baseline="ema"'
            )
        key = random.Random(f"{self.seed}/{self.draws}/{rank}").getrandbits(63)
        self.draws += 1
        self._rank = rank
        fixed = self._controls(k)
        if self.temperature < _COLD:
            explored = (self.rival if self.racing else self.mode).expand(k - fixed, -1)
        else:
            generator = torch.Generator().manual_seed(key)
            explored = self.learner.explore(self.logits, self.temperature, k - fixed, generator)
        return torch.cat([self.start.expand(fixed, -1), explored])

    def observe(self, orders: Tensor, rewards: Tensor) -> None:
        """Take in what a batch earned; may be called for several micro-batches before an update.

        Args:
            orders: int64 ``(K, N)``, what `draw` returned for this batch.
            rewards: ``(B,)``, larger is better; image ``i`` was read in ``orders[i % K]``. Rewards
                that aren't finite count as if the image weren't there.
        """
        orders = orders.detach().cpu()
        rewards = rewards.detach().cpu().double()
        finite = rewards.isfinite()
        group = torch.arange(len(rewards)) % len(orders)
        count = torch.zeros(len(orders), dtype=torch.float64)
        count.index_add_(0, group, finite.double())
        total = torch.zeros_like(count).index_add_(0, group, rewards.where(finite, 0.0))
        fixed = self._controls(len(orders))
        drawn, drawn_reward = count[fixed:].sum(), total[fixed:].sum()
        self._sums[:3] += torch.stack([count.sum(), total.sum(), drawn])
        if self.racing or self.on_trial:
            start = torch.stack([count[:fixed].sum(), total[:fixed].sum()])
            self._sums[6:] += torch.cat([torch.stack([drawn, drawn_reward]), start])
        elif self.temperature >= _COLD:
            seen = self.learner.evidence(
                orders[fixed:],
                count[fixed:],
                total[fixed:],
                self.logits,
                self.temperature,
                self.moving_reward,
            )
            self._evidence += seen.sums
            moments = [seen.weight @ seen.advantage**power for power in range(3)]
            self._sums[3:6] += torch.stack(moments)

    def update(self, reduce: Callable[[Tensor], Tensor] | None = None) -> dict[str, float]:
        """Move the policy; once per optimiser step, on every rank.

        Args:
            reduce: sums a 1-D float64 tensor over all ranks. It is called exactly once, also where
                this rank has observed nothing; all ranks end bit-identical.

        Returns:
            What to log: ``reward``, ``baseline``, ``advantage_std``, ``drawn_share``, and in race
            and trial ``difference``, the paired difference of this update.
        """
        flat = torch.cat([self._sums, self._evidence])
        if reduce is not None:
            flat = reduce(flat).cpu()
        sums, evidence = flat[: len(self._sums)].tolist(), flat[len(self._sums) :]
        images, reward, drawn, weight, advantage, squares = sums[:6]
        metrics = {"found": self.learner.found}
        if images:
            self.images += images
            self.explored += drawn
            metrics |= {"reward": reward / images, "drawn_share": self.drawn_share}
            metrics["baseline"] = self._follow(reward / images)
        if weight:
            variance = squares / weight - (advantage / weight) ** 2
            metrics["advantage_std"] = max(variance, 0.0) ** 0.5
            done = (self.updates - self.race_updates) / self.exploring_updates
            tau = self.temperature
            self.logits = self.learner.step(self.logits, evidence, weight, tau, done)
        if self.racing:
            metrics |= self._race.record(sums[6:])
        elif self.on_trial:
            metrics |= self._trial.record(sums[6:])
        self._sums.zero_()
        self._evidence.zero_()
        self.updates += 1
        if self.updates == self.race_updates and self._race.decision.accepted:
            self.start = self.rival
            self.logits = PlackettLuce.from_order(self.start, self.spread).logits
        return metrics

    def judge_rival(self) -> Decision:
        """Whether the rival replaces the order of the start, by the race so far."""
        return self._race.decision

    def decide(self) -> Decision:
        """Whether another order replaces the one of the start, by race and trial so far.

        Where both did, the gains add up.
        """
        rival, learned = self.judge_rival(), self._judge_learned()
        if not rival.accepted:
            return learned
        if not learned.accepted:
            return rival
        error = math.hypot(rival.gain_se, learned.gain_se)
        return Decision(True, rival.gain + learned.gain, error)

    def _judge_learned(self) -> Decision:
        decision = self._trial.decision
        if not self.acceptance:
            return replace(decision, accepted=True)
        moved = not torch.equal(self.mode, self.start)
        return replace(decision, accepted=moved and decision.accepted)

    def _controls(self, k: int) -> int:
        """How many of ``k`` draws are the start order now."""
        if self.racing:
            return self._race.controls(k, self._rank)
        if not self.on_trial:
            return k - self.learner.exploring(k)
        if not self.learner.found:
            return k  # a trial of what was never found would cost training for nothing
        return self._trial.controls(k, self._rank)

    def _tempered(self) -> PlackettLuce:
        return PlackettLuce(self.logits / self.temperature)

    def _follow(self, reward: float) -> float:
        """The moving average of the reward before this update; moves it on."""
        before = reward if self.moving_reward is None else self.moving_reward
        self.moving_reward = self.momentum * before + (1 - self.momentum) * reward
        return before

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain numbers only: loads with ``weights_only=True``."""
        return {
            "start": self.start.clone(),
            "logits": self.logits.clone(),
            "learner": self.learner.state_dict(),
            "updates": self.updates,
            "draws": self.draws,
            "images": self.images,
            "explored": self.explored,
            "moving_reward": self.moving_reward,
            "race": self._race.state_dict(),
            "trial": self._trial.state_dict(),
            "sums": self._sums.clone(),
            "evidence": self._evidence.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken, with the same arguments."""
        self.start = state["start"].clone()
        self.logits = state["logits"].clone()
        self.learner.load_state_dict(state["learner"])
        self.updates = int(state["updates"])
        self.draws = int(state["draws"])
        self.images = float(state["images"])
        self.explored = float(state["explored"])
        moving = state["moving_reward"]
        self.moving_reward = None if moving is None else float(moving)
        self._race.load_state_dict(state["race"])
        self._trial.load_state_dict(state["trial"])
        self._sums = state["sums"].clone()
        self._evidence = state["evidence"].clone()
