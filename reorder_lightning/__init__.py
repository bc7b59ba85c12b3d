"""Learn the order in which a vision sequence model reads its patches.

The public names are imported on first use, so that ``import reorder_lightning`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reorder_lightning.attachment import attach, detach, export_order, load_from_checkpoint
    from reorder_lightning.callbacks.order_monitor import OrderMonitor
    from reorder_lightning.callbacks.reorder import REOrder
    from reorder_lightning.order_policy import OrderPolicy
    from reorder_lightning.orders import get_order, load_order, resize_order, save_order
    from reorder_lightning.patch_order import PatchOrder
    from reorder_lightning.plackett_luce import PlackettLuce

__version__ = "0.1.0.dev0"

__all__ = [
    "OrderMonitor",
    "OrderPolicy",
    "PatchOrder",
    "PlackettLuce",
    "REOrder",
    "attach",
    "detach",
    "export_order",
    "get_order",
    "load_from_checkpoint",
    "load_order",
    "resize_order",
    "save_order",
]

_HOMES = {
    "OrderMonitor": "callbacks.order_monitor",
    "OrderPolicy": "order_policy",
    "PatchOrder": "patch_order",
    "PlackettLuce": "plackett_luce",
    "REOrder": "callbacks.reorder",
    "attach": "attachment",
    "detach": "attachment",
    "export_order": "attachment",
    "get_order": "orders",
    "load_from_checkpoint": "attachment",
    "load_order": "orders",
    "resize_order": "orders",
    "save_order": "orders",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
