"""PredictionTables: what a data set's people read off its predictions."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from reorder_lightning.datamodules.base import ImageDataModule
from reorder_lightning.run_folder import run_folder


class PredictionTables(Callback):
    """Hands all predictions to the DataModule's `write_tables` at the end of `predict`.

    FMoW writes one class for all views of a place and the challenge's csv, CIFAR-100-C its
    accuracies by corruption and severity; other DataModules nothing. `predict_step` must return
    class probabilities `(B, C)`.

    Example:
        >>> Trainer(callbacks=[PredictionTables()]).predict(model, data)  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._probabilities: list[Tensor] = []

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts with nothing."""
        self._names, self._probabilities = [], []

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keeps a batch, if its DataModule has a use for it."""
        if self._data(trainer) is not None:
            self._names += batch[1]
            self._probabilities.append(outputs.detach().float().cpu())

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gathers the predictions of all processes; rank zero writes the tables."""
        data = self._data(trainer)
        if data is None:
            return
        mine = (self._names, torch.cat(self._probabilities))
        parts = [mine]
        if trainer.world_size > 1:
            parts = [mine] * trainer.world_size
            torch.distributed.all_gather_object(parts, mine)
        folder = run_folder(trainer)
        if trainer.is_global_zero:
            names = [name for part, _ in parts for name in part]
            probabilities = torch.cat([part for _, part in parts])
            for path in data.write_tables(folder, names, probabilities):
                rank_zero_info(f"wrote {path}")

    @staticmethod
    def _data(trainer: Trainer) -> ImageDataModule | None:
        data = getattr(trainer, "datamodule", None)
        own = isinstance(data, ImageDataModule) and (
            type(data).write_tables is not ImageDataModule.write_tables
        )
        return data if own else None
