"""Movement of an order: what the figure and the animation show."""

import io

import numpy as np
import PIL.Image
import pytest
import torch
from matplotlib import colormaps

from reorder_lightning.order_figures import to_png
from reorder_lightning.order_movement import animate, draw_movement
from reorder_lightning.orders import column, hilbert, kendall_tau, random, row


def titles(figure):
    return [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]


def frames(content):
    """Pixels and milliseconds of each frame."""
    film = PIL.Image.open(io.BytesIO(content))
    assert film.info["loop"] == 0
    shown = []
    for place in range(film.n_frames):
        film.seek(place)
        shown.append((np.asarray(film.convert("RGB")).astype(int), film.info["duration"]))
    return shown


# --------------------------------------------------------------------------- figure


def test_course_ranks_and_shift_are_those_of_the_orders():
    start, end = hilbert(3, 4), column(3, 4)
    figure = draw_movement(start, {2: start, 3: random(3, 4), 9: end}, (3, 4), title="Final")
    course, ranks, shift = figure.axes[:3]
    (line,) = course.get_lines()
    assert line.get_xdata().tolist() == [1, 2, 3, 9]
    assert line.get_ydata().tolist() == [
        1,
        1,
        *(kendall_tau(o, start) for o in (random(3, 4), end)),
    ]
    places = ranks.collections[0].get_offsets()
    assert places[:, 0].tolist() == start.argsort().tolist()
    assert places[:, 1].tolist() == end.argsort().tolist()
    moved = end.argsort() - start.argsort()
    assert shift.images[0].get_array().flatten().tolist() == moved.tolist()
    assert [text.get_text() for text in shift.texts] == [f"{m:+d}" if m else "0" for m in moved]


def test_kept_start_is_not_drawn_as_a_movement():
    start = row(3, 3)
    figure = draw_movement(start, {0: random(3, 3), 1: start}, (3, 3), "Final order: start kept")
    assert titles(figure) == ["Kendall tau to the start order"]
    assert figure.axes[0].get_lines()[0].get_ydata()[-1] == 1


def test_epoch_before_the_first_is_called_start():
    course = draw_movement(row(2, 2), {0: column(2, 2)}, (2, 2)).axes[0]
    assert course.xaxis.get_major_formatter()(-1, 0) == "start"
    assert course.xaxis.get_major_formatter()(3, 0) == "3"


@pytest.mark.parametrize("grid", [(1, 1), (1, 9), (9, 1), (24, 24), (3, 8)])
def test_any_grid_can_be_drawn_and_animated(grid):
    end = random(*grid)
    assert to_png(draw_movement(row(*grid), {0: end}, grid)).startswith(b"\x89PNG")
    image = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    assert len(frames(animate({"Start": row(*grid), "End": end}, grid, image))) == 2


def test_bad_orders_are_named():
    good, bad = torch.tensor([0, 1]), torch.tensor([0, 0])
    with pytest.raises(ValueError, match="`start` is not a permutation"):
        draw_movement(bad, {0: good}, (1, 2))
    with pytest.raises(ValueError, match="order of epoch 7 is not a permutation"):
        draw_movement(good, {7: bad}, (1, 2))
    with pytest.raises(ValueError, match="Order Epoch 7 is not a permutation"):
        animate({"Start": good, "Epoch 7": bad}, (1, 2))


# --------------------------------------------------------------------------- animation


def test_frames_show_the_rank_of_each_patch_and_the_last_stays_longest():
    orders = {"Start": row(2, 2), "Epoch 3": column(2, 2), "End": torch.tensor([3, 2, 1, 0])}
    shown = frames(animate(orders, (2, 2)))
    assert [milliseconds for _, milliseconds in shown] == [1200, 250, 3000]
    colours = (255 * colormaps["viridis"](np.linspace(0, 1, 4))[:, :3]).round()
    for (pixels, _), order in zip(shown, orders.values(), strict=True):
        assert (pixels[0, 0] == 255).all()
        patches = [pixels[70 + y, 20 + x] for y in (60, 190) for x in (60, 190)]
        expected = colours[order.argsort().numpy()]
        assert np.abs(patches - expected).max() <= 8


def test_sequence_is_laid_out_beside_it():
    image = np.kron(np.array([[0, 80], [160, 240]])[..., None], np.ones((20, 20, 3)))
    end = torch.tensor([3, 1, 0, 2])
    _, (pixels, _) = frames(animate({"Start": row(2, 2), "End": end}, (2, 2), image.astype("u1")))
    right = pixels.shape[1] // 2
    patches = [pixels[70 + y, right + x, 0] for y in (60, 190) for x in (60, 190)]
    assert np.abs(np.array(patches) - 80 * end.numpy()).max() <= 10


def test_order_that_never_moved_is_animated_too():
    start = hilbert(4, 4)
    shown = frames(animate({"Start": start, "Epoch 0": start, "Final: start kept": start}, (4, 4)))
    assert [milliseconds for _, milliseconds in shown] == [1200, 250, 3000]
    assert len(frames(animate({"Start": start}, (4, 4)))) == 1


def test_long_training_gives_a_small_file():
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    orders = {f"Epoch {i}": random(8, 8, i) for i in range(80)}  # the worst to compress
    content = animate(orders, (8, 8), image)
    assert len(frames(content)) == 32
    assert len(content) < 4e6
