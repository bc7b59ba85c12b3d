"""Fixtures shared by all tests."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _two_threads() -> None:
    """Keep timings and reductions alike on machines with many cores."""
    torch.set_num_threads(2)
