"""Lightning callbacks."""

from reorder_lightning.callbacks.order_monitor import OrderMonitor
from reorder_lightning.callbacks.prediction_writer import PredictionWriter
from reorder_lightning.callbacks.reorder import REOrder

__all__ = ["OrderMonitor", "PredictionWriter", "REOrder"]
