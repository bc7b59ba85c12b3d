"""The loader of all data sets: seeded by epoch, resumable in mid-epoch, split over processes."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from reorder_lightning.datamodules.sampling import IntArray, eval_batches, train_batches

_log = logging.getLogger(__name__)


class ImageSource(Protocol):
    """A set of labelled images that is read a batch at a time."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """File name of an image, for predictions and messages."""
        ...

    def batch(self, indices: IntArray, epoch: int | None) -> tuple[Tensor, Tensor, list[str]]:
        """Reads images `(B, 3, H, W)` uint8, targets `(B,)` int64, and names of files skipped.

        `epoch` seeds the augmentation, together with each index; None switches it off.
        """
        ...


class _Reader(Dataset[tuple[Tensor, Tensor, list[str]]]):
    """What runs in the worker processes: a key is a whole batch and carries its own epoch."""

    def __init__(self, source: ImageSource) -> None:
        self.source = source

    def __getitem__(self, key: tuple[IntArray, int | None]) -> tuple[Tensor, Tensor, list[str]]:
        return self.source.batch(*key)


class _Plan(Sampler[tuple[IntArray, int | None]]):
    """The batches still to come, replaced by `EpochLoader` at the start of each pass.

    Lightning calls `set_epoch` on `dataloader.batch_sampler.sampler`; that is this object.
    """

    def __init__(self, set_epoch: Callable[[int], None]) -> None:
        self.keys: list[tuple[IntArray, int | None]] = []
        self.set_epoch = set_epoch

    @property
    def sampler(self) -> "_Plan":
        return self

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[tuple[IntArray, int | None]]:
        return iter(self.keys)


class EpochLoader:
    """Iterates over batches of an `ImageSource`; stateful in the way Lightning looks for.

    It is deliberately no `torch.utils.data.DataLoader` (it holds one): Lightning puts its own
    samplers into those, whose order is neither resumable in mid-epoch nor without repetitions.
    A pass starts when the first batch is asked for, not at `iter()`, because Lightning calls
    `iter()` before `set_epoch()` on a resumed run. Without `set_epoch` each full pass is followed
    by the next epoch.

    Args:
        source: The images.
        batch_size: Images a process and batch.
        train: Training (shuffled, augmented, incomplete batches left out) or evaluation (in
            order, plain, each image once).
        seed: Seed of order and augmentation.
        shuffle: False keeps a training's order fixed.
        names: Yield the file names (`list[str]`) in place of the targets, for predictions.
        finish: Applied to the images of each batch, for use without a Trainer.
        num_workers: Worker processes; 0 reads in this one.
        pin_memory: Page-locked batches for fast copies to a GPU.
        rank: Number of this process.
        world_size: Number of processes.
    """

    def __init__(
        self,
        source: ImageSource,
        batch_size: int,
        *,
        train: bool,
        seed: int = 0,
        shuffle: bool = True,
        names: bool = False,
        finish: Callable[[Tensor], Tensor] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.dataset = source
        self.batch_size = batch_size
        self.train = train
        self.seed = seed
        self.shuffle = shuffle
        self.names = names
        self.finish = finish
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self.position = 0  # batches handed out in this epoch
        self.replaced: set[str] = set()
        self._resume_at: int | None = None
        self._length = len(self._indices())
        self.batch_sampler = _Plan(self.set_epoch)
        self._loader: DataLoader[Any] = DataLoader(
            _Reader(source),
            sampler=self.batch_sampler,
            batch_size=None,
            num_workers=num_workers,
            pin_memory=pin_memory,
            persistent_workers=num_workers > 0,
            # DataLoader draws a base seed at each pass: from here, not from the user's generator.
            generator=torch.Generator().manual_seed(seed & (2**63 - 1)),
        )

    def _indices(self) -> "IntArray | list[IntArray]":
        n, b, r, w = len(self.dataset), self.batch_size, self.rank, self.world_size
        if not self.train:
            return eval_batches(n, b, rank=r, world_size=w)
        return train_batches(
            n, b, seed=self.seed, epoch=self.epoch, shuffle=self.shuffle, rank=r, world_size=w
        )

    def __len__(self) -> int:
        """Batches of a whole epoch, also when resumed in the middle of one."""
        return self._length

    def set_epoch(self, epoch: int) -> None:
        """Goes to the start of `epoch`; keeps a restored position if that is the same epoch."""
        if epoch != self.epoch:
            self.epoch, self.position, self._resume_at = epoch, 0, None

    def __iter__(self) -> Iterator[tuple[Tensor, Any]]:
        if self._resume_at is None and self.position == len(self):
            self.epoch += 1
        self.position, self._resume_at = self._resume_at or 0, None
        seed_epoch = self.epoch if self.train else None
        plan = self.batch_sampler
        plan.keys = [(indices, seed_epoch) for indices in self._indices()[self.position :]]
        for (indices, _), (images, targets, replaced) in zip(plan.keys, self._loader, strict=True):
            self.position += 1
            self._note(replaced)
            images = self.finish(images) if self.finish else images
            yield images, self._names(indices, replaced) if self.names else targets

    def _names(self, indices: IntArray, left_out: list[str]) -> list[str]:
        names = [self.dataset.name(i) for i in indices.tolist()]
        return [name for name in names if name not in left_out]

    def _note(self, replaced: list[str]) -> None:
        """Logs each unreadable file once, with the count so far."""
        for name in replaced:
            if name not in self.replaced:
                self.replaced.add(name)
                _log.warning(
                    "Unreadable image skipped (%d so far): %s",
                    len(self.replaced),
                    name,
                )

    def state_dict(self) -> dict[str, int]:
        """Where this loader stands: epoch, batches handed out in it, and what that rests on."""
        position = self.position if self._resume_at is None else self._resume_at
        return {"epoch": self.epoch, "position": position, **self._basis()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continues where `state_dict` was taken.

        Warns if the seed, the number of images, the batch size or the number of processes has
        changed, because what is left of the epoch is then another selection.
        """
        self.epoch, self._resume_at = state["epoch"], min(state["position"], len(self))
        was = {key: state[key] for key in self._basis()}
        if self.train and was != self._basis():
            _log.warning(
                "Resumed in mid-epoch with other data: %s then, %s now. Some images of this epoch"
                " may be read twice or not at all.",
                was,
                self._basis(),
            )

    def _basis(self) -> dict[str, int]:
        return {
            "seed": self.seed,
            "images": len(self.dataset),
            "global_batch_size": self.batch_size * self.world_size,
        }
