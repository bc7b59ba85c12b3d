"""Pictures of orders: what they show, and that they leave pyplot alone."""

import numpy as np
import pytest
import torch
from matplotlib import pyplot

from reorder_lightning.order_figures import draw_order, draw_orders, to_image, to_png
from reorder_lightning.orders import ORDERS, hilbert, snake


def panels(figure):
    return [axes for axes in figure.axes if axes.get_title(loc="left")]


def test_ranks_path_and_logits_are_those_of_the_order():
    order = snake(3, 4)
    logits = torch.empty(12).index_copy_(0, order, torch.linspace(0, -1, 12))
    ranks, path, heat = panels(draw_order(order, (3, 4), logits, title="Epoch 3"))
    shown = np.asarray(ranks.images[0].get_array())
    assert (shown == order.argsort().view(3, 4).numpy()).all()
    assert [int(text.get_text()) for text in ranks.texts] == order.argsort().tolist()
    corners = np.array([[i % 4, i // 4] for i in order.tolist()])
    assert (np.array(path.collections[0].get_segments())[:, 0] == corners[:-1]).all()
    assert np.allclose(heat.images[0].get_array(), logits.view(3, 4))


def test_jumps_are_thinner_than_steps_to_a_neighbour():
    (path,) = panels(draw_order(torch.tensor([0, 1, 4, 3, 2, 5]), (2, 3)))[1:]
    widths = path.collections[0].get_linewidths()
    assert widths[0] == widths[1] == widths[2] > widths[3]  # right, down, left; then 3 -> 2


@pytest.mark.parametrize("grid", [(1, 1), (1, 9), (9, 1), (40, 30)])
def test_any_grid_can_be_drawn(grid):
    figure = draw_order(hilbert(*grid), grid, torch.zeros(grid[0] * grid[1]))
    assert to_png(figure).startswith(b"\x89PNG")
    image = to_image(figure)
    assert image.dtype == np.uint8
    assert image.ndim == 3
    assert image.std() > 0


def test_gallery_has_one_named_panel_an_order():
    figure = draw_orders({name: make(4, 5) for name, make in ORDERS.items()}, (4, 5))
    assert [axes.get_title(loc="left") for axes in panels(figure)] == list(ORDERS)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="missing 1; doubled 0"):
        draw_order(torch.tensor([0, 0]), (1, 2))
    with pytest.raises(ValueError, match="`logits` to have one value for each of the 2 patches"):
        draw_order(torch.tensor([0, 1]), (1, 2), torch.zeros(3))
    with pytest.raises(ValueError, match="Order mine is not a permutation"):
        draw_orders({"mine": torch.tensor([0, 0])}, (1, 2))


def test_pyplot_knows_nothing_of_it():
    before = pyplot.get_fignums()
    to_png(draw_order(hilbert(2, 2), (2, 2)))
    assert pyplot.get_fignums() == before
