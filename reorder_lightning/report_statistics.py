"""Standard errors and the paired test of a report: pure functions of each image's result.

Two things make an accuracy uncertain. The validation images are a sample: other images would give
another accuracy to the same trained model. And a training is a sample too: another seed gives
another model. A test over images alone asks whether two trained models differ on such images. It
says nothing of the methods that made them: two models of the SAME method differ too, and over
enough images always significantly. For the methods, both parts of the noise have to be counted, as
in studies where several readers judge the same medical images (Hillis, Berbaum, Metz, 2008, Recent
developments in the Dorfman-Berbaum-Metz procedure for multireader ROC study analysis).
"""

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import stdtrit

__all__ = ["PairedTest", "bootstrap_errors", "paired_test"]

Floats: TypeAlias = npt.NDArray[np.float64]
_SMALLEST = -50.0  # logarithm of the smallest p; much below it, scipy's stdtrit is wrong
_AT_ONCE = 1_000_000  # draws held in memory


def bootstrap_errors(values: npt.NDArray[Any], resamples: int = 2000, seed: int = 0) -> Floats:
    """Bootstrap standard error over images of the mean of each column.

    Images are drawn with replacement, the same ones for all columns. For plain means this comes to
    ``sqrt(p (1 - p) / n)`` within about 2 %, the bootstrap's own noise at 2,000 resamples.

    Args:
        values: numbers ``(n, C)`` of ``n`` images: 0 or 1 for one training, the mean over seeds for
            several, which keeps an image's results together.
        resamples: of the bootstrap.
        seed: of the bootstrap.

    Returns:
        float64 ``(C,)``, in the unit of the values.

    Example:
        >>> correct = np.arange(400)[:, None] % 2
        >>> bootstrap_errors(correct).round(3)  # sqrt(0.5 * 0.5 / 400) = 0.025
        array([0.025])
    """
    random = np.random.default_rng(seed)
    columns = np.ascontiguousarray(np.asarray(values, dtype=np.float64).T)  # (C, n)
    n = columns.shape[1]
    means = np.empty((resamples, len(columns)))
    for part in np.array_split(means, min(resamples, -(-resamples * n // _AT_ONCE))):
        first_bins = n * np.arange(len(part), dtype=np.int32)[:, None]
        drawn = random.integers(n, size=(len(part), n), dtype=np.int32) + first_bins
        counts = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape)
        # Not `@`: on a busy machine the threads of BLAS wait for each other for minutes.
        part[:] = np.einsum("rn,cn->rc", counts.astype(np.float64), columns) / n
    errors: Floats = means.std(axis=0, ddof=1)
    return errors


@dataclass(frozen=True)
class PairedTest:
    """A difference between two arms on the same images and seeds, in percentage points.

    Attributes:
        difference: mean over images and seeds.
        se: its standard error.
        p: probability of a difference at least this large if there were none, two-sided; 0 below
            1e-21.
        seeds: number of pairs of trainings. With one, `se` and `p` are about these two trained
            models and not about the methods that made them.
        image_se: standard error from the images alone, as for one seed.
    """

    difference: float
    se: float
    p: float
    seeds: int
    image_se: float

    @property
    def by_luck(self) -> bool:
        """Whether the seeds agree far better than the noise of the images allows.

        It happens, most often with two or three seeds, that the differences of the seeds are almost
        the same by chance. Then `se` is too small for once, and a small `p` says little; over many
        tests it is still wrong as often as it should be.
        """
        return self.se < self.image_se / 2


def paired_test(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> PairedTest:
    r"""Test whether one arm is more often right than the other.

    The differences ``d[s, i]`` of seed ``s`` at image ``i`` hold a part of the seed, a part of the
    image (one arm is better at some kinds of images) and a rest. With the variance of the mean
    estimated over seeds, ``V_s = var_s(mean_i d) / S``, over images,
    ``V_i = var_i(mean_s d) / n``, and of the rest, which both of these contain, ``V_r``:

    - one seed: ``se^2 = V_i``, that is ``sd(d) / sqrt(n)``, and a t test of ``n - 1`` degrees of
      freedom. (For 0 and 1 this is McNemar's test, but for terms of order 1 / n.)
    - more: ``se^2 = V_s + max(V_i - V_r, 0)``, the moment estimate for two crossed random factors.
      As the two parts have very different degrees of freedom, ``S - 1`` and ``n - 1``, the critical
      value is the mean of both t distributions' critical values, weighted by the parts: Cochran's
      approximation (1964, Approximate significance levels of the Behrens-Fisher test). At the 5 %
      level it rejects 3 to 6 % of true nulls with three or more seeds and 2 to 6 % with two.
      (Satterthwaite's degrees of freedom, usual here, reject up to 13 % with two, a t test over
      the seeds' means alone up to 28 %, one over images alone up to 78 %.)

    Args:
        one: whether images were classified correctly, 0 or 1, ``(S, n)``.
        other: the same of the other arm: equal seeds and equal images.

    Raises:
        ValueError: the shapes differ or there are less than two images.

    Example:
        >>> correct = np.array([[1, 1, 1, 0, 1, 1]])
        >>> paired_test(correct, np.array([[1, 0, 1, 0, 0, 1]]))
        PairedTest(difference=33.33..., se=21.08..., p=0.17..., seeds=1, image_se=21.08...)
    """
    if one.shape != other.shape or one.ndim != 2 or one.shape[0] < 1 or one.shape[1] < 2:
        raise ValueError(
            "Expected results of both arms for the same seeds and two or more images, but got "
            f"(seeds, images) of {one.shape} and {other.shape}."
        )
    differences = np.asarray(one, dtype=np.float64) - np.asarray(other, dtype=np.float64)
    seeds, images = differences.shape
    mean = float(differences.mean())
    of_seeds, of_images = _variances(differences)
    se = math.sqrt(of_seeds + of_images)
    image_se = math.sqrt(float(differences.mean(axis=0).var(ddof=1)) / images)
    if se == 0:
        return PairedTest(100 * mean, 0.0, 1.0 if mean == 0 else 0.0, seeds, 100 * image_se)
    p = _p_value(abs(mean) / se, of_seeds / se**2, seeds - 1, images - 1)
    return PairedTest(100 * mean, 100 * se, p, seeds, 100 * image_se)


def _variances(differences: Floats) -> tuple[float, float]:
    """Of the mean over all: the part of the seeds with the rest's, and the images' own part."""
    seeds, images = differences.shape
    by_image = differences.mean(axis=0)
    over_images = float(by_image.var(ddof=1)) / images
    if seeds == 1:
        return 0.0, over_images
    by_seed = differences.mean(axis=1)
    over_seeds = float(by_seed.var(ddof=1)) / seeds
    rest = differences - by_seed[:, None] - by_image + by_image.mean()
    over_rest = float((rest**2).sum()) / ((seeds - 1) * (images - 1)) / differences.size
    return over_seeds, max(over_images - over_rest, 0.0)


def _p_value(t: float, seed_share: float, of_seeds: int, of_images: int) -> float:
    """The two-sided level at which Cochran's critical value is `t`."""

    def excess(log_p: float) -> float:
        tail = math.exp(log_p) / 2
        critical = -(1 - seed_share) * float(stdtrit(of_images, tail))
        if seed_share > 0:
            critical -= seed_share * float(stdtrit(of_seeds, tail))
        return critical - t

    return math.exp(brentq(excess, _SMALLEST, 0.0)) if excess(_SMALLEST) > 0 else 0.0
