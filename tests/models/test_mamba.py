"""Mamba: parameter counts, a literal reference, directions, grids."""

import pytest
import torch
from torch.nn import functional as F

from reorder_lightning.models import Mamba
from reorder_lightning.models.mamba import MambaBackbone, MambaMixer
from reorder_lightning.orders import get_order


def literal_mixer(mixer, tokens, sequences):
    """The block as loops: for each direction the tokens in its own sequence, one step a time."""
    x, gate = mixer.in_proj(tokens).chunk(2, -1)
    dim, state, rank = mixer.dim, mixer.state_size, mixer.dt_rank
    total = torch.zeros_like(x)
    for g, sequence in enumerate(sequences):
        part = slice(g * dim, (g + 1) * dim)
        weight, kernel = mixer.conv_weight[part], mixer.conv_weight.shape[1]
        read = x[:, sequence]
        for b in range(len(x)):
            h = torch.zeros(dim, state, dtype=x.dtype)
            for t in range(len(sequence)):
                taps = [weight[:, kernel - 1 - k] * read[b, t - k] for k in range(kernel) if t >= k]
                u = F.silu(sum(taps) + mixer.conv_bias[part])
                dt, B, C = (u @ mixer.x_proj[g]).split([rank, state, state])
                delta = F.softplus(dt @ mixer.dt_proj[g] + mixer.dt_bias[part])
                A = -mixer.A_log[part].exp()
                h = torch.exp(delta[:, None] * A) * h + delta[:, None] * B * u[:, None]
                total[b, sequence[t]] += h @ C + mixer.D[part] * u
    return mixer.out_proj(total * F.silu(gate))


@pytest.mark.parametrize("directions", [1, 2, 4])
def test_mixer_equals_a_literal_loop_in_float64(directions):
    torch.manual_seed(0)
    mixer = MambaMixer(8, directions, state_size=3).double()
    tokens = torch.randn(2, 6, 8, dtype=torch.float64)
    columns = get_order("column", 2, 3)
    forward = torch.arange(6)
    sequences = [forward, forward.flip(0), columns, columns.flip(0)][:directions]
    expected = literal_mixer(mixer, tokens, sequences)
    torch.testing.assert_close(mixer(tokens, columns[None]), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("read_out", ["first", "middle", "last", "mean"])
@pytest.mark.parametrize("grid", [(2, 3), (3, 2), (3, 3), (1, 4)])
def test_the_transposed_scan_reads_columns_around_the_class_token(read_out, grid):
    height, width = grid
    model = MambaBackbone(
        depth=0, embed_dim=16, img_size=(4 * height, 4 * width), patch_size=4, read_out=read_out
    )
    tokens = [f"{r},{c}" for r in range(height) for c in range(width)]
    by_column = [f"{r},{c}" for c in range(width) for r in range(height)]
    if model.read_out_index is not None:
        tokens.insert(model.read_out_index, "cls")
        by_column.insert(model.read_out_index, "cls")
    (index,) = model.transposed_index()
    assert [tokens[i] for i in index] == by_column


def test_scan_grid_image_reads_the_images_columns_whatever_the_order_is():
    model = MambaBackbone(
        depth=0, embed_dim=16, img_size=12, patch_size=4, order="spiral", scan_grid="image"
    )
    draw = torch.stack([get_order("hilbert", 3, 3), get_order("random:3", 3, 3)])
    model.patch_order.draw = draw
    columns = get_order("column", 3, 3)
    for orders in (draw, model.patch_order.order[None]):
        index = model.transposed_index()
        assert len(index) == len(orders)
        for order, read in zip(orders, index, strict=True):
            assert torch.equal(order[read[:-1]], columns)
        model.eval()


def test_parameter_counts_of_the_paper():
    """REOrder's table: base 85,036,264 and large 297.0 M parameters, to 1 %."""
    for size, count in {"base": 85_036_264, "large": 297.0e6}.items():
        with torch.device("meta"):
            backbone = Mamba(num_classes=1000, size=size).backbone
        assert sum(p.numel() for p in backbone.parameters()) == pytest.approx(count, rel=0.01)


def test_rates_and_tables_are_not_decayed():
    model = MambaBackbone(depth=1, embed_dim=16, img_size=8, patch_size=4)
    assert model.no_weight_decay() == {"pos_embed", "cls_token", "blocks.0.mixer.A_log"}


@pytest.mark.parametrize(
    ("argument", "value"), [("directions", 3), ("scan_grid", "rows"), ("read_out", "top")]
)
def test_arguments_that_do_not_exist_are_named(argument, value):
    with pytest.raises(ValueError, match=f"`{argument}`.*{value}"):
        MambaBackbone(depth=1, embed_dim=16, img_size=8, patch_size=4, **{argument: value})


def test_an_unknown_size_lists_those_there_are():
    with pytest.raises(ValueError, match=r"`size` to be one of \['tiny', .*'gigantic'"):
        Mamba(num_classes=2, image_size=32, size="gigantic")
