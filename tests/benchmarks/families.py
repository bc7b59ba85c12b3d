"""A training step of each family on CPU, with our kernels and with its peer's.

``python -m tests.benchmarks.families``: tiny size, batch 8, 224 pixels, AdamW. The peer's step is
the same model with the kernel alone exchanged: mambapy's scan for Mamba, Hugging Face's attention
for Longformer, the published einsums for Transformer-XL. ViT, timm's own, is the scale. Interleaved
in one process; only ratios mean anything. Exits with 1 if a target is missed.
"""

import argparse
import sys
from collections.abc import Callable
from unittest import mock

import torch
from mambapy.pscan import pscan
from torch import Tensor, nn
from torch.nn import functional as F

from reorder_lightning.models import Longformer, Mamba, TransformerXL, ViT, mamba
from tests.benchmarks.attention import EinsumTransformerXL, HuggingFace
from tests.benchmarks.timing import Report, interleaved_seconds

BATCH, WIDTH, HEADS = 8, 192, 3


def mambapy_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    delta_bias: Tensor,
    delta_softplus: bool,
) -> Tensor:
    """The kernel's call as mambapy computes it, one group after the other, as its blocks do."""
    groups = B.shape[1]
    delta = F.softplus(delta + delta_bias[:, None]) if delta_softplus else delta
    outs = []
    for g, (u_g, dt, A_g) in enumerate(
        zip(u.chunk(groups, 1), delta.chunk(groups, 1), A.chunk(groups), strict=True)
    ):
        dt, x = dt.transpose(1, 2).unsqueeze(-1), u_g.transpose(1, 2).unsqueeze(-1)
        states = pscan(torch.exp(dt * A_g), dt * B[:, g].transpose(1, 2).unsqueeze(2) * x)
        outs.append((states @ C[:, g].transpose(1, 2).unsqueeze(-1)).squeeze(3).transpose(1, 2))
    return torch.cat(outs, 1) + D[:, None] * u


class EinsumAttention(EinsumTransformerXL):
    """The peer with our block's call; it knows neither memory nor a class token without place."""

    def forward(  # type: ignore[override]
        self, tokens: Tensor, memory: None, biases: Tensor, cls_index: int
    ) -> Tensor:
        return super().forward(tokens, biases)


def training_step(model: nn.Module) -> Callable[[], None]:
    """A step of AdamW on random images, as a function."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    images, targets = torch.randn(BATCH, 3, 224, 224), torch.randint(10, (BATCH,))

    def run() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), targets).backward()
        optimizer.step()

    return run


def main(argv: list[str] | None = None) -> int:
    """Prints the table; the exit status says whether every target is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depth", type=int, default=12)
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    report = Report()

    def make(family: type, attention: Callable[[], nn.Module] | None = None) -> Callable[[], None]:
        model = family(num_classes=10, size="tiny", depth=args.depth).backbone
        for block in model.blocks if attention else ():
            block.attn = attention()
        return training_step(model)

    vit, own = make(ViT), make(Mamba)

    def peer() -> None:
        with mock.patch.object(mamba, "selective_scan", mambapy_scan):
            own()

    found = interleaved_seconds({"vit": vit, "own": own, "peer": peer}, args.rounds)
    report.line("Mamba tiny step: mambapy / own", found["peer"] / found["own"], 3.3)
    report.note("Mamba tiny step: own / ViT", found["own"] / found["vit"])
    for name, family, attention in (
        ("Longformer", Longformer, lambda: HuggingFace(WIDTH, HEADS)),
        ("Transformer-XL", TransformerXL, lambda: EinsumAttention(WIDTH, HEADS, False)),
    ):
        runs = {"vit": vit, "own": make(family), "peer": make(family, attention)}
        found = interleaved_seconds(runs, args.rounds)
        report.note(f"{name} tiny step: peer / own", found["peer"] / found["own"])
        report.note(f"{name} tiny step: own / ViT", found["own"] / found["vit"])
    return report.status


if __name__ == "__main__":
    sys.exit(main())
