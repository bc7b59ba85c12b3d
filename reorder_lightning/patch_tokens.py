"""Tokenizers: from images to one integer for each patch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reorder_lightning.models.backbone import patch_grid

_PATCHES_PER_CODE = 25  # that k-means learns from; twice as many ranked UCMerced alike


class Tokenizer(Protocol):
    """What `reorder prior` needs of a VQ model: wrap yours in a class like this one, annotated.

    Attributes:
        num_codes: number of different tokens.

    Example:
        >>> class Brightness:
        ...     num_codes = 256
        ...
        ...     def encode(self, images: Tensor) -> Tensor:
        ...         return torch.nn.functional.avg_pool2d(images.mean(1), 8).mul(255).long()
    """

    num_codes: int

    def encode(self, images: Tensor) -> Tensor:
        """Images float32 ``(B, 3, height, width)`` in [0, 1] to integers ``(B, H, W)``."""
        ...


class KMeansTokenizer(Tokenizer):
    """Tokens from the data set's own patches: the nearest of ``num_codes`` mean patches.

    Mini-batch k-means (Sculley, "Web-scale k-means clustering", WWW 2010) by scikit-learn, over the
    raw pixels of each patch. It needs no download and no training on other data.

    Args:
        patch_size: side of a patch in pixels, or its height and width. None: the largest of 16, 8,
            4, 2, 1 that gives 8 or more rows and columns.
        num_codes: number of clusters.
        seed: of the choice of patches and of k-means.

    Raises:
        ValueError: scikit-learn is not installed.

    Example:
        >>> images = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        >>> tokenizer = KMeansTokenizer(num_codes=5).fit([images])
        >>> tokenizer.patch_size, tokenizer.encode(images).shape
        (2, torch.Size([8, 8, 8]))
    """

    def __init__(
        self,
        patch_size: int | tuple[int, int] | None = None,
        num_codes: int = 1024,
        seed: int = 0,
    ) -> None:
        try:
            from sklearn.cluster import MiniBatchKMeans
        except ImportError as error:
            raise ValueError(
                'K-means tokens, the built-in ones of `reorder prior` and of `start="auto"`, need '
                "scikit-learn: pip install 'reorder-lightning[prior]'."
            ) from error
        if num_codes < 2:
            raise ValueError(f"Expected `num_codes` to be 2 or more, but got {num_codes}.")
        self.patch_size = patch_size
        self.num_codes = num_codes
        self.seed = seed
        self._kmeans: Any = MiniBatchKMeans(
            num_codes, batch_size=4096, n_init=1, random_state=seed, compute_labels=False
        )

    def fit(self, batches: Iterable[Tensor]) -> KMeansTokenizer:
        """Find the mean patches.

        Args:
            batches: images, float32 ``(B, 3, height, width)`` in [0, 1].

        Returns:
            Itself.

        Raises:
            ValueError: there are fewer patches than codes.
        """
        random = np.random.default_rng(self.seed)
        kept = np.empty((0, 0), np.float32)
        keys = np.empty(0)
        for images in batches:
            # A uniform sample of unknown many patches: those with the smallest random keys.
            patches = _patches(images, self._size_for(images))[0]
            keys = np.concatenate([keys, random.random(len(patches))])
            kept = np.concatenate([kept, patches]) if len(kept) else patches
            few = np.argsort(keys)[: _PATCHES_PER_CODE * self.num_codes]
            keys, kept = keys[few], kept[few]
        if len(kept) < self.num_codes:
            raise ValueError(
                f"The images have {len(kept)} patches, too few for {self.num_codes} codes. Use "
                "more images or fewer codes."
            )
        self._kmeans.fit(kept)
        return self

    def encode(self, images: Tensor) -> Tensor:
        """Images float32 ``(B, 3, height, width)`` in [0, 1] to int64 ``(B, H, W)``."""
        patches, grid = _patches(images, self._size_for(images))
        tokens = torch.from_numpy(self._kmeans.predict(patches).astype(np.int64))
        return tokens.view(len(images), *grid)

    def _size_for(self, images: Tensor) -> int | tuple[int, int]:
        if self.patch_size is None:
            self.patch_size = default_patch_size(images.shape[-2], images.shape[-1])
        return self.patch_size


def default_patch_size(height: int, width: int) -> int:
    """The largest of 16, 8, 4, 2, 1 pixels that gives 8 or more rows and columns of patches.

    >>> default_patch_size(224, 224), default_patch_size(64, 64), default_patch_size(32, 32)
    (16, 8, 4)
    """
    fits = (
        p for p in (16, 8, 4, 2) if height % p == width % p == 0 and min(height, width) // p > 7
    )
    return next(fits, 1)


def tokenize(images: Callable[[], Iterable[Tensor]], tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """Tokens ``(B, H, W)`` of all batches of images; a `KMeansTokenizer` is fitted to them first.

    Args:
        images: gives the batches, each time that it is called.
        tokenizer: images to tokens.

    Raises:
        ValueError: there are no images, or the tokenizer gives anything but integers (B, H, W).
    """
    if isinstance(tokenizer, KMeansTokenizer):
        tokenizer.fit(images())
    made = []
    with torch.inference_mode():
        for batch in images():
            tokens = tokenizer.encode(batch).cpu()
            if tokens.ndim != 3 or len(tokens) != len(batch) or tokens.is_floating_point():
                raise ValueError(
                    f"Expected {type(tokenizer).__name__} to give integers ({len(batch)}, H, W), "
                    f"but got {tokens.dtype} {tuple(tokens.shape)}."
                )
            made.append(tokens.long())
    if not made:
        raise ValueError("There are no images to tokenize.")
    return torch.cat(made).numpy()


def _patches(
    images: Tensor, patch_size: int | tuple[int, int]
) -> tuple[npt.NDArray[np.float32], tuple[int, int]]:
    """Pixels of all patches, float32 ``(B * H * W, 3 * height * width)``, and the grid."""
    sides = (patch_size, patch_size) if isinstance(patch_size, int) else patch_size
    grid = patch_grid((images.shape[-2], images.shape[-1]), sides)
    columns = torch.nn.functional.unfold(images.float(), sides, stride=sides)  # (B, C * h * w, N)
    flat = columns.transpose(1, 2).reshape(-1, columns.shape[1])
    return np.ascontiguousarray(flat.numpy()), grid
