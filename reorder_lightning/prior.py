"""The order prior: how well the patch sequence of each order compresses.

REOrder's first stage (Kutscher et al., 2025, arXiv 2505.23751, section 4) ranks fixed scans by how
many per cent LZMA saves on the discrete tokens of the patches, read in the order of the scan. What
exactly is compressed here:

- unigrams: the ``N`` tokens of an image in reading order; bigrams: the ``N - 1`` pairs of
  neighbours, never across two images, each pair being one of ``num_codes ** 2`` scattered numbers
  (else, with 256 codes, LZMA would find the byte that two pairs share rather than repeated pairs);
- each symbol as one little-endian unsigned integer of the smallest width that holds them all (1,024
  codes: 2 bytes a unigram, 4 a bigram). Unused high bits count as saved, for all orders alike,
  so compare orders with each other and with the shuffled control, not with zero;
- by LZMA2 without a container (`lzma.FORMAT_RAW`): the header and checksum of one would cost more
  than 64 short tokens save. Context bits are set to the symbol width, the dictionary to the length;
- once for each image alone, and once for all images in one stream.

LZMA sees repetition, not smoothness: a picture whose rows are all the same compresses along its
columns (one period, repeated) as well as along its rows.
"""

import lzma
import math
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from reorder_lightning.order_files import Grid, check_order, patch_count
from reorder_lightning.orders import ORDERS

__all__ = [
    "CONTROL",
    "MEASURES",
    "Choice",
    "Estimate",
    "OrderSaving",
    "Prior",
    "Scope",
    "compress",
    "decompress",
    "order_prior",
    "symbols",
]

Floats: TypeAlias = npt.NDArray[np.float64]
Tokens: TypeAlias = npt.NDArray[np.integer[Any]]
Symbols: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
Gram = Literal["unigram", "bigram"]
Scope = Literal["image", "corpus"]
Choice = Literal["most", "least"]

CONTROL = "(shuffled)"
"""Name of the control: the patches of each image in a random order of its own."""

_GRAMS: tuple[Gram, Gram] = ("unigram", "bigram")
_SCOPES: tuple[Scope, Scope] = ("image", "corpus")
MEASURES = tuple(f"{gram}_{scope}" for scope in _SCOPES for gram in _GRAMS)
"""The four numbers for each order: ``unigram_image``, ``bigram_image``, ..."""

_GROUPS = 32  # parts of the corpus, whose spread gives its interval


# --------------------------------------------------------------------------- what is compressed


def symbols(tokens: Tokens, num_codes: int, gram: Gram) -> Symbols:
    """Unigram or bigram symbols of token sequences.

    Args:
        tokens: integers ``(B, N)`` in ``0 .. K - 1``, in reading order.
        num_codes: number of different tokens ``K``.
        gram: ``"unigram"``: the tokens; ``"bigram"``: ``(a * K + b) * m mod K ** 2`` for every pair
            of neighbours ``(a, b)``; ``m`` shares no factor with ``K``, so pairs keep apart.

    Returns:
        Little-endian unsigned integers ``(B, N)`` or ``(B, N - 1)``, of the smallest width that
        holds ``K - 1`` or ``K ** 2 - 1``.

    Example:
        >>> symbols(np.array([[7, 7, 8, 7, 7]]), 300, "unigram")
        array([[7, 7, 8, 7, 7]], dtype=uint16)
        >>> symbols(np.array([[7, 7, 8, 7, 7]]), 300, "bigram")
        array([[ 9233, 64852, 44933,  9233]], dtype=uint32)
    """
    wide = tokens.astype(np.uint64)
    count = num_codes
    if gram == "bigram":
        count = num_codes**2
        pairs = wide[:, :-1] * np.uint64(num_codes) + wide[:, 1:]
        wide = pairs * np.uint64(_multiplier(num_codes)) % np.uint64(count)
    return np.ascontiguousarray(wide.astype(np.min_scalar_type(count - 1).newbyteorder("<")))


def _multiplier(num_codes: int) -> int:
    """A number without a common factor, near the golden ratio of all pairs; fits 64 bits."""
    pairs = num_codes**2
    near = min(int(0.618 * pairs), (2**64 - 1) // pairs)
    return next(m for m in range(near, 0, -1) if math.gcd(m, num_codes) == 1)


def compress(values: Symbols) -> bytes:
    """Raw LZMA2 of symbols, without a container.

    Example:
        >>> len(compress(np.zeros(64, dtype="<u2")))
        14
    """
    return lzma.compress(values.tobytes(), lzma.FORMAT_RAW, filters=_filters(values))


def decompress(content: bytes, like: Symbols) -> Symbols:
    """The inverse of :func:`compress`.

    Args:
        content: what it gave.
        like: an array of the same shape and dtype, whose values are not read.
    """
    raw = lzma.decompress(content, lzma.FORMAT_RAW, filters=_filters(like))
    return np.frombuffer(raw, like.dtype).reshape(like.shape)


def _filters(values: Symbols) -> list[dict[str, int]]:
    """LZMA2 set to symbols of this width; a larger dictionary than the data would cost time."""
    alignment = values.itemsize.bit_length() - 1
    literal_context = min(3, 4 - alignment)  # liblzma: context and position bits are at most 4
    dictionary = 1 << max(12, (values.nbytes - 1).bit_length())
    return [
        {
            "id": lzma.FILTER_LZMA2,
            "preset": 6,
            "dict_size": min(dictionary, 1 << 26),
            "lc": literal_context,
            "lp": alignment,
            "pb": alignment,
        }
    ]


# --------------------------------------------------------------------------- results


class Estimate(NamedTuple):
    """A number with its 95 % bootstrap interval, in per cent or percentage points."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class OrderSaving:
    """What LZMA saves on the sequences of one order.

    Attributes:
        order: its name.
        score: mean of unigram and bigram % saved, over images or the corpus as asked for.
        behind: the best order's score minus this one's, on the same resampled images.
        over_shuffled: this order's score minus the control's, on the same resampled images.
        saved: % saved for each of `MEASURES`.
        gained: % saved minus the control's, for each of `MEASURES`.
    """

    order: str
    score: Estimate
    behind: Estimate
    over_shuffled: Estimate
    saved: dict[str, Estimate]
    gained: dict[str, Estimate]


@dataclass(frozen=True)
class Prior:
    """Orders ranked by how well their sequences compress.

    Attributes:
        orders: the most compressible first.
        control: the same patches, shuffled.
        by: the scope that the score is for.
        grid: rows and columns of patches.
        num_codes: number of different tokens.
        images: number of images.
        symbol_bytes: width of a unigram and of a bigram symbol.
    """

    orders: tuple[OrderSaving, ...]
    control: OrderSaving
    by: Scope
    grid: Grid
    num_codes: int
    images: int
    symbol_bytes: dict[str, int]

    def choose(self, which: Choice = "most") -> str:
        """Name of the most or the least compressible order; ``random`` is never chosen.

        Raises:
            ValueError: ``which`` is neither; there is no other order than random ones.
        """
        if which not in ("most", "least"):
            raise ValueError(f"Expected `which` to be 'most' or 'least', but got {which!r}.")
        names = [row.order for row in self.orders if row.order.split(":")[0] != "random"]
        if not names:
            raise ValueError("There is no order to choose from but random ones.")
        return names[0] if which == "most" else names[-1]

    @property
    def tied(self) -> list[str]:
        """Orders that these images do not tell apart from the best one, at 95 %."""
        return [row.order for row in self.orders[1:] if row.behind.low <= 0]

    @property
    def informative(self) -> bool:
        """Whether any order saves more or less than shuffled patches, at 95 %."""
        return any(not e.low <= 0 <= e.high for e in (row.over_shuffled for row in self.orders))

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return asdict(self)


# --------------------------------------------------------------------------- the measurement


def order_prior(
    tokens: Tokens,
    num_codes: int,
    orders: Mapping[str, Tensor] | None = None,
    *,
    by: Scope = "image",
    resamples: int = 1000,
    seed: int = 0,
) -> Prior:
    """Rank orders by the compressibility of the token sequences that they make.

    ``saved = 100 * (1 - compressed / raw)``, in per cent, of the bytes of the symbols. The interval
    of ``*_image`` is the percentile bootstrap over images. Images drawn twice into one stream would
    compress to nothing, so the corpus is not resampled: it is also compressed in up to 32 groups of
    random images, and its interval is the bootstrap over these groups, moved to the value of the
    whole. All orders get the same resamples, so differences are paired.

    Args:
        tokens: integers ``(B, H, W)`` in ``0 .. num_codes - 1``, one for each patch of an image.
        num_codes: number of different tokens.
        orders: name to int64 ``(H * W,)``; by default all fixed orders.
        by: what the score is for: ``"image"`` or ``"corpus"``.
        resamples: of the bootstrap.
        seed: of the shuffled control, the groups and the resamples.

    Raises:
        ValueError: less than two images or patches; a token out of range; an order of another grid.

    Example:
        >>> patterns = np.arange(12).reshape(2, 6)  # a picture's rows are of two kinds
        >>> pictures = patterns[np.random.default_rng(0).integers(2, size=(9, 6))]
        >>> order_prior(pictures, 12).choose("most")
        'row'
    """
    grid = _check(tokens, num_codes, by)
    height, width = grid
    if orders is None:
        orders = {name: make(height, width) for name, make in ORDERS.items()}
    checked = {n: check_order(o, height * width, f"Order {n}").numpy() for n, o in orders.items()}
    random = np.random.default_rng(seed)
    flat = random.permutation(tokens.reshape(len(tokens), -1))  # data sets come sorted by class
    sequences = [flat[:, order] for order in checked.values()] + [random.permuted(flat, axis=1)]
    draws = _resamples(len(flat), resamples, seed)
    group_draws = _resamples(min(_GROUPS, len(flat)), resamples, seed)

    values: dict[str, Floats] = {}  # (O,), the last one being the control's
    spread: dict[str, Floats] = {}  # (resamples, O), deviations from the value
    for gram in _GRAMS:
        made = [symbols(sequence, num_codes, gram) for sequence in sequences]
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # liblzma runs without the GIL
            images = np.stack(list(pool.map(_saved_by_image, made)))
            groups = np.stack(list(pool.map(_saved_by_group, made)))
            values[f"{gram}_corpus"] = np.array(list(pool.map(_saved, made)))
        values[f"{gram}_image"] = images.mean(1)
        spread[f"{gram}_image"] = draws @ images.T - images.mean(1)
        spread[f"{gram}_corpus"] = group_draws @ groups.T - groups.mean(1)
    return _ranked(
        [*checked, CONTROL],
        values,
        spread,
        by,
        grid,
        num_codes,
        len(flat),
    )


def _check(tokens: Tokens, num_codes: int, by: Scope) -> Grid:
    if by not in _SCOPES:
        raise ValueError(f"Expected `by` to be 'image' or 'corpus', but got {by!r}.")
    if tokens.ndim != 3 or not np.issubdtype(tokens.dtype, np.integer):
        raise ValueError(
            f"Expected tokens to be integers (images, rows, columns), but got {tokens.dtype} "
            f"{tuple(tokens.shape)}."
        )
    grid = (int(tokens.shape[1]), int(tokens.shape[2]))
    if len(tokens) < 2 or patch_count(*grid) < 2:
        raise ValueError(
            f"Expected two or more images of two or more patches, but got {len(tokens)} of "
            f"{grid[0]}x{grid[1]}."
        )
    if tokens.min() < 0 or tokens.max() >= num_codes:
        raise ValueError(
            f"Expected tokens in 0..{num_codes - 1}, as `num_codes` is {num_codes}, but they go "
            f"from {tokens.min()} to {tokens.max()}."
        )
    return grid


def _resamples(count: int, resamples: int, seed: int) -> Floats:
    """Weights ``(resamples, count)`` of a bootstrap: how often each is drawn, over ``count``."""
    random = np.random.default_rng([seed, count])
    return random.multinomial(count, np.full(count, 1 / count), resamples) / count


def _saved(values: Symbols) -> float:
    return 100.0 * (1 - len(compress(values)) / values.nbytes)


def _saved_by_image(values: Symbols) -> Floats:
    return np.array([_saved(sequence) for sequence in values])


def _saved_by_group(values: Symbols) -> Floats:
    return np.array([_saved(g) for g in np.array_split(values, min(_GROUPS, len(values)))])


def _ranked(
    names: list[str],
    values: dict[str, Floats],
    spread: dict[str, Floats],
    by: Scope,
    grid: Grid,
    num_codes: int,
    images: int,
) -> Prior:
    value = (values[f"unigram_{by}"] + values[f"bigram_{by}"]) / 2
    around = (spread[f"unigram_{by}"] + spread[f"bigram_{by}"]) / 2
    ranking = np.argsort(-value[:-1], kind="stable")
    best = ranking[0]

    def row(i: int) -> OrderSaving:
        return OrderSaving(
            order=names[i],
            score=_estimate(value[i], around[:, i]),
            behind=_estimate(value[best] - value[i], around[:, best] - around[:, i]),
            over_shuffled=_estimate(value[i] - value[-1], around[:, i] - around[:, -1]),
            saved={m: _estimate(values[m][i], spread[m][:, i]) for m in MEASURES},
            gained={
                m: _estimate(values[m][i] - values[m][-1], spread[m][:, i] - spread[m][:, -1])
                for m in MEASURES
            },
        )

    widths: dict[str, int] = {
        gram: symbols(np.zeros((1, 2), dtype=np.int64), num_codes, gram).itemsize for gram in _GRAMS
    }
    rows = tuple(row(int(i)) for i in ranking)
    return Prior(rows, row(len(names) - 1), by, grid, num_codes, images, widths)


def _estimate(value: float, deviations: Floats) -> Estimate:
    low, high = value + np.quantile(deviations, (0.025, 0.975))
    return Estimate(float(value), float(low), float(high))
