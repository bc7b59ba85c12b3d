"""ResultWriter: what a report needs of a training, beside its checkpoints."""

import json
import math
import sys
import time
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from reorder_lightning.model_cost import forward_gflops
from reorder_lightning.run_folder import run_folder

COLUMNS = ("image", "target", "predicted", "top1", "top5", "loss")


class ResultWriter(Callback):
    """Writes each image's result of the last validation, and a summary once the training is over.

    Into the run's folder:

    - ``images.csv``, after each validation of a training: ``image`` (its index in the first
      validation set), ``target`` and ``predicted`` class, ``top1`` and ``top5`` (0 or 1), and the
      cross-entropy ``loss``. ``validation_step`` must return a dict with ``logits`` ``(B, C)`` and
      integer ``targets`` ``(B,)``, as this package's models do; without them there is no such file.
    - ``result.json``, when the training has ended: model, ``parameters``, ``gflops`` of one forward
      pass of one image (null where the parameters are sharded), ``images``, ``epochs``, ``steps``,
      ``seconds_per_epoch`` (validation included), ``peak_memory_mb`` (of the device; on a CPU, of
      the process) and the means ``top1``, ``top5`` and ``loss``. Without it a run is unfinished.

    With several processes the validation loader must deal the images out in turn, as this package's
    and Lightning's own samplers do.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[Tensor, ...]] = []  # columns of each batch, on its device
        self._folder: Path | None = None
        self._image: Tensor | None = None
        self._summary: dict[str, float] = {}
        self._seen = 0
        self._started = (0.0, 0)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget the summary of an earlier training in this folder."""
        if stage != "fit":
            return
        self._summary = {}
        self._folder = None
        if trainer.fast_dev_run:  # type: ignore[attr-defined]  # loggers write nothing either
            return
        self._folder = run_folder(trainer)
        if trainer.is_global_zero:
            (self._folder / "result.json").unlink(missing_ok=True)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note when and where this part of the training began."""
        self._started = time.perf_counter(), trainer.current_epoch

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start with no rows."""
        self._rows, self._seen = [], 0

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep each image's result, on its device."""
        if not isinstance(outputs, Mapping) or not {"logits", "targets"} <= {*outputs}:
            return
        if dataloader_idx or trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        logits, targets = outputs["logits"], outputs["targets"]
        if logits.ndim != 2 or targets.ndim != 1 or targets.is_floating_point():
            return  # not one class for each image
        logits = logits.float()
        place = torch.arange(self._seen, self._seen + len(targets), device=targets.device)
        self._seen += len(targets)
        best = logits.topk(min(5, logits.shape[1])).indices
        hits = best == targets.unsqueeze(1)
        self._rows.append(
            (
                place * trainer.world_size + trainer.global_rank,
                targets,
                best[:, 0],
                hits[:, 0],
                hits.any(1),
                F.cross_entropy(logits, targets, reduction="none"),
            )
        )
        if isinstance(batch, (tuple, list)) and isinstance(batch[0], Tensor):
            self._image = batch[0][:1]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather the rows of all processes; rank zero writes them."""
        if trainer.state.fn != "fit" or trainer.sanity_checking or self._folder is None:
            return
        columns = [torch.cat(parts).cpu().double() for parts in zip(*self._rows, strict=True)]
        mine = torch.stack(columns, dim=1).numpy() if columns else np.zeros((0, len(COLUMNS)))
        parts: list[Any] = [mine]
        if trainer.world_size > 1:
            parts = [None] * trainer.world_size
            torch.distributed.all_gather_object(parts, mine)
        rows = np.concatenate(parts)
        self._rows = []
        if not len(rows) or not trainer.is_global_zero:
            return
        rows = rows[np.argsort(rows[:, 0])]
        rows = rows[rows[:, 0] < _validation_images(trainer)]  # Lightning's sampler repeats some
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "images.csv").open("w", encoding="utf-8") as file:
            np.savetxt(
                file, rows, ["%d"] * 5 + ["%.6f"], ",", header=",".join(COLUMNS), comments=""
            )
        names = COLUMNS[3:]
        self._summary = dict(zip(names, rows[:, 3:].mean(0).tolist(), strict=True))
        self._summary["images"] = len(rows)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the summary."""
        if not trainer.is_global_zero or self._folder is None or not self._summary:
            return
        began, first_epoch = self._started
        epochs = trainer.current_epoch - first_epoch
        seconds = (time.perf_counter() - began) / epochs if epochs > 0 else None
        result = {
            "model": type(pl_module).__name__,
            "parameters": sum(p.numel() for p in pl_module.parameters()),
            "gflops": self._gflops(pl_module),
            "epochs": trainer.current_epoch,
            "steps": trainer.global_step,
            "seconds_per_epoch": seconds,
            "peak_memory_mb": _peak_memory(pl_module.device),
            **self._summary,
        }
        path = self._folder / "result.json"
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    def _gflops(self, pl_module: LightningModule) -> float | None:
        sharded = any(isinstance(p, DTensor) for p in pl_module.parameters())
        if self._image is None or sharded:
            return None
        return forward_gflops(pl_module, self._image)


def _validation_images(trainer: Trainer) -> float:
    """Size of the first validation set; infinite where it is not known."""
    loaders: Any = trainer.val_dataloaders
    first = loaders[0] if isinstance(loaders, (list, tuple)) else loaders
    dataset = getattr(first, "dataset", None)
    return len(dataset) if isinstance(dataset, Sized) else math.inf


def _peak_memory(device: torch.device) -> float | None:
    """Most megabytes in use so far, on the device or, on a CPU, by the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if sys.platform == "win32":
        return None
    import resource  # not there on Windows

    unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
