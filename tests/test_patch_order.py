"""PatchOrder: what it does to tokens, and what can be done to it without losing the order."""

import copy
import io
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._dynamo.testing import CompileCounter

from reorder_lightning import get_order
from reorder_lightning.patch_order import PatchOrder, permute_tokens

ORDER = [2, 0, 3, 1]


def layer(order=ORDER, grid=(2, 2)):
    return PatchOrder(order, grid)


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 7), st.randoms())
def test_permute_tokens_is_the_loop_over_images(batch, length, draws, random):
    index = torch.tensor([random.sample(range(length), length) for _ in range(draws)])
    tokens = torch.randn(batch, length, 2)
    out = permute_tokens(tokens, index)
    for i in range(batch):
        assert torch.equal(out[i], tokens[i, index[i % draws]])


@pytest.mark.parametrize("draws", [1, 3])
def test_gradients_are_those_of_indexing(draws):
    index = torch.stack([torch.randperm(6) for _ in range(draws)])
    tokens = torch.randn(5, 6, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: permute_tokens(t, index), tokens)
    assert torch.autograd.gradgradcheck(lambda t: permute_tokens(t, index), tokens)


def test_prefix_tokens_stay_and_inverse_restores():
    tokens = torch.arange(12.0).view(1, 6, 2)
    module = layer()
    out = module(tokens, num_prefix_tokens=2)
    assert out[0, :, 0].tolist() == [0, 2, 8, 4, 10, 6]
    assert torch.equal(module.inverse(out, num_prefix_tokens=2), tokens)


def test_a_prefix_token_in_the_middle_of_a_scan_is_the_models_business():
    """Case 27: 14x14 patches, the class token at index 98 of 197 and the patches around it."""
    from reorder_lightning.models.mamba import MambaBackbone

    torch.manual_seed(0)
    order = torch.randperm(196)
    model = MambaBackbone(
        img_size=56, patch_size=4, depth=1, embed_dim=4, num_classes=2, read_out="middle",
        order=order, directions=1,
    )  # fmt: skip
    model.cls_token.data.fill_(7.0)
    tokens = model.embed(torch.zeros(1, 3, 56, 56))
    assert tokens.shape == (1, 197, 4)
    assert (tokens[0, 98] == 7).all()
    patches = torch.cat([tokens[:, :98], tokens[:, 99:]], dim=1)
    assert torch.equal(patches[0], (model.patch_embed.proj.bias + model.pos_embed)[0, order])
    raster = model.patch_order.inverse(patches)
    assert torch.equal(raster, model.patch_embed.proj.bias + model.pos_embed)


def test_a_draw_is_used_in_training_only():
    module = layer()
    tokens = torch.arange(4.0).view(1, 4, 1).expand(3, 4, 1)
    module.draw = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]])
    assert module(tokens)[..., 0].tolist() == [[0, 1, 2, 3], [3, 2, 1, 0], [0, 1, 2, 3]]
    assert torch.equal(module.inverse(module(tokens)), tokens)
    module.eval()
    assert module(tokens)[..., 0].tolist() == [ORDER] * 3


def test_another_number_of_tokens_is_an_error():
    with pytest.raises(ValueError, match=r"expected 1 \+ 4 tokens.*got 1 \+ 3"):
        layer()(torch.zeros(1, 4, 2), num_prefix_tokens=1)


def test_an_order_of_another_grid_is_an_error():
    with pytest.raises(ValueError, match="each of the 4 patches"):
        layer([0, 1, 2])
    module = layer()
    with pytest.raises(ValueError, match="missing 3; doubled 1"):
        module.order = [0, 1, 2, 1]
    with pytest.raises(ValueError, match="patch order to load must have one index for each of"):
        module.load_state_dict({"_extra_state": torch.arange(6)})
    assert module.order.tolist() == ORDER


# ------------------------------------------------------------------ state


def test_it_has_no_parameters_and_no_buffers():
    assert not list(layer().parameters())
    assert not list(layer().buffers())


def test_the_state_dict_holds_one_int64_tensor():
    module = layer()
    module.draw = torch.arange(4)[None]
    file = io.BytesIO()
    torch.save(nn.Sequential(module).state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert list(state) == ["0._extra_state"]
    assert state["0._extra_state"].dtype == torch.int64
    other = nn.Sequential(layer(None))
    other.load_state_dict(state)
    assert other[0].order.tolist() == ORDER
    assert other[0].draw is None
    assert other[0].loaded


def test_saving_takes_a_copy():
    module = layer()
    module.get_extra_state().zero_()
    assert module.order.tolist() == ORDER


def test_strict_loading_without_the_entry_keeps_the_order():
    module = nn.Sequential(layer(), nn.Linear(1, 1))
    state = {k: v for k, v in module.state_dict().items() if "extra" not in k}
    assert module[0].loaded is None
    module.load_state_dict(state, strict=True)
    assert module[0].order.tolist() == ORDER
    assert module[0].loaded is False


@pytest.mark.parametrize(
    "move",
    [
        lambda m: m.to(torch.bfloat16),
        lambda m: m.half().double(),
        lambda m: m.to("meta").to_empty(device="cpu"),
        lambda m: m.to_empty(device="cpu"),
        lambda m: m.share_memory(),
        lambda m: m.cpu(),
    ],
    ids=["bfloat16", "half", "meta", "to_empty", "share_memory", "cpu"],
)
def test_casts_and_moves_keep_the_order(move):
    module = nn.Sequential(layer(), nn.Linear(1, 1))
    moved = move(module)
    assert moved[0].order.tolist() == ORDER
    assert moved[0].order.dtype == torch.int64
    tokens = torch.arange(4).view(1, 4, 1).to(moved[1].weight.dtype)
    assert moved[0](tokens).flatten().tolist() == ORDER


def test_it_can_be_built_on_the_meta_device():
    with torch.device("meta"):
        module = layer()
    assert module.order.tolist() == ORDER


def test_the_order_follows_the_device():
    if not torch.cuda.is_available():
        pytest.skip("needs a second device")
    module = layer().cuda()
    module.order = [0, 1, 2, 3]
    assert module.order.is_cuda
    assert module.cpu().order.device.type == "cpu"


def test_deep_copies_share_the_order():
    module = layer()
    teacher = copy.deepcopy(nn.Sequential(module))
    module.order = [0, 1, 2, 3]
    module.draw = torch.arange(4)[None]
    assert torch.equal(teacher[0].order, module.order)
    assert teacher[0].draw is module.draw


def test_pickling_keeps_the_order_and_drops_the_draw():
    module = layer()
    module.draw = torch.arange(4)[None]
    other = pickle.loads(pickle.dumps(module))
    assert other.order.tolist() == ORDER
    assert other.draw is None
    assert module.draw is not None


def test_averaged_models_do_not_touch_the_order():
    module = nn.Sequential(layer(), nn.Linear(1, 1))
    average = torch.optim.swa_utils.AveragedModel(module, use_buffers=True)
    module[0].order = [0, 1, 2, 3]
    average.update_parameters(module)
    average.update_parameters(module)
    assert average.module[0].order.tolist() == [0, 1, 2, 3]


# ------------------------------------------------------------------ compile, export


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_order = layer()
        self.head = nn.Linear(4, 1)

    def forward(self, tokens):
        return self.head(self.patch_order(tokens, 1)[:, 1:, 0])


def test_new_orders_and_draws_do_not_recompile():
    torch._dynamo.reset()
    counter = CompileCounter()
    model = Reader()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    tokens = torch.randn(3, 5, 1, requires_grad=True)
    for _ in range(4):
        draw = torch.stack([torch.randperm(4), torch.randperm(4)])
        model.patch_order.draw = draw
        model.patch_order.used = False
        expected = model.head(permute_tokens(tokens[:, 1:], draw)[..., 0])
        torch.testing.assert_close(compiled(tokens), expected)
        assert model.patch_order.used
    assert counter.frame_count == 1
    model.eval()
    for _ in range(3):
        model.patch_order.draw = None
        model.patch_order.order = torch.randperm(4)
        expected = model.head(tokens[:, 1:][:, model.patch_order.order, 0])
        torch.testing.assert_close(compiled(tokens), expected)
    assert counter.frame_count == 2


def test_it_can_be_exported():
    model = Reader().eval()
    tokens = torch.randn(3, 5, 1)
    program = torch.export.export(model, (tokens,))
    assert torch.equal(program.module()(tokens), model(tokens))


def test_full_attention_is_blind_to_the_order():
    """Case 26: positions travel with their patches; an order before them is another model."""
    from reorder_lightning.models.vit import ViTBackbone

    torch.manual_seed(0)
    args = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
    model = ViTBackbone(**args, num_classes=5, order=None).double().eval()
    nn.init.normal_(model.pos_embed)
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    raster = model(images)
    model.patch_order.order = get_order("random", 8, 8)
    assert (model(images) - raster).norm() / raster.norm() < 1e-12
    model.position = "slot"
    assert (model(images) - raster).norm() / raster.norm() > 1e-6
