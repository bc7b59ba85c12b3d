"""The selective scan through torch's scan operator, which ONNX has too.

Used while ``torch.onnx.export(..., dynamo=True)`` traces a model. Needs a torch whose exporter
knows the operator (PyTorch pull request 154513, 2025).
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def scan_by_operator(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
) -> tuple[Tensor, Tensor]:
    """Output ``(B, D, L)`` and last state ``(B, D, N)``; one time step as the operator's body.

    The graph's size doesn't depend on the length. For inference only: inputs are detached, since
    the operator's gradient can't be exported, and it runs one step after the other.

    Args:
        u: Input ``(B, D, L)``.
        delta: Step sizes ``(B, D, L)``.
        A: Rates ``(D, N)``.
        B: Input projection ``(B, G, N, L)``.
        C: Output projection ``(B, G, N, L)``.
        D: Skip weights ``(D,)``.
        delta_bias: Added to ``delta`` ``(D,)``.
        delta_softplus: Whether ``softplus`` is applied to ``delta`` after the bias.
    """
    from torch._higher_order_ops.scan import scan  # not in every torch that this package runs on

    u, delta, A, B, C = (x.detach() for x in (u, delta, A, B, C))
    batch, width, _ = u.shape
    groups, state = B.shape[1], B.shape[2]
    if delta_bias is not None:
        delta = delta + delta_bias.detach().unsqueeze(-1)
    if delta_softplus:
        delta = F.softplus(delta)
    rates = A.reshape(groups, width // groups, state).transpose(1, 2).contiguous()

    def time_major(x: Tensor) -> Tensor:
        return x.permute(2, 0, 1).view(x.shape[2], batch, groups, width // groups)

    def step(h: Tensor, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        # Axes of length 1 are made in here: those of an argument may be traced as variable.
        dt, x, b, c = inputs
        h = torch.exp(dt.unsqueeze(-2) * rates) * h + x.unsqueeze(-2) * b.unsqueeze(-1)
        return h.contiguous(), torch.matmul(c.unsqueeze(-2), h).squeeze(-2)

    h, y = scan(
        step,
        u.new_zeros(batch, groups, state, width // groups),
        (time_major(delta), time_major(delta * u), B.permute(3, 0, 1, 2), C.permute(3, 0, 1, 2)),
    )
    y = y.flatten(2).permute(1, 2, 0)
    if D is not None:
        y = y + D.detach().unsqueeze(-1) * u
    return y, h.transpose(2, 3).reshape(batch, width, state)
