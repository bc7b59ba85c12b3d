"""Transformer-XL: parameter counts, a literal reference, segments and memory."""

import pytest
import torch

from reorder_lightning.models import TransformerXL
from reorder_lightning.models.transformer_xl import (
    RelativeAttention,
    TransformerXLBackbone,
    distance_embedding,
)
from tests.kernels.references import relative_attention_reference


def make(**kwargs):
    options = {
        "img_size": 16,
        "patch_size": 4,
        "depth": 2,
        "embed_dim": 8,
        "num_heads": 2,
        "num_classes": 3,
    }
    return TransformerXLBackbone(**(options | kwargs)).double()


def literal_attention(attn, tokens, memory, biases, cls_index):
    read = torch.cat([memory, tokens], 1)
    length, keys = tokens.shape[1], read.shape[1]

    def by_heads(x):
        return x.unflatten(-1, (attn.num_heads, -1)).permute(2, 0, 1, 3)

    q, k, v = (by_heads(x) for x in attn.qkv(read).chunk(3, -1))
    r = attn.distance_proj(
        distance_embedding(keys - 1, 1 - length, tokens.shape[2], tokens.device, tokens.dtype)
    )
    r = r.unflatten(-1, (attn.num_heads, -1)).transpose(0, 1)
    q = q[:, :, keys - length :]
    mixed = relative_attention_reference(q, k, v, r, *biases, cls_index, attn.causal)
    return attn.proj(mixed.permute(1, 2, 0, 3).flatten(2))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("memory", [0, 3])
@pytest.mark.parametrize("cls_index", [None, 4])
def test_attention_equals_a_literal_reference(causal, memory, cls_index):
    torch.manual_seed(0)
    attn = RelativeAttention(8, 2, causal, 0.0, 0.0).double()
    tokens, front = torch.randn(2, 5, 8).double(), torch.randn(2, memory, 8).double()
    biases = torch.randn(2, 2, 4).double()
    expected = literal_attention(attn, tokens, front, biases, cls_index)
    got = attn(tokens, front if memory else None, biases, cls_index)
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-13)


def test_distances_are_signed():
    table = distance_embedding(3, -3, 8, torch.device("cpu"), torch.float64)
    sines, cosines = table.chunk(2, 1)
    torch.testing.assert_close(sines, -sines.flip(0))
    torch.testing.assert_close(cosines, cosines.flip(0))
    assert not torch.allclose(table[0], table[-1])


def test_one_segment_is_plain_relative_attention():
    torch.manual_seed(0)
    model = make(segment_len=16, mem_len=4)
    images = torch.randn(2, 3, 16, 16).double()
    whole = model(images)
    model.segment_len = None
    assert torch.equal(model(images), whole)


def test_segments_equal_attention_that_sees_exactly_the_memory():
    """Two segments of one layer: a query of the second sees ``mem_len`` patches and its own."""
    torch.manual_seed(0)
    model = make(depth=1, segment_len=8, mem_len=3)
    tokens = model.embed(torch.randn(2, 3, 16, 16).double())
    got = model.forward_blocks(tokens)
    block, biases = model.blocks[0], model.attn_biases
    first = block(tokens[:, :8], None, biases, None)
    second = block(tokens[:, 8:], tokens[:, 5:8], biases, 8)
    torch.testing.assert_close(got, torch.cat([first, second], 1))


@pytest.mark.parametrize("mem_len", [2, 6, 100])
def test_what_the_class_token_can_learn_from(mem_len):
    """Gradients reach the first segment through the memory, unless that is detached."""
    for detach in (False, True):
        torch.manual_seed(0)
        model = make(segment_len=6, mem_len=mem_len, detach_memory=detach)
        tokens = model.embed(torch.randn(2, 3, 16, 16).double()).detach().requires_grad_()
        model.forward_head(model.norm(model.forward_blocks(tokens))).square().sum().backward()
        reached = tokens.grad.abs().sum((0, 2)) > 0
        assert reached[12:].all()
        if detach:
            assert not reached[:12].any()
        elif mem_len >= 6:
            assert reached[:12].all()


def test_memory_never_crosses_batches():
    torch.manual_seed(0)
    model = make(segment_len=5, mem_len=4)
    images = torch.randn(2, 3, 16, 16).double()
    first = model(images)
    model(torch.randn(2, 3, 16, 16).double())
    assert torch.equal(model(images), first)
    torch.testing.assert_close(model(images[1:]), first[1:])


def test_causal_patches_see_earlier_patches_and_the_class_token():
    torch.manual_seed(0)
    model = make(depth=1, causal=True)
    tokens = torch.randn(1, 17, 8).double().requires_grad_()
    out = model.forward_blocks(tokens)
    (grad,) = torch.autograd.grad(out[0, 5].sum(), tokens, retain_graph=True)
    seen = grad[0].abs().sum(1) > 0
    assert seen.nonzero().flatten().tolist() == [0, 1, 2, 3, 4, 5, 16]
    (grad,) = torch.autograd.grad(out[0, 16].sum(), tokens)
    assert (grad[0].abs().sum(1) > 0).all()


def test_segment_lengths():
    model = make(segment_len=6)
    assert model.segments(17) == [6, 6, 5]
    assert make(segment_len=6, read_out="mean").segments(16) == [6, 6, 4]
    assert make(segment_len=100).segments(17) == [17]
    assert make().segments(17) == [17]


def test_gradient_checkpointing_changes_no_gradient():
    torch.manual_seed(0)
    model, images = make(segment_len=6, mem_len=4), torch.randn(2, 3, 16, 16).double()
    grads = []
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        model(images).square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(grads[1], grads[0])


def test_parameter_counts_of_the_paper():
    with torch.device("meta"):
        counts = {
            size: sum(p.numel() for p in TransformerXL(1000, size=size).parameters())
            for size in ("base", "large")
        }
    assert counts["base"] == pytest.approx(93_764_584, rel=0.01)
    assert counts["large"] == pytest.approx(329.6e6, rel=0.01)


def test_every_parameter_learns():
    model = TransformerXL(5, image_size=32, patch_size=8, depth=2, segment_len=5, order="hilbert")
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    # the class token, all that is read of the last block, has no distances
    idle = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == ["backbone.blocks.1.attn.distance_proj.weight"]


def test_biases_are_not_decayed():
    assert {"attn_biases", "pos_embed", "cls_token"} == make().no_weight_decay()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"read_out": "middle"}, "`read_out` to be 'first', 'last' or 'mean', but got 'middle'"),
        ({"read_out": "first", "segment_len": 4}, "class token joins the last segment"),
        ({"segment_len": 0}, "`segment_len` to be at least 1"),
        ({"num_heads": 3}, "`num_heads` to divide the width 8 but got 3"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        make(**change)
