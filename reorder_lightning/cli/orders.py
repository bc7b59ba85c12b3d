"""`reorder orders`: list the fixed orders, draw any order."""

from pathlib import Path

from rich import print as rich_print
from rich.table import Table

from reorder_lightning.order_figures import draw_order, draw_orders, to_png
from reorder_lightning.order_files import Grid
from reorder_lightning.orders import ORDERS, get_order


def run(order: str | None = None, grid: str = "14x14", draw: Path | None = None) -> None:
    """List the fixed orders, or draw them or one order into a PNG file.

    Args:
        order: draw this one: a name, random:SEED, a saved order or a checkpoint.
        grid: rows and columns of patches.
        draw: the PNG file to write.

    Raises:
        ValueError: a grid or an order that is none.
    """
    height, width = parse_grid(grid)
    if order is not None:
        figure = draw_order(get_order(order, height, width), (height, width), title=order)
    elif draw is not None:
        made = {name: make(height, width) for name, make in ORDERS.items()}
        figure = draw_orders(made, (height, width))
    else:
        _print_list(height, width)
        return
    draw = draw or Path(f"order_{Path(str(order)).stem.replace(':', '_')}.png")
    draw.write_bytes(to_png(figure))
    print(f"drawn into {draw}")


def parse_grid(text: str) -> Grid:
    """Read a grid such as ``14x14``, rows first.

    Raises:
        ValueError: it is none.

    >>> parse_grid("14x10")
    (14, 10)
    """
    rows, times, columns = text.partition("x")
    if not (times and rows.isdecimal() and columns.isdecimal()):
        raise ValueError(
            f"Expected argument `grid` to be ROWSxCOLUMNS, e.g. 14x14, but got {text}."
        )
    return int(rows), int(columns)


def _print_list(height: int, width: int) -> None:
    table = Table(title=f"orders of {height}x{width} patches", title_justify="left")
    table.add_column("name", style="bold cyan", no_wrap=True)
    table.add_column("reads")
    table.add_column("mean step", justify="right")
    for name, make in ORDERS.items():
        order = make(height, width)
        steps = (order // width).diff().abs() + (order % width).diff().abs()
        text = str(make.__doc__).splitlines()[0].replace("``", "")
        mean = f"{steps.double().mean().item():.2f}" if len(steps) else ""
        table.add_row(name, text, mean)
    rich_print(table)
