"""Some training images of a Trainer, read without changing what the training will see."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning import Trainer
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler

from reorder_lightning.datamodules.base import ImageDataModule
from reorder_lightning.datamodules.subsets import sample_batches
from reorder_lightning.prior_cache import ReadImages


def training_images(trainer: Trainer) -> ReadImages:
    """How to read some images of the training data that a fit is about to use.

    Our DataModules give images as they are, without augmentation. Of a user's ``DataLoader`` the
    data set is read directly, in batches of its ``collate_fn``, so that its sampler and generators
    stay where they are. Any other iterable is copied and the copy is read. The global random
    numbers are seeded for each reading: do all of it within ``isolate_rng()``.

    Call it on all processes, for the user's ``train_dataloader`` may wait for the others.

    Args:
        trainer: in a fit, from ``on_fit_start`` on.
    """
    data = trainer.datamodule  # type: ignore[attr-defined]
    if isinstance(data, ImageDataModule):
        return lambda count: _images(sample_batches(data, "train", count), count)
    loader = trainer.train_dataloader
    if loader is None:  # nobody asked for it yet
        loader = trainer.fit_loop._data_source.dataloader()
    by_index = (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and loader.batch_sampler is not None
    )
    batches = partial(_batches_by_index if by_index else _batches_of_a_copy, loader)
    return lambda count: _images(batches(count), count)


def _images(batches: Iterable[Any], count: int) -> Iterator[Tensor]:
    """The first ``count`` images of batches: the first tensor ``(B, C, H, W)`` of each."""
    random.seed(0)  # a data set that augments its images must give the same ones each time
    np.random.seed(0)  # noqa: NPY002  # the generator that people's transforms draw from
    torch.manual_seed(0)
    for batch in batches:
        tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
        images = next((t for t in tensors if t.ndim == 4), None)
        if images is None:
            raise ValueError(
                "The compressibility of orders is measured on images (B, C, H, W), but the batches "
                f"of the training data hold {[tuple(t.shape) for t in tensors]}. Start from an "
                "order by its name or file instead."
            )
        images = images[:count].cpu()
        yield images.float() if images.is_floating_point() else images.float() / 255
        count -= len(images)
        if count <= 0:
            return


def _batches_by_index(loader: DataLoader[Any], count: int) -> Iterable[Any]:
    """Random images of a map-style data set, in its own batches and by as many workers."""
    sampler = loader.sampler
    indices = torch.arange(len(loader.dataset))  # type: ignore[arg-type]
    if isinstance(sampler, SubsetRandomSampler):  # the others are for validation
        indices = torch.as_tensor(sampler.indices)
    chosen = torch.randperm(len(indices), generator=torch.Generator().manual_seed(0))[:count]
    return DataLoader(
        loader.dataset,
        batch_size=loader.batch_size or 64,
        sampler=indices[chosen.sort().values].tolist(),
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=torch.Generator().manual_seed(0),
    )


def _batches_of_a_copy(loader: Iterable[Any], count: int) -> Iterable[Any]:
    """The first batches of a loader that can only be iterated."""
    try:
        return copy.deepcopy(loader)
    except Exception as error:  # whatever its objects raise
        raise ValueError(
            f"Cannot look at the images of a {type(loader).__name__} without using them up "
            f"({error}). Rank the orders beforehand (`reorder prior`), and start from the chosen "
            "one by its name or file."
        ) from error
