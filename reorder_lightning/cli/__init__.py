"""The `reorder` command."""

from reorder_lightning.cli.main import main

__all__ = ["main"]
