"""What training runs left in their folders, for a report."""

import csv
import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import yaml

from reorder_lightning.run_config import setting, start_order

__all__ = ["LeftOut", "Run", "find_runs", "read_run"]

Curve: TypeAlias = dict[int, float]
_OF_A_RUN = {"config.yaml", "images.csv", "result.json", "study.json"}
Floats: TypeAlias = npt.NDArray[np.float64]
_TOP1, _ACCEPTED = "val/top1", "reorder/accepted"
_COSTS = ("parameters", "gflops", "seconds_per_epoch", "peak_memory_mb")


@dataclass(frozen=True, eq=False)  # arrays have no truth value
class Run:
    """A finished training.

    Attributes:
        folder: where it was read.
        setting: what another run must share to be comparable: dotted names to values.
        order: start order.
        method: how the order was treated: "fixed", "reorder", or a study's own name.
        policy: arguments of `reorder` but start and seed; None if it was off.
        seed: of the training.
        top1: whether each validation image was classified correctly after the last epoch, ``(n,)``.
        top5: whether its class was among the best five, ``(n,)``.
        costs: ``parameters``, ``gflops`` of one image, ``seconds_per_epoch``, ``peak_memory_mb``,
            where known.
        accepted: whether the learned order replaced the start order; None without a decision.
        accuracy: epoch, from 1, to top-1 in per cent.
        movement: epoch, from 1, to Kendall's tau of the order to the start.
        written: when its result was written, in seconds.
    """

    folder: Path
    setting: dict[str, Any]
    order: str
    method: str
    policy: dict[str, Any] | None
    seed: int
    top1: npt.NDArray[np.bool_]
    top5: npt.NDArray[np.bool_]
    costs: dict[str, float]
    accepted: bool | None
    accuracy: Curve
    movement: Curve
    written: float


class LeftOut(NamedTuple):
    """A folder that is not in a report, and why."""

    folder: Path
    reason: str


def find_runs(folders: Iterable[Path | str]) -> tuple[list[Run], list[LeftOut]]:
    """Read all runs in and below folders; what cannot be used is named, not fatal.

    Args:
        folders: run folders or folders above them.

    Returns:
        Finished runs, and what was left out.
    """
    runs, left_out = [], []
    seen: set[Path] = set()
    for top in map(Path, folders):
        found = list(_run_folders(top))
        if not found:
            left_out.append(LeftOut(top, "no run in it" if top.is_dir() else "no such folder"))
        for folder in found:
            if folder.resolve() in seen:
                continue
            seen.add(folder.resolve())
            try:
                runs.append(read_run(folder))
            except (ValueError, OSError) as error:
                left_out.append(LeftOut(folder, str(error)))
    return runs, left_out


def _run_folders(top: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(top):
        below.sort()
        if _OF_A_RUN & {*files}:
            yield Path(folder)


def read_run(folder: Path) -> Run:
    """Read the folder of a finished run.

    Args:
        folder: with ``config.yaml``, ``images.csv`` and ``result.json``, as `reorder fit` leaves
            them, and where they are ``study.json``, ``metrics.csv`` and ``order/order.csv``.

    Raises:
        FileNotFoundError: it is unfinished or not a run of `reorder fit`.
        ValueError: a file is broken or does not fit the others.
    """
    config = _read_config(folder)
    if not (folder / "result.json").exists():
        raise FileNotFoundError("unfinished: no result.json")
    result = _read_json(folder / "result.json")
    images = _read_images(folder)
    count = len(images["image"])
    if count != result.get("images"):
        raise ValueError(f"broken: {count} images in images.csv, {result.get('images')} in all")
    study = _read_json(folder / "study.json") if (folder / "study.json").exists() else {}
    reorder = config.get("reorder")
    seed = study.get("seed", config.get("seed_everything"))
    if type(seed) is not int:
        raise ValueError(f"without a seed it has no pair: seed_everything is {seed}")
    targets = hashlib.sha256(images["target"].astype("<i8").tobytes()).hexdigest()[:8]
    accuracy, accepted = _read_metrics(folder)
    return Run(
        folder=folder,
        setting={**setting(config), "images": count, "targets": targets},
        order=str(study.get("order", start_order(config))),
        method=str(study.get("method", "reorder" if reorder else "fixed")),
        policy=_policy(reorder) if reorder else None,
        seed=seed,
        top1=images["top1"].astype(bool),
        top5=images["top5"].astype(bool),
        costs={k: float(result[k]) for k in _COSTS if isinstance(result.get(k), int | float)},
        accepted=accepted,
        accuracy=accuracy,
        movement=_read_movement(folder),
        written=(folder / "result.json").stat().st_mtime,
    )


# --------------------------------------------------------------------------- its files


@contextmanager
def _broken(name: str) -> Iterator[None]:
    """Say which file is broken, and how."""
    try:
        yield
    except (ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error).strip().split("\n")[0]
        raise ValueError(f"broken: {name} ({what})") from error


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.yaml"
    if not path.exists():
        raise FileNotFoundError("no config.yaml: not started, or not a run of `reorder fit`")
    with _broken("config.yaml"):
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    parts = ("trainer", "model", "data", "reorder")
    if not isinstance(config, dict) or not all(part in config for part in parts):
        raise FileNotFoundError("config.yaml is not that of a run of `reorder fit`")
    for part in parts:
        if not isinstance(config[part], dict) and (part, config[part]) != ("reorder", None):
            raise ValueError(f"broken: config.yaml ({part} is {config[part]!r})")
    return config


def _read_json(path: Path) -> dict[str, Any]:
    with _broken(path.name):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
    return content


def _read_images(folder: Path) -> dict[str, Floats]:
    """Columns of ``images.csv``, by image."""
    path = folder / "images.csv"
    if not path.exists():
        raise FileNotFoundError("no images.csv: not trained by `reorder fit`, or an old version")
    with _broken("images.csv"):
        head, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
        if len(lines) < 2:
            raise ValueError(f"{len(lines)} images")
        rows = np.loadtxt(lines, delimiter=",", ndmin=2)
        columns = dict(zip(head.split(","), rows[rows[:, 0].argsort()].T, strict=True))
        if not np.array_equal(columns["image"], np.arange(len(lines))):
            raise ValueError("images are missing or doubled")
        for name in ("top1", "top5"):
            if not np.isin(columns[name], (0, 1)).all():
                raise ValueError(f"{name} is not always 0 or 1")
    return columns


def _read_metrics(folder: Path) -> tuple[Curve, bool | None]:
    """Top-1 by epoch, and the policy's decision, over all parts of a resumed run."""
    rows: list[dict[str, str]] = []
    for path in sorted(folder.glob("metrics*.csv"), key=_part):
        with _broken(path.name):
            part = _read_table(path)
            again = min((int(row["step"]) for row in part), default=math.inf)
            rows = [row for row in rows if int(row["step"]) < again] + part
            accuracy = {int(r["epoch"]) + 1: 100 * float(r[_TOP1]) for r in rows if r.get(_TOP1)}
            decisions = [float(r[_ACCEPTED]) for r in rows if r.get(_ACCEPTED)]
    if not rows:
        return {}, None
    return accuracy, bool(decisions[-1]) if decisions else None


def _part(path: Path) -> float:
    """``metrics.1.csv`` is the oldest part, ``metrics.csv`` the last."""
    number = re.fullmatch(r"metrics\.(\d+)\.csv", path.name)
    return int(number[1]) if number else math.inf


def _read_movement(folder: Path) -> Curve:
    with _broken("order/order.csv"):
        rows = _read_table(folder / "order" / "order.csv")
        return {int(row["epoch"]) + 1: float(row["kendall_to_start"]) for row in rows}


def _read_table(path: Path) -> list[dict[str, str]]:
    """Rows of a csv file but a last one that was cut when the training was killed."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if None not in row.values()]


def _policy(reorder: Mapping[str, Any]) -> dict[str, Any]:
    arguments = reorder.get("init_args") or {}
    return {k: v for k, v in arguments.items() if k not in ("start", "seed")}
