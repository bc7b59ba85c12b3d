"""The Triton kernels against the literal loop and the portable path, by Triton's interpreter.

Run by ``test_triton_scan.py`` in a process of its own: the interpreter has to be chosen before
Triton is imported.
"""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reorder_lightning.kernels import _blocked_scan, _triton_scan
from tests.kernels.references import relative_error, selective_scan_reference
from tests.kernels.test_selective_scan import leaves, make_inputs

# The interpreter of Triton 3.2 under newer releases of numpy.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0 to a scalar")


@pytest.fixture
def kernels(monkeypatch):
    monkeypatch.setattr(_triton_scan, "STEPS", 4)
    return _triton_scan


def run(module, inputs, softplus, dy, dlast):
    """Output, last state and gradients by a module's forward and backward functions."""
    args = [inputs[n] for n in ("u", "delta", "A", "B", "C")]
    args += [inputs.get("D"), inputs.get("delta_bias"), softplus]
    y, last, bounds = module.scan_forward(*args)
    return y, last, *module.scan_backward(dy, dlast, *args, bounds)


def check(kernels, inputs, softplus=True, bound=2e-5):
    inputs = {n: x.float() for n, x in inputs.items() if n != "z"}
    exact = leaves(inputs, torch.float64)
    y, last = selective_scan_reference(**exact, delta_softplus=softplus)
    dy, dlast = torch.randn_like(y), torch.randn_like(last)
    grads = torch.autograd.grad((y, last), list(exact.values()), (dy, dlast))
    expected = dict(zip(exact, grads, strict=True)) | {"y": y, "last": last}
    names = ("y", "last", "u", "delta", "A", "B", "C", "D", "delta_bias")
    found = run(kernels, inputs, softplus, dy.float(), dlast.float())
    portable = run(_blocked_scan, inputs, softplus, dy.float(), dlast.float())
    for name, x, other in zip(names, found, portable, strict=True):
        assert x.shape == other.shape, name
        if name in expected:
            assert relative_error(x, expected[name]) < bound, name
            assert relative_error(x, other) < bound, name
        else:
            assert not x.any(), name


@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    batch=st.integers(0, 2),
    groups=st.integers(1, 2),
    channels=st.integers(1, 5),
    state=st.integers(1, 5),
    length=st.integers(1, 9),
    optional=st.booleans(),
    softplus=st.booleans(),
)
def test_random_shapes(kernels, batch, groups, channels, state, length, optional, softplus):
    inputs = make_inputs(batch, groups, channels, state, length, 0.5, optional)
    if not softplus:
        inputs["delta"] = inputs["delta"].abs()
        inputs.pop("delta_bias", None)
    check(kernels, inputs, softplus)


@pytest.mark.parametrize("length", [15, 16, 17, 33])
def test_lengths_around_block_boundaries(kernels, monkeypatch, length):
    monkeypatch.setattr(kernels, "STEPS", 16)
    check(kernels, make_inputs(1, 1, 3, 2, length))


def test_delta_of_twenty(kernels):
    inputs = make_inputs(1, 1, 4, 8, 10, optional=False)
    inputs["delta"] = torch.full_like(inputs["delta"], 20.0)
    inputs["A"] = -torch.arange(1.0, 9, dtype=torch.float64).expand(4, 8)
    check(kernels, inputs, softplus=False)


def test_more_channels_than_a_tile(kernels, monkeypatch):
    monkeypatch.setattr(kernels, "_TILE", 32)  # four channels of a state of two
    check(kernels, make_inputs(1, 2, 9, 2, 6))


def test_non_contiguous_input(kernels):
    inputs = make_inputs(2, 1, 3, 2, 7)
    check(kernels, {n: x.transpose(0, -1).contiguous().transpose(0, -1) for n, x in inputs.items()})
