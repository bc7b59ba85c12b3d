"""OrderMonitor: pictures and a table of how the order moves."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from matplotlib.figure import Figure
from torch import Tensor

from reorder_lightning.callbacks.reorder import REOrder
from reorder_lightning.order_figures import Image, draw_order, to_image, to_png
from reorder_lightning.order_movement import animate, draw_movement
from reorder_lightning.orders import kendall_tau, save_order
from reorder_lightning.puzzle import draw_puzzle, find_image, to_pixels
from reorder_lightning.run_folder import run_folder

Row = dict[str, float | int | None]


class OrderMonitor(Callback):
    """Draws the order of a ``REOrder`` callback while it is learned, and keeps a table of it.

    Into ``<run folder>/order`` it writes, at the end of every epoch of the policy phase and at the
    end of the training:

    - ``epoch_007.png``, ``final.png``: rank of each patch, path over the grid, and the logits
      unless the start order was kept in their place;
    - ``order.csv``, a row for each picture: ``epoch``, ``temperature``, ``reward`` and ``baseline``
      as last logged since the start or resume, ``kendall_to_start`` (1 where the order has not
      moved);

    and at the end of the training:

    - ``order.json``: the final order, as :func:`reorder_lightning.orders.load_order` reads it;
    - ``puzzle.png``: a validation image cut into its patches and laid out in the start order and
      in the learned one (:func:`reorder_lightning.puzzle.draw_puzzle`);
    - ``movement.png``: Kendall tau to the start over the epochs, and how far each patch has moved
      (:func:`reorder_lightning.order_movement.draw_movement`);
    - ``order.gif``: the order from the start over the epochs to the end
      (:func:`reorder_lightning.order_movement.animate`).

    The last two are left out if there was no policy phase. Where the start order was kept, the
    titles say so, and no movement of patches is drawn.

    The image is the one of the first validation batch whose patches differ most, in the colours
    of the DataModule's ``mean`` and ``std`` if it has them. Without a validation batch that holds
    images ``(B, C, h, w)`` there is no puzzle, and the animation shows ranks only.

    The pictures also go to every logger that takes images (``log_image``, as Weights & Biases has
    it, or TensorBoard's ``add_image``), the animation to those with ``log_video``. Only rank zero
    draws. Table and orders are part of the checkpoint, so a resumed run continues them.

    Args:
        dirpath: folder for the files; by default ``order`` in the run's folder.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from reorder_lightning.callbacks import OrderMonitor, REOrder
        >>> trainer = Trainer(callbacks=[REOrder(), OrderMonitor()], logger=False)
    """

    def __init__(self, dirpath: str | None = None) -> None:
        self.dirpath = dirpath
        self.folder: Path | None = None
        self._reorder: REOrder | None = None
        self._rows: list[Row] = []
        self._orders: dict[int, Tensor] = {}  # of each row: epoch to order, int32 (N,)
        self._explored = False  # whether this epoch had a batch of the policy phase
        self._image: Image | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the REOrder callback and the folder."""
        if stage != "fit":
            return
        found = [c for c in trainer.callbacks if isinstance(c, REOrder)]  # type: ignore[attr-defined]
        if not found:
            rank_zero_warn("OrderMonitor has nothing to draw: there is no REOrder callback.")
        quiet = trainer.fast_dev_run  # type: ignore[attr-defined]  # loggers write nothing either
        self._reorder = found[0] if found and not quiet else None
        self._rows, self._orders, self._image = [], {}, None
        self.folder = Path(self.dirpath) if self.dirpath else run_folder(trainer) / "order"

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep one image of the first batch for the pictures."""
        first = batch_idx == dataloader_idx == 0
        if not first or self._reorder is None or self._image is not None:
            return
        image = find_image(batch, self._reorder.grid_size) if trainer.is_global_zero else None
        if image is not None:
            self._image = to_pixels(image, *_mean_and_std(trainer))

    def on_train_batch_start(self, *args: Any) -> None:
        """Notice the policy phase; between batches `phase` is already that of the next one."""
        if self._reorder is not None and self._reorder.phase == "policy":
            self._explored = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the order at the end of a policy epoch."""
        if self._explored:
            epoch = trainer.current_epoch
            row = self._record(trainer, epoch)
            title = f"Epoch {epoch}: temperature {row['temperature']:.3f}, {_distance(row)}"
            self._draw_order(trainer, f"epoch_{epoch:03d}", title)
        self._explored = False

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw and save the final order, and how it came about."""
        if self._reorder is None or self.folder is None:
            return
        row = self._record(trainer, trainer.current_epoch - 1)
        if not trainer.is_global_zero:
            return
        outcome = f"Final order: {_outcome(self._reorder)}"
        moved = row["kendall_to_start"] != 1
        title = f"{outcome}; {_distance(row)}" if moved else outcome
        self._draw_order(trainer, "final", title)
        self._draw_course(trainer, title, outcome)
        source = f"REOrder, {trainer.current_epoch} epochs, {trainer.global_step} steps"
        order, grid = self._reorder.order, self._reorder.grid_size
        save_order(self.folder / "order.json", order, grid, source)

    def state_dict(self) -> dict[str, Any]:
        """The table so far, and the order of each of its rows."""
        return {"rows": self._rows, "orders": self._orders, "explored": self._explored}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the table of the resumed run."""
        self._rows = list(state_dict["rows"])
        self._orders = dict(state_dict.get("orders", {}))  # missing in older checkpoints
        self._explored = state_dict["explored"]

    def _record(self, trainer: Trainer, epoch: int) -> Row:
        """Add a row to the table, and its order."""
        reorder, folder = self._reorder, self.folder
        assert reorder is not None
        assert folder is not None
        order = reorder.order.cpu()
        row: Row = {
            "epoch": epoch,
            "temperature": reorder.temperature,
            "reward": _last(trainer, "reorder/reward"),
            "baseline": _last(trainer, "reorder/baseline"),
            "kendall_to_start": kendall_tau(order, reorder.start_order.cpu()),
        }
        # The last epoch may be a policy epoch: then its row is the final one too.
        self._rows = [*(r for r in self._rows if r["epoch"] != epoch), row]
        self._orders = {**self._orders, epoch: order.int()}
        if trainer.is_global_zero:
            folder.mkdir(parents=True, exist_ok=True)
            write_table(folder / "order.csv", self._rows)
        return row

    def _draw_order(self, trainer: Trainer, name: str, title: str) -> None:
        reorder = self._reorder
        if trainer.is_global_zero and reorder is not None:
            order = reorder.order.cpu()
            figure = draw_order(order, reorder.grid_size, _logits_of(reorder, order), title)
            self._publish(trainer, name, figure, "order")

    def _draw_course(self, trainer: Trainer, title: str, outcome: str) -> None:
        """Puzzle, movement and animation of the whole training."""
        reorder, folder = self._reorder, self.folder
        assert reorder is not None
        assert folder is not None
        grid, start, order = reorder.grid_size, reorder.start_order.cpu(), reorder.order.cpu()
        if self._image is None:
            rank_zero_info(
                "OrderMonitor draws no puzzle: it saw no validation batch with images (B, C, h, w)."
            )
        else:
            orders = {"start order": start}
            if not torch.equal(order, start):
                orders["final order"] = order
            self._publish(trainer, "puzzle", draw_puzzle(self._image, orders, grid, title))
        if reorder.policy is None:
            return
        self._publish(trainer, "movement", draw_movement(start, self._orders, grid, title))
        *epochs, last = self._orders
        frames = {f"Epoch {epoch}": self._orders[epoch] for epoch in epochs}
        frames = {"Start order": start, **frames, outcome: self._orders[last]}
        path = folder / "order.gif"
        path.write_bytes(animate(frames, grid, self._image))
        for logger in trainer.loggers:
            log_video = getattr(logger, "log_video", None)
            if log_video is not None:
                log_video(key="reorder/animation", videos=[str(path)], step=trainer.global_step)

    def _publish(self, trainer: Trainer, name: str, figure: Figure, key: str = "") -> None:
        """Write a figure into the folder and give it to the loggers."""
        assert self.folder is not None
        (self.folder / f"{name}.png").write_bytes(to_png(figure))
        for logger in trainer.loggers:
            log_figure(logger, f"reorder/{key or name}", figure, trainer.global_step)


def _mean_and_std(trainer: Trainer) -> tuple[Sequence[float], Sequence[float]] | tuple[()]:
    """What the DataModule normalised its images with, if it tells."""
    data = getattr(trainer, "datamodule", None)
    mean, std = getattr(data, "mean", None), getattr(data, "std", None)
    if isinstance(mean, tuple | list) and isinstance(std, tuple | list):
        return mean, std
    return ()


def _logits_of(reorder: REOrder, order: Tensor) -> Tensor | None:
    """The policy's logits, unless the order is not theirs because the start order was kept."""
    policy = reorder.policy
    return policy.logits if policy is not None and torch.equal(policy.mode, order) else None


def write_table(path: Path, rows: list[Row]) -> None:
    """Write rows as a csv file with a header; a missing value is an empty cell."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def log_figure(logger: Logger, name: str, figure: Figure, step: int) -> None:
    """Give a figure to a logger, if it takes images: W&B's or TensorBoard's way."""
    log_image = getattr(logger, "log_image", None)
    add_image = getattr(getattr(logger, "experiment", None), "add_image", None)
    if log_image is not None:
        log_image(key=name, images=[to_image(figure)], step=step)
    elif add_image is not None:
        add_image(name, to_image(figure), step, dataformats="HWC")


def _last(trainer: Trainer, name: str) -> float | None:
    """A logged value; none before the first update."""
    value = trainer.callback_metrics.get(name)
    return None if value is None else float(value)


def _distance(row: Row) -> str:
    return f"Kendall tau to the start {row['kendall_to_start']:.3f}"


def _outcome(reorder: REOrder) -> str:
    """What became of the start order, in few words."""
    if reorder.policy is None:
        return "no policy phase"
    if reorder.phase != "frozen":
        return "policy not finished"
    kept = torch.equal(reorder.order.cpu(), reorder.start_order.cpu())
    return "start kept" if kept else reorder.policy.decide().challenger
