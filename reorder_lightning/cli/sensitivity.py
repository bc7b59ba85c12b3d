"""`reorder sensitivity`: one checkpoint in all fixed and some random orders."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from pydoc import locate

import torch
from lightning import LightningDataModule, LightningModule
from rich import print as rich_print
from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch import Tensor

import reorder_lightning.datamodules
import reorder_lightning.models  # noqa: F401  # both are known by name
from reorder_lightning.attachment import attach, load_from_checkpoint
from reorder_lightning.datamodules.base import ImageDataModule, write_csv
from reorder_lightning.datamodules.subsets import sample_batches
from reorder_lightning.order_files import load_checkpoint
from reorder_lightning.sensitivity import (
    OrderScore,
    Sensitivity,
    order_sensitivity,
    orders_to_try,
)


def run(
    ckpt: Path,
    data: LightningDataModule | None = None,
    random: int = 10,
    images: int | None = None,
    model: str | None = None,
    output: Path = Path("sensitivity.csv"),
) -> None:
    """Evaluate a checkpoint on validation images in all fixed and in random orders.

    Args:
        ckpt: the checkpoint.
        data: the DataModule that it was trained on, e.g. UCMerced.
        random: how many random orders.
        images: how many validation images, chosen at random; null for all.
        model: import path of the model's class, where the checkpoint does not tell it.
        output: the csv file.

    Raises:
        FileNotFoundError: there is no checkpoint or no data.
        ValueError: the model cannot be built, has no patch order, or is for other classes.
    """
    if data is None:
        raise ValueError(
            "There is no data. Give some: -c configs/data/ucmerced.yaml or --data UCMerced."
        )
    module = load_from_checkpoint(_model_class(ckpt, model), ckpt)
    module.to("cuda" if torch.cuda.is_available() else "cpu")
    orders = orders_to_try(attach(module).grid_size, random)
    found = order_sensitivity(module, _batches(data, images), orders)
    rich_print(_table(found, f"{ckpt.name}, {found.images:,} validation images"))
    print("\n".join(_summary(found)))
    print(f"table: {write_csv(output, [asdict(row) for row in found.rows])}")


def _model_class(ckpt: Path, given: str | None) -> type[LightningModule]:
    path = given or load_checkpoint(ckpt).get("hyper_parameters", {}).get("_class_path")
    if path is None:
        raise ValueError(f"{ckpt} does not tell its model's class. Give it: --model MODULE.CLASS")
    for name in (path, f"reorder_lightning.models.{path}"):
        found = locate(name)
        if isinstance(found, type) and issubclass(found, LightningModule):
            return found
    raise ValueError(f"There is no LightningModule {path} to be found, as `model` should name.")


def _batches(data: LightningDataModule, images: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    for pixels, targets in sample_batches(data, "val", images):
        yield data.normalize(pixels) if isinstance(data, ImageDataModule) else pixels, targets


def _table(found: Sensitivity, what: str) -> Table:
    table = Table(title=what, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    table.add_column("order", style="bold cyan", no_wrap=True)
    for name in ("top-1 %", "to its own", "loss"):
        table.add_column(name, justify="right", no_wrap=True)
    for group in ((found.own,), found.fixed, found.random):
        for row in group:
            table.add_row(*_cells(row, found.own), end_section=row is group[-1])
    return table


def _cells(row: OrderScore, own: OrderScore) -> tuple[str, ...]:
    change = "" if row is own else f"{row.change:+.2f} ±{row.change_se:.2f}"
    top1 = f"{row.top1:.2f} ±{row.top1_se:.2f}"
    return row.order, top1, change, f"{row.loss:.3f} ±{row.loss_se:.3f}"


def _summary(found: Sensitivity) -> Iterator[str]:
    yield "± is the standard error over images; differences are over the same images."
    yield f"fixed orders: {found.fixed_range:.2f} points from best to worst"
    if len(found.random) > 1:
        yield (
            f"random orders: {found.random_mean:.2f} % on average, standard deviation "
            f"{found.random_std:.2f} points; its own order is at {found.own.top1:.2f} %"
        )
    if found.matters:
        yield "The order matters to this model: some orders change its top-1 by more than chance."
    else:
        yield (
            "No order changes top-1 by more than chance: the model hardly uses the order, or the "
            "images are too few to tell."
        )
