import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reorder_lightning.kernels.causal_conv import _shifted, causal_conv1d
from tests.kernels.references import relative_error


def literal(x, weight, bias):
    y = torch.zeros_like(x)
    taps = weight.shape[1]
    for t in range(x.shape[2]):
        for k in range(taps):
            past = t - taps + 1 + k
            if past >= 0:
                y[:, :, t] = y[:, :, t] + weight[:, k] * x[:, :, past]
    return y if bias is None else y + bias[:, None]


@settings(max_examples=30, deadline=None)
@given(
    batch=st.integers(0, 3),
    width=st.integers(1, 5),
    length=st.integers(1, 9),
    taps=st.integers(1, 5),
    bias=st.booleans(),
    channels_last=st.booleans(),
)
def test_equals_the_literal_sum(batch, width, length, taps, bias, channels_last):
    shape = (batch, length, width) if channels_last else (batch, width, length)
    x = torch.randn(shape, dtype=torch.float64)
    x = (x.transpose(1, 2) if channels_last else x).requires_grad_()
    weight = torch.randn(width, taps, dtype=torch.float64, requires_grad=True)
    b = torch.randn(width, dtype=torch.float64, requires_grad=True) if bias else None
    wanted = [p for p in (x, weight, b) if p is not None]
    expected, got = literal(x, weight, b), causal_conv1d(x, weight, b)
    pull = torch.randn_like(expected)
    pairs = zip(
        (expected, *torch.autograd.grad(expected, wanted, pull)),
        (got, *torch.autograd.grad(got, wanted, pull)),
        strict=True,
    )
    for e, g in pairs:
        assert g.shape == e.shape
        assert relative_error(g, e) < 1e-13


def test_compiled_form_is_the_same():
    x, taps, bias = torch.randn(2, 7, 3), torch.randn(4, 3), torch.randn(3)
    expected = causal_conv1d(x.transpose(1, 2), taps.t(), bias).transpose(1, 2)
    torch.testing.assert_close(_shifted(x, taps, bias), expected)


def test_export():
    class Conv(torch.nn.Module):
        def forward(self, x, weight, bias):
            return causal_conv1d(x, weight, bias)

    args = (torch.randn(2, 3, 7), torch.randn(3, 4), torch.randn(3))
    program = torch.export.export(Conv(), args)
    torch.testing.assert_close(program.module()(*args), causal_conv1d(*args))


def test_keeps_low_precision_outside_and_sums_in_float32():
    x, weight, bias = torch.randn(2, 3, 50), torch.randn(3, 4), torch.randn(3)
    y = causal_conv1d(x.bfloat16(), weight, bias)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, causal_conv1d(x.bfloat16().float(), weight, bias).bfloat16())


@pytest.mark.parametrize(
    ("x", "weight", "bias", "message"),
    [
        ((2, 3), (3, 4), (3,), r"`x` to have shape \(B, D, L\) but got \(2, 3\)"),
        ((2, 3, 5), (4, 3), (3,), r"`weight` to have shape \(D, K\) with D = 3 but got \(4, 3\)"),
        ((2, 3, 5), (3, 4), (4,), r"`bias` to have shape \(3,\) but got \(4,\)"),
    ],
)
def test_wrong_shapes(x, weight, bias, message):
    with pytest.raises(ValueError, match=message):
        causal_conv1d(torch.ones(x), torch.ones(weight), torch.ones(bias))
