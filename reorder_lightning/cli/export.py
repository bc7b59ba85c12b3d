"""`reorder export`: a checkpoint's order as JSON and PNG."""

from pathlib import Path
from typing import Any

from torch import Tensor

from reorder_lightning.cli.orders import parse_grid
from reorder_lightning.models.backbone import patch_grid
from reorder_lightning.order_figures import draw_order, to_png
from reorder_lightning.order_files import Grid, load_checkpoint, order_in_checkpoint, save_order


def run(ckpt: Path, output: Path | None = None, grid: str | None = None) -> None:
    """Write the order that a checkpoint's model reads its patches in.

    Args:
        ckpt: checkpoint of a model with a PatchOrder.
        output: the JSON file; the picture gets the same name with .png. By default the
            checkpoint's name with .order.json, beside it.
        grid: rows and columns of patches; needed where the model does not save its image size.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        ValueError: it holds no order, or its grid is unknown.
    """
    checkpoint = load_checkpoint(ckpt)
    order = order_in_checkpoint(checkpoint, ckpt)
    cells = parse_grid(grid) if grid else _grid(checkpoint, ckpt)
    epoch, step = checkpoint.get("epoch"), checkpoint.get("global_step")
    source = f"{ckpt.name}, epoch {epoch}, step {step}"
    path = save_order(output or ckpt.with_suffix(".order.json"), order, cells, source)
    picture = path.with_suffix(".png")
    picture.write_bytes(to_png(draw_order(order, cells, _logits(checkpoint), source)))
    print(f"order: {path}\npicture: {picture}")


def _grid(checkpoint: dict[str, Any], ckpt: Path) -> Grid:
    arguments = checkpoint.get("hyper_parameters", {})
    if "image_size" not in arguments or "patch_size" not in arguments:
        raise ValueError(f"{ckpt} does not tell its patch grid. Give it, e.g. --grid 14x14.")
    return patch_grid(arguments["image_size"], arguments["patch_size"])


def _logits(checkpoint: dict[str, Any]) -> Tensor | None:
    """The policy's logits, if the model was trained with exactly one REOrder callback."""
    states = [s for k, s in checkpoint.get("callbacks", {}).items() if k.startswith("REOrder")]
    logits: Tensor | None = states[0].get("policy", {}).get("logits") if len(states) == 1 else None
    return logits
