import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reorder_lightning.kernels import banded_attention as module
from reorder_lightning.kernels.banded_attention import banded_attention
from tests.kernels.references import banded_attention_reference, relative_error


def make_inputs(batch=2, heads=2, length=10, dim=3, count=1, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)

    def randn(n):
        x = torch.randn(batch, heads, n, dim, generator=g, dtype=torch.float64)
        return x.to(dtype).requires_grad_()

    inputs = {"q": randn(length), "k": randn(length), "v": randn(length)}
    if count is not None:
        inputs |= {"global_k": randn(count), "global_v": randn(count)}
    return inputs


@pytest.fixture(params=["dense", "blocked"])
def path(request, monkeypatch):
    monkeypatch.setattr(module, "DENSE_LENGTH", 10**6 if request.param == "dense" else 0)
    monkeypatch.setattr(module, "BLOCK", 4)
    return request.param


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(0, 2),
    heads=st.integers(1, 2),
    length=st.integers(1, 17),
    dim=st.integers(1, 4),
    count=st.sampled_from([None, 1, 2]),
    window=st.integers(0, 18),
    block=st.sampled_from([1, 3, 4, 8]),
    dense=st.booleans(),
)
def test_equals_dense_masked_attention(batch, heads, length, dim, count, window, block, dense):
    inputs = make_inputs(batch, heads, length, dim, count)
    expected = banded_attention_reference(**inputs, window=window)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "DENSE_LENGTH", 100 if dense else 0)
        patch.setattr(module, "BLOCK", block)
        got = banded_attention(**inputs, window=window)
    assert relative_error(got, expected) < 1e-12
    pull = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, list(inputs.values()), pull)
    found = torch.autograd.grad(got, list(inputs.values()), pull)
    assert max(relative_error(g, e) for g, e in zip(found, wanted, strict=True)) < 1e-12


def test_float32_stays_within_rounding_of_float64(path):
    exact, inputs = make_inputs(length=37), make_inputs(length=37, dtype=torch.float32)
    expected, got = banded_attention(**exact, window=5), banded_attention(**inputs, window=5)
    assert relative_error(got, expected) < 1e-5
    pull = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, list(exact.values()), pull)
    found = torch.autograd.grad(got, list(inputs.values()), pull.float())
    assert max(relative_error(g, e) for g, e in zip(found, wanted, strict=True)) < 1e-5


def test_a_token_sees_its_window_and_the_global_tokens(path):
    """Counts the keys that change the output of a token in the middle: 2 w + 1, and G."""
    length, window = 23, 4
    values = torch.eye(length + 2)[None, None]
    q, k = torch.randn(2, 1, 1, length, 3)
    seen = banded_attention(
        q, k, values[:, :, 2:], window, torch.randn(1, 1, 2, 3), values[:, :, :2]
    )
    assert (seen[0, 0, 11] > 0).sum() == 2 * window + 1 + 2
    assert (seen[0, 0, 0] > 0).sum() == window + 1 + 2


def test_case_30_any_length_is_padded_and_the_padding_is_masked(path, monkeypatch):
    """https://github.com/allenai/longformer/issues/102: 196 patches, one-sided window 32."""
    monkeypatch.setattr(module, "BLOCK", 64)
    inputs = make_inputs(length=196, dtype=torch.float32)
    plain = banded_attention(**inputs, window=32)
    pad = torch.nn.functional.pad
    monkeypatch.setattr(
        module.F, "pad", lambda x, p: pad(x, p, value=7.0 if x.is_floating_point() else 0)
    )
    torch.testing.assert_close(banded_attention(**inputs, window=32), plain)


def test_masks_made_in_inference_mode_serve_training(path):
    inputs = make_inputs(length=29)
    with torch.inference_mode():
        banded_attention(**{n: x.detach() for n, x in inputs.items()}, window=3)
    banded_attention(**inputs, window=3).sum().backward()
    assert inputs["q"].grad.isfinite().all()


def test_export(path):
    class Attention(torch.nn.Module):
        def forward(self, q, k, v, global_k, global_v):
            return banded_attention(q, k, v, 3, global_k, global_v)

    inputs = {n: x.detach() for n, x in make_inputs(length=19, dtype=torch.float32).items()}
    program = torch.export.export(Attention(), (), inputs)
    expected = banded_attention(**inputs, window=3)
    torch.testing.assert_close(program.module()(**inputs), expected)


def test_dropout_keeps_the_mean(path):
    inputs = make_inputs(length=19, dtype=torch.float32)
    inputs["v"], inputs["global_v"] = (torch.ones_like(inputs[n]) for n in ("v", "global_v"))
    torch.manual_seed(0)
    out = torch.stack([banded_attention(**inputs, window=3, dropout_p=0.5) for _ in range(200)])
    assert out.std() > 0.1
    assert abs(out.mean() - 1) < 0.05


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": -1}, "`window` to be at least 0 but got -1"),
        ({"global_v": None}, "`global_k` and `global_v`, or none"),
    ],
)
def test_wrong_arguments(change, message):
    with pytest.raises(ValueError, match=message):
        banded_attention(**(make_inputs() | {"window": 2} | change))
