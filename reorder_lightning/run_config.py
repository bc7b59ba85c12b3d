"""What the config of a run says about comparing it with others."""

from collections.abc import Iterator, Mapping
from typing import Any

Config = Mapping[str, Any]

# What may differ between two runs that are compared: what is compared, repetition, and what does
# not change a result.
_FREE = (
    "ckpt_path",
    "data.init_args.num_workers",
    "data.init_args.seed",
    "model.init_args.order",
    "reorder",
    "seed_everything",
    "trainer.callbacks",
    "trainer.default_root_dir",
    "trainer.enable_autolog_hparams",
    "trainer.enable_checkpointing",
    "trainer.enable_model_summary",
    "trainer.enable_progress_bar",
    "trainer.log_every_n_steps",
    "trainer.logger",
    "trainer.profiler",
)
_AVERAGING = ("EMAWeightAveraging", "StochasticWeightAveraging", "WeightAveraging")


def setting(config: Config) -> dict[str, Any]:
    """What two runs must have in common to be compared fairly: model, data, and schedule.

    All of the config but the patch order, `reorder`, seeds, and what does not change a result, such
    as the logger. Of the callbacks those count that average weights.

    Args:
        config: a run's ``config.yaml``, or what `reorder fit --print_config` prints.

    Returns:
        Dotted names to plain values, without those that are None.

    >>> config = {"seed_everything": 1, "trainer": {"max_epochs": 9, "logger": True}}
    >>> setting(config)
    {'trainer.max_epochs': 9}
    """
    found = {
        name: value
        for name, value in flatten(config)
        if value is not None
        and not any(name == free or name.startswith(f"{free}.") for free in _FREE)
    }
    callbacks = config.get("trainer", {}).get("callbacks") or []
    averaging = [
        c for c in callbacks if isinstance(c, Mapping) and _short(c.get("class_path")) in _AVERAGING
    ]
    return found | ({"trainer.callbacks": averaging} if averaging else {})


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Where two settings differ: ``name: value of one, value of the other``.

    >>> differences({"trainer.max_epochs": 9}, {"trainer.max_epochs": 12})
    ['trainer.max_epochs: 9, 12']
    """
    names = sorted({*one, *other})
    return [f"{n}: {one.get(n)}, {other.get(n)}" for n in names if one.get(n) != other.get(n)]


def start_order(config: Config) -> str:
    """The order that a run starts from; that of `reorder` wins over the model's.

    Args:
        config: as for `setting`.

    Returns:
        The name, without a random order's seed; "custom" for a list; row where none is given.

    >>> start_order({"model": {"init_args": {"order": "random:3"}}, "reorder": None})
    'random'
    """
    reorder = (config.get("reorder") or {}).get("init_args") or {}
    model = (config.get("model") or {}).get("init_args") or {}
    order = reorder.get("start") or model.get("order") or "row"
    if not isinstance(order, str):
        return "custom"
    return "random" if order.startswith("random:") else order


def flatten(config: Config, above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of a nested config; classes by their name without module.

    >>> dict(flatten({"model": {"class_path": "a.Mamba", "init_args": {"lr": 0.1}}}))
    {'model.class_path': 'Mamba', 'model.init_args.lr': 0.1}
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{above}{key}.")
        elif key == "class_path":
            yield f"{above}{key}", _short(value)  # a class may be importable from several places
        else:
            yield f"{above}{key}", value


def _short(class_path: Any) -> str:
    return str(class_path).rpartition(".")[2]
