"""Which runs may be compared."""

import pytest

from reorder_lightning.run_config import differences, setting, start_order

CONFIG = {
    "seed_everything": 0,
    "trainer": {"max_epochs": 9, "logger": {"class_path": "CSVLogger"}, "callbacks": None},
    "model": {"class_path": "a.Mamba", "init_args": {"order": "row", "lr": 0.1, "depth": None}},
    "data": {"class_path": "b.UCMerced", "init_args": {"seed": 0, "batch_size": 8}},
    "reorder": None,
    "ckpt_path": None,
}


def changed(**parts):
    return CONFIG | parts


def test_order_seed_method_and_logger_may_differ():
    other = changed(
        seed_everything=1,
        trainer=CONFIG["trainer"] | {"logger": [], "enable_progress_bar": False},
        model={"class_path": "Mamba", "init_args": {"order": "hilbert", "lr": 0.1}},
        data={"class_path": "b.UCMerced", "init_args": {"seed": 5, "batch_size": 8}},
        reorder={"class_path": "REOrder", "init_args": {"warmup": 0.1}},
        ckpt_path="last.ckpt",
    )
    assert differences(setting(CONFIG), setting(other)) == []


@pytest.mark.parametrize(
    ("parts", "difference"),
    [
        ({"trainer": {"max_epochs": 12}}, "trainer.max_epochs: 9, 12"),
        (
            {"model": {"class_path": "a.ViT", "init_args": {"order": "row", "lr": 0.1}}},
            "model.class_path: Mamba, ViT",
        ),
        (
            {"data": {"class_path": "b.UCMerced", "init_args": {"batch_size": 16}}},
            "data.init_args.batch_size: 8, 16",
        ),
    ],
)
def test_schedule_model_and_data_may_not(parts, difference):
    assert differences(setting(CONFIG), setting(changed(**parts))) == [difference]


def test_averaged_weights_are_another_setting_and_checkpoints_are_not():
    ema = {"class_path": "lightning.pytorch.callbacks.EMAWeightAveraging", "init_args": {}}
    saver = {"class_path": "ModelCheckpoint"}

    def with_callbacks(*callbacks):
        return setting(changed(trainer={"max_epochs": 9, "callbacks": [*callbacks]}))

    assert with_callbacks(saver) == setting(CONFIG)
    assert len(differences(with_callbacks(saver, ema), with_callbacks(saver))) == 1


def test_start_order_of_reorder_wins_over_the_models():
    reorder = {"init_args": {"start": "random:4"}}
    assert start_order(CONFIG) == "row"
    assert start_order(changed(reorder=reorder)) == "random"
    assert start_order(changed(reorder={"init_args": {"start": None}})) == "row"
    assert start_order(changed(model={"init_args": {"order": [1, 0]}})) == "custom"
    assert start_order(changed(reorder={"init_args": {"start": "auto:least"}})) == "auto:least"
    assert start_order({}) == "row"
