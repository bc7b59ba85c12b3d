"""Tensors that depend on sizes only, made once."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec

import torch
from torch import Tensor

P = ParamSpec("P")


def cached_constant(make: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Keeps the last 32 results of a function of sizes, device and dtype.

    Made outside inference mode, since what is made inside cannot be used in training later, and not
    kept while a graph is being traced, where tensors are stand-ins.
    """

    @lru_cache(maxsize=32)
    def keep(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        with torch.inference_mode(False):
            return make(*args, **kwargs)

    @wraps(make)
    def constant(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        if torch.compiler.is_compiling():
            return make(*args, **kwargs)
        return keep(*args, **kwargs)  # type: ignore[arg-type]

    return constant
