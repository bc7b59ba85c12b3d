"""Settings shared by all tests."""

import logging
import os

import pytest

# Tiny tensors gain nothing from threads, which on a busy machine wait for each other. Set before
# torch is imported, so that the processes that tests start inherit it.
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(autouse=True)
def _lightning_logs_reach_caplog(monkeypatch):
    """Lightning cuts its loggers off where it is imported before pytest has set up its own."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
