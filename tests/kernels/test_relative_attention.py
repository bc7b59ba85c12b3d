import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reorder_lightning.kernels import relative_attention as module
from reorder_lightning.kernels.relative_attention import _Scores, _scores, relative_attention
from tests.kernels.references import relative_attention_reference, relative_error


def make_inputs(heads=2, batch=2, queries=4, memory=0, dim=3, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    keys = queries + memory
    shapes = {
        "q": (heads, batch, queries, dim),
        "k": (heads, batch, keys, dim),
        "v": (heads, batch, keys, dim),
        "r": (heads, queries + keys - 1, dim),
        "content_bias": (heads, dim),
        "position_bias": (heads, dim),
    }
    return {
        name: torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype).requires_grad_()
        for name, shape in shapes.items()
    }


@settings(max_examples=30, deadline=None)
@given(
    heads=st.integers(1, 2),
    batch=st.integers(1, 2),
    queries=st.integers(1, 6),
    memory=st.integers(0, 4),
    dim=st.integers(1, 4),
    cls=st.sampled_from([None, "first", "last"]),
    causal=st.booleans(),
    block=st.sampled_from([1, 2, 3, 64]),
)
def test_equals_the_literal_pairs(heads, batch, queries, memory, dim, cls, causal, block):
    inputs = make_inputs(heads, batch, queries, memory, dim)
    cls_index = {None: None, "first": 0, "last": queries - 1}[cls]
    expected = relative_attention_reference(**inputs, cls_index=cls_index, causal=causal)
    pull = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, list(inputs.values()), pull, allow_unused=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        got = relative_attention(**inputs, cls_index=cls_index, causal=causal)
        found = torch.autograd.grad(got, list(inputs.values()), pull)
    assert relative_error(got, expected) < 1e-12
    for name, e, g in zip(inputs, wanted, found, strict=True):
        assert relative_error(g, torch.zeros_like(g) if e is None else e) < 1e-10, name


def test_float32_stays_within_rounding_of_float64():
    exact, inputs = make_inputs(2, 3, 20, 7, 8), make_inputs(2, 3, 20, 7, 8, torch.float32)
    expected, got = (
        relative_attention(**exact, cls_index=19),
        relative_attention(**inputs, cls_index=19),
    )
    assert relative_error(got, expected) < 1e-5
    pull = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, list(exact.values()), pull)
    found = torch.autograd.grad(got, list(inputs.values()), pull.float())
    assert max(relative_error(g, e) for g, e in zip(found, wanted, strict=True)) < 1e-5


def test_float32_input_under_autocast_has_gradients():
    inputs = make_inputs(dtype=torch.float32)
    expected = relative_attention(**inputs, cls_index=3)
    with torch.autocast("cpu", torch.bfloat16):
        found = relative_attention(**inputs, cls_index=3)
    assert relative_error(found, expected) < 2e-2
    found.float().sum().backward()
    assert all(x.grad.dtype == torch.float32 for x in inputs.values())


@pytest.mark.parametrize("cls_key", [None, 2, 6])
def test_compiled_form_is_the_same(cls_key):
    a, k, b, r = (torch.randn(s) for s in ((6, 5, 4), (6, 7, 4), (2, 3, 5, 4), (2, 11, 4)))
    torch.testing.assert_close(_scores(a, k, b, r, cls_key), _Scores.apply(a, k, b, r, cls_key))


def test_export():
    class Attention(torch.nn.Module):
        def forward(self, q, k, v, r, content_bias, position_bias):
            return relative_attention(q, k, v, r, content_bias, position_bias, 3, True)

    inputs = {n: x.detach() for n, x in make_inputs(dtype=torch.float32).items()}
    program = torch.export.export(Attention(), (), inputs)
    expected = relative_attention(**inputs, cls_index=3, causal=True)
    torch.testing.assert_close(program.module()(**inputs), expected)


def test_dropout_drops_and_keeps_the_mean():
    inputs = make_inputs(dtype=torch.float32)
    inputs["v"] = torch.ones_like(inputs["v"])
    torch.manual_seed(0)
    out = torch.stack([relative_attention(**inputs, dropout_p=0.5) for _ in range(500)])
    assert out.std() > 0.1
    assert abs(out.mean() - 1) < 0.05


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.ones(2, 2, 3, 3)}, "`k` and `v` to have shape"),
        ({"r": torch.ones(2, 6, 3)}, r"`r` to have shape \(2, 7, 3\) but got \(2, 6, 3\)"),
        ({"cls_index": 1}, "`cls_index` to be None, 0 or 3"),
    ],
)
def test_wrong_arguments(change, message):
    with pytest.raises(ValueError, match=message):
        relative_attention(**(make_inputs() | change))
