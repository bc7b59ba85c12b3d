"""What REOrder tells its user."""

from __future__ import annotations

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from reorder_lightning.acceptance import Decision

NEVER_RAN = (
    "REOrder put an order into {0}, but the training step never came by it: the first block was "
    "called by `.forward()` or left out, or the model was compiled and called before the order was "
    "attached, so that it does not see it. Call blocks as `block(x)`, and compile the model after "
    "attaching or before its first call (reorder_lightning.attach(model) attaches at once; "
    "torch._dynamo.reset() forgets what was compiled)."
)


def announce(what: str, prefix: str, decision: Decision) -> dict[str, float]:
    """Tell the user of a decision; returns what to log."""
    rank_zero_info(f"REOrder: the {what} is over. {decision}")
    return {
        f"{prefix}accepted": float(decision.accepted),
        f"{prefix}gain": decision.gain,
        f"{prefix}gain_se": decision.gain_se,
    }


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
