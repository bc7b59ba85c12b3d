"""CIFAR-100-C: CIFAR-100's test images, corrupted (Hendrycks and Dietterich, ICLR 2019)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reorder_lightning.datamodules.base import Split, write_csv
from reorder_lightning.datamodules.cifar import CIFAR100, SIDE, read_npy
from reorder_lightning.datamodules.cifar_classes import COARSE_OF_FINE
from reorder_lightning.datamodules.images import build_transform
from reorder_lightning.datamodules.loader import ImageSource
from reorder_lightning.datamodules.sampling import BoolArray, IntArray
from reorder_lightning.datamodules.sources import TensorImages

MAIN = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
SEVERITIES = 5


class CIFAR100C(CIFAR100):
    """CIFAR-100 whose test images are the clean ones and all their corrupted copies.

    `reorder predict` with it writes `corruptions.csv`: accuracy by corruption and severity,
    their mean, and the drop relative to the clean images. `test` gives the accuracy over the
    corrupted images alone. Training and validation are those of `CIFAR100`.

    Args:
        root: Folder of CIFAR-100, see `CIFAR100`.
        corrupted: Folder of CIFAR-100-C: `<corruption>.npy`, uint8 `(50000, 32, 32, 3)`, five
            severities one after the other, and `labels.npy`.
        corruptions: "main", the 15 of the benchmark's mean, or "all" 19.
        **options: As for `CIFAR100`.

    Raises:
        FileNotFoundError: If a file is missing (at `setup`).
        ValueError: If a file is damaged or of another shape.

    Example:
        >>> CIFAR100C("/data/cifar100", "/data/CIFAR-100-C").num_classes
        100
    """

    def __init__(
        self,
        root: str,
        corrupted: str,
        corruptions: Literal["main", "all"] = "main",
        **options: Any,
    ) -> None:
        if corruptions not in ("main", "all"):
            raise ValueError(
                f"Expected argument `corruptions` to be 'main' or 'all' but got {corruptions!r}."
            )
        super().__init__(root, **options)
        self.corrupted = Path(corrupted).expanduser()
        self.corruptions = MAIN if corruptions == "main" else MAIN + EXTRA
        self._truth: dict[str, int] = {}

    def source(self, split: Split) -> ImageSource:
        """Opens the corrupted images for "test", and the clean ones too for "predict"."""
        if split in ("train", "val"):
            return super().source(split)
        fine = read_npy(self.corrupted / "labels.npy").astype(np.int64)
        arrays = [self._array(name, len(fine)) for name in self.corruptions]
        targets = fine if self.labels == "fine" else COARSE_OF_FINE[fine]
        clean = super().source("test") if split == "predict" else None
        assert clean is None or isinstance(clean, TensorImages)
        return _Corrupted(self.corruptions, arrays, targets, clean, self.image_size)

    def _array(self, name: str, length: int) -> npt.NDArray[np.uint8]:
        path = self.corrupted / f"{name}.npy"
        array = read_npy(path)
        if array.dtype != np.uint8 or array.shape != (length, SIDE, SIDE, 3):
            raise ValueError(
                f"Expected uint8 ({length}, {SIDE}, {SIDE}, 3) in {path} but found {array.dtype}"
                f" {array.shape}."
            )
        return array

    def write_tables(self, folder: Path, names: Sequence[str], probabilities: Tensor) -> list[Path]:
        """Writes `corruptions.csv`, see `corruption_table`."""
        source = self.open("predict")
        if not isinstance(source, _Corrupted):
            return []
        hits = probabilities.argmax(1).cpu().numpy() == source.targets_of(names)
        return [write_csv(folder / "corruptions.csv", corruption_table(names, hits))]


def corruption_table(names: Sequence[str], hits: BoolArray) -> list[dict[str, Any]]:
    """Accuracy by corruption and severity.

    Args:
        names: `<corruption>/<severity>/<file>`, or `clean/0/<file>`.
        hits: Whether each prediction is right, bool `(N,)`.

    Returns:
        One row for the clean images, one for each corruption, one for the mean of the benchmark's
        15. `drop` is `(clean - mean) / clean`, the share of the clean accuracy that is lost.

    Example:
        >>> rows = corruption_table(["clean/0/a", "fog/1/a", "fog/2/a"], np.array([1, 1, 0]) > 0)
        >>> rows[1]["mean"], rows[1]["drop"]
        (0.5, 0.5)
    """
    cells: dict[tuple[str, str], list[bool]] = {}
    for name, hit in zip(names, hits.tolist(), strict=True):
        corruption, severity, _ = name.split("/", 2)
        cells.setdefault((corruption, severity), []).append(hit)
    accuracy = {cell: float(np.mean(values)) for cell, values in cells.items()}
    clean = accuracy.pop(("clean", "0"), float("nan"))
    rows: list[dict[str, Any]] = [{"corruption": "clean", "mean": clean, "drop": 0.0}]
    for corruption in dict.fromkeys(c for c, _ in accuracy):
        row = {s: a for (c, s), a in sorted(accuracy.items()) if c == corruption}
        rows.append(_with_mean(corruption, row, clean))
    severities = sorted({s for _, s in accuracy})
    main = [row for row in rows[1:] if row["corruption"] in MAIN]
    mean = {s: float(np.mean([row[s] for row in main])) for s in severities}
    return [*rows, _with_mean("mean", mean, clean)]


def _with_mean(name: str, by_severity: dict[str, float], clean: float) -> dict[str, Any]:
    mean = float(np.mean(list(by_severity.values())))
    drop = (clean - mean) / clean if clean else float("nan")
    return {"corruption": name, "mean": mean, "drop": drop, **by_severity}


class _Corrupted:
    """The clean images, if given, and then each corruption, without a copy in memory."""

    def __init__(
        self,
        corruptions: Sequence[str],
        arrays: list[npt.NDArray[np.uint8]],
        targets: IntArray,
        clean: TensorImages | None,
        image_size: tuple[int, int],
    ) -> None:
        self.corruptions = corruptions
        self.arrays = arrays
        self.targets = targets
        self.clean = clean
        self._eval = build_transform("none", image_size, crop_ratio=1.0, train=False)

    @property
    def _clean_count(self) -> int:
        return 0 if self.clean is None else len(self.clean)

    def __len__(self) -> int:
        return self._clean_count + len(self.arrays) * len(self.targets)

    def name(self, index: int) -> str:
        """`<corruption>/<severity>/<row>`, or `clean/0/<row>`."""
        index -= self._clean_count
        if index < 0:
            return f"clean/0/{index + self._clean_count}"
        which, row = divmod(index, len(self.targets))
        each = len(self.targets) // SEVERITIES
        return f"{self.corruptions[which]}/{row // each + 1}/{row % each}"

    def targets_of(self, names: Sequence[str]) -> IntArray:
        """Class indices by name."""
        each = len(self.targets) // SEVERITIES
        out = np.empty(len(names), dtype=np.int64)
        for i, name in enumerate(names):
            corruption, severity, row = name.split("/")
            if corruption == "clean":
                assert self.clean is not None
                out[i] = self.clean.targets[int(row)]
            else:
                out[i] = self.targets[(int(severity) - 1) * each + int(row)]
        return out

    def batch(self, indices: IntArray, epoch: int | None) -> tuple[Tensor, Tensor, list[str]]:
        """See `ImageSource.batch`."""
        is_clean = indices < self._clean_count
        parts = []
        if is_clean.any():
            assert self.clean is not None
            parts.append(self.clean.batch(indices[is_clean], None)[:2])
        if not is_clean.all():
            which, rows = np.divmod(indices[~is_clean] - self._clean_count, len(self.targets))
            pixels = np.stack([self.arrays[w][r] for w, r in zip(which, rows, strict=True)])
            images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
            images = torch.stack([self._eval(image) for image in images])
            parts.append((images, torch.from_numpy(self.targets[rows])))
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]), []
