"""What REOrder tells its user."""

from __future__ import annotations

from lightning import LightningModule
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from reorder_lightning.acceptance import Decision

NEVER_RAN = (
    "REOrder put an order into {0}, but the training step never came by it: the first block was "
    "called by `.forward()` or left out, or the model was compiled and called before the order was "
    "attached, so that it does not see it. Call blocks as `block(x)`, and compile the model after "
    "attaching or before its first call (reorder_lightning.attach(model) attaches at once; "
    "torch._dynamo.reset() forgets what was compiled)."
)


def announce(pl_module: LightningModule, what: str, prefix: str, decision: Decision) -> None:
    """Tell the user of a decision, and log it.

    As values of the epoch: of a step's, only every ``log_every_n_steps``-th reach the loggers.
    """
    rank_zero_info(f"REOrder: the {what} is over. {decision}")
    values = {
        f"reorder/{prefix}accepted": float(decision.accepted),
        f"reorder/{prefix}gain": decision.gain,
        f"reorder/{prefix}gain_se": decision.gain_se,
    }
    pl_module.log_dict(values, on_step=False, on_epoch=True, batch_size=1, sync_dist=True)


def warn_of_missing(no_policy: bool, no_order: bool) -> None:
    """One warning when a training is resumed from a checkpoint that lacks something."""
    lacks = [
        text
        for text, missing in (
            ("no patch order (the model keeps the one it was built with)", no_order),
            ("no state of this callback (the policy starts from the model's order)", no_policy),
        )
        if missing
    ]
    if lacks:
        rank_zero_warn(f"REOrder: the checkpoint holds {' and '.join(lacks)}.")
