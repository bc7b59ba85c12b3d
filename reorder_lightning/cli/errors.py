"""Errors of the user end the command with a short message instead of a traceback."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lightning.fabric.utilities.exceptions import MisconfigurationException

_WORKER = "Original Traceback (most recent call last):"


@contextmanager
def short_user_errors() -> Iterator[None]:
    """Turn the errors that this package raises for users into one message and exit code 1.

    A ``ValueError`` or ``FileNotFoundError`` raised in this package's own code, or a
    misconfiguration that Lightning found, is something the user can cure, and its text says how.
    Everything else keeps its traceback: it may be a bug.
    """
    try:
        yield
    except (ValueError, FileNotFoundError, MisconfigurationException) as raised:
        error: BaseException = raised
        while _module(error) == "jsonargparse" and error.__cause__ is not None:
            error = error.__cause__  # it wraps what the __init__ of a class raises
        if not _is_for_users(error):
            raise
        print(f"reorder: error: {_text(error)}", file=sys.stderr)
        raise SystemExit(1) from raised


def _is_for_users(error: BaseException) -> bool:
    if isinstance(error, MisconfigurationException):
        return True
    if not isinstance(error, ValueError | FileNotFoundError):
        return False
    if _WORKER in str(error):  # raised in a DataLoader's worker process, and again in torch
        last_file = [line for line in str(error).splitlines() if line.startswith("  File ")][-1]
        return "reorder_lightning" in last_file
    return _module(error) == "reorder_lightning"


def _module(error: BaseException) -> str:
    """The top-level module that raised an error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name: str = trace.tb_frame.f_globals.get("__name__", "") if trace else ""
    return name.split(".")[0]


def _text(error: BaseException) -> str:
    """The message alone, also of an error that comes with the traceback of a worker process."""
    if _WORKER not in str(error):
        return str(error)
    lines = str(error).splitlines()
    name = f"{type(error).__name__}: "
    start = max(i for i, line in enumerate(lines) if line.startswith(name))
    return "\n".join(lines[start:]).removeprefix(name)
