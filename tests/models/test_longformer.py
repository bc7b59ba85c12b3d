"""Longformer: parameter counts, full attention as a limit, a literal reference, padding."""

import pytest
import torch
from torch import nn

from reorder_lightning.models import Longformer
from reorder_lightning.models.longformer import LongformerAttention


def literal_attention(attn, tokens):
    """Every token by itself: its keys, its scores, its mean."""
    heads, at = attn.num_heads, attn.cls_index
    batch, length, dim = tokens.shape
    local = attn.qkv(tokens).view(batch, length, 3, heads, -1)
    everywhere = None if at is None else attn.qkv_global(tokens).view(batch, length, 3, heads, -1)
    patches = [i for i in range(length) if i != at]
    out = torch.zeros(batch, length, heads, dim // heads, dtype=tokens.dtype)
    for i in range(length):
        if i == at:
            seen, source = list(range(length)), everywhere
        else:
            place = patches.index(i)
            near = range(max(0, place - attn.window), place + attn.window + 1)
            seen = [patches[j] for j in near if j < len(patches)]
            seen += [] if at is None else [at]
            source = local
        q, k, v = source[:, i, 0], source[:, seen, 1], source[:, seen, 2]
        scores = torch.einsum("bhd,bshd->bhs", q, k) / (dim // heads) ** 0.5
        out[:, i] = torch.einsum("bhs,bshd->bhd", scores.softmax(-1), v)
    return attn.proj(out.flatten(2))


@pytest.mark.parametrize("cls_index", [0, 5, 10, None])
@pytest.mark.parametrize("window", [0, 2, 20])
def test_attention_equals_a_literal_reference(cls_index, window):
    torch.manual_seed(0)
    attn = LongformerAttention(8, 2, window, cls_index).double()
    tokens = torch.randn(2, 11, 8, dtype=torch.float64, requires_grad=True)
    expected, got = literal_attention(attn, tokens), attn(tokens)
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-13)
    leaves = [tokens, *attn.parameters()]
    pull = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, leaves, pull)
    for found, want in zip(torch.autograd.grad(got, leaves, pull), wanted, strict=True):
        torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-12)


def test_a_wide_window_with_tied_projections_is_full_attention():
    torch.manual_seed(0)
    attn = LongformerAttention(8, 2, window=16, cls_index=0).double()
    attn.qkv_global.load_state_dict(attn.qkv.state_dict())
    full = nn.MultiheadAttention(8, 2, batch_first=True).double()
    full.in_proj_weight = attn.qkv.weight
    full.in_proj_bias = attn.qkv.bias
    full.out_proj.load_state_dict(attn.proj.state_dict())
    tokens = torch.randn(2, 17, 8, dtype=torch.float64)
    expected = full(tokens, tokens, tokens, need_weights=False)[0]
    torch.testing.assert_close(attn(tokens), expected, rtol=1e-11, atol=1e-13)


def test_parameter_counts_of_the_paper():
    with torch.device("meta"):
        counts = {
            size: sum(p.numel() for p in Longformer(1000, size=size).parameters())
            for size in ("base", "large")
        }
    assert counts["base"] == pytest.approx(107_683_048, rel=0.01)
    assert counts["large"] == pytest.approx(379.7e6, rel=0.01)


def test_every_parameter_learns():
    model = Longformer(5, image_size=32, patch_size=8, depth=2, order="hilbert")
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    # what only patches read of the last block is not on the way to the class token
    idle = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == ["backbone.blocks.1.attn.qkv.weight", "backbone.blocks.1.attn.qkv.bias"]


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="`num_heads` to divide the width 8 but got 3"):
        LongformerAttention(8, 3, 2)
    with pytest.raises(ValueError, match="`window` to be at least 0, but got -1"):
        Longformer(5, image_size=32, patch_size=8, depth=1, window=-1)
