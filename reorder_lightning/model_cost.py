"""What a model costs: parameters and floating-point operations."""

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import reorder_lightning.kernels.selective_scan  # noqa: F401  # registers the operator


def forward_gflops(model: nn.Module, image: Tensor) -> float:
    """10^9 floating-point operations of one forward pass of one image.

    Matrix products, convolutions and attention as torch's ``FlopCounterMode`` counts them (a
    multiply-add is two), and 9 for each image, position, channel and state of a selective scan, as
    the authors of Mamba count. Element-wise operations are left out. The model runs once, in
    evaluation mode and without gradients; its random numbers and its mode are left as they were.

    Args:
        model: images -> anything.
        image: ``(1, C, H, W)`` on the model's device.

    >>> forward_gflops(nn.Sequential(nn.Flatten(), nn.Linear(48, 10)), torch.zeros(1, 3, 4, 4))
    9.6e-07
    """
    scan = torch.ops.reorder_lightning.selective_scan
    counter = FlopCounterMode(display=False, custom_mapping={scan: _scan_flops})
    modes = {module: module.training for module in model.modules()}
    devices = [image.device] if image.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices), torch.no_grad(), counter:
            model.eval()(image)
    finally:
        for module, training in modes.items():
            module.training = training
    return counter.get_total_flops() / 1e9


def _scan_flops(
    u: torch.Size, delta: torch.Size, A: torch.Size, *rest: object, **options: object
) -> int:
    batch, width, length = u
    return 9 * batch * width * length * A[1]
