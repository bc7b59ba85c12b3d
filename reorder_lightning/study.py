"""Studies: the same training for several orders, seeds, and with or without REOrder."""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reorder_lightning.run_config import differences, setting


@dataclass(frozen=True)
class StudyRun:
    """One training of a study.

    Args:
        order: the start order; "random" is another one for each seed.
        method: name of how the order is treated.
        seed: of weights, data order and draws.
        config: the full config of `reorder fit`.
        folder: of the study.
    """

    order: str
    method: str
    seed: int
    config: dict[str, Any]
    folder: Path

    @property
    def name(self) -> str:
        """Name of the run and its folder, also where the order is a file."""
        return re.sub(r"[^\w.-]+", "-", f"{self.order}-{self.method}-{self.seed}")

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder / self.name

    @property
    def config_path(self) -> Path:
        """Where the run's config is written before it starts."""
        return self.folder / "configs" / f"{self.name}.yaml"

    @property
    def checkpoint(self) -> Path:
        """From where an interrupted run goes on."""
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def done(self) -> bool:
        """Whether the run has ended."""
        return (self.path / "result.json").exists()


def plan_runs(
    configs: Mapping[str, Mapping[str, Any]],
    orders: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
) -> list[StudyRun]:
    """The runs of a study, seed by seed, so that each finished seed is a complete comparison.

    Args:
        configs: a full config of `reorder fit` for each method.
        orders: start orders.
        seeds: one run each.
        folder: of the study.

    Raises:
        ValueError: if the methods differ in more than `reorder`, e.g. in the length of the
            training: then a difference could not be put down to the order.
    """
    first, *others = configs
    for other in others:
        found = differences(setting(configs[first]), setting(configs[other]))
        if found:
            raise ValueError(
                f"The methods {first!r} and {other!r} train differently, so that their results "
                "cannot be compared:\n  " + "\n  ".join(found) + "\nMethods may only differ in "
                "`reorder`. Put the rest into `fit`, or make it a study of its own."
            )
    return [
        StudyRun(order, method, seed, _config(base, order, method, seed, folder), folder)
        for seed in seeds
        for order in orders
        for method, base in configs.items()
    ]


def _config(
    base: Mapping[str, Any], order: str, method: str, seed: int, folder: Path
) -> dict[str, Any]:
    config: dict[str, Any] = deepcopy(dict(base))
    arguments = config["model"].setdefault("init_args", {})
    arguments["order"] = f"random:{seed}" if order == "random" else order
    config["seed_everything"] = seed
    for part in ("data", "reorder"):  # a DataModule of others may have no seed
        if "seed" in ((config.get(part) or {}).get("init_args") or {}):
            config[part]["init_args"]["seed"] = seed
    run = StudyRun(order, method, seed, {}, folder)
    config["trainer"]["logger"] = _loggers(config["trainer"].get("logger"), run)
    return config


def _loggers(given: Any, run: StudyRun) -> list[dict[str, Any]]:
    """A CSV logger into the run's folder, and what other loggers were given."""
    ours = {"save_dir": str(run.folder.parent), "name": run.folder.name, "version": run.name}
    listed = given if isinstance(given, list) else [given]
    others = [
        one
        for one in listed
        if isinstance(one, Mapping) and not str(one.get("class_path")).endswith("CSVLogger")
    ]
    csv = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": ours}
    return [csv, *(dict(one) for one in others)]
