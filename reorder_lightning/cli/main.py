"""Which verb of the command goes where."""

import sys
from collections.abc import Sequence
from importlib import import_module

from jsonargparse import auto_cli

import reorder_lightning
from reorder_lightning.cli.configs import find_configs
from reorder_lightning.cli.errors import short_user_errors

TRAINER_VERBS = {
    "fit": "train a model, and learn its patch order with `--reorder`",
    "validate": "evaluate a checkpoint on the validation images",
    "test": "evaluate a checkpoint on the test images",
    "predict": "write a csv of file, class and probability",
}

# Each is the function `run` of the module of its name in this package.
VERBS = {
    "orders": "list the fixed orders, draw any order",
    "export": "write a checkpoint's order as JSON and PNG",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the `reorder` command.

    Args:
        argv: arguments without the program's name; ``sys.argv[1:]`` by default.

    Raises:
        SystemExit: with code 2 for arguments that do not parse, 1 for an error of the user that
            was found later, 0 after ``--help``.
    """
    verb, *rest = (sys.argv[1:] if argv is None else list(argv)) or ["--help"]
    if verb in ("-h", "--help"):
        print(_usage())
    elif verb == "--version":
        print(reorder_lightning.__version__)
    elif verb in VERBS:
        with short_user_errors():
            module = import_module(f"reorder_lightning.cli.{verb}")
            auto_cli(module.run, args=rest, prog=f"reorder {verb}")
    elif verb in TRAINER_VERBS:
        with short_user_errors():
            from reorder_lightning.cli.training import TrainingCLI  # loads Lightning

            TrainingCLI([verb, *find_configs(rest)])
    else:
        print(f"reorder: there is no verb {verb!r}.\n\n{_usage()}", file=sys.stderr)
        raise SystemExit(2)


def _usage() -> str:
    lines = [f"  {verb:<10}{text}" for verb, text in (TRAINER_VERBS | VERBS).items()]
    return "\n".join(
        [
            "usage: reorder VERB [-c CONFIG ...] [--ARGUMENT VALUE ...]",
            "",
            "Learn the order in which a vision sequence model reads its patches.",
            "",
            *lines,
            "",
            "reorder VERB --help tells its arguments. To start:",
            "  reorder fit -c configs/quickstart.yaml",
        ]
    )
