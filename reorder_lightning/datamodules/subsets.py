"""Some images of any DataModule, outside of a Trainer."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from lightning import LightningDataModule
from torch import Tensor

from reorder_lightning.datamodules.base import ImageDataModule
from reorder_lightning.datamodules.sampling import SPLIT, generator


def sample_batches(
    data: LightningDataModule, split: Literal["train", "val"], images: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of images and targets, without augmentation where the DataModule is ours.

    Args:
        data: ours: images chosen at random by its seed, as they are. Anybody else's: its loader's
            first ones, as it gives them, which for training may mean augmented and normalised.
        split: which part.
        images: how many; None for all.

    Yields:
        Images, uint8 ``(B, 3, H, W)`` from ours, else as the loader has them, and targets ``(B,)``.

    Raises:
        ValueError: ``images`` is less than 1, or a foreign loader gives no images and targets.
    """
    if images is not None and images < 1:
        raise ValueError(f"Expected argument `images` to be at least 1 but got {images}.")
    data.prepare_data()
    if isinstance(data, ImageDataModule):
        source = data.open(split)
        order = torch.randperm(len(source), generator=generator(SPLIT, data.seed)).numpy()
        chosen = np.sort(order[:images])  # files are read in the order that they lie in
        for start in range(0, len(chosen), data.batch_size):
            pixels, targets, _ = source.batch(chosen[start : start + data.batch_size], None)
            yield pixels, targets
        return
    data.setup("fit")
    loader = data.train_dataloader() if split == "train" else data.val_dataloader()
    left = images
    for batch in loader:
        pixels, targets = _images_and_targets(batch)
        yield pixels[:left], targets[:left]
        if left is not None:
            left -= len(pixels)
            if left <= 0:
                return


def _images_and_targets(batch: Any) -> tuple[Tensor, Tensor]:
    parts = list(batch.values()) if isinstance(batch, Mapping) else list(batch)
    tensors = [part for part in parts if isinstance(part, Tensor)]
    pixels = next((t for t in tensors if t.ndim == 4), None)
    targets = next((t for t in tensors if t.ndim == 1), None)
    if pixels is None or targets is None:
        raise ValueError(
            "Expected batches with images (B, 3, H, W) and targets (B,), but got "
            f"{[tuple(t.shape) for t in tensors]}."
        )
    return pixels, targets
