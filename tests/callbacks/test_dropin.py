"""REOrder in LightningModules that know nothing of it, in all the ways the Trainer can train."""

import copy

import pytest
import torch
from lightning import Callback
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
)
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.tuner import Tuner
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F
from torch.utils.data import DataLoader

from reorder_lightning import attach, get_order
from reorder_lightning.callbacks.reorder import REOrder
from reorder_lightning.patch_order import PatchOrder
from tests.toys import Classifier, Record, Validated, images, loader, sequence_vit, trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*is smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
]


def reorder(**kwargs):
    return REOrder(
        **{"warmup": 1, "policy": 2, "draws_per_batch": 3, "schedule": "linear"} | kwargs
    )


def fit(root, model=None, callback=None, callbacks=(), data=None, before=(), **kwargs):
    callback = callback or reorder()
    record = Record(callback)
    run = trainer(root, *before, callback, record, *callbacks, **{"max_epochs": 4, **kwargs})
    model = Classifier() if model is None else model
    run.fit(model, data or loader())
    return callback, record.rows, model


def check(callback, rows, updates=8):
    """The callback went through all of its phases and left the model in a clean state."""
    assert {row["phase"] for row in rows} == {"warmup", "policy", "frozen"}
    assert callback.policy.updates == updates
    assert callback.policy.logits.isfinite().all()
    assert len({row["draw"] for row in rows}) > 4
    assert callback.layer.draw is None


# ------------------------------------------------------------------ nothing else changes


def test_policy_0_changes_nothing(tmp_path):
    losses, groups, randoms, parameters = [], [], [], []
    for callbacks in ([], [REOrder(policy=0)], [REOrder(warmup=4, policy=0, rival=None)]):
        torch.manual_seed(3)
        model = Classifier(sequence_vit(pos_drop_rate=0.1))
        run = trainer(tmp_path, *callbacks, max_epochs=4)
        run.fit(model, loader())
        losses.append(torch.stack(model.losses))
        randoms.append(torch.rand(3))
        groups.append([[p.shape for p in g["params"]] for g in run.optimizers[0].param_groups])
        parameters.append([name for name, _ in model.named_parameters()])
    for values in (losses, randoms):
        assert torch.equal(values[0], values[1])
        assert torch.equal(values[0], values[2])
    assert groups[0] == groups[1] == groups[2]
    assert parameters[0] == parameters[1]


def test_the_order_is_learned_and_used_in_evaluation(tmp_path):
    callback, rows, model = fit(tmp_path)
    check(callback, rows)
    x = torch.randn(2, 3, 8, 8)
    model.eval()
    out = model(x)
    callback.layer.order = get_order("random:1", 4, 4)
    assert not torch.equal(model(x), out)


@pytest.mark.parametrize("start", ["hilbert", list(range(15, -1, -1))])
def test_start(tmp_path, start):
    callback, rows, _ = fit(tmp_path, callback=reorder(start=start))
    check(callback, rows, updates=12)  # the race includes the warm-up
    assert torch.equal(callback.start_order, get_order(start, 4, 4))


def test_start_from_another_checkpoint(tmp_path):
    callback = reorder(start="spiral", policy=0)
    record = Record(callback)
    run = trainer(tmp_path, callback, record, max_epochs=1)
    run.fit(Classifier(), loader())
    run.save_checkpoint(tmp_path / "first.ckpt")
    second, _, _ = fit(tmp_path, callback=reorder(start=str(tmp_path / "first.ckpt")))
    assert torch.equal(second.start_order, get_order("spiral", 4, 4))


# ------------------------------------------------------------------ models that are built late


class Late(Classifier):
    """Case 1: https://github.com/Lightning-AI/pytorch-lightning/issues/18829."""

    def __init__(self):
        super().__init__(nn.Identity())
        self.net = None

    def configure_model(self):
        if self.net is None:
            self.net = sequence_vit()


class LateInSetup(Late):
    configure_model = Classifier.configure_model

    def setup(self, stage):
        Late.configure_model(self)


@pytest.mark.parametrize("cls", [Late, LateInSetup])
def test_a_backbone_of_configure_model(tmp_path, cls):
    """Case 1: fit, resume and test load the same order."""
    callback = reorder()
    run = trainer(tmp_path, callback, max_epochs=4)
    run.fit(cls(), loader())
    path = tmp_path / "last.ckpt"
    run.save_checkpoint(path)
    fresh = reorder()
    trainer(tmp_path, fresh, max_epochs=5).fit(cls(), loader(), ckpt_path=path)
    assert torch.equal(fresh.order, callback.order)
    for stage in ("test", "predict"):
        fresh = reorder()
        kwargs = {"verbose": False} if stage == "test" else {}
        model = cls()
        model.predict_step = lambda batch, batch_idx: batch[1]
        getattr(trainer(tmp_path, fresh), stage)(model, loader(), ckpt_path=path, **kwargs)
        assert torch.equal(fresh.order, callback.order)


def test_a_late_model_without_tokens_is_an_error(tmp_path):
    class Wrong(Late):
        def configure_model(self):
            self.net = nn.Linear(2, 2)

    with pytest.raises(ValueError, match="found no patch tokens"):
        fit(tmp_path, Wrong())


# ------------------------------------------------------------------ the Trainer's ways


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true", "16-true"])
def test_precisions(tmp_path, precision):
    class Half(Classifier):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * (0.1 if "16-t" in precision else 1)

    model = Classifier() if precision != "16-true" else Half(lr=1e-3)
    if precision == "16-true":
        callback = reorder(reward_fn=lambda outputs, batch: -batch[1].float())
    else:
        callback = reorder()
    callback, rows, model = fit(tmp_path, model, callback, precision=precision)
    check(callback, rows)
    assert callback.order.dtype == torch.int64
    assert callback.policy.logits.dtype == torch.float32


def test_16_mixed(tmp_path):
    """A GradScaler scales the loss and skips steps, and the policy sees nothing of it."""
    policies = []
    for scale in (2.0**4, 2.0**8, 2.0**40):  # the last one overflows in every step
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        half = MixedPrecision("16-mixed", "cpu", scaler=scaler)
        model = Classifier()
        before = model.net.head.weight.detach().clone()
        callback, rows, _ = fit(tmp_path, model, plugins=[half])
        check(callback, rows)
        policies.append(callback.policy)
        skipped = torch.equal(model.net.head.weight, before)
        assert skipped == (scale > 2**30)
    torch.testing.assert_close(policies[0].logits, policies[1].logits, rtol=0, atol=1e-3)
    assert policies[2].moving_reward == pytest.approx(policies[0].moving_reward, abs=0.5)


def test_clipping_and_accumulation(tmp_path):
    callback, rows, _ = fit(tmp_path, gradient_clip_val=0.1, accumulate_grad_batches=2)
    check(callback, rows, updates=4)


def test_an_accumulation_that_changes(tmp_path):
    callback, rows, _ = fit(tmp_path, callbacks=[GradientAccumulationScheduler({0: 1, 3: 2})])
    check(callback, rows)


class Manual(Classifier):
    """Manual optimisation, with one or two optimisers and what the step returns."""

    count, returns = 1, "loss"

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizers = self.optimizers()
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        for optimizer in optimizers if self.count > 1 else [optimizers]:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in optimizers if self.count > 1 else [optimizers]:
            optimizer.step()
        return {"loss": loss, "dict": {"loss": loss}, "none": None}[self.returns]

    def configure_optimizers(self):
        groups = [self.net.blocks.parameters(), self.net.head.parameters()]
        return [torch.optim.SGD(g, 0.05) for g in groups[: self.count]]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("returns", ["loss", "dict", "none"])
def test_manual_optimisation(tmp_path, count, returns):
    """`global_step` counts the steps of all optimisers; phases are in batches here."""
    model = Manual()
    model.count, model.returns = count, returns
    callback, rows, _ = fit(tmp_path, model)
    check(callback, rows)
    assert [row["phase"] for row in rows] == ["warmup"] * 4 + ["policy"] * 8 + ["frozen"] * 4


def test_a_training_step_that_returns_none(tmp_path):
    class Skips(Classifier):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return None if batch_idx == 1 else loss

    with pytest.warns(UserWarning, match="`training_step` returned `None`"):
        callback, rows, _ = fit(tmp_path, Skips())
    check(callback, rows)


def test_a_batch_that_does_not_come_by_the_model(tmp_path):
    class Sometimes(Classifier):
        def training_step(self, batch, batch_idx):
            if batch_idx % 2:
                return sum(p.sum() for p in self.parameters()) * 0
            return super().training_step(batch, batch_idx)

    callback, rows, _ = fit(tmp_path, Sometimes())
    check(callback, rows)


def test_two_forwards_a_step(tmp_path):
    class Twice(Classifier):
        def training_step(self, batch, batch_idx):
            x, y = batch
            return F.cross_entropy(self(x), y) + F.cross_entropy(self(x.flip(3)), y)

    callback, rows, _ = fit(tmp_path, Twice(), reorder())
    check(callback, rows)


def test_dict_batches(tmp_path):
    class Dicts(Classifier):
        def training_step(self, batch, batch_idx):
            return super().training_step((batch["image"], batch["label"]), batch_idx)

    data = [{"image": x, "label": y} for x, y in images()]
    callback = reorder(draws_per_batch="image")
    check(*fit(tmp_path, Dicts(), callback, data=DataLoader(data, batch_size=8))[:2])


def test_mixing_in_the_training_step(tmp_path):
    """Case 36: an error without a declared reward, fine with `reorder_reward`."""

    class Mixes(Classifier):
        declare = False

        def training_step(self, batch, batch_idx):
            x, y = batch
            logits = self(0.7 * x + 0.3 * x.flip(0))
            losses = 0.7 * F.cross_entropy(logits, y, reduction="none")
            losses = losses + 0.3 * F.cross_entropy(logits, y.flip(0), reduction="none") + 0.2
            out = {"loss": losses.mean()}
            return out | ({"reorder_reward": -losses.detach()} if self.declare else {})

    with pytest.raises(ValueError, match="mixes images"):
        fit(tmp_path, Mixes())
    model = Mixes()
    model.declare = True
    check(*fit(tmp_path, model)[:2])


@pytest.mark.filterwarnings("ignore:You requested to overfit")
@pytest.mark.parametrize(
    "kwargs",
    [
        {"overfit_batches": 4},
        {"val_check_interval": 2},
        {"limit_train_batches": 4, "check_val_every_n_epoch": 2},
        {"num_sanity_val_steps": 1},
        {"max_epochs": -1, "max_steps": 16},
        {"reload_dataloaders_every_n_epochs": 1},
    ],
    ids=str,
)
def test_loops(tmp_path, kwargs):
    orders = []

    class Watch(Callback):
        def on_validation_batch_start(self, *args):
            orders.append(callback.layer.draw)

    callback = reorder()
    record = Record(callback)
    run = trainer(tmp_path, callback, record, Watch(), **{"max_epochs": 4, **kwargs})
    run.fit(Validated(), loader(), [loader(), loader(16)])
    check(callback, record.rows)
    assert orders
    assert set(orders) == {None}


def test_barebones(tmp_path):
    callback = reorder()
    quiet = {"logger": None, "enable_checkpointing": None, "enable_progress_bar": None}
    quiet |= {"enable_model_summary": None, "num_sanity_val_steps": None}
    trainer(tmp_path, callback, barebones=True, max_epochs=4, **quiet).fit(Classifier(), loader())
    assert callback.policy.updates == 8


def test_the_learning_rate_finder(tmp_path):
    """It trains with callbacks off: no draws, no updates."""
    callback = reorder()
    record = Record(callback)
    finder = LearningRateFinder(num_training_steps=10, update_attr=True)
    run = trainer(tmp_path, finder, callback, record, max_epochs=4)
    run.fit(Classifier(), loader())
    check(callback, record.rows)
    assert len(record.rows) == 16
    callback = reorder(seed=3)
    run = trainer(tmp_path, callback, max_epochs=4)
    model = Classifier()
    Tuner(run).lr_find(model, loader(), num_training=10)
    assert callback.policy is None
    assert torch.equal(callback.order, get_order("row", 4, 4))
    run.fit(model, loader())
    assert callback.policy.updates == 8


def test_the_batch_size_scaler(tmp_path):
    class Scaled(Classifier):
        batch_size = 2

        def train_dataloader(self):
            return loader(32, self.batch_size)

    callback = reorder()
    record = Record(callback)
    finder = BatchSizeFinder(max_trials=2, steps_per_trial=1)
    run = trainer(tmp_path, finder, callback, record, max_epochs=4)
    model = Scaled()
    run.fit(model)
    assert model.batch_size > 2
    check(callback, record.rows, updates=2 * 32 // model.batch_size)


# ------------------------------------------------------------------ averages


@pytest.mark.parametrize("first", [True, False])
def test_ema_and_its_checkpoints(tmp_path, first):
    """Case 5: https://github.com/ecmwf/anemoi-core/pull/1373, whatever comes first."""

    def run(epochs, ckpt_path=None):
        callback, average = reorder(), EMAWeightAveraging(decay=0.5)
        both = [average, callback] if first else [callback, average]
        fitting = trainer(tmp_path, *both, max_epochs=epochs)
        model = Validated()
        fitting.fit(model, loader(), loader(), ckpt_path=ckpt_path)
        return callback, fitting, model

    callback, fitting, model = run(4)
    fitting.save_checkpoint(tmp_path / "four.ckpt")
    state = torch.load(tmp_path / "four.ckpt", weights_only=True)
    for part in ("state_dict", "current_model_state"):
        (key,) = [key for key in state[part] if "extra_state" in key]
        assert torch.equal(state[part][key], callback.order)
    whole, _, expected = run(6)
    resumed, _, model = run(6, tmp_path / "four.ckpt")
    assert torch.equal(resumed.order, whole.order)
    fresh = reorder()
    ignore = pytest.warns(UserWarning, match="callbacks used to create the checkpoint")
    with ignore:
        trainer(tmp_path, fresh).test(Classifier(), loader(), tmp_path / "four.ckpt", verbose=False)
    assert torch.equal(fresh.order, callback.order)
    assert expected is not model


@pytest.mark.filterwarnings("ignore:Swapping scheduler")
def test_stochastic_weight_averaging(tmp_path):
    average = StochasticWeightAveraging(swa_lrs=1e-2, swa_epoch_start=2)
    for before, after in ([[average], []], [[], [copy.deepcopy(average)]]):
        check(*fit(tmp_path, before=before, callbacks=after)[:2])


# ------------------------------------------------------------------ compile, checkpointing


def test_compiled_once_for_all_phases(tmp_path):
    """Case 11: https://github.com/pytorch/pytorch/issues/128319."""
    torch._dynamo.reset()
    counter = CompileCounter()
    frames = []

    class Count(Callback):
        def on_train_epoch_end(self, *args):
            frames.append(counter.frame_count)

    model = Classifier()
    model.net = torch.compile(model.net, backend=counter)
    callback = reorder()
    check(*fit(tmp_path, model, callback, callbacks=[Count()], max_epochs=5)[:2])
    assert len(set(frames)) == 1, frames
    assert callback.layer.used


@pytest.mark.parametrize("whole", [True, False])
def test_a_compiled_lightning_module(tmp_path, whole):
    class Plain(Classifier):
        def training_step(self, batch, batch_idx):  # without the toy's growing list
            return F.cross_entropy(self(batch[0]), batch[1])

    torch._dynamo.reset()
    counter = CompileCounter()
    model = Plain()
    if whole:
        compiled = torch.compile(model, backend=counter)
    else:
        model.net.compile(backend=counter)
        compiled = model
    frames = []

    class Count(Callback):
        def on_train_epoch_end(self, *args):
            frames.append(counter.frame_count)

    check(*fit(tmp_path, compiled, callbacks=[Count()], max_epochs=5)[:2])
    assert frames[0] == frames[-1], frames


@pytest.mark.skipif(torch.__version__ < "2.7", reason="torch 2.6 notices the hook by itself")
def test_compiled_and_called_before_attaching(tmp_path):
    """Case 10: https://github.com/pytorch/pytorch/issues/117758."""
    torch._dynamo.reset()
    model = Classifier()
    model.net = torch.compile(model.net, backend="eager")
    model(torch.randn(8, 3, 8, 8))
    with pytest.raises(RuntimeError, match=r"never came by it.*torch._dynamo.reset\(\)"):
        fit(tmp_path, model)
    torch._dynamo.reset()
    check(*fit(tmp_path, model)[:2])


def test_a_block_that_is_called_by_forward(tmp_path):
    class Bypassed(Classifier):
        def forward(self, x):
            net = self.net
            tokens = net._pos_embed(net.patch_embed(x))
            for block in net.blocks:
                tokens = block.forward(tokens)
            return net.forward_head(net.norm(tokens))

    with pytest.raises(RuntimeError, match=r"the first block was called by `.forward\(\)`"):
        fit(tmp_path, Bypassed())


@pytest.mark.parametrize("draws", [1, 3, "image"])
def test_gradient_checkpointing_changes_no_gradient(tmp_path, draws):
    """Case 12: https://github.com/Lightning-AI/pytorch-lightning/issues/19267."""

    class Gradients(Callback):
        def __init__(self):
            self.all = []

        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            self.all += [p.grad.clone() for p in pl_module.parameters()]

    runs = []
    for recompute in (False, True):
        torch.manual_seed(1)
        model = Classifier(sequence_vit().double())
        model.net.set_grad_checkpointing(recompute)
        seen = Gradients()
        callback = reorder(draws_per_batch=draws, baseline="ema", estimator="score")
        check(*fit(tmp_path, model, callback, [seen], max_epochs=4, precision="64-true")[:2])
        runs.append(seen.all)
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


# ------------------------------------------------------------------ towers, dense heads


class TwoTowers(Classifier):
    def __init__(self):
        super().__init__()
        self.other = sequence_vit(patch_size=4)

    def forward(self, x):
        return self.net(x) + self.other(x)


def test_two_towers(tmp_path):
    class Rewarded(TwoTowers):
        def training_step(self, batch, batch_idx):
            losses = F.cross_entropy(self(batch[0]), batch[1], reduction="none")
            return {"loss": losses.mean(), "reorder_reward": -losses.detach()}

    first = reorder(target="net", name="first")
    second = reorder(target="other", name="second", start="column")
    run = trainer(tmp_path, first, second, max_epochs=4)
    run.fit(Rewarded(), loader())
    run.save_checkpoint(tmp_path / "two.ckpt")
    assert first.grid_size == (4, 4)
    assert second.grid_size == (2, 2)
    again = [reorder(target="net", name="first"), reorder(target="other", name="second")]
    trainer(tmp_path, *again).test(Rewarded(), loader(), tmp_path / "two.ckpt", verbose=False)
    assert torch.equal(again[0].order, first.order)
    assert torch.equal(again[1].order, second.order)
    with pytest.raises(ValueError, match="Found 2 models with patch tokens: net, other"):
        fit(tmp_path, TwoTowers())


def test_a_head_that_needs_raster_order(tmp_path):
    """Segmentation: one logit map per patch, which is only right if tokens come back."""

    class Segment(Classifier):
        def forward(self, x):
            tokens = self.net.forward_features(x)[:, self.net.num_prefix_tokens :]
            return self.net.head(tokens).transpose(1, 2).unflatten(2, (4, 4))

        def training_step(self, batch, batch_idx):
            x, _ = batch
            bright = (F.avg_pool2d(x.mean(1), 2) > 1).long()  # per patch
            losses = F.cross_entropy(self(x), bright, reduction="none").flatten(1).mean(1)
            self.losses.append(losses.mean().detach())
            return {"loss": losses.mean(), "reorder_reward": -losses.detach()}

    def final_loss(restore):
        callback = reorder(start="random:5", rival=None, restore=restore, warmup=0.25, policy=0.5)
        _, _, model = fit(tmp_path, Segment(lr=0.3), callback, max_epochs=30)
        assert callback.layer.order.tolist() != list(range(16))
        return torch.stack(model.losses[-8:]).mean()

    assert final_loss(restore=True) < 0.75 * final_loss(restore=False)


# ------------------------------------------------------------------ by hand


def test_attached_by_hand_before_the_training(tmp_path):
    model = Classifier()
    layer = attach(model)
    callback = reorder(start="column")
    check(*fit(tmp_path, model, callback)[:2], updates=12)
    assert callback.layer is layer


def test_the_models_own_layer_wins(tmp_path):
    class Own(Classifier):
        def __init__(self):
            super().__init__()
            self.patch_order = PatchOrder("spiral", (4, 4))

        def forward(self, x):
            net = self.net
            tokens = self.patch_order(net._pos_embed(net.patch_embed(x)), 1)
            return net.forward_head(net.norm(net.blocks(tokens)))

    callback, rows, model = fit(tmp_path, Own())
    check(callback, rows, updates=12)
    assert callback.layer is model.patch_order
    assert torch.equal(callback.start_order, get_order("spiral", 4, 4))
