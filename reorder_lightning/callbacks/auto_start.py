"""`start="auto"`: begin with the order that the compressibility prior chooses for the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning import Trainer
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.seed import isolate_rng

from reorder_lightning.order_files import Grid
from reorder_lightning.patch_order import PatchOrder

if TYPE_CHECKING:
    from reorder_lightning.prior import Choice
    from reorder_lightning.prior_cache import ReadImages

_CHOICES: dict[str, Choice] = {"auto": "most", "auto:most": "most", "auto:least": "least"}


class AutoStart:
    """The start order that is found by looking at the training images.

    Up to 2,000 of them are cut into the patches of the model's own grid, tokenised by k-means and
    ranked by `order_prior`, as ``reorder prior`` does (Kutscher et al., 2025, arXiv 2505.23751,
    section 4). Rank zero ranks, all processes start from its choice. Rankings are kept, see
    `prior_cache.cache_folder`.

    Args:
        choice: the most or the least compressible order.
    """

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self._settled: PatchOrder | None = None  # the layer that has its start order

    @classmethod
    def parse(cls, start: Any) -> AutoStart | None:
        """Understand ``"auto"``, which is ``"auto:most"``, and ``"auto:least"``; else None.

        Raises:
            ValueError: for ``"auto:"`` with anything else.

        Example:
            >>> AutoStart.parse("auto").choice, AutoStart.parse("hilbert")
            ('most', None)
        """
        if not isinstance(start, str) or start.partition(":")[0] != "auto":
            return None
        if start not in _CHOICES:
            names = ", ".join(map(repr, _CHOICES))
            raise ValueError(f"Expected argument `start` to be one of {names}, but got {start!r}.")
        return cls(_CHOICES[start])

    def settle(self, trainer: Trainer, layer: PatchOrder) -> None:
        """Set a layer's start order, once, unless a checkpoint did; call it on all processes.

        Raises:
            ValueError: the model has an order of its own; there are no images; scikit-learn is
                not installed.
        """
        if self._settled is layer:
            return  # a second training goes on from what the first one learned
        later = trainer.strategy.restore_checkpoint_after_setup
        if trainer.ckpt_path is None or not (layer.loaded or later):
            if layer.given:
                raise ValueError(
                    'With `start="auto"` the model must not have an order of its own. Build it '
                    "without one, or leave out `start`."
                )
            layer.order = self._choose(trainer, layer.grid_size)
        self._settled = layer

    def _choose(self, trainer: Trainer, grid: Grid) -> str:
        # Not at the top: whoever names an order needs none of our data and models.
        from reorder_lightning.callbacks.training_images import training_images

        found: str | Exception = ""
        with isolate_rng():
            read = training_images(trainer)
            if trainer.is_global_zero:
                try:
                    found = self._rank(read, grid)
                except Exception as error:  # else the other processes would wait for ever
                    found = error
        found = trainer.strategy.broadcast(found)
        if isinstance(found, Exception):
            raise found
        return found

    def _rank(self, read: ReadImages, grid: Grid) -> str:
        from reorder_lightning.prior_cache import rank_orders

        ranking, where = rank_orders(read, grid)
        saved = ranking.saved
        best, *_, worst = saved
        name = best if self.choice == "most" else worst
        doubt = ""
        if not ranking.informative:
            doubt = ", so that this is chosen by chance"
        elif self.choice == "most" and ranking.tied:
            doubt = f"; not told apart from it: {', '.join(ranking.tied)}"
        rank_zero_info(
            f"REOrder: starts from {name}, the {self.choice} compressible of {len(saved)} fixed "
            f"orders on {ranking.images:,} training images of {grid[0]}x{grid[1]} patches. LZMA "
            f"saves {saved[best]:.2f} % ({best}) to {saved[worst]:.2f} % ({worst}), "
            f"{ranking.shuffled:.2f} % on shuffled patches{doubt}. {where}"
        )
        return name
