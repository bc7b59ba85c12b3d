"""What the callback must know of a Trainer and Lightning does not say directly."""

from __future__ import annotations

import math

from lightning import Trainer


def training_length(trainer: Trainer) -> tuple[float, float]:
    """Updates of the whole training and of one epoch; infinite if unknown.

    An update is an optimiser step, or a batch with manual optimisation: there ``global_step``
    counts the steps of all optimisers, and when they step is the user's business.
    """
    batches = trainer.num_training_batches
    if trainer.lightning_module.automatic_optimization:
        per_epoch = (
            math.ceil(batches / trainer.accumulate_grad_batches) if batches < math.inf else batches
        )
        total = trainer.estimated_stepping_batches
        return (total if total >= 0 else math.inf), max(1, per_epoch)
    epochs = trainer.max_epochs
    return (batches * epochs if epochs is not None and epochs >= 0 else math.inf), batches


def steps_done(trainer: Trainer) -> int:
    """Optimiser steps until now; batches with manual optimisation (see `training_length`)."""
    if trainer.lightning_module.automatic_optimization:
        return trainer.global_step
    return trainer.fit_loop.total_batch_idx + 1


def data_rank(trainer: Trainer) -> int:
    """Rank among the processes that see different data: tensor-parallel ones share their draws."""
    sampler = getattr(trainer.strategy, "distributed_sampler_kwargs", None) or {}
    rank: int = sampler.get("rank", trainer.global_rank)
    return rank


def log_is_due(trainer: Trainer, step: int) -> bool:
    """Whether loggers write what is logged after ``step`` steps, or the epoch ends."""
    every = trainer.log_every_n_steps  # type: ignore[attr-defined]
    return trainer.is_last_batch or bool(every and step % every == 0)


def count_epoch(trainer: Trainer) -> None:
    """Count an epoch that Lightning 2.6 forgets.

    Resumed from a checkpoint that was saved in the last batch of an epoch, it does not count the
    next one as begun, and a second resume then repeats an epoch with the weights of its end.
    """
    progress = trainer.fit_loop.epoch_progress
    if progress.current.ready == progress.current.completed:
        progress.increment_ready()
        progress.increment_started()
