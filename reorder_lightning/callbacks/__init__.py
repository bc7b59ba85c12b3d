"""Lightning callbacks."""

from reorder_lightning.callbacks.order_monitor import OrderMonitor
from reorder_lightning.callbacks.prediction_writer import PredictionWriter
from reorder_lightning.callbacks.reorder import REOrder
from reorder_lightning.callbacks.result_writer import ResultWriter

__all__ = ["OrderMonitor", "PredictionWriter", "REOrder", "ResultWriter"]
