"""How well policies learn orders whose right answer is known.

``python -m tests.benchmarks.policy [--quick]`` prints three tables. The published learner (released
code of arXiv 2505.23751: log-probability of the logits, EMA baseline, one draw a batch, temperature
0 to 0.2 to 0) runs at its best learning rate; ours runs with its defaults.

Rewards are per image, in batches of 64, with noise of ``noise * sqrt(64)``.
"""

from __future__ import annotations

import argparse
import math
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reorder_lightning.callbacks.phases import RACE_SHARE
from reorder_lightning.order_policy import OrderPolicy
from reorder_lightning.orders import get_order, kendall_tau

BATCH = 64
PUBLISHED = {
    "estimator": "score",
    "log_prob": "paper",
    "baseline": "ema",
    "schedule": "triangular",
    "peak_temperature": 0.2,
    "acceptance": False,
}
# The best of 1e-3, 3e-3, 1e-2, 3e-2, 1e-1 on the task with a signal, by number of updates; for
# 30,000 updates of 3e-4, 1e-3, 3e-3, 1e-2 with two seeds.
PUBLISHED_LR = {300: 1e-2, 3000: 3e-3, 30000: 1e-3}


@dataclass(frozen=True)
class Task:
    """A reward of orders on a square grid, from row or a random order on.

    ``name``: signal, none or path.
    """

    name: str
    side: int = 8
    noise: float = 0.02
    drift: float = 0.0
    random_start: bool = False

    def start(self, seed: int) -> Tensor:
        if self.random_start:
            return _permutation(self.side**2, seed)
        return get_order("row", self.side, self.side)

    def reward(self, orders: Tensor) -> Tensor:
        """Without noise: ``(K, N)`` to ``(K,)``."""
        if self.name == "none":
            return torch.zeros(len(orders))
        if self.name == "path":  # minus the mean distance between consecutive patches
            place = torch.stack([orders // self.side, orders % self.side], dim=-1).float()
            return -(place[:, 1:] - place[:, :-1]).norm(dim=-1).mean(dim=-1)
        goal = get_order("hilbert", self.side, self.side).argsort()
        return -(orders.argsort(-1) - goal).abs().float().mean(-1) / len(goal)

    def value(self, order: Tensor, start: Tensor) -> float:
        """Kendall tau to the answer (without a signal: to the start), or the reward reached."""
        if self.name == "path":
            return self.reward(order[None]).item()
        answer = start if self.name == "none" else get_order("hilbert", self.side, self.side)
        return kendall_tau(order, answer)


def _permutation(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def learn(task: Task, updates: int, seed: int, draws: int = 8, **kwargs: object) -> OrderPolicy:
    """One run on a task through `OrderPolicy`, with a row order as rival, as `REOrder` has it."""
    grid = (task.side, task.side)
    if kwargs.get("acceptance", True):
        race = int(RACE_SHARE * updates)
        kwargs = {"rival": get_order("row", *grid), "race_updates": race} | kwargs
    policy = OrderPolicy(
        task.start(seed), total_updates=updates, grid_size=grid, seed=seed, **kwargs
    )
    generator = torch.Generator().manual_seed(seed)
    group = torch.arange(BATCH) % draws
    for step in range(updates):
        orders = policy.draw(draws)
        noise = torch.randn(BATCH, generator=generator) * task.noise * math.sqrt(BATCH)
        policy.observe(orders, task.reward(orders)[group] + noise + task.drift * step / updates)
        policy.update()
    return policy


def outcome(
    task: Task, updates: int, draws: int, kwargs: dict[str, object], seed: int
) -> tuple[float, float, bool, float, float]:
    """Value of the learned order, of the final one, accepted, found, share of drawn images."""
    torch.set_num_threads(1)
    policy = learn(task, updates, seed, draws, **kwargs)
    start = task.start(seed)
    raw, final = task.value(policy.mode, start), task.value(policy.order, start)
    return raw, final, policy.decide().accepted, policy.learner.found, policy.drawn_share


def row(pool: ProcessPoolExecutor, label: str, task: Task, updates: int, seeds: int) -> None:
    """Print one line: published (best of its learning rates) and ours, raw and final."""
    args = {**PUBLISHED, "lr": PUBLISHED_LR[updates]}
    best = [
        result[1] for result in pool.map(partial(outcome, task, updates, 1, args), range(seeds))
    ]
    ours = list(pool.map(partial(outcome, task, updates, 8, {}), range(seeds)))
    raw, final, accepted, _, share = zip(*ours, strict=True)
    print(
        f"| {label} | {updates:,} | {_spread(best)} | {_spread(raw)} | {_spread(final)} "
        f"| {sum(accepted)}/{seeds} | {sum(share) / seeds:.2f} |",
        flush=True,
    )


def _spread(values: list[float] | tuple[float, ...]) -> str:
    return f"{sum(values) / len(values):.3f} ({min(values):.3f})"


class Forgetful(nn.Module):
    """A causal recurrence with little memory: ``h = 0.7 h + tanh(w_patch x + b_patch)``, noisy."""

    def __init__(self, patches: int, width: int = 16) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(patches, width))
        self.bias = nn.Parameter(torch.zeros(patches, width))
        self.head = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, 2))

    def forward(self, tokens: Tensor, order: Tensor) -> Tensor:
        """Tokens ``(B, N)`` read in ``order (B, N)``."""
        value = torch.tanh(tokens[..., None] * self.weight + self.bias)
        fade = 0.7 ** (order.shape[1] - 1 - order.argsort(-1)).float()
        state = (fade[..., None] * value).sum(1)
        return self.head(state + 0.3 * torch.randn_like(state))


@dataclass(frozen=True)
class Trained:
    """Where the three clues stand (0 first, 1 last), and what the trained model gets right."""

    place: float
    accepted: bool
    accuracy: float


def with_model(start_name: str, learn_order: bool, seed: int, updates: int = 3000) -> Trained:
    """The label is the majority of three patches: the order that reads them last is best.

    The start order is ``"poor"``, which reads them first, or ``"best"``, which reads them last; the
    rival, row, says nothing about them. A quarter of the training is warm-up, half policy, a
    quarter frozen; the race takes the warm-up and three quarters of the policy phase.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    patches = 36
    shuffled = _permutation(patches, seed)
    clues = shuffled[:3]
    start = shuffled if start_name == "poor" else shuffled.flip(0)
    model = Forgetful(patches)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    warmup = updates // 2
    policy = OrderPolicy(
        start,
        total_updates=warmup + updates,
        grid_size=(6, 6),
        seed=seed,
        rival=get_order("row", 6, 6),
        race_updates=warmup + int(RACE_SHARE * updates),
    )

    def batch(size: int) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(0, 2, (size, patches)) * 2.0 - 1.0
        return tokens, (tokens[:, clues].sum(1) > 0).long()

    for step in range(2 * updates):
        tokens, label = batch(BATCH)
        drawing = learn_order and step < warmup + updates
        orders = policy.draw(8) if drawing else policy.order[None]
        logits = model(tokens, orders[torch.arange(BATCH) % len(orders)])
        loss = F.cross_entropy(logits, label, reduction="none")
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
        if drawing:
            policy.observe(orders, -loss)
            policy.update()
    tokens, label = batch(4000)
    with torch.no_grad():
        hits = model(tokens, policy.order.expand(4000, -1)).argmax(-1) == label
    place = policy.order.argsort()[clues].float().mean().item() / (patches - 1)
    accepted = learn_order and policy.decide().accepted
    return Trained(place, accepted, hits.float().mean().item())


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 seeds, no 30,000 updates")
    parser.add_argument("--updates", type=int, nargs="+", choices=PUBLISHED_LR)
    args = parser.parse_args()
    seeds, lengths = (2, (300, 3000)) if args.quick else (5, (300, 3000, 30000))
    lengths = args.updates or lengths
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        print("| task | updates | published | ours, raw | ours, final | accepted | drawn |")
        print("|---|---|---|---|---|---|---|")
        for label, task in (
            ("signal", Task("signal")),
            ("no signal", Task("none")),
            ("path length", Task("path", random_start=True)),
            ("signal, N=196", Task("signal", side=14)),
        ):
            for updates in lengths:
                row(pool, label, task, updates, seeds)
        for label, task in (
            ("signal, 10x noise", Task("signal", noise=0.2)),
            ("no signal, 10x noise", Task("none", noise=0.2)),
            ("signal, drift", Task("signal", drift=1.0)),
            ("no signal, drift", Task("none", drift=1.0)),
        ):
            row(pool, label, task, min(3000, max(lengths)), seeds)
        print()
        for updates in [length for length in lengths if length <= 3000]:
            count = 20 if args.quick else 100
            for start in ("row", "random"):  # with a random one, row is the rival
                task = Task("none", random_start=start == "random")
                results = list(pool.map(partial(outcome, task, updates, 8, {}), range(count)))
                accepted = sum(result[2] for result in results)
                print(f"no signal, {start}, {updates:,} updates: accepted {accepted} of {count}")
        print("\n| with a model | place of the clues | accepted | accuracy |\n|---|---|---|---|")
        for start in ("poor", "best"):
            for learn_order in (False, True):
                runs = list(pool.map(partial(with_model, start, learn_order), range(seeds)))
                label = f"{start}, {'learned' if learn_order else 'fixed'}"
                place = _spread([run.place for run in runs])
                accuracy = _spread([run.accuracy for run in runs])
                accepted = sum(run.accepted for run in runs)
                print(f"| {label} | {place} | {accepted}/{seeds} | {accuracy} |", flush=True)


if __name__ == "__main__":
    main()
