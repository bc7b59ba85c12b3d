"""`reorder prior`: rank the fixed orders by how well their patch sequences compress."""

import json
from collections.abc import Iterator
from pathlib import Path

from jsonargparse import lazy_instance  # type: ignore[attr-defined]
from lightning import LightningDataModule
from rich import print as rich_print
from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch import Tensor

import reorder_lightning.datamodules
import reorder_lightning.vq_tokens  # noqa: F401  # so that its classes are known by name
from reorder_lightning.datamodules.base import write_csv
from reorder_lightning.datamodules.subsets import sample_batches
from reorder_lightning.order_figures import to_png
from reorder_lightning.order_files import save_order
from reorder_lightning.orders import get_order
from reorder_lightning.patch_tokens import KMeansTokenizer, Tokenizer, tokenize
from reorder_lightning.prior import (
    MEASURES,
    Choice,
    OrderSaving,
    Prior,
    Scope,
    order_prior,
)
from reorder_lightning.prior_figures import draw_prior

_KMEANS = lazy_instance(KMeansTokenizer)  # so that --tokenizer.num_codes changes it


def run(
    data: LightningDataModule,
    tokenizer: Tokenizer = _KMEANS,
    images: int | None = 2000,
    by: Scope = "image",
    choose: Choice = "most",
    output: Path = Path("prior"),
    seed: int = 0,
) -> None:
    """Rank the fixed orders by how many per cent LZMA saves on their sequences of patch tokens.

    Writes prior.csv, prior.json, prior.png and order.json, the chosen order, with which a training
    starts by `--reorder.start prior/order.json` or `--model.order prior/order.json`.

    Args:
        data: the DataModule, e.g. UCMerced; its training images are read.
        tokenizer: k-means over the patches (KMeansTokenizer); a pretrained VQ model
            (TransformersVQ or DiffusersVQ, with --tokenizer.model NAME_OR_FOLDER); or a class of
            yours by its import path, see `reorder_lightning.patch_tokens.Tokenizer`.
        images: how many, chosen at random; null for all.
        by: rank by the sequence of each image alone, or by all images in one stream.
        choose: write the most or the least compressible order as order.json.
        output: folder for the files.
        seed: of the shuffled control and the bootstrap.

    Raises:
        ValueError: images that do not divide into patches, or a tokenizer that gives none.
        FileNotFoundError: there is no data.
    """

    def batches() -> Iterator[Tensor]:
        for pixels, _ in sample_batches(data, "train", images):
            yield pixels if pixels.is_floating_point() else pixels.float() / 255

    tokens = tokenize(batches, tokenizer)
    prior = order_prior(tokens, tokenizer.num_codes, by=by, seed=seed)
    what = f"{type(data).__name__}: {_what(prior)}"
    rich_print(_table(prior, what))
    for line in _notes(prior, choose):
        print(line)
    _write(prior, choose, output, what)
    print(f"files: {output}/prior.csv, prior.json, prior.png, order.json ({prior.choose(choose)})")
    print(f"start a training from it: --reorder.start {output}/order.json")


def _what(prior: Prior) -> str:
    height, width = prior.grid
    return f"{prior.images:,} images of {height}x{width} tokens, {prior.num_codes:,} codes"


def _table(prior: Prior, what: str) -> Table:
    title = f"% saved by raw LZMA2, {what}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    table.add_column("order", style="bold cyan", no_wrap=True)
    table.add_column(f"score\n{prior.by}", justify="right", no_wrap=True)
    table.add_column("behind the best\n(95 % interval)", justify="right", no_wrap=True)
    for measure in MEASURES:
        gram, scope = measure.split("_")
        table.add_column(f"{gram[:-4]}\n{scope}", justify="right", no_wrap=True)
    for row in (*prior.orders, prior.control):
        saved = [f"{row.saved[measure].value:.2f}" for measure in MEASURES]
        half = (row.score.high - row.score.low) / 2
        behind = "{:.2f} ({:.2f}, {:.2f})".format(*row.behind) if row != prior.orders[0] else ""
        style = "dim" if row is prior.control else None
        table.add_row(row.order, f"{row.score.value:.2f} ±{half:.2f}", behind, *saved, style=style)
    return table


def _notes(prior: Prior, choose: Choice) -> Iterator[str]:
    widths = prior.symbol_bytes
    yield (
        f"Symbols of {widths['unigram']} bytes (unigram) and {widths['bigram']} bytes (bigram); "
        "the score is their mean over images or the corpus, ± half of its 95 % interval."
    )
    if prior.tied:
        best = prior.orders[0].order
        yield f"Not told apart from {best} by these images: {', '.join(prior.tied)}."
    if not prior.informative:
        yield (
            "No order saves more or less than shuffled patches: these tokens say nothing about "
            f"orders, and {prior.choose(choose)} is chosen by chance."
        )


def _write(prior: Prior, choose: Choice, folder: Path, what: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / "prior.csv", [_row(row) for row in (*prior.orders, prior.control)])
    content = prior.as_dict() | {"choose": choose, "chosen": prior.choose(choose), "data": what}
    (folder / "prior.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (folder / "prior.png").write_bytes(to_png(draw_prior(prior, what)))
    name = prior.choose(choose)
    source = f"reorder prior, {choose} compressible ({name}), {what}"
    save_order(folder / "order.json", get_order(name, *prior.grid), prior.grid, source)


def _row(row: OrderSaving) -> dict[str, float | str]:
    """One line of the csv: every number with its interval."""
    named = {"score": row.score, "behind": row.behind, "over_shuffled": row.over_shuffled}
    cells: dict[str, float | str] = {"order": row.order}
    for name, estimate in (named | row.saved).items():
        cells |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return cells
