"""The puzzle picture: a real image cut into its patches and laid out as the model reads them.

After the figures of Kutscher et al., "REOrdering Patches Improves Vision Models", NeurIPS 2025,
arXiv 2505.23751, which show an image in the order of its sequence.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from matplotlib import cm, colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from reorder_lightning.order_figures import (
    COLOURS,
    INK,
    PANEL_TITLE,
    Image,
    new_figure,
    panel_size,
    set_title,
)
from reorder_lightning.order_files import Grid, check_order, patch_count

Tiles: TypeAlias = "NDArray[np.uint8]"  # (H * W, height, width, 3), in raster order

_LOOKED_AT = 32  # images of a batch


# --------------------------------------------------------------------------- the image


def find_image(batch: Any, grid: Grid) -> Tensor | None:
    """The image of a batch that makes the best puzzle: the one whose patches differ most.

    Args:
        batch: any nesting of lists, tuples and mappings. Its first tensor ``(B, C, h, w)`` that is
            at least as large as the grid is taken for its images; the first 32 are looked at.
        grid: rows and columns of patches ``(H, W)``.

    Returns:
        float32 ``(C, h, w)`` on the CPU; None if the batch holds no such tensor.

    >>> images = torch.stack([torch.zeros(3, 4, 4), torch.arange(48.0).view(3, 4, 4)])
    >>> find_image({"label": torch.tensor([0, 1]), "pixels": images}, (2, 2)).max()
    tensor(47.)
    """
    for tensor in _tensors(batch):
        if tensor.ndim == 4 and tensor.shape[2] >= grid[0] and tensor.shape[3] >= grid[1]:
            images = tensor[:_LOOKED_AT].detach().cpu().float()
            patches = F.adaptive_avg_pool2d(images, grid)
            best = patches.var(dim=(2, 3), correction=0).mean(1).argmax()
            return images[int(best)].clone()
    return None


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping | Sequence) and not isinstance(batch, str | bytes):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(part)


def to_pixels(
    image: Tensor, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> Image:
    """Turn what a model gets into what a person sees.

    Take ``image * std + mean`` where these are known, else ``image`` itself: times 255 if it lies
    in [0, 1], as it is if in [0, 255], else stretched from its 1st to its 99th percentile. Any
    number of channels but three is shown as their mean, in grey.

    Args:
        image: float ``(C, h, w)``.
        mean: of each channel.
        std: of each channel.

    Returns:
        uint8 ``(h, w, 3)``.

    >>> to_pixels(torch.tensor([-1.0, 1.0]).expand(3, 1, 2), [0.5] * 3, [0.25] * 3)[0, :, 0]
    array([ 64, 191], dtype=uint8)
    """
    known = mean is not None and std is not None and len(mean) == len(std) == len(image)
    scaled = (
        image * torch.tensor(std).view(-1, 1, 1) + torch.tensor(mean).view(-1, 1, 1)
        if known
        else image
    )
    low, high = scaled.min(), scaled.max()
    if low < -0.02 or high > 1.02:  # more than rounding and bicubic resizing do
        eight_bit = low >= 0 and 16 < high <= 255
        scaled = scaled / 255 if eight_bit else _stretch(scaled)
    if len(scaled) != 3:
        scaled = scaled.mean(0, keepdim=True).expand(3, -1, -1)
    pixels: Image = (scaled.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    return pixels


def _stretch(image: Tensor) -> Tensor:
    ordered = image.flatten().sort().values
    low, high = ordered[len(ordered) // 100], ordered[-1 - len(ordered) // 100]
    return (image - low) / (high - low).clamp(min=1e-12)


# --------------------------------------------------------------------------- its patches


def cut(image: Image, grid: Grid, longer: int = 448) -> Tiles:
    """Cut an image into its patches, enlarged for a picture about ``longer`` pixels long.

    Args:
        image: uint8 ``(h, w, 3)``.
        grid: rows and columns of patches ``(H, W)``.
        longer: pixels of the longer side of the whole picture.

    Returns:
        uint8 ``(H * W, height, width, 3)``, in raster order.

    >>> cut(np.zeros((6, 4, 3), np.uint8), (3, 2), longer=30).shape
    (6, 10, 10, 3)
    """
    scale = longer / max(image.shape[:2])
    high, wide = (
        max(round(scale * size / cells), 3)
        for size, cells in zip(image.shape[:2], grid, strict=True)
    )
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    size = (grid[0] * high, grid[1] * wide)
    resized = F.interpolate(pixels, size=size, mode="bicubic", antialias=True)[0]
    cells = resized.round().clamp(0, 255).byte().view(3, grid[0], high, grid[1], wide)
    tiles: Tiles = cells.permute(1, 3, 2, 4, 0).reshape(-1, high, wide, 3).numpy()
    return tiles


def lay_out(tiles: Tiles, grid: Grid, gaps: bool = True) -> Image:
    """Put patches ``(H * W, height, width, 3)`` into a grid, row by row, with gaps between them."""
    _, high, wide, channels = tiles.shape
    gap = gaps * (min(high, wide) // 25 + (min(high, wide) >= 8))
    cells = np.full((grid[0], high + gap, grid[1], wide + gap, channels), 255, np.uint8)
    cells[:, :high, :, :wide] = tiles.reshape(*grid, high, wide, channels).transpose(0, 2, 1, 3, 4)
    picture = cells.reshape(grid[0] * (high + gap), grid[1] * (wide + gap), channels)
    return picture[: picture.shape[0] - gap, : picture.shape[1] - gap]


def tint(tiles: Tiles, order: Tensor, strength: float = 0.6) -> Tiles:
    """Patches in grey under the colour of their rank: violet is read first, yellow last."""
    rank = order.argsort().numpy() / max(len(order) - 1, 1)
    colour = 255 * colormaps[COLOURS](rank)[:, None, None, :3]
    grey = tiles.mean(axis=-1, keepdims=True)
    mixed: Tiles = (strength * colour + (1 - strength) * grey).round().astype(np.uint8)
    return mixed


# --------------------------------------------------------------------------- the figure


def draw_puzzle(image: Image, orders: Mapping[str, Tensor], grid: Grid, title: str = "") -> Figure:
    """Draw an image as one or more orders read it.

    Above, the image with the colour of each patch's rank; below, its patches laid out row by row
    in the order in which the model reads them.

    Args:
        image: uint8 ``(h, w, 3)``, see `to_pixels`.
        orders: name to order, int64 ``(H * W,)``.
        grid: rows and columns of patches ``(H, W)``.
        title: one line above the panels.

    Raises:
        ValueError: an order is not a permutation of the grid.

    >>> from reorder_lightning.orders import hilbert
    >>> image = np.zeros((64, 64, 3), np.uint8)
    >>> draw_puzzle(image, {"start order": hilbert(4, 4)}, (4, 4)).axes[0].get_title(loc="left")
    'the image'
    """
    tiles = cut(image, grid)
    high, wide = panel_size((tiles.shape[1] * grid[0], tiles.shape[2] * grid[1]))
    columns, wide = 1 + len(orders), max(wide, 2.7)  # or the panels' titles overlap
    figure = new_figure(columns * (wide + 0.2) + 0.1, 2 * (high + 0.4) + (0.4 if title else 0))
    panels = figure.subplots(2, columns, gridspec_kw={"wspace": 0.03})
    _show(panels[0, 0], lay_out(tiles, grid, gaps=False), "the image")
    _draw_legend(panels[1, 0])
    for above, below, name in zip(panels[0, 1:], panels[1, 1:], orders, strict=True):
        order = check_order(orders[name], patch_count(*grid), f"Order {name}")
        _show(above, lay_out(tint(tiles, order), grid), f"{name}: when each patch is read")
        _show(below, lay_out(tiles[order.numpy()], grid), f"{name}: the sequence, row by row")
    if title:
        set_title(figure, title)
    return figure


def _draw_legend(axes: Axes) -> None:
    axes.set_axis_off()
    scale = axes.inset_axes((0.1, 0.85, 0.8, 0.05))
    bar = axes.figure.colorbar(
        cm.ScalarMappable(cmap=COLOURS), cax=scale, orientation="horizontal", ticks=[]
    )
    bar.outline.set_visible(False)
    for place, text in ((0.1, "read first"), (0.9, "read last")):
        axes.text(place, 0.8, text, ha="left" if place < 0.5 else "right", va="top",
                  fontsize=9, color=INK, transform=axes.transAxes)  # fmt: skip


def _show(axes: Axes, picture: Image, title: str) -> None:
    axes.imshow(picture)
    axes.set_anchor("NW")
    axes.set_title(title, **PANEL_TITLE)
    axes.set_axis_off()
