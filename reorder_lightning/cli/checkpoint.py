"""What `--ckpt_path` and model arguments mean together."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from reorder_lightning.order_files import load_checkpoint

# They choose how a model is started or run, not what it is; a resumed run may change them.
_FREE = {"init_from", "compile", "grad_checkpointing"}
_KEYWORDS = ("last", "best", "hpc", "registry")


def saved_arguments(ckpt_path: str | None) -> dict[str, Any]:
    """The model arguments in a checkpoint, and its class as ``_class_path``; none without a file.

    Args:
        ckpt_path: a path, or a word that Lightning resolves later (``last``).

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no checkpoint.
    """
    if ckpt_path is None or ckpt_path.split(":")[0] in _KEYWORDS or "://" in ckpt_path:
        return {}
    if Path(ckpt_path).is_dir():  # a sharded checkpoint; Lightning compares nothing either
        return {}
    saved = load_checkpoint(ckpt_path).get("hyper_parameters", {})
    return {key: value for key, value in saved.items() if key != "_instantiator"}


def differences(given: Mapping[str, Any], saved: Mapping[str, Any]) -> list[str]:
    """Arguments that are in both and differ, as text.

    >>> differences({"size": "tiny", "betas": (0.9, 0.95)}, {"size": "base", "betas": [0.9, 0.95]})
    ["size: 'base' in the checkpoint, 'tiny' in this command"]
    """
    return [
        f"{key}: {_plain(saved[key])!r} in the checkpoint, {_plain(given[key])!r} in this command"
        for key in given
        if key in saved and key not in _FREE and _plain(given[key]) != _plain(saved[key])
    ]


def check_same(given: Mapping[str, Any], saved: Mapping[str, Any], ckpt_path: object) -> None:
    """Refuse model arguments that are not those of the checkpoint.

    Raises:
        ValueError: lists what differs, and says what to do.
    """
    told = differences(given, saved)
    if told:
        listed = "\n  ".join(told)
        raise ValueError(
            f"`ckpt_path` is {ckpt_path}, but its model is another one:\n  {listed}\n"
            "To go on with that model, leave these arguments out or as they were. To start a new "
            f"training from its weights: --model.init_from {ckpt_path} instead of --ckpt_path."
        )


class SameModel(Callback):
    """Compares the arguments again when the checkpoint is loaded, for words such as ``last``."""

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Refuse a checkpoint of another model."""
        check_same(pl_module.hparams, checkpoint.get("hyper_parameters", {}), trainer.ckpt_path)


def _plain(value: Any) -> Any:
    """Tuples as lists: YAML knows no tuples."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
