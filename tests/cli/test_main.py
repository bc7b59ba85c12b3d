"""The command without a Trainer: help, version, unknown verbs."""

import subprocess
import sys

import pytest

import reorder_lightning
from reorder_lightning.cli import main
from reorder_lightning.cli.main import TRAINER_VERBS, VERBS


@pytest.mark.parametrize("argv", [[], ["--help"]])
def test_help_names_every_verb(argv, capsys):
    main(argv)
    shown = capsys.readouterr().out
    assert all(f"  {verb} " in shown for verb in TRAINER_VERBS | VERBS)


def test_unknown_verb_is_an_error(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["fitt"])
    assert stop.value.code == 2
    assert "there is no verb 'fitt'" in capsys.readouterr().err


@pytest.mark.parametrize("verb", TRAINER_VERBS | VERBS)
def test_every_verb_has_help(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*verb.split(), "--help"])
    assert stop.value.code == 0
    assert "usage: reorder" in capsys.readouterr().out


def test_runs_as_a_module():
    command = [sys.executable, "-m", "reorder_lightning", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == reorder_lightning.__version__
