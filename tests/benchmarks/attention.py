"""Attention modules on CPU against their peers: ``python -m tests.benchmarks.attention``.

Whole modules, projections included, forward and backward, on 14x14 patches and a class token:
Longformer against Hugging Face's, Transformer-XL against its reference in einsums with the padded
relative shift. Interleaved in one process; only ratios mean anything. Exits with 1 if a target is
missed.
"""

import argparse
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from reorder_lightning.kernels import banded_attention
from reorder_lightning.models.longformer import LongformerAttention
from reorder_lightning.models.transformer_xl import RelativeAttention, distance_embedding
from tests.benchmarks.timing import Report, interleaved_seconds

LENGTH = 197
WINDOW = 7
# width, heads, batch: least ratios of Longformer and Transformer-XL
TARGETS = {(192, 3, 8): (1.3, 1.3), (768, 12, 8): (1.08, 1.2)}


class HuggingFace(nn.Module):
    """Their attention with an output projection; padded to whole windows, as their model does."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        config = LongformerConfig(
            hidden_size=dim,
            num_attention_heads=heads,
            attention_window=[2 * WINDOW],
            attention_probs_dropout_prob=0.0,
        )
        self.attn = LongformerSelfAttention(config, 0)
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length, _ = tokens.shape
        padding = -length % (2 * WINDOW)
        tokens = F.pad(tokens, (0, 0, 0, padding))
        mask = tokens.new_zeros(batch, length + padding)
        mask[:, 0], mask[:, length:] = 10000.0, -10000.0
        mixed = self.attn(
            tokens,
            attention_mask=mask,
            is_index_masked=mask < 0,
            is_index_global_attn=mask > 0,
            is_global_attn=True,
        )[0]
        out: Tensor = self.proj(mixed[:, :length])
        return out


class EinsumTransformerXL(nn.Module):
    """The published code's formulation, with distances of both signs.

    Sequence first, scores as ``(query, key, batch, head)``, the relative shift by padding and
    reshaping. ``batch_first`` puts batch and head in front of the scores instead, which the
    published code doesn't, but a careful rewrite would.
    """

    def __init__(self, dim: int, heads: int, batch_first: bool) -> None:
        super().__init__()
        self.heads = heads
        self.batch_first = batch_first
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.distance_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, tokens: Tensor, biases: Tensor) -> Tensor:
        length, dim = tokens.shape[1:]
        q, k, v = self.qkv(tokens.transpose(0, 1)).unflatten(2, (3, self.heads, -1)).unbind(2)
        distances = distance_embedding(length - 1, 1 - length, dim, tokens.device, tokens.dtype)
        r = self.distance_proj(distances).unflatten(1, (self.heads, -1))
        scale = q.shape[-1] ** -0.5
        if self.batch_first:
            content = torch.einsum("ibnd,jbnd->bnij", q + biases[0], k)
            position = torch.einsum("ibnd,wnd->bniw", q + biases[1], r)
            b, n, i, w = position.shape
            shifted = F.pad(position, (1, 0)).view(b, n, w + 1, i)[:, :, 1:].reshape(b, n, i, w)
            weights = ((content + shifted[..., :length]) * scale).softmax(-1)
            mixed = torch.einsum("bnij,jbnd->ibnd", weights, v)
        else:
            content = torch.einsum("ibnd,jbnd->ijbn", q + biases[0], k)
            position = torch.einsum("ibnd,wnd->iwbn", q + biases[1], r)
            i, w, b, n = position.shape
            zeros = position.new_zeros(i, 1, b, n)
            shifted = torch.cat([zeros, position], 1).view(w + 1, i, b, n)[1:].view(i, w, b, n)
            weights = ((content + shifted[:, :length]) * scale).softmax(1)
            mixed = torch.einsum("ijbn,jbnd->ibnd", weights, v)
        out: Tensor = self.proj(mixed.flatten(2)).transpose(0, 1)
        return out


class PlainAttention(nn.Module):
    """Full attention without positions, through SDPA: the least that positions could cost."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        q, k, v = self.qkv(tokens).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        out: Tensor = self.proj(mixed)
        return out


def training(module: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], None]:
    """Forward and backward pass of a module on its inputs, as a function."""

    def run() -> None:
        y = module(*inputs)
        y.backward(torch.ones_like(y))

    return run


def crossover(report: Report, rounds: int) -> None:
    """Dense against blocked banded attention over lengths, which sets ``DENSE_LENGTH``."""
    default = banded_attention.DENSE_LENGTH
    for length in (128, 196, 256, 400):
        q, k, v = (torch.randn(8, 3, length, 64, requires_grad=True) for _ in range(3))

        def run(threshold: int, q: Tensor = q, k: Tensor = k, v: Tensor = v) -> None:
            banded_attention.DENSE_LENGTH = threshold
            y = banded_attention.banded_attention(q, k, v, WINDOW)
            y.backward(torch.ones_like(y))

        found = interleaved_seconds(
            {"dense": lambda run=run: run(10**6), "blocked": lambda run=run: run(0)}, rounds
        )
        report.note(f"banded, {length} tokens: dense / blocked", found["dense"] / found["blocked"])
    banded_attention.DENSE_LENGTH = default


def main(argv: list[str] | None = None) -> int:
    """Prints the table; the exit status says whether every target is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    report = Report()
    for (dim, heads, batch), (longformer, transformer_xl) in TARGETS.items():
        tokens = torch.randn(batch, LENGTH, dim, requires_grad=True)
        biases = torch.randn(2, heads, dim // heads, requires_grad=True)
        own = RelativeAttention(dim, heads, causal=False, attn_drop=0.0, proj_drop=0.0)
        found = interleaved_seconds(
            {
                "longformer": training(LongformerAttention(dim, heads, WINDOW, 0), tokens),
                "hf": training(HuggingFace(dim, heads), tokens),
                "xl": training(lambda t, b, own=own: own(t, None, b, None), tokens, biases),
                "xl_cls": training(lambda t, b, own=own: own(t, None, b, 196), tokens, biases),
                "einsum": training(EinsumTransformerXL(dim, heads, False), tokens, biases),
                "careful": training(EinsumTransformerXL(dim, heads, True), tokens, biases),
                "sdpa": training(PlainAttention(dim, heads), tokens),
            },
            args.rounds,
        )
        report.line(
            f"Longformer {dim}: transformers / own", found["hf"] / found["longformer"], longformer
        )
        report.line(
            f"Transformer-XL {dim}: einsum / own", found["einsum"] / found["xl"], transformer_xl
        )
        report.note(f"Transformer-XL {dim}: careful einsum / own", found["careful"] / found["xl"])
        report.note(
            f"Transformer-XL {dim}: einsum / own with class token",
            found["einsum"] / found["xl_cls"],
        )
        report.note(
            f"Transformer-XL {dim}: own / SDPA without positions", found["xl"] / found["sdpa"]
        )
        report.note(
            f"Longformer {dim}: own / SDPA over all tokens", found["longformer"] / found["sdpa"]
        )
    crossover(report, args.rounds)
    return report.status


if __name__ == "__main__":
    sys.exit(main())
