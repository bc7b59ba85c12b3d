import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reorder_lightning.kernels import _blocked_scan
from reorder_lightning.kernels.selective_scan import _scan, selective_scan
from tests.kernels.references import relative_error, selective_scan_reference

NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")


def make_inputs(batch, groups, channels, state, length, scale=1.0, optional=True, seed=0):
    g = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    width = groups * channels
    inputs = {
        "u": randn(batch, width, length),
        "delta": randn(batch, width, length) * scale,
        "A": -randn(width, state).abs() - 0.01,
        "B": randn(batch, groups, state, length),
        "C": randn(batch, groups, state, length),
    }
    if optional:
        inputs |= {
            "D": randn(width),
            "z": randn(batch, width, length),
            "delta_bias": randn(width),
        }
    return inputs


def leaves(inputs, dtype):
    return {k: v.detach().to(dtype).requires_grad_() for k, v in inputs.items()}


def errors(inputs, dtype, softplus=True, scan=selective_scan):
    """Relative errors of output, last state and all gradients against the literal loop."""
    expected, got = leaves(inputs, torch.float64), leaves(inputs, dtype)
    y0, h0 = selective_scan_reference(**expected, delta_softplus=softplus)
    y, h = scan(**got, delta_softplus=softplus, return_last_state=True)
    wy, wh = torch.randn_like(y0), torch.randn_like(h0)
    ((y0 * wy).sum() + (h0 * wh).sum()).backward()
    ((y * wy.to(dtype)).sum() + (h * wh.to(dtype)).sum()).backward()
    result = {"y": relative_error(y, y0), "last_state": relative_error(h, h0)}
    for name, x in got.items():
        result[name] = relative_error(x.grad, expected[name].grad)
    return result


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-13), (torch.float32, 2e-6)])
@pytest.mark.parametrize("optional", [True, False])
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_equals_the_literal_loop(dtype, bound, optional, scale):
    found = errors(make_inputs(3, 2, 5, 4, 37, scale, optional), dtype)
    assert max(found.values()) < bound, found


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(0, 5),
    groups=st.integers(1, 3),
    channels=st.integers(1, 5),
    state=st.integers(1, 4),
    length=st.integers(1, 40),
    block=st.sampled_from([1, 16, 100, 1000]),
    optional=st.booleans(),
    softplus=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_random_shapes(batch, groups, channels, state, length, block, optional, softplus, seed):
    inputs = make_inputs(batch, groups, channels, state, length, 0.5, optional, seed)
    if not softplus:
        inputs["delta"] = inputs["delta"].abs()
        inputs.pop("delta_bias", None)
    with pytest.MonkeyPatch.context() as patch:  # small blocks: every length crosses boundaries
        patch.setattr(_blocked_scan, "_BLOCK_ELEMENTS", block)
        patch.setattr(_blocked_scan, "_STEP_ELEMENTS", max(1, block // 4))
        found = errors(inputs, torch.float64, softplus)
    assert max(found.values()) < 1e-12, found


@pytest.mark.parametrize("steps", [1, 5, 6, 7, 12, 13])
def test_lengths_around_block_boundaries(monkeypatch, steps):
    inputs = make_inputs(2, 1, 4, 2, steps)
    monkeypatch.setattr(_blocked_scan, "_BLOCK_ELEMENTS", 6 * 2 * 4 * 2)  # six steps a block
    found = errors(inputs, torch.float64)
    assert max(found.values()) < 1e-13, found


def test_delta_of_twenty_is_exact_and_finite():
    """Delta of 20 with rates down to -16: decays underflow, nothing may overflow."""
    inputs = make_inputs(2, 1, 6, 16, 64, optional=False)
    inputs["delta"] = torch.full_like(inputs["delta"], 20.0)
    inputs["A"] = -torch.arange(1.0, 17, dtype=torch.float64).expand(6, 16)
    found = errors(inputs, torch.float32, softplus=False)
    assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_runs_in_float32(dtype):
    """Case 29: https://github.com/hustvl/Vim/issues/30, nan under mixed precision."""
    inputs = {k: v.float() for k, v in make_inputs(2, 1, 8, 4, 64, 20.0).items()}
    plain = leaves(inputs, torch.float32)
    y = selective_scan(**plain, delta_softplus=True)
    y.square().mean().backward()
    mixed = leaves(inputs, torch.float32)
    low = {k: v.to(dtype) if k in ("u", "z", "B", "C", "delta") else v for k, v in mixed.items()}
    with torch.autocast("cpu", dtype):
        out = selective_scan(**low, delta_softplus=True)
        exact = selective_scan(**mixed, delta_softplus=True)
    assert out.dtype == dtype
    assert torch.equal(exact, y)
    assert relative_error(out, y) < 2e-2
    out.float().square().mean().backward()
    assert all(x.grad.isfinite().all() for x in mixed.values())


def test_mixed_float64_input_computes_in_float64():
    inputs = {k: v.float() for k, v in make_inputs(1, 1, 2, 2, 5).items()}
    inputs["A"] = inputs["A"].double()
    _, state = selective_scan(**inputs, return_last_state=True)
    assert state.dtype == torch.float64


def test_non_contiguous_input_and_gradients():
    inputs = make_inputs(2, 2, 3, 4, 11)
    expected = selective_scan(**inputs)
    strided = {k: v.transpose(0, -1).contiguous().transpose(0, -1) for k, v in inputs.items()}
    strided["D"] = inputs["D"].repeat_interleave(2)[::2]
    assert torch.equal(selective_scan(**strided), expected)
    wide = torch.zeros(2, 6, 22, dtype=torch.float64)
    wide[..., ::2] = inputs["u"]
    leaf = wide.requires_grad_()
    selective_scan(**{**inputs, "u": leaf[..., ::2]}).sum().backward()
    u = inputs["u"].clone().requires_grad_()
    selective_scan(**{**inputs, "u": u}).sum().backward()
    assert torch.equal(leaf.grad[..., ::2], u.grad)


def test_three_dimensional_projections_are_one_group():
    inputs = make_inputs(2, 1, 6, 4, 9)
    squeezed = {**inputs, "B": inputs["B"][:, 0], "C": inputs["C"][:, 0]}
    assert torch.equal(selective_scan(**squeezed), selective_scan(**inputs))


def test_groups_equal_separate_calls():
    inputs = make_inputs(2, 3, 4, 2, 9)
    together = selective_scan(**inputs)
    for g in range(3):
        rows = slice(4 * g, 4 * g + 4)
        part = {
            k: v[rows] if k in ("A", "D", "delta_bias") else v[:, rows] for k, v in inputs.items()
        }
        part["B"], part["C"] = inputs["B"][:, g], inputs["C"][:, g]
        torch.testing.assert_close(selective_scan(**part), together[:, rows])


def test_only_the_needed_gradients_are_returned():
    inputs = make_inputs(2, 1, 3, 2, 7)
    inputs["A"].requires_grad_()
    selective_scan(**inputs).sum().backward()
    assert inputs["A"].grad is not None
    assert inputs["u"].grad is None


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # opcheck's
def test_op_is_sound_for_compile_and_export():
    inputs = make_inputs(2, 1, 3, 2, 7)
    args = [inputs[k].float().requires_grad_() for k in ("u", "delta", "A", "B", "C", "D")]
    torch.library.opcheck(_scan, (*args, None, True))
    torch.library.opcheck(_scan, (*(x.detach() for x in args), None, False))


def test_export_keeps_one_op_with_dynamic_batch():
    class Scan(torch.nn.Module):
        def forward(self, u, delta, A, B, C):
            return selective_scan(u, delta, A, B, C, delta_softplus=True)

    inputs = make_inputs(2, 1, 3, 2, 7, optional=False)
    batch = torch.export.Dim("batch", min=1, max=64)
    dynamic = {k: {0: batch} if k != "A" else None for k in inputs}
    program = torch.export.export(Scan(), (), inputs, dynamic_shapes=dynamic)
    calls = [n for n in program.graph.nodes if "selective_scan" in str(n.target)]
    assert len(calls) == 1
    larger = make_inputs(5, 1, 3, 2, 7, optional=False)
    expected = selective_scan(**larger, delta_softplus=True)
    torch.testing.assert_close(program.module()(**larger), expected)


def test_double_backward_is_refused():
    inputs = leaves(make_inputs(1, 1, 2, 2, 5), torch.float64)
    y = selective_scan(**inputs)
    (grad,) = torch.autograd.grad(y.sum(), inputs["u"], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        grad.sum().backward()


def test_threads_do_not_share_workspaces():
    inputs = {k: v.float() for k, v in make_inputs(4, 1, 64, 16, 50).items()}

    def scan():
        return selective_scan(**inputs, delta_softplus=True)

    expected = scan()
    equal = []

    def work():
        equal.extend(torch.equal(scan(), expected) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert equal == [True] * 80


def test_workspaces_made_in_inference_mode_serve_training():
    _blocked_scan._WORKSPACE.buffers.clear()
    inputs = make_inputs(1, 1, 3, 2, 5)
    with torch.inference_mode():
        selective_scan(**inputs)
    selective_scan(**leaves(inputs, torch.float64)).sum().backward()


def test_workspaces_are_bounded():
    for batch, length in [(1, 400), (40, 50), (3, 999)]:
        inputs = {k: v.float() for k, v in make_inputs(batch, 1, 32, 16, length).items()}
        selective_scan(**leaves(inputs, torch.float32)).sum().backward()
    buffers = _blocked_scan._WORKSPACE.buffers.values()
    limit = 2 * _blocked_scan._BLOCK_ELEMENTS
    assert sum(b.numel() for b in buffers if b.dtype == torch.float32) <= 5 * limit


@pytest.mark.parametrize("scale", [1e-6, 1.0, 50.0])
def test_softplus(scale):
    x = torch.linspace(-2, 2, 2001) * scale
    expected = torch.nn.functional.softplus(x.double(), threshold=1000)
    assert (
        (_blocked_scan.softplus(x, torch.empty_like(x)).double() - expected).abs()
        / (expected + 1e-35)
    ).max() < 1e-5
    extreme = torch.tensor([-1e30, 1e30, -200.0])
    assert _blocked_scan.softplus(extreme, torch.empty(3)).isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"u": torch.ones(2, 6)}, r"`u` to have shape \(B, D, L\) but got \(2, 6\)"),
        ({"A": -torch.ones(5, 4)}, r"`A` to have shape \(D, N\) with D = 6 but got \(5, 4\)"),
        ({"B": torch.ones(2, 4, 4, 9)}, "`B`, 4, to divide the 6 channels"),
        ({"C": torch.ones(2, 2, 4, 8)}, r"`C` to have shape \(2, 2, 4, 9\) but got"),
        ({"delta": torch.ones(2, 6, 8)}, r"`delta` to have shape \(2, 6, 9\) but got"),
        ({"delta_bias": torch.ones(5)}, r"`delta_bias` to have shape \(6,\) but got \(5,\)"),
        ({"A": torch.ones(6, 4, dtype=torch.complex64)}, "complex"),
    ],
)
def test_wrong_arguments(change, message):
    with pytest.raises(ValueError, match=message):
        selective_scan(**(make_inputs(2, 2, 3, 4, 9) | change))
