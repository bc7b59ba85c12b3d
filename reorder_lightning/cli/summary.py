"""What a person wants to know after a training."""

import math
from collections.abc import Iterator
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from rich.console import Console
from rich.text import Text

from reorder_lightning.callbacks import OrderMonitor, REOrder
from reorder_lightning.orders import kendall_tau


def print_summary(trainer: Trainer) -> None:
    """Print accuracy, order, and where the files are; call it on rank zero."""
    console = Console(soft_wrap=True, highlight=False)  # paths stay in one piece
    console.print()
    for name, value in summary(trainer):
        console.print(Text(f"{name:<12}", style="bold cyan"), Text(value), sep="")


def summary(trainer: Trainer) -> Iterator[tuple[str, str]]:
    """The lines of the summary: what, and its value."""
    model = type(trainer.lightning_module).__name__
    yield "trained", f"{model}, {trainer.current_epoch} epochs, {trainer.global_step} steps"
    yield from _metrics(trainer)
    for reorder in (c for c in trainer.callbacks if isinstance(c, REOrder)):  # type: ignore[attr-defined]
        yield "order", order_result(reorder)
    for monitor in (c for c in trainer.callbacks if isinstance(c, OrderMonitor)):  # type: ignore[attr-defined]
        if monitor.folder is not None:
            yield "", _short(monitor.folder / "order.json")
            yield "pictures", ", ".join(p.name for p in _pictures(monitor.folder)) + " beside it"
    for checkpoint in trainer.checkpoint_callbacks[-1:]:
        if isinstance(checkpoint, ModelCheckpoint):
            path = checkpoint.last_model_path or checkpoint.best_model_path
            if path:
                yield "checkpoint", _short(Path(path))


def _pictures(folder: Path) -> list[Path]:
    """Those of the whole training."""
    paths = (folder / name for name in ("final.png", "puzzle.png", "movement.png", "order.gif"))
    return [path for path in paths if path.exists()]


def _metrics(trainer: Trainer) -> Iterator[tuple[str, str]]:
    """Validation metrics; accuracies with their standard error, because it is often large."""
    values = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("val")}
    count = _validation_images(trainer)
    for name, value in values.items():
        text = f"{value:.4f}"
        if "top" in name and count:
            error = math.sqrt(value * (1 - value) / count)
            text = f"{value:.4f} on {count} images (standard error {error:.4f})"
        yield name, text


def _validation_images(trainer: Trainer) -> int:
    dataset = getattr(trainer.val_dataloaders, "dataset", None)
    return len(dataset) if dataset is not None and trainer.limit_val_batches == 1.0 else 0


def order_result(reorder: REOrder) -> str:
    """Whether the learned order was accepted, why, and how far it is from the start."""
    if reorder.policy is None:
        return "no policy phase: the start order"
    if reorder.phase != "frozen":
        return "not final: the training ended before its policy phase did"
    decision = reorder.policy.decide()
    gain = f"reward {decision.gain:+.4f} in the trial (standard error {decision.gain_se:.4f})"
    if not decision.accepted and math.isnan(decision.gain_se):
        return "the start order was kept: nothing was found, or the trial was too short to tell"
    if not decision.accepted:
        return f"the start order was kept; the learned one: {gain}"
    distance = kendall_tau(reorder.order.cpu(), reorder.start_order)
    learned = f"{decision.challenger}; Kendall tau to the start {distance:.3f}"
    return f"{learned}, {gain}" if reorder.policy.acceptance else learned


def _short(path: Path) -> str:
    """Relative to the working directory where the path lies in it."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
