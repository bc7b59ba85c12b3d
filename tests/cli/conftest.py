"""Runs the command in process, in an empty folder, on the shipped configs."""

import pytest

from reorder_lightning.cli import main
from reorder_lightning.cli.configs import configs_folder

TINY = [
    "--trainer.accelerator=cpu",
    "--trainer.limit_train_batches=2",
    "--trainer.limit_val_batches=2",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.log_every_n_steps=1",
    "--model.depth=1",
    "--model.embed_dim=24",
    "--model.patch_size=16",
    "--data.batch_size=8",
]


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")  # so that what seed_everything sets does not outlive the test


@pytest.fixture
def reorder():
    """Run `reorder ARGUMENTS`; config names get their folder."""

    def run(text, *more):
        main([*text.split(), *more])

    return run


@pytest.fixture
def fit(reorder):
    """A fit of one or more tiny epochs: `fit("quickstart", "--model.order=hilbert")`."""

    def run(*configs_and_arguments):
        configs = [a for a in configs_and_arguments if not a.startswith("-")]
        arguments = [a for a in configs_and_arguments if a.startswith("-")]
        files = [f"--config={configs_folder()}/{name}.yaml" for name in configs]
        main(["fit", *files, *TINY, "--trainer.max_epochs=1", *arguments])

    return run


@pytest.fixture
def fails(capsys):
    """Expect exit code 1 and return the message."""

    def run(action, *args):
        with pytest.raises(SystemExit) as stop:
            action(*args)
        assert stop.value.code == 1
        error = capsys.readouterr().err
        assert "Traceback" not in error
        return error[error.index("reorder: error: ") :]

    return run
