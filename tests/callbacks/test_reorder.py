"""REOrder: phases, draws, baselines, schedules, logging, and bad input."""

import doctest

import pytest
import torch
from lightning import Callback
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader

from reorder_lightning import get_order
from reorder_lightning.callbacks import reorder as reorder_module
from reorder_lightning.callbacks.reorder import REOrder
from reorder_lightning.orders import kendall_tau
from reorder_lightning.patch_order import PatchOrder
from tests.toys import Classifier, KnownAnswer, Record, loader, trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*is smaller than the logging interval"),
]


def zeros(n=32, batch_size=8):
    return DataLoader(torch.zeros(n, 1), batch_size=batch_size)


def fit(root, reorder, model=None, data=None, **kwargs):
    record = Record(reorder)
    model = model or KnownAnswer(side=3)
    kwargs = {"max_epochs": 4, **kwargs}
    run = trainer(root, reorder, record, **kwargs)
    run.fit(model, data or zeros())
    return record.rows, model, run


def test_three_phases(tmp_path):
    reorder = REOrder(warmup=1, policy=0.5, schedule="linear")
    rows, model, _ = fit(tmp_path, reorder)
    assert [row["phase"] for row in rows] == ["warmup"] * 4 + ["policy"] * 8 + ["frozen"] * 4
    start = get_order("row", 3, 3)
    assert len({row["draw"] for row in rows[:4]}) == 1
    assert len({row["draw"] for row in rows[4:12]}) >= 6, "cold ones are the mode order"
    assert len({row["draw"] for row in rows[12:]}) == 1
    assert len({row["order"] for row in rows[11:]}) == 1
    assert model.patch_order.draw is None
    assert torch.equal(reorder.start_order, start)
    assert torch.equal(reorder.order, model.patch_order.order)
    assert torch.equal(reorder.order, reorder.policy.order)
    assert reorder.phase == "frozen"
    assert reorder.temperature == 0.0


def test_warmup_in_row_order(tmp_path):
    seen = []

    class Watch(Callback):
        def on_train_batch_start(self, *args):
            seen.append(reorder.layer.draw[0].tolist())

    reorder = REOrder("column", warmup=1, policy=0, warmup_order="row", rival=None)
    trainer(tmp_path, reorder, Watch(), max_epochs=2).fit(KnownAnswer(side=2), zeros(8))
    assert seen == [[0, 1, 2, 3], [0, 2, 1, 3]]


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (3, 3), ("image", 8)])
def test_the_number_of_draws(tmp_path, count, expected):
    shapes = []

    class Watch(Callback):
        def on_train_batch_start(self, *args):
            shapes.append(tuple(reorder.layer.draw.shape))

    reorder = REOrder(
        warmup=0, policy=0.5, draws_per_batch=count, baseline="ema", estimator="score"
    )
    trainer(tmp_path, reorder, Watch(), max_epochs=2).fit(KnownAnswer(side=3), zeros())
    assert set(shapes) == {(expected, 9)}, "one shape in all phases"


def test_accumulation_updates_once_per_optimiser_step(tmp_path):
    reorder = REOrder(warmup=0, policy=1.0, schedule="linear")
    rows, _, run = fit(tmp_path, reorder, accumulate_grad_batches=3, max_epochs=2)
    # 4 batches an epoch: steps after batch 3 and, at the end of the epoch, batch 4
    assert [row["updates"] for row in rows] == [0, 0, 1, 2, 2, 2, 3, 4]
    assert reorder.policy.updates == run.global_step == 4
    assert len({row["draw"] for row in rows}) >= 6


def test_the_same_seed_gives_the_same_draws_and_another_seed_others(tmp_path):
    always = {"warmup": 0, "policy": 1.0, "schedule": "linear"}
    first, again, other = (
        [row["draw"] for row in fit(tmp_path, REOrder(**always, seed=s))[0]] for s in (1, 1, 2)
    )
    assert first == again
    assert len(set(first) & set(other)) <= 1, "only the cold draws are alike"


def test_the_users_random_numbers_are_the_same(tmp_path):
    """Case 8: what the user draws after our hooks."""

    class Draw(Callback):
        def __init__(self):
            self.drawn = []

        def on_train_batch_start(self, *args):
            self.drawn.append(torch.rand(4))

        on_train_batch_end = on_train_batch_start

    runs = []
    for callbacks in ([], [REOrder(warmup=0, policy=1.0)]):
        torch.manual_seed(1)
        draw = Draw()
        trainer(tmp_path, *callbacks, draw, max_epochs=2).fit(KnownAnswer(side=3), zeros())
        runs.append(torch.stack(draw.drawn))
    assert torch.equal(*runs)


def test_what_is_logged(tmp_path):
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    reorder = REOrder(warmup=1, policy=2, peak_temperature=0.5)
    fit(tmp_path, reorder, logger=logger, log_every_n_steps=1)
    lines = (tmp_path / "lightning_logs/version_0/metrics.csv").read_text().splitlines()
    columns = lines[0].split(",")
    rows = [dict(zip(columns, line.split(","), strict=True)) for line in lines[1:]]
    rows = [row for row in rows if row["reorder/phase"]]  # of steps, not of epochs
    assert [row["reorder/phase"] for row in rows] == ["0.0"] * 4 + ["1.0"] * 8 + ["2.0"] * 4
    names = {"temperature", "reward", "baseline", "advantage_std", "kendall_to_start"}
    names |= {"entropy_proxy", "drawn_share", "found", "accepted", "gain", "gain_se"}
    assert {f"reorder/{name}" for name in names} <= set(columns)
    temperatures = [float(row["reorder/temperature"] or 0) for row in rows]
    assert temperatures[:4] == [0] * 4
    assert max(temperatures) == pytest.approx(reorder.policy.peak_temperature)
    assert temperatures[-4:] == [0] * 4


@pytest.mark.parametrize("warmup", [1, 0.3])
def test_decisions_reach_the_loggers_wherever_they_fall(tmp_path, warmup):
    """In the last step of an epoch, as with whole epochs, and in the middle of one."""
    reorder = REOrder("hilbert", warmup=warmup, policy=2)
    fit(tmp_path, reorder, logger=CSVLogger(tmp_path), log_every_n_steps=5)
    lines = (tmp_path / "lightning_logs/version_0/metrics.csv").read_text().splitlines()
    rows = [dict(zip(lines[0].split(","), line.split(","), strict=True)) for line in lines[1:]]
    for name in ("accepted", "gain", "gain_se", "rival_accepted", "rival_gain", "rival_gain_se"):
        assert len([row for row in rows if row[f"reorder/{name}"]]) == 1, name


@pytest.mark.parametrize("accumulate", [1, 2])
def test_it_logs_when_the_loggers_write(tmp_path, accumulate):
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    reorder = REOrder(warmup=0, policy=1.0)
    kwargs = {"logger": logger, "log_every_n_steps": 3, "accumulate_grad_batches": accumulate}
    _, _, run = fit(tmp_path, reorder, data=zeros(8 * 7 * accumulate), max_epochs=2, **kwargs)
    lines = (tmp_path / "lightning_logs/version_0/metrics.csv").read_text().splitlines()
    rows = [dict(zip(lines[0].split(","), line.split(","), strict=True)) for line in lines[1:]]
    rows = [row for row in rows if not row["reorder/accepted"]]  # which is logged by epochs
    assert [int(row["step"]) for row in rows] == [2, 5, 8, 11]
    assert all(row["reorder/reward"] for row in rows)
    assert "reorder/accepted" in run.callback_metrics


def test_policy_0_trains_as_without_the_callback(tmp_path):
    losses, groups = [], []
    for callbacks in ([], [REOrder(policy=0)]):
        model = Classifier()
        run = trainer(tmp_path, *callbacks, max_epochs=2)
        run.fit(model, loader())
        losses.append(torch.stack(model.losses))
        groups.append([len(g["params"]) for g in run.optimizers[0].param_groups])
        assert len(list(model.parameters())) == groups[-1][0]
    assert torch.equal(*losses)
    assert groups[0] == groups[1]


def test_fast_dev_run_tries_the_policy(tmp_path):
    reorder = REOrder()
    trainer(tmp_path, reorder, fast_dev_run=1).fit(KnownAnswer(side=3), zeros())
    assert reorder.policy.updates == 1


def test_a_second_fit_goes_on(tmp_path):
    reorder = REOrder("column", warmup=0, policy=3, seed=2)
    _, model, run = fit(tmp_path, reorder, max_epochs=3)
    learned, logits = reorder.order.clone(), reorder.policy.logits.clone()
    run.fit_loop.max_epochs = 5
    run.fit(model, zeros())
    assert torch.equal(reorder.order, learned)
    assert torch.equal(reorder.policy.logits, logits)
    assert torch.equal(reorder.start_order, get_order("column", 3, 3))


def test_another_model_starts_anew(tmp_path):
    reorder = REOrder("column", warmup=0, policy=3)
    fit(tmp_path, reorder, max_epochs=3)
    rows, _, _ = fit(tmp_path, reorder, max_epochs=3)
    assert torch.equal(reorder.start_order, get_order("column", 3, 3))
    assert rows[0]["phase"] == "policy"


@pytest.mark.parametrize("names", [("a", "b"), ("a", None)])
def test_two_callbacks_learn_two_orders(tmp_path, names):
    class TwoTowers(KnownAnswer):
        def __init__(self):
            super().__init__(side=3)
            self.left = self.patch_order
            del self.patch_order
            self.right = PatchOrder(None, (2, 2))

        def training_step(self, batch, batch_idx):
            self.patch_order = self.left
            self.right(torch.zeros(len(batch), 4, 1))
            out = super().training_step(batch, batch_idx)
            del self.patch_order
            return out

    left = REOrder("column", target="left", name=names[0], warmup=0, policy=1.0)
    right = REOrder(target="right", name=names[1], warmup=0, policy=1.0, seed=4)
    assert left.state_key != right.state_key
    trainer(tmp_path, left, right, max_epochs=2).fit(TwoTowers(), zeros())
    assert left.grid_size == (3, 3)
    assert right.grid_size == (2, 2)
    assert left.policy.updates == right.policy.updates == 8


# ------------------------------------------------------------------ it learns

SETTINGS = {"warmup": 0, "policy": 1.0}


def learn(root, seed, epochs, noise=0.02, **kwargs):
    reorder = REOrder(**{"seed": seed, **SETTINGS, **kwargs})
    model = KnownAnswer(noise=noise)
    data = zeros(32 * 100, batch_size=32)
    trainer(root, reorder, max_epochs=epochs).fit(model, data)
    return kendall_tau(reorder.order, get_order("hilbert", 8, 8)), reorder


def test_it_moves_towards_the_known_answer(tmp_path):
    before = kendall_tau(get_order("row", 8, 8), get_order("hilbert", 8, 8))
    after, reorder = learn(tmp_path, seed=0, epochs=3, noise=0.0)
    assert reorder.policy.updates == 300
    assert after > before + 0.1


@pytest.mark.slow
def test_it_finds_the_known_answer(tmp_path):
    """3,000 updates of 32 images, noise 0.02 a batch, from row; worst and mean of 5 seeds."""
    taus = [learn(tmp_path, seed, epochs=30)[0] for seed in range(5)]
    paper = {"draws_per_batch": 1, "baseline": "ema", "log_prob": "paper", "lr": 1e-5}
    paper |= {"peak_temperature": 0.2, "estimator": "score", "schedule": "triangular"}
    paper |= {"acceptance": False}
    published = [learn(tmp_path, seed, epochs=30, **paper)[0] for seed in range(5)]
    print(f"\nKendall tau to the answer: {taus}\nas published: {published}")
    assert sum(taus) / 5 >= 0.90
    assert min(taus) >= 0.85


# ------------------------------------------------------------------ the race


@pytest.mark.parametrize(("start", "rival", "wins"), [("row", "hilbert", 1), ("hilbert", "row", 0)])
def test_a_better_rival_becomes_the_start(tmp_path, start, rival, wins):
    reorder = REOrder(start, warmup=4, policy=7, draws_per_batch=4, rival=rival)
    logger = CSVLogger(tmp_path)
    model = KnownAnswer(side=4)
    _, _, run = fit(tmp_path, reorder, model, max_epochs=16, logger=logger, log_every_n_steps=7)
    # Warm-up of 16 updates, and 3/4 of 28: the race ends within an epoch; 7 left.
    assert (reorder.policy.race_updates, reorder.policy.total_updates) == (37, 44)
    assert run.callback_metrics["reorder/rival_accepted"] == wins
    assert run.callback_metrics["reorder/rival_gain"] * (2 * wins - 1) > 0
    assert run.callback_metrics["reorder/rival_gain_se"] > 0
    assert run.callback_metrics["reorder/accepted"] == wins
    assert reorder.policy.start.equal(get_order("hilbert", 4, 4))
    assert reorder.start_order.equal(get_order(start, 4, 4)), "what the user started from"
    assert model.patch_order.order.equal(get_order("hilbert", 4, 4))
    assert wins or reorder.policy.drawn_share < 0.5


def test_the_race_reads_half_of_the_images_in_each_order(tmp_path):
    reorder = REOrder("hilbert", warmup=1, policy=2, draws_per_batch=4, rival="column")
    seen = []

    class Watch(Callback):
        def on_train_batch_start(self, *args):
            seen.append((reorder.phase, reorder.layer.draw.tolist()))

    run = trainer(tmp_path, reorder, Watch(), max_epochs=4)
    run.fit(KnownAnswer(side=3), zeros())
    start, rival = (get_order(name, 3, 3).tolist() for name in ("hilbert", "column"))
    race, rest = seen[:10], seen[10:]  # 4 updates of warm-up and 3/4 of 8
    assert [phase for phase, _ in race] == ["warmup"] * 4 + ["policy"] * 6
    assert all(draw == [start, start, rival, rival] for _, draw in race)
    assert all(rival not in draw for _, draw in rest)


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"rival": None, "start": "column"},
        {"rival": "column", "start": "column"},
        {"acceptance": False, "start": "column"},
    ],
)
def test_no_race_without_another_order(tmp_path, kwargs):
    reorder = REOrder(warmup=1, policy=2, **kwargs)
    rows, _, run = fit(tmp_path, reorder, logger=CSVLogger(tmp_path), log_every_n_steps=1)
    assert reorder.policy.total_updates == 8
    assert len({row["draw"] for row in rows[:4]}) == 1
    assert "reorder/rival_accepted" not in run.callback_metrics
    assert "reorder/accepted" in run.callback_metrics


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"warmup_order": "start order"}, "`warmup_order` 'start' or 'row', but got"),
        ({"warmup_order": "row", "rival": "column"}, "Give `rival=None`, not 'column'"),
        ({"draws_per_batch": 0}, "`draws_per_batch` to be 1 or more, or 'image', but got 0"),
        ({"draws_per_batch": "all"}, "but got 'all'"),
        ({"draws_per_batch": 1, "baseline": "leave-one-out"}, "exactly zero"),
        ({"start": "auto:best"}, "'auto', 'auto:most', 'auto:least', but got 'auto:best'"),
    ],
)
def test_bad_arguments(kwargs, match):
    """Case 34 among them: https://github.com/rllm-org/rllm/issues/916."""
    with pytest.raises(ValueError, match=match):
        REOrder(**kwargs)


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"start": "zigzag"}, "'zigzag'"),
        ({"rival": "zigzag"}, "'zigzag'"),
        ({"start": [0, 1, 2]}, r"each of the 9 patches, shape \(9,\)"),
        ({"start": [0, 1, 2, 3, 4, 5, 6, 7, 7]}, "missing 8; doubled 7"),
        ({"warmup": 3, "policy": 9}, r"take 48 optimiser steps, but the training has 16"),
        ({"warmup": 2.0}, "share of the training"),
        ({"schedule": "square"}, "schedule"),
        ({"log_prob": "none"}, "log_prob"),
        ({"baseline": "none"}, "baseline"),
        ({"grid_size": (2, 2)}, r"`grid_size=\(2, 2\)` differs from \(3, 3\)"),
    ],
)
def test_what_does_not_fit_the_model_or_the_training(tmp_path, kwargs, match):
    with pytest.raises(ValueError, match=match):
        fit(tmp_path, REOrder(**kwargs))


def test_a_model_without_tokens(tmp_path):
    model = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)))
    with pytest.raises(ValueError, match=r"found no patch tokens in Classifier.*target="):
        fit(tmp_path, REOrder(), model)


def test_two_different_starts(tmp_path):
    model = KnownAnswer(side=3)
    model.patch_order = PatchOrder("column", (3, 3))
    with pytest.raises(ValueError, match="'spiral', and the model's own order differ"):
        fit(tmp_path, REOrder("spiral"), model)
    assert model.patch_order.order.tolist() == get_order("column", 3, 3).tolist()


def test_one_callback_for_two_layers(tmp_path):
    model = KnownAnswer(side=3)
    model.other = PatchOrder(None, (3, 3))
    with pytest.raises(ValueError, match="Found 2 PatchOrder layers: patch_order, other"):
        fit(tmp_path, REOrder(), model)


def test_two_callbacks_for_one_layer(tmp_path):
    with pytest.raises(ValueError, match="Two REOrder callbacks have the same PatchOrder"):
        trainer(tmp_path, REOrder(), REOrder(name="b")).fit(KnownAnswer(side=3), zeros())


def test_a_layer_that_never_runs(tmp_path):
    class Unread(KnownAnswer):
        def training_step(self, batch, batch_idx):
            return {"loss": self.weight.square(), "reorder_reward": torch.ones(len(batch))}

    with pytest.raises(RuntimeError, match="the training step never came by it"):
        fit(tmp_path, REOrder(), Unread(side=3))


def test_a_reward_that_is_missing_is_noticed_in_the_first_batch(tmp_path):
    class Silent(KnownAnswer):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx)["loss"]

    with pytest.raises(ValueError, match="found no reward"):
        fit(tmp_path, REOrder(warmup=3, policy=1), Silent(side=3))


def test_an_exception_leaves_no_draw(tmp_path):
    class Broken(KnownAnswer):
        def training_step(self, batch, batch_idx):
            raise KeyError("mine")

    model = Broken(side=3)
    with pytest.raises(KeyError, match="mine"):
        fit(tmp_path, REOrder(warmup=0, policy=1.0), model)
    assert model.patch_order.draw is None


def test_asking_before_the_training():
    with pytest.raises(RuntimeError, match="knows no model yet"):
        _ = REOrder().order


def test_examples():
    module = reorder_module
    flags = doctest.ELLIPSIS
    globs = {"Trainer": lambda **kwargs: None, **vars(module)}
    assert doctest.testmod(module, extraglobs=globs, optionflags=flags).failed == 0
