"""ImageClassifier: the training that every family shares."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from lightning import LightningModule
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy
from torchvision.transforms.v2 import CutMix, MixUp, RandomChoice

from reorder_lightning.models.init_from import load_weights

Order = str | list[int] | None
_T = TypeVar("_T")


def size_of(size: str, sizes: Mapping[str, _T]) -> _T:
    """Look up a model size; the error lists the sizes there are."""
    if size not in sizes:
        raise ValueError(f"Expected `size` to be one of {list(sizes)}, but got {size!r}.")
    return sizes[size]


class ImageClassifier(LightningModule):
    """Trains a backbone to classify images; the same for every family.

    Cross-entropy, AdamW (timm), linear warm-up and cosine decay per optimiser step (timm), top-1
    and top-5 (torchmetrics), MixUp and CutMix (torchvision). ``training_step`` also returns minus
    the cross-entropy of each image as ``reorder_reward`` ``(B,)``, which the REOrder callback
    reads. The learning rate follows the same schedule with and without REOrder. After
    ``seed_everything`` the random numbers of a step (dropout, MixUp) depend on the seed, the step
    and the rank only, so that a resumed run equals an uninterrupted one.

    Args:
        backbone: images ``(B, 3, H, W)`` -> logits ``(B, num_classes)``, with ``num_classes``.
        lr: peak learning rate.
        weight_decay: AdamW's; not for biases, norms and what the backbone's ``no_weight_decay``
            names.
        betas: AdamW's.
        warmup_epochs: epochs of linear warm-up of the learning rate.
        min_lr: the learning rate at the end, as a share of the peak.
        hold_epochs: epochs at the peak between warm-up and decay (40 gives the schedule of the
            released REOrder runs, which their fixed-order runs did not have).
        label_smoothing: of the training targets.
        mixup: MixUp's alpha; 0 for none.
        cutmix: CutMix's alpha; 0 for none. With both, one of them is chosen for each batch.
        grad_checkpointing: recompute the blocks in the backward pass to save memory.
        compile: run the backbone through ``torch.compile``.
        init_from: a checkpoint to take the weights and, unless ``order`` is given, the patch order
            from. Hyperparameters, optimiser and epoch stay new; a head or a position table of
            another size is replaced or resampled with a warning.

    Raises:
        FileNotFoundError: if ``init_from`` does not exist.
    """

    def __init__(
        self,
        backbone: nn.Module,
        lr: float = 1e-3,
        weight_decay: float = 0.05,
        betas: tuple[float, float] = (0.9, 0.999),
        warmup_epochs: float = 0.0,
        min_lr: float = 0.01,
        hold_epochs: float = 0.0,
        label_smoothing: float = 0.0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        grad_checkpointing: bool = False,
        compile: bool = False,
        init_from: str | None = None,
    ) -> None:
        super().__init__()
        # `init_from` has done its work once this object exists; loading a checkpoint of this run
        # must not need it again.
        self.save_hyperparameters(ignore=["backbone", "init_from"])
        self.backbone = backbone
        self.lr = lr
        self.weight_decay = weight_decay
        self.betas = betas
        self.warmup_epochs = warmup_epochs
        self.min_lr = min_lr
        self.hold_epochs = hold_epochs
        self.label_smoothing = label_smoothing
        num_classes = int(backbone.num_classes)  # type: ignore[arg-type]
        mixers = [MixUp(alpha=mixup, num_classes=num_classes)] if mixup else []
        mixers += [CutMix(alpha=cutmix, num_classes=num_classes)] if cutmix else []
        self.mix = RandomChoice(mixers) if mixers else None
        metrics = {
            f"top{k}": MulticlassAccuracy(num_classes, top_k=k, average="micro")
            for k in (1, min(5, num_classes))
        }
        self.val_metrics = MetricCollection(metrics, prefix="val/")  # type: ignore[arg-type]
        self.test_metrics = self.val_metrics.clone(prefix="test/")
        if init_from is not None:
            load_weights(backbone, init_from, keep_order=self.hparams.get("order") is not None)
        if grad_checkpointing:
            backbone.set_grad_checkpointing(True)  # type: ignore[operator]
        if compile:
            backbone.compile()

    def forward(self, images: Tensor) -> Tensor:
        """Images ``(B, 3, H, W)`` to logits ``(B, num_classes)``."""
        logits: Tensor = self.backbone(images)
        return logits

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Seed this step's random numbers, if the run was seeded at all."""
        if "PL_GLOBAL_SEED" in os.environ:
            seed = int(os.environ["PL_GLOBAL_SEED"])
            step = self.trainer.fit_loop.total_batch_idx
            torch.manual_seed(hash((seed, step, self.global_rank)) % 2**63)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """Loss, and the reward of each image for REOrder."""
        images, targets = batch if self.mix is None else self._mixed(*batch)
        losses = F.cross_entropy(
            self(images).float(), targets, reduction="none", label_smoothing=self.label_smoothing
        )
        loss = losses.mean()
        self.log("train/loss", loss, prog_bar=True, batch_size=len(images))
        return {"loss": loss, "reorder_reward": -losses.detach()}

    def _mixed(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        assert self.mix is not None
        if targets.is_floating_point():
            raise ValueError(
                "`mixup` or `cutmix` of the model is set, but the data are mixed already (their "
                'targets are soft, as with `data.augment="modern"`). Leave out one of the two.'
            )
        mixed: tuple[Tensor, Tensor] = self.mix(images, targets)
        return mixed

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """Loss, top-1 and top-5 over the validation set; returns ``logits`` and ``targets``."""
        return self._evaluate(batch, self.val_metrics, "val/loss")

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """Loss, top-1 and top-5 over the test set; returns ``logits`` and ``targets``."""
        return self._evaluate(batch, self.test_metrics, "test/loss")

    def _evaluate(
        self, batch: tuple[Tensor, Tensor], metrics: MetricCollection, loss_name: str
    ) -> dict[str, Tensor]:
        images, targets = batch
        logits = self(images).float()
        metrics.update(logits, targets)
        size = len(images)
        self.log(loss_name, F.cross_entropy(logits, targets), batch_size=size, sync_dist=True)
        self.log_dict(metrics, prog_bar=True, batch_size=size)
        return {"logits": logits, "targets": targets}

    def predict_step(self, batch: tuple[Tensor, Any], batch_idx: int) -> Tensor:
        """Class probabilities ``(B, num_classes)``."""
        probabilities: Tensor = self(batch[0]).float().softmax(-1)
        return probabilities

    def configure_optimizers(self) -> Any:
        """AdamW and the per-step warm-up and cosine schedule."""
        steps = self.trainer.estimated_stepping_batches
        epochs = self.trainer.max_epochs
        if steps == float("inf") or not epochs or epochs < 0:
            raise ValueError(
                f"The learning-rate schedule needs a training of known length, but got "
                f"max_epochs={epochs} and {steps} steps. Set `trainer.max_epochs`."
            )
        per_epoch = steps / epochs
        optimizer = create_optimizer_v2(
            self.backbone,
            opt="adamw",
            lr=self.lr,
            weight_decay=self.weight_decay,
            betas=self.betas,
        )
        warmup = min(round(self.warmup_epochs * per_epoch), int(steps) - 1)
        self._hold = (warmup, min(round(self.hold_epochs * per_epoch), int(steps) - warmup - 1))
        scheduler = CosineLRScheduler(
            optimizer,
            t_initial=max(2, int(steps) - sum(self._hold)),
            lr_min=self.lr * self.min_lr,
            warmup_t=warmup,
            warmup_prefix=True,
            t_in_epochs=False,
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step", "name": "lr"},
        }

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Advance timm's scheduler; the hold span does not count."""
        start, length = self._hold
        step = self.global_step
        scheduler.step_update(step - min(max(step - start, 0), length))
