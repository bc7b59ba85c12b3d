"""OrderMonitor: pictures and a table of how the order moves."""

import csv
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_warn
from matplotlib.figure import Figure
from torch import Tensor

from reorder_lightning.callbacks.reorder import REOrder
from reorder_lightning.order_figures import draw_order, to_image, to_png
from reorder_lightning.orders import kendall_tau, save_order
from reorder_lightning.run_folder import run_folder

Row = dict[str, float | int | None]


class OrderMonitor(Callback):
    """Draws the order of a ``REOrder`` callback while it is learned, and keeps a table of it.

    At the end of every epoch of the policy phase and at the end of the training it writes, into
    ``<run folder>/order``:

    - ``epoch_007.png``, ``final.png``: rank of each patch, path over the grid, and the logits
      unless the start order was kept in their place;
    - ``order.csv``, a row for each picture: ``epoch``, ``temperature``, ``reward`` and ``baseline``
      as last logged, ``kendall_to_start`` (1 where the order has not moved);
    - ``order.json``: the final order, as :func:`reorder_lightning.orders.load_order` reads it.

    The pictures also go to every logger that takes images (``log_image``, as Weights & Biases has
    it, or TensorBoard's ``add_image``). Only rank zero draws. The table is part of the checkpoint,
    so a resumed run continues it.

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
        self._explored = False  # whether this epoch had a batch of the policy phase

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the REOrder callback and the folder."""
        if stage != "fit":
            return
        found = [c for c in trainer.callbacks if isinstance(c, REOrder)]  # type: ignore[attr-defined]
        if not found:
            rank_zero_warn("OrderMonitor has nothing to draw: there is no REOrder callback.")
        self._reorder = found[0] if found else None
        self._rows = []
        self.folder = Path(self.dirpath) if self.dirpath else run_folder(trainer) / "order"

    def on_train_batch_start(self, *args: Any) -> None:
        """Notice the policy phase; between batches `phase` is already that of the next one."""
        if self._reorder is not None and self._reorder.phase == "policy":
            self._explored = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the order at the end of a policy epoch."""
        if self._explored:
            self._record(trainer, trainer.current_epoch, f"epoch_{trainer.current_epoch:03d}")
        self._explored = False

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw and save the final order."""
        if self._reorder is None or self.folder is None:
            return
        self._record(trainer, trainer.current_epoch - 1, "final")
        if trainer.is_global_zero:
            source = f"REOrder, {trainer.current_epoch} epochs, {trainer.global_step} steps"
            order, grid = self._reorder.order, self._reorder.grid_size
            save_order(self.folder / "order.json", order, grid, source)

    def state_dict(self) -> dict[str, Any]:
        """The table so far."""
        return {"rows": self._rows, "explored": self._explored}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the table of the resumed run."""
        self._rows = list(state_dict["rows"])
        self._explored = state_dict["explored"]

    def _record(self, trainer: Trainer, epoch: int, name: str) -> None:
        """Add a row to the table and draw the order."""
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
        if not trainer.is_global_zero:
            return
        folder.mkdir(parents=True, exist_ok=True)
        write_table(folder / "order.csv", self._rows)
        figure = draw_order(order, reorder.grid_size, _logits_of(reorder, order), _title(row, name))
        (folder / f"{name}.png").write_bytes(to_png(figure))
        for logger in trainer.loggers:
            log_figure(logger, "reorder/order", figure, trainer.global_step)


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


def _title(row: Row, name: str) -> str:
    what = "Final order" if name == "final" else f"Epoch {row['epoch']}"
    return (
        f"{what}: temperature {row['temperature']:.3f}, "
        f"Kendall tau to the start {row['kendall_to_start']:.3f}"
    )
