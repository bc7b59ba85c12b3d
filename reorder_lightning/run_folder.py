"""Where a run keeps its files."""

from pathlib import Path

from lightning.pytorch import Trainer


def run_folder(trainer: Trainer) -> Path:
    """The folder of a run, above its ``checkpoints``: the same on every process.

    The rule is ``ModelCheckpoint``'s, so that pictures and tables lie beside the checkpoints
    whatever the logger is: ``<save_dir>/<name>/<version>`` of the first logger, or
    ``default_root_dir`` without one. (``Trainer.log_dir`` leaves out name and version for loggers
    other than TensorBoard and CSV, so that runs would share a folder.)

    Args:
        trainer: an attached Trainer. Call this on every process: it is a collective.
    """
    root = trainer.default_root_dir
    folder = Path(root)
    if trainer.loggers:
        logger = trainer.loggers[0]
        version = logger.version
        label = version if isinstance(version, str) else f"version_{version}"
        folder = Path(logger.save_dir or root, str(logger.name), label)
    return Path(trainer.strategy.broadcast(str(folder)))


def keep_metrics(folder: Path) -> None:
    """Rename a run's ``metrics.csv`` to ``metrics.1.csv``, or the next free number.

    Lightning's CSVLogger deletes the file when a training is resumed in the same folder.
    """
    metrics = folder / "metrics.csv"
    if metrics.exists():
        number = 1
        while (folder / f"metrics.{number}.csv").exists():
            number += 1
        metrics.rename(folder / f"metrics.{number}.csv")
