"""What all families promise: sensitivity to the order, export, compilation, recomputation."""

import numpy as np
import pytest
import torch
from torch import nn

from reorder_lightning.models.longformer import LongformerBackbone
from reorder_lightning.models.mamba import MambaBackbone, MambaMixer
from reorder_lightning.models.transformer_xl import TransformerXLBackbone
from reorder_lightning.models.vit import ViTBackbone

OPTIONS = {
    "vit": (ViTBackbone, {"num_heads": 2}),
    "longformer": (LongformerBackbone, {"num_heads": 2, "window": 2}),
    "transformer_xl": (TransformerXLBackbone, {"num_heads": 2}),
    "segments": (TransformerXLBackbone, {"num_heads": 2, "segment_len": 7, "mem_len": 5}),
    "causal": (TransformerXLBackbone, {"num_heads": 2, "causal": True}),
    "mamba": (MambaBackbone, {"state_size": 4}),
    "mamba1": (MambaBackbone, {"state_size": 4, "directions": 1}),
    "columns": (MambaBackbone, {"state_size": 4, "scan_grid": "image"}),
}
ALL = list(OPTIONS)
IMAGES = torch.randn(2, 3, 16, 20, generator=torch.Generator().manual_seed(1))


def make(name, **kwargs):
    torch.manual_seed(0)
    cls, options = OPTIONS[name]
    shared = {"img_size": (16, 20), "patch_size": 4, "depth": 2, "embed_dim": 16, "num_classes": 3}
    return cls(**(shared | options | kwargs)).eval()


def relative(x, y):
    return ((x - y).abs().max() / y.abs().max()).item()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("order", ["hilbert", "column", "random:3"])
def test_only_full_attention_is_blind_to_the_order(name, order):
    model, images = make(name).double(), IMAGES.double()
    row = model(images)
    model.patch_order.order = order
    change = relative(model(images), row)
    assert change < 1e-12 if name == "vit" else change > 1e-7  # rounding is 1e-15
    if name == "vit":
        model.float()
        found = model(IMAGES)
        model.patch_order.order = "row"
        assert relative(found, model(IMAGES)) < 1e-5


@pytest.mark.parametrize("name", [n for n in ALL if n != "columns"])  # that follows the image
def test_reordered_images_under_the_inverse_order_are_the_same(name):
    """Patches in another raster place, read back into their places: nothing can change."""
    model, images = make(name, order="random:3").double(), IMAGES.double()
    model.pos_embed.data.zero_()  # positions would travel with the raster place
    order = model.patch_order.order
    # the model in row order on an image whose raster is the reading order
    patches = images.unflatten(2, (4, 4)).unflatten(4, (5, 4)).permute(0, 2, 4, 1, 3, 5)
    read = patches.flatten(1, 2)[:, order].unflatten(1, (4, 5)).permute(0, 3, 1, 4, 2, 5)
    expected = model(images)
    model.patch_order.order = "row"
    assert relative(model(read.reshape(images.shape)), expected) < 1e-12


@pytest.mark.parametrize("name", ALL)
def test_draws_are_followed_in_training_only(name):
    model = make(name).double()
    model.patch_order.draw = torch.stack([torch.randperm(20), torch.arange(20)])
    images = IMAGES.double()
    row = model(images)
    drawn = model.train()(images)
    assert relative(drawn[1], row[1]) < 1e-12
    if name != "vit":
        assert relative(drawn[0], row[0]) > 1e-7


@pytest.mark.parametrize("name", ALL)
def test_reset_classifier(name):
    model = make(name)
    features = model.forward_features(IMAGES)
    model.reset_classifier(7)
    assert model(IMAGES).shape == (2, 7)
    torch.testing.assert_close(model.forward_features(IMAGES), features)


@pytest.mark.parametrize("name", ALL)
def test_gradient_checkpointing_changes_no_gradient(name):
    model = make(name).double().train()
    grads = []
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        model(IMAGES.double()).square().sum().backward()
        grads.append(
            [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        )
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("name", ["mamba", *(pytest.param(n, marks=pytest.mark.slow) for n in ALL)])
def test_compiles_into_one_graph_with_the_same_gradients(name):
    torch.compiler.reset()
    model = make(name).train()
    model.patch_order.draw = torch.randperm(20)[None]
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        model.patch_order.draw = torch.randperm(20)[None]
        pairs = []
        for run in (model, compiled):
            model.zero_grad()
            run(IMAGES).square().sum().backward()
            pairs.append([p.grad for p in model.parameters()])
        torch.testing.assert_close(pairs[1], pairs[0], rtol=1e-3, atol=1e-5)


@pytest.mark.skipif(
    torch.__version__ < "2.7", reason="exports no autograd function with a batch of any size"
)
@pytest.mark.parametrize("name", ALL)
def test_exports_with_the_order_inside_and_any_batch_size(name):
    model = make(name, order="hilbert")
    batch = torch.export.Dim("batch", min=1, max=16)
    program = torch.export.export(model, (IMAGES,), dynamic_shapes=({0: batch},))
    images = torch.cat([IMAGES, IMAGES.flip(0), IMAGES])
    torch.testing.assert_close(program.module()(images), model(images), rtol=1e-4, atol=1e-5)


def onnx_difference(model, path):
    """Largest difference of onnxruntime's logits from ours, and the graph's operators."""
    onnx, ort = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    torch.onnx.export(model, (IMAGES,), path, dynamo=True, verbose=False)
    session = ort.InferenceSession(path)
    (logits,) = session.run(None, {session.get_inputs()[0].name: IMAGES.numpy()})
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    return np.abs(logits - model(IMAGES).detach().numpy()).max(), kinds


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the exporter's own
@pytest.mark.parametrize("name", ALL)
def test_onnx_gives_the_same_logits(name, tmp_path):
    """The recurrence is an ONNX Scan: the graph doesn't grow with the sequence."""
    model = make(name, order="hilbert")
    scans = isinstance(model, MambaBackbone)
    if scans:
        hop = pytest.importorskip("torch.onnx._internal.exporter._torchlib.ops.hop")
        if not hasattr(hop, "higher_order_scan"):
            pytest.skip("this torch cannot export its scan operator (pytorch pull request 154513)")
    difference, kinds = onnx_difference(model, tmp_path / "model.onnx")
    assert difference < 1e-4
    assert kinds.count("Scan") == (len(model.blocks) if scans else 0)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_trains(name, dtype):
    model = make(name).train()
    expected = model(IMAGES)
    with torch.autocast("cpu", dtype):
        found = model(IMAGES)
    assert relative(found.float(), expected) < 3e-2
    found.float().square().mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ALL)
def test_pure_bfloat16_trains(name):
    model = make(name).train().bfloat16()
    model(IMAGES.bfloat16()).float().square().mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_case_29_a_mamba_block_with_steps_of_twenty_is_finite_in_low_precision(dtype):
    """https://github.com/hustvl/Vim/issues/30: nan under mixed precision."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.LayerNorm(192), MambaMixer(192, directions=1))
    block[1].dt_bias.data.uniform_(0, 20)
    tokens = torch.randn(2, 64, 192)
    expected = block(tokens)
    with torch.autocast("cpu", dtype):
        found = block(tokens)
    assert relative(found.float(), expected) < 2e-2
    found.float().square().mean().backward()
    assert all(p.grad.isfinite().all() for p in block.parameters())
