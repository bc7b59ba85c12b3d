"""attach: finding tokens in foreign models, refusing what can't work, and undoing it."""

import copy
import doctest
import pickle
import pkgutil

import pytest
import timm
import torch
from torch import nn

import reorder_lightning
from reorder_lightning import (
    attach,
    attachment,
    detach,
    export_order,
    get_order,
    load_order,
    token_sites,
)
from reorder_lightning.attachment import NAME
from reorder_lightning.patch_order import PatchOrder
from tests.toys import Classifier, ScanBlock, sequence_vit


def seen_by_first_block(model, *args):
    """The tokens that the first block computes with."""
    seen = []
    block = model.blocks[0]
    handle = block.read.register_forward_pre_hook(lambda m, a: seen.append(a[0].detach()))
    model(*args)
    handle.remove()
    return seen[0]


VARIANTS = {
    "plain": {},
    "registers": {"reg_tokens": 3},
    "registers, no class token": {"reg_tokens": 2, "class_token": False, "global_pool": "avg"},
    "no class token": {"class_token": False, "global_pool": "avg"},
    "no positions": {"pos_embed": "none"},
    "no positions, registers": {"pos_embed": "none", "reg_tokens": 2},
    "no_embed_class": {"no_embed_class": True, "reg_tokens": 1},
    "pre_norm": {"pre_norm": True},
    "dynamic": {"dynamic_img_size": True},
    "not square": {"img_size": (8, 12)},
    "map pooling": {"global_pool": "map", "class_token": False, "num_heads": 2},
    "max pooling": {"global_pool": "max"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_timm_vision_transformers(variant):
    """Case 24 among them: https://github.com/huggingface/pytorch-image-models/pull/2676."""
    kwargs = VARIANTS[variant]
    model = sequence_vit(**kwargs).eval()
    images = torch.randn(2, 3, *nn.modules.utils._pair(kwargs.get("img_size", 8)))
    before = seen_by_first_block(model, images)
    layer = attach(model, "spiral")
    grid = model.patch_embed.grid_size
    assert layer.grid_size == grid
    after = seen_by_first_block(model, images)
    prefix = model.num_prefix_tokens
    assert before.shape[1] == prefix + grid[0] * grid[1]
    assert torch.equal(after[:, :prefix], before[:, :prefix])
    assert torch.equal(after[:, prefix:], before[:, prefix:][:, get_order("spiral", *grid)])


@pytest.mark.filterwarnings("ignore:The blocks of .* are full self-attention")
def test_distillation_tokens_stay():
    model = timm.create_model("deit_tiny_distilled_patch16_224", img_size=32)
    tokens = []
    layer = attach(model, [3, 2, 1, 0])
    assert layer.grid_size == (2, 2)
    model.blocks[0].norm1.register_forward_pre_hook(lambda m, a: tokens.append(a[0].detach()))
    image = torch.randn(1, 3, 32, 32)
    model(image)
    detach(model)
    model(image)
    assert torch.equal(tokens[0], tokens[1][:, [0, 1, 5, 4, 3, 2]])


@pytest.mark.filterwarnings("ignore:The blocks of .* are full self-attention")
def test_no_positions_in_the_first_block():
    """Case 24: 17 tokens reach block 0 and the order touches tokens 1..16 only."""
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, pos_embed="none", depth=1)
    seen = []
    model.pos_drop.register_forward_hook(lambda *a: seen.append("pos_drop"))
    attach(model, list(range(15, -1, -1)))
    model.blocks[0].norm1.register_forward_pre_hook(lambda m, a: seen.append(a[0]))
    model(torch.randn(1, 3, 64, 64))
    assert [t.shape[1] for t in seen] == [17], "pos_drop is never called on this path"


def test_an_image_of_another_size_is_an_error():
    """Case 25: https://github.com/huggingface/pytorch-image-models/pull/2317."""
    model = sequence_vit(img_size=16, patch_size=4, dynamic_img_size=True)
    attach(model)
    with pytest.raises(ValueError, match=r"expected 1 \+ 16 tokens .*got 1 \+ 15"):
        model(torch.randn(1, 3, 20, 12))


class Sequence(nn.Module):
    """A model of one's own: patches, positions, a recurrent layer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 2, 2)
        self.positions = nn.Parameter(torch.randn(1, 16, 8))
        self.rnn = nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.rnn(tokens)[0][:, -1])


def test_a_model_of_ones_own():
    model = Sequence()
    layer = attach(model, "column", target="rnn", grid_size=(4, 4))
    x = torch.randn(2, 3, 8, 8)
    out = model(x)
    order = get_order("column", 4, 4)
    detach(model)
    tokens = model.embed(x).flatten(2).transpose(1, 2) + model.positions
    assert torch.equal(out, model.head(model.rnn(tokens[:, order])[0][:, -1]))
    assert layer.grid_size == (4, 4)


def test_tokens_given_by_keyword():
    class Block(nn.Module):
        def forward(self, *, mask=None, hidden_states):
            return hidden_states

    model = nn.ModuleDict({"block": Block()})
    attach(model, [1, 0], target="block", grid_size=(1, 2))
    out = model["block"](mask=None, hidden_states=torch.tensor([[[1.0], [2.0]]]))
    assert out.flatten().tolist() == [2, 1]


def test_a_container_as_target_means_its_first_block():
    """It is the block that is always called: timm's checkpointing leaves out the container."""
    model = sequence_vit()
    attach(model, target="blocks")
    assert NAME in dict(model.blocks[0].named_children())
    assert NAME not in dict(model.blocks.named_children())


def test_a_part_as_target():
    model = nn.ModuleDict({"left": sequence_vit(), "right": sequence_vit(patch_size=4)})
    with pytest.raises(ValueError, match="Found 2 models with patch tokens: left, right"):
        attach(model)
    assert attach(model, target="right").grid_size == (2, 2)
    assert attach(model, target="left.blocks.0").grid_size == (4, 4)
    with pytest.raises(ValueError, match="Found 2 PatchOrder layers"):
        attach(model)


def test_attaching_twice_is_attaching_once():
    model = sequence_vit()
    layer = attach(model, "column")
    assert attach(model) is layer
    assert attach(model, target="blocks.0") is layer
    assert layer.order.tolist() == get_order("column", 4, 4).tolist()
    assert len(model.blocks[0]._forward_pre_hooks) == 1


def test_an_alias_of_a_model_is_not_another_model():
    model = Classifier()
    model.alias = model.net.blocks
    layer = attach(model, "column")
    keys = [key for key in model.state_dict() if "extra" in key]
    assert len(keys) == 2
    model.load_state_dict(model.state_dict())
    assert layer.order.tolist() == get_order("column", 4, 4).tolist()


def test_it_survives_pickling_and_copies():
    model = Classifier()
    layer = attach(model, "hilbert", restore=True)
    x = torch.randn(2, 3, 8, 8)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x))
    teacher = copy.deepcopy(model)
    layer.order = get_order("spiral", 4, 4)
    assert torch.equal(teacher(x), model(x))


def test_detach_restores_the_model():
    model = sequence_vit().eval()
    x = torch.randn(2, 3, 8, 8)
    before, keys = model(x), list(model.state_dict())
    attach(model, "spiral", restore=True)
    assert not torch.equal(model(x), before)
    detach(model)
    assert torch.equal(model(x), before)
    assert list(model.state_dict()) == keys
    own = nn.ModuleDict({"patch_order": PatchOrder(None, (2, 2))})
    detach(own)
    assert "patch_order" in own


def test_parameters_and_random_numbers_stay():
    model = sequence_vit()
    before = [id(p) for p in model.parameters()]
    state = torch.get_rng_state()
    attach(model, "random:3")
    assert torch.equal(torch.get_rng_state(), state)
    assert [id(p) for p in model.parameters()] == before
    assert all(p.is_leaf for p in model.parameters())


@pytest.mark.parametrize("prefix", [0, 2])
def test_restore_gives_raster_order_back(prefix):
    class Keep(nn.Module):
        def forward(self, x):
            return x

    blocks = nn.Sequential(Keep(), Keep())
    attach(
        blocks, [2, 0, 3, 1], target="0", grid_size=(2, 2), num_prefix_tokens=prefix, restore=True
    )
    x = torch.randn(3, prefix + 4, 2)
    assert not torch.equal(blocks[0](x), x)
    assert torch.equal(blocks(x), x)


def test_restore_of_a_recurrent_layer():
    model = Sequence()
    x = torch.randn(2, 16, 8)
    attach(model, "spiral", target="rnn", grid_size=(4, 4), restore=True)
    out, state = model.rnn(x)
    detach(model)
    order = get_order("spiral", 4, 4)
    expected, expected_state = model.rnn(x[:, order])
    assert torch.equal(out[:, order], expected)
    assert torch.equal(state, expected_state)


def test_export(tmp_path):
    model = Classifier()
    attach(model, "snake")
    saved = load_order(export_order(model, tmp_path / "order.json"))
    assert saved.grid == (4, 4)
    assert torch.equal(saved.order, get_order("snake", 4, 4))
    with pytest.raises(ValueError, match="has no order"):
        export_order(Sequence(), tmp_path / "none.json")


# ------------------------------------------------------------------ refusals


def timm_model(name, **kwargs):
    return timm.create_model(name, **{"num_classes": 2, **kwargs})


def with_patch_dropout():
    return sequence_vit(patch_drop_rate=0.5)


def shared():
    model = sequence_vit()
    model.blocks = nn.Sequential(*[ScanBlock(8)] * 3)
    return model


def rotary():
    class Block(ScanBlock):
        def __init__(self, dim):
            super().__init__(dim)
            self.rotary_emb = nn.Identity()

    model = sequence_vit()
    model.blocks[1] = Block(8)
    return model


@pytest.mark.parametrize(
    ("build", "kwargs", "match"),
    [
        (with_patch_dropout, {}, "drops patches before the first block.*patch_drop_rate=0"),
        (shared, {}, "'blocks.0' is used more than once in 'blocks'"),
        (rotary, {}, r"positions inside its blocks \(rotary_emb\)"),
        (
            lambda: timm_model("eva02_tiny_patch14_224", img_size=28, depth=1),
            {"target": "blocks.0"},
            "rope",
        ),
        (
            lambda: timm_model("beit_base_patch16_224", img_size=32, depth=1, embed_dim=24),
            {"target": "blocks.0"},
            "relative_position_bias_table",
        ),
        (
            lambda: timm_model("vit_relpos_small_patch16_224", img_size=32, depth=1),
            {"target": "blocks.0"},
            "RelPos",
        ),
        (
            lambda: timm_model("swin_tiny_patch4_window7_224", img_size=56, window_size=7),
            {},
            "is hierarchical .*merges patches",
        ),
        (Sequence, {}, "found no patch tokens in Sequence.*`target=.*`grid_size"),
        (Sequence, {"target": "rnn"}, r"Cannot tell the patch grid .*`grid_size=\(rows"),
        (Sequence, {"target": "cnn"}, "has no module 'cnn', only embed, rnn, head"),
        (Sequence, {"target": "embed.x"}, "Conv2d has no module 'x', only nothing"),
        (sequence_vit, {"order": [0, 1]}, "each of the 16 patches"),
    ],
)
def test_refusals_name_reason_and_cure(build, kwargs, match):
    model = build()
    keys = list(model.state_dict())
    with pytest.raises(ValueError, match=match) as error:
        attach(model, **kwargs)
    assert len(str(error.value)) < 700
    assert list(model.state_dict()) == keys, "the model stays as it was"


def test_a_model_that_is_blind_to_order_is_pointed_out():
    """Case 26: full attention gives the same logits for every order, to 1e-12 in float64."""
    model = timm_model("vit_tiny_patch16_224", img_size=64, depth=2).double().eval()
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    raster = model(x)
    with pytest.warns(UserWarning, match="there is nothing to learn"):
        attach(model, "random")
    assert (model(x) - raster).norm() / raster.norm() < 1e-12


@pytest.mark.filterwarnings("ignore:The blocks of .* are full self-attention")
@pytest.mark.parametrize("module", [attachment, token_sites])
def test_examples(module):
    assert doctest.testmod(module).failed == 0


def test_public_names_are_imported_on_first_use():
    modules = {module.name for module in pkgutil.iter_modules(reorder_lightning.__path__)}
    assert not modules & set(reorder_lightning.__all__), "importing a module sets its name"
    assert set(reorder_lightning.__all__) <= set(dir(reorder_lightning))
    for name in reorder_lightning.__all__:
        assert getattr(reorder_lightning, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        reorder_lightning.nothing  # noqa: B018
