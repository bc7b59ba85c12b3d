"""When and to what the REOrder callback attaches: models that are built late, and their copies."""

from __future__ import annotations

from functools import partial
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn

from reorder_lightning.attachment import attach, find_layer
from reorder_lightning.patch_order import PatchOrder
from reorder_lightning.token_sites import TokensNotFoundError


class Pending:
    """The layer of a model that may not be built yet.

    ``Callback.setup`` runs before ``LightningModule.setup`` and ``configure_model``, where a model
    may build its backbone, and a checkpoint is loaded right after them. So if there are no tokens
    yet, ``configure_model`` is wrapped on the instance, with a picklable object.

    Args:
        order: the order to start from.
        where: the other arguments of `attach`.
    """

    def __init__(self, order: Any, **where: Any) -> None:
        self.order = order
        self.where = where
        self.layer: PatchOrder | None = None

    def attach_to(self, pl_module: LightningModule) -> None:
        """Attach now, or as soon as the model is built."""
        try:
            self.layer = attach(pl_module, self.order, **self.where)
        except TokensNotFoundError:
            if not any(is_overridden(hook, pl_module) for hook in ("setup", "configure_model")):
                raise
            pl_module.configure_model = partial(_configure_model, pl_module, self)  # type: ignore[method-assign]


def _configure_model(pl_module: LightningModule, pending: Pending) -> None:
    type(pl_module).configure_model(pl_module)
    if pending.layer is None:
        pending.layer = attach(pl_module, pending.order, **pending.where)


def refuse_lost_order(trainer: Trainer, pl_module: LightningModule, target: str | None) -> None:
    """Raise where the order of an attached layer would be lost: in processes that are spawned.

    Their parent gets back the weights only, without what was added to the model in the child.
    """
    if isinstance(trainer.strategy.launcher, _MultiProcessingLauncher) and not _has_layer(
        pl_module, target
    ):
        raise ValueError(
            "With a strategy that spawns its processes (ddp_spawn, ddp_notebook) the learned order "
            "would stay in them. Call `reorder_lightning.attach(model)` before `trainer.fit(model)`"
            ", with `target`, `grid_size` and `num_prefix_tokens` if REOrder has them, or use "
            "strategy='ddp'."
        )


def _has_layer(pl_module: LightningModule, target: str | None) -> bool:
    try:
        return find_layer(pl_module, target) is not None
    except TokensNotFoundError:
        return False


def share_with_copies(
    trainer: Trainer, pl_module: LightningModule, layer: PatchOrder, where: dict[str, Any]
) -> None:
    """Attach to the copies of the model that other callbacks made before it had its order.

    An averaging callback that comes first in the list would otherwise save a ``state_dict`` without
    the order.
    """
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        for value in vars(callback).values():
            if not isinstance(value, nn.Module) or value is pl_module:
                continue
            for copy in [m for m in value.modules() if type(m) is type(pl_module)]:
                if copy is not pl_module and not _has_layer(copy, where["target"]):
                    attach(copy, **where).share(layer)
