"""The plan of a study."""

from pathlib import Path

import pytest

from reorder_lightning.run_config import differences, setting
from reorder_lightning.study import plan_runs

FIXED = {
    "seed_everything": 9,
    "trainer": {"max_epochs": 2, "logger": [{"class_path": "x.WandbLogger", "init_args": {}}]},
    "model": {"class_path": "Mamba", "init_args": {"order": None}},
    "data": {"class_path": "UCMerced", "init_args": {"seed": 9}},
    "reorder": None,
}
LEARNED = FIXED | {"reorder": {"class_path": "REOrder", "init_args": {"seed": 9}}}
FOLDER = Path("runs", "study")


def plan(orders=("row", "random"), seeds=(0, 1), **configs):
    return plan_runs(configs or {"fixed": FIXED, "reorder": LEARNED}, orders, seeds, FOLDER)


def test_every_combination_once_and_seed_by_seed():
    runs = plan()
    assert len({run.name for run in runs}) == len(runs) == 8
    assert [run.seed for run in runs] == [0] * 4 + [1] * 4
    assert runs[0].path == FOLDER / "row-fixed-0"


def test_seed_reaches_weights_data_and_draws_and_a_random_order():
    run = next(run for run in plan() if run.name == "random-reorder-1")
    assert run.config["seed_everything"] == 1
    assert run.config["data"]["init_args"]["seed"] == 1
    assert run.config["reorder"]["init_args"]["seed"] == 1
    assert run.config["model"]["init_args"]["order"] == "random:1"
    fixed = next(run for run in plan() if run.name == "random-fixed-1")
    assert fixed.config["model"] == run.config["model"]
    assert LEARNED["reorder"]["init_args"]["seed"] == 9, "the given config is not changed"


def test_order_in_a_file_has_a_folder_of_its_own():
    (run,) = plan(("prior/order.json",), (0,), fixed=FIXED)
    assert run.name == "prior-order.json-fixed-0"
    assert run.path.parent == FOLDER
    assert run.config["model"]["init_args"]["order"] == "prior/order.json"


def test_data_of_others_may_have_no_seed():
    data = {"class_path": "mine.Data", "init_args": {}}
    (run,) = plan(("row",), (3,), fixed=FIXED | {"data": data})
    assert run.config["data"] == data


def test_each_run_logs_to_its_own_folder_and_keeps_other_loggers():
    csv, wandb = plan()[0].config["trainer"]["logger"]
    assert csv["init_args"] == {"save_dir": "runs", "name": "study", "version": "row-fixed-0"}
    assert wandb == FIXED["trainer"]["logger"][0]
    only_csv = FIXED | {"trainer": {"logger": {"class_path": "CSVLogger", "init_args": {}}}}
    assert len(plan(fixed=only_csv)[0].config["trainer"]["logger"]) == 1


def test_all_runs_are_comparable():
    runs = plan()
    assert all(not differences(setting(runs[0].config), setting(r.config)) for r in runs)


def test_methods_that_train_differently_are_refused():
    longer = LEARNED | {"trainer": FIXED["trainer"] | {"max_epochs": 3}}
    with pytest.raises(ValueError, match=r"'fixed' and 'longer'.*\n  trainer.max_epochs: 2, 3"):
        plan(fixed=FIXED, longer=longer)
