"""A stopped and resumed training is the uninterrupted one, bit for bit."""

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from reorder_lightning.callbacks.reorder import REOrder
from tests.toys import Classifier, Record, ToyData, loader, sequence_vit, trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks used to"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
]
EPOCHS = 5


def reorder(**kwargs):
    return REOrder(
        **{"warmup": 1, "policy": 3, "draws_per_batch": 3, "schedule": "linear"} | kwargs
    )


def fit(root, ckpt_path=None, data=None, callback=None, callbacks=(), **kwargs):
    callback = callback or reorder()
    record, model = Record(callback), Classifier()
    kwargs = {"max_epochs": EPOCHS, "enable_checkpointing": True, **kwargs}
    run = trainer(root, callback, record, *callbacks, **kwargs)
    run.fit(model, data or ToyData(), ckpt_path=ckpt_path)
    return record.rows, model, callback


def every(root, **kwargs):
    return ModelCheckpoint(root, "{epoch}-{step}", save_top_k=-1, **kwargs)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    root = tmp_path_factory.mktemp("whole")
    save = [every(root / "epochs"), every(root / "steps", every_n_train_steps=1)]
    rows, _, _ = fit(root, callbacks=save)
    return root, rows


def test_the_toy_run_has_all_phases(uninterrupted):
    _, rows = uninterrupted
    assert [rows[i]["phase"] for i in (0, 4, 15, 16)] == ["warmup", "policy", "policy", "frozen"]
    assert len({row["policy"] for row in rows}) > 8
    assert len({row["data"] for row in rows}) == len(rows)


@pytest.mark.parametrize("epoch", range(1, EPOCHS))
def test_resume_from_every_epoch_end(uninterrupted, tmp_path, epoch):
    root, rows = uninterrupted
    path = root / f"epochs/epoch={epoch - 1}-step={4 * epoch}.ckpt"
    rest, _, _ = fit(tmp_path, path)
    assert rest == rows[4 * epoch :]


@pytest.mark.parametrize("step", [6, 8, 11])
def test_resume_in_mid_epoch_with_a_resumable_loader(uninterrupted, tmp_path, step):
    """Case 4: https://github.com/Lightning-AI/pytorch-lightning/issues/19764."""
    root, rows = uninterrupted
    rest, _, _ = fit(tmp_path, root / f"steps/epoch={(step - 1) // 4}-step={step}.ckpt")
    assert rest == rows[step:]


@pytest.mark.parametrize("step", [3, 6, 11])
def test_resume_in_the_race(tmp_path, step):
    """In the warm-up, in the policy phase, and behind it."""
    whole, _, _ = fit(
        tmp_path,
        callback=reorder(start="column", rival="row", warmup=1, policy=2),
        callbacks=[every(tmp_path / "s", every_n_train_steps=1)],
    )
    path = tmp_path / f"s/epoch={(step - 1) // 4}-step={step}.ckpt"
    again = reorder(start="column", rival="row", warmup=1, policy=2)
    rest, _, _ = fit(tmp_path / "again", path, callback=again)
    assert again.policy.race_updates == 10
    assert rest == whole[step:]


def test_resume_twice_in_the_last_batch_of_an_epoch(uninterrupted, tmp_path):
    """Lightning does not count the epoch after the first resume; the second repeated one."""
    root, rows = uninterrupted
    save = every(tmp_path / "steps", every_n_train_steps=1)
    fit(tmp_path, root / "steps/epoch=1-step=8.ckpt", callbacks=[save])
    rest, _, _ = fit(tmp_path, tmp_path / "steps/epoch=2-step=12.ckpt")
    assert rest == rows[12:]


def test_resume_in_mid_epoch_with_a_plain_loader_warns_once(tmp_path):
    """Case 4."""
    save = every(tmp_path / "s", every_n_train_steps=1)
    fit(tmp_path, data=loader(), callbacks=[save])
    with pytest.warns(UserWarning, match="dataloader is not resumable") as caught:
        fit(tmp_path / "again", tmp_path / "s/epoch=1-step=6.ckpt", data=loader())
    assert len([w for w in caught if "resumable" in str(w.message)]) == 1


@pytest.mark.parametrize("weights_only", [None, True])
def test_a_checkpoint_loads_with_weights_only(uninterrupted, tmp_path, weights_only):
    """Case 3: https://github.com/galilai-group/stable-pretraining/issues/388."""
    root, rows = uninterrupted
    path = root / "epochs/epoch=1-step=8.ckpt"
    state = torch.load(path, weights_only=True)["callbacks"]
    assert any(key.startswith("REOrder") for key in state)
    callback = reorder()
    record, model = Record(callback), Classifier()
    run = trainer(tmp_path, callback, record, max_epochs=EPOCHS)
    run.fit(model, ToyData(), ckpt_path=path, weights_only=weights_only)
    assert record.rows == rows[8:]


def test_a_checkpoint_from_before_the_callback(tmp_path):
    save = every(tmp_path / "s")
    run = trainer(tmp_path, save, max_epochs=1, enable_checkpointing=True)
    run.fit(Classifier(), ToyData())
    path = tmp_path / "s/epoch=0-step=4.ckpt"
    with pytest.warns(UserWarning, match="holds no patch order .* and no state of this") as caught:
        _, _, callback = fit(tmp_path, path, callback=reorder(start="column"))
    assert len([w for w in caught if "REOrder" in str(w.message)]) == 1
    assert callback.start_order[1] == 4, "the column order"


def test_a_checkpoint_with_weights_only_keeps_the_order(tmp_path):
    save = every(tmp_path / "s", save_weights_only=True)
    _, _, callback = fit(tmp_path, callbacks=[save])
    path = tmp_path / f"s/epoch={EPOCHS - 1}-step={4 * EPOCHS}.ckpt"
    fresh = reorder()
    run = trainer(tmp_path, fresh)
    run.test(Classifier(), loader(), ckpt_path=path, verbose=False)
    assert torch.equal(fresh.order, callback.order)


def test_another_grid_is_an_error(uninterrupted, tmp_path):
    root, _ = uninterrupted
    model = Classifier(sequence_vit(patch_size=4, pos_embed="none"))
    with pytest.raises(
        ValueError, match="patch order to load must have one index for each of the 4"
    ):
        trainer(tmp_path, reorder()).test(
            model, loader(), ckpt_path=root / "epochs/epoch=1-step=8.ckpt"
        )
