"""PredictionWriter: the predicted class of every image, as a csv file."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from reorder_lightning.run_folder import run_folder

Row = tuple[str, str, float]


class PredictionWriter(Callback):
    """Writes ``predictions.csv`` with file, class and probability of each image in ``predict``.

    ``predict_step`` must return class probabilities ``(B, C)`` and a batch must hold the file names
    of its images in second place, as with this package's models and DataModules. Rows are sorted
    by file, so that the result does not depend on the number of processes. Class names come from
    the DataModule's ``class_names``, else the class index is written.

    Args:
        path: the file; by default ``predictions.csv`` in the run's folder.

    Raises:
        ValueError: ``predict_step`` returns something else than one row for each file name.
    """

    def __init__(self, path: str | None = None) -> None:
        self.path = path
        self._rows: list[Row] = []

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start with no rows."""
        self._rows = []

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the most probable class of each image."""
        names = batch[1] if isinstance(batch, Sequence) and len(batch) > 1 else ()
        if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != len(names):
            raise ValueError(
                "PredictionWriter needs probabilities (B, C) from `predict_step` and batches of "
                f"(images, file names), but got {_shape(outputs)} for {len(names)} file names."
            )
        classes = getattr(getattr(trainer, "datamodule", None), "class_names", None)
        best = outputs.float().max(dim=1)
        for name, index, probability in zip(
            names, best.indices.tolist(), best.values.tolist(), strict=True
        ):
            self._rows.append((str(name), classes[index] if classes else str(index), probability))

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather the rows of all processes; rank zero writes them and says where."""
        path = Path(self.path) if self.path else run_folder(trainer) / "predictions.csv"
        rows = sorted(_gather(self._rows, trainer.world_size))
        if trainer.is_global_zero:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(("file", "class", "probability"))
                writer.writerows((name, label, f"{p:.6f}") for name, label, p in rows)
        rank_zero_info(f"{len(rows)} predictions are in {path}")


def _gather(rows: list[Row], world_size: int) -> list[Row]:
    if world_size == 1:
        return rows
    parts: list[list[Row]] = [[]] * world_size
    torch.distributed.all_gather_object(parts, rows)
    return [row for part in parts for row in part]


def _shape(outputs: Any) -> str:
    return f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else str(type(outputs))
