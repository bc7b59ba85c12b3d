"""The configs that come with the package."""

from collections.abc import Sequence
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def configs_folder() -> Path:
    """The shipped ``configs``: inside an installed package, beside it in a clone."""
    installed = _PACKAGE / "configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "configs"


def find_configs(argv: Sequence[str]) -> list[str]:
    """Let ``-c configs/NAME.yaml`` mean the shipped config wherever the command is run.

    A file of that name in the working directory comes first.

    Args:
        argv: command line arguments.

    Returns:
        The same with the paths of shipped configs made absolute.

    >>> find_configs(["-c", "mine.yaml", "--config=configs/x.yaml"])
    ['-c', 'mine.yaml', '--config=configs/x.yaml']
    """
    found = []
    for before, argument in zip(["", *argv], argv, strict=False):
        flag, equals, path = argument.rpartition("=")
        given = before in ("-c", "--config") or flag in ("-c", "--config")
        shipped = configs_folder().parent / path
        if given and path.startswith("configs/") and not Path(path).exists() and shipped.exists():
            argument = f"{flag}{equals}{shipped}"
        found.append(argument)
    return found
