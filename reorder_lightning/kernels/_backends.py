"""Which implementation of the scan runs where."""

import warnings
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from reorder_lightning.kernels import _blocked_scan


@lru_cache(maxsize=1)
def mamba_ssm_scan() -> Callable[..., Any] | None:
    """mamba-ssm's fused scan, or None where the package isn't there or doesn't load.

    Warns once if the package is installed but can't be used: built for another torch, or without
    one of its parts.
    """
    if find_spec("mamba_ssm") is None:
        return None
    try:
        module = import_module("mamba_ssm.ops.selective_scan_interface")
        scan: Callable[..., Any] = module.selective_scan_fn
    except (ImportError, OSError, AttributeError) as error:
        warnings.warn(
            f"mamba-ssm is installed but cannot be used, so the selective scan runs on its own "
            f"kernels instead: {error}. Reinstall mamba-ssm and causal-conv1d for torch "
            f"{torch.__version__}, or remove mamba-ssm.",
            stacklevel=2,
        )
        return None
    return scan


@lru_cache(maxsize=1)
def _triton_scan() -> ModuleType | None:
    """The Triton kernels, or None without Triton."""
    if find_spec("triton") is None:
        return None
    return import_module("reorder_lightning.kernels._triton_scan")


def scan_module(x: Tensor) -> ModuleType:
    """The module whose ``scan_forward``, ``scan_backward``, ``block_steps`` fit a tensor."""
    if x.device.type == "cuda" and x.dtype == torch.float32:
        return _triton_scan() or _blocked_scan
    return _blocked_scan


@lru_cache(maxsize=8)
def announce(device_type: str, implementation: str) -> None:
    """Logs once in the life of the process, on the first rank, what the scan runs on."""
    rank_zero_info(f"Selective scan on {device_type}: {implementation}.")
