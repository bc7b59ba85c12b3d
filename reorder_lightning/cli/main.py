"""Which verb of the command goes where."""

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

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


class Verb(NamedTuple):
    """What a verb does, and the function that does it, whose arguments are the verb's."""

    text: str
    function: str  # "module:name", imported when it is needed
    positional: bool = False  # whether its required arguments are given without a name
    several: bool = False  # whether the one without a name takes several words


VERBS = {
    "orders": Verb("list the fixed orders, draw any order", "reorder_lightning.cli.orders:run"),
    "export": Verb(
        "write a checkpoint's order as JSON and PNG", "reorder_lightning.cli.export:run", True
    ),
    "prior": Verb("rank the fixed orders by compressibility", "reorder_lightning.cli.prior:run"),
    "sensitivity": Verb(
        "evaluate a checkpoint in many orders", "reorder_lightning.cli.sensitivity:run", True
    ),
    "study": Verb("train for several orders, seeds and methods", "reorder_lightning.cli.study:run"),
    "report": Verb(
        "compare finished trainings", "reorder_lightning.cli.report:run", True, several=True
    ),
    "data check": Verb("look at a data set before training", "reorder_lightning.cli.data:check"),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the `reorder` command.

    Args:
        argv: arguments without the program's name; ``sys.argv[1:]`` by default.

    Raises:
        SystemExit: with code 2 for arguments that do not parse, 1 for an error of the user that
            was found later, 0 after ``--help``.
    """
    arguments = (sys.argv[1:] if argv is None else list(argv)) or ["--help"]
    words = 2 if " ".join(arguments[:2]) in VERBS else 1
    verb, rest = " ".join(arguments[:words]), arguments[words:]
    if verb in ("-h", "--help"):
        print(_usage())
    elif verb == "--version":
        print(reorder_lightning.__version__)
    elif verb in VERBS:
        with short_user_errors():
            _run(verb, rest)
    elif verb in TRAINER_VERBS:
        with short_user_errors():
            from reorder_lightning.cli.training import TrainingCLI  # loads Lightning

            TrainingCLI([verb, *find_configs(rest)])
    else:
        print(f"reorder: there is no verb {verb!r}.\n\n{_usage()}", file=sys.stderr)
        raise SystemExit(2)


def _run(name: str, arguments: list[str]) -> None:
    """Run a verb's function with arguments of the command line."""
    verb = VERBS[name]
    module, function = verb.function.split(":")
    given = find_configs(_one_list(arguments) if verb.several else arguments)
    auto_cli(
        getattr(import_module(module), function),
        args=["--config" if a == "-c" else a for a in given],
        prog=f"reorder {name}",
        as_positional=verb.positional,
    )


def _one_list(arguments: list[str]) -> list[str]:
    """Words without a name as one list, which is how jsonargparse takes several."""
    words: list[str] = []
    named: list[str] = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        is_value = before.startswith("-") and "=" not in before
        (named if is_value or argument.startswith("-") else words).append(argument)
    return [json.dumps(words), *named] if words else named


def _usage() -> str:
    texts = TRAINER_VERBS | {name: verb.text for name, verb in VERBS.items()}
    return "\n".join(
        [
            "usage: reorder VERB [-c CONFIG ...] [--ARGUMENT VALUE ...]",
            "",
            "Learn the order in which a vision sequence model reads its patches.",
            "",
            *(f"  {verb:<12}{text}" for verb, text in texts.items()),
            "",
            "reorder VERB --help tells its arguments. To start:",
            "  reorder fit -c configs/quickstart.yaml",
        ]
    )
