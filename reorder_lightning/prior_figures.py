"""The figure of an order prior."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reorder_lightning.prior import Prior

_INK, _FADED = "#22303c", "#8b98a5"
_COLOURS = {"unigram": "#2a78b5", "bigram": "#d9822b"}
_SCOPES = {"image": "each image alone", "corpus": "all images in one stream"}


def draw_prior(prior: Prior, title: str = "") -> Figure:
    """Draw what each order saves over the shuffled control, with 95 % intervals.

    Args:
        prior: the ranked orders.
        title: one line above the panels.

    Returns:
        Two panels, per image and over the corpus, the most compressible order on top.

    Example:
        >>> import numpy as np
        >>> from reorder_lightning.prior import order_prior
        >>> tokens = np.random.default_rng(0).integers(5, size=(8, 3, 4))
        >>> len(draw_prior(order_prior(tokens, 5, resamples=20)).axes)
        2
    """
    height = 1.5 + 0.3 * len(prior.orders)
    figure = Figure(figsize=(9, height), dpi=140, layout="constrained", facecolor="white")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (scope, text) in zip(panels, _SCOPES.items(), strict=True):
        _draw_scope(axes, prior, scope)
        axes.set_title(text, loc="left", fontsize=10, color=_INK)
    panels[0].set_yticks(range(len(prior.orders)), [row.order for row in prior.orders])
    panels[0].invert_yaxis()
    panels[1].legend(frameon=False, fontsize=9, labelcolor=_INK)
    figure.supxlabel(
        "percentage points saved by LZMA over the same patches shuffled", fontsize=9, color=_INK
    )
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=_INK)
    return figure


def _draw_scope(axes: Axes, prior: Prior, scope: str) -> None:
    for shift, (gram, colour) in zip((-0.13, 0.13), _COLOURS.items(), strict=True):
        gained = [row.gained[f"{gram}_{scope}"] for row in prior.orders]
        axes.errorbar(
            [g.value for g in gained],
            [i + shift for i in range(len(gained))],
            xerr=[
                [max(g.value - g.low, 0) for g in gained],
                [max(g.high - g.value, 0) for g in gained],
            ],
            fmt="o", markersize=4, capsize=2, linewidth=1.2, color=colour, label=gram,
        )  # fmt: skip
    axes.axvline(0, color=_FADED, linewidth=1, linestyle="--", zorder=0)
    axes.tick_params(length=0, labelsize=9, labelcolor=_INK)
    axes.grid(axis="x", color="#e6eaee", zorder=-1)
    for spine in axes.spines.values():
        spine.set_visible(False)
