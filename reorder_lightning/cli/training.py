"""The Trainer's verbs: fit, validate, test, predict."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from pydoc import locate
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_warn

# Imported for their names: a class that is known can be given on the command line by its name.
import reorder_lightning.datamodules
import reorder_lightning.models  # noqa: F401
from reorder_lightning.callbacks import OrderMonitor, PredictionWriter, REOrder, ResultWriter
from reorder_lightning.cli.checkpoint import SameModel, check_same, saved_arguments
from reorder_lightning.cli.slurm import task_mismatch
from reorder_lightning.cli.summary import print_summary
from reorder_lightning.datamodules.tables import PredictionTables
from reorder_lightning.models import ImageClassifier
from reorder_lightning.run_folder import keep_metrics, run_folder

_FROM_DATA = ("num_classes", "image_size")


class SaveConfig(SaveConfigCallback):
    """Writes a training's ``config.yaml`` into the run's folder.

    Lightning's own refuses to run twice in one folder, saves evaluations over the training's
    config, and for loggers such as W&B saves outside of the run's folder.
    """

    def __init__(self, parser: LightningArgumentParser, config: Namespace) -> None:
        super().__init__(parser, config, save_to_log_dir=False)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Save, if this is a training."""
        if stage == "fit":
            self.folder = run_folder(trainer)
            super().setup(trainer, pl_module, stage)

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called on rank zero."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = str(self.folder / self.config_filename)
        self.parser.save(self.config, path, skip_none=False, overwrite=True, multifile=False)


class TrainingCLI(LightningCLI):
    """LightningCLI with any model and DataModule, and a group of its own for `REOrder`.

    Args:
        argv: verb and arguments.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        # Lightning calls what jsonargparse and torch have deprecated; users cannot change that.
        os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`")
        super().__init__(
            save_config_callback=SaveConfig,
            seed_everything_default=0,
            auto_configure_optimizers=False,  # models bring their own
            parser_kwargs={"prog": "reorder"},
            args=list(argv),
        )

    # ------------------------------------------------------------------ arguments

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Trainer, model and data; the model may also come from the checkpoint."""
        parser.add_lightning_class_args(Trainer, "trainer")
        for base, key in ((LightningModule, "model"), (LightningDataModule, "data")):
            parser.add_lightning_class_args(base, key, subclass_mode=True, required=False)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """The links from data to model, and the REOrder group.

        The group is not a part of `trainer.callbacks`, because a config with callbacks of its own
        would replace those of the configs before it.
        """
        for fact in _FROM_DATA:
            parser.link_arguments(f"data.{fact}", f"model.init_args.{fact}", apply_on="instantiate")
        parser.add_argument(
            "--reorder",
            type=REOrder | None,
            default=None,
            help="Learn the patch order; see configs/reorder.yaml. null switches it off.",
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse, and remember which arguments were given rather than left at their defaults."""
        self.config = parser.parse_args(args)
        self.given = parser.parse_args(args, defaults=False)

    def _parse_ckpt_path(self) -> None:
        """Take what was not given from the checkpoint, and refuse what is given and differs.

        LightningCLI calls this after parsing. Its own version silently replaces what was given.
        """
        verb = self.config.subcommand
        config, given = self.config[verb], self._given_model()
        if config.get("weights_only") is False:
            return  # a checkpoint that only its owner can read
        saved = saved_arguments(config.get("ckpt_path"))
        if not saved:
            return
        class_path = given.get("class_path") or saved.get("_class_path")
        init_args = given.get("init_args", {})
        check_same(
            {"_class_path": _full_path(class_path), **init_args},
            {**saved, "_class_path": _full_path(saved.get("_class_path", class_path))},
            config.ckpt_path,
        )
        missing = {k: v for k, v in saved.items() if k not in (*init_args, *_FROM_DATA)}
        missing.pop("_class_path", None)
        model = {"class_path": class_path, "init_args": {**missing, **init_args}}
        self.config = self.parser.parse_object({verb: {"model": model}}, self.config)

    def _given_model(self) -> dict[str, Any]:
        """The model's `class_path` and `init_args`, without defaults."""
        model = self.given[self.config.subcommand].get("model")
        return {} if model is None else dict(model.as_dict())

    # ------------------------------------------------------------------ what is built

    def before_instantiate_classes(self) -> None:
        """Find what is missing or contradicts itself before anything large is built."""
        config = self.config[self.config.subcommand]
        if config.get("model") is None:
            raise ValueError(
                "There is no model. Give one, e.g. -c configs/model/mamba.yaml or --model Mamba"
                + ("." if self.config.subcommand == "fit" else ", or --ckpt_path.")
            )
        ours = issubclass(_find_class(config.model.class_path), ImageClassifier)
        if config.get("data") is None and ours:
            raise ValueError(
                "There is no data. Give some: -c configs/data/ucmerced.yaml or --data UCMerced."
            )
        for fact in _FROM_DATA:
            if config.get("data") is not None and fact in self._given_model().get("init_args", {}):
                raise ValueError(
                    f"`model.{fact}` comes from the data and cannot be given. Leave it out"
                    + (", or set `data.image_size`." if fact == "image_size" else ".")
                )
        warning = task_mismatch()
        if warning:
            rank_zero_warn(warning)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """The Trainer, with the callbacks that belong to the verb."""
        configured = self._get(self.config_init, "trainer").get("callbacks") or []
        callbacks = [*configured] if isinstance(configured, list) else [configured]
        callbacks += self._own_callbacks(callbacks)
        return super().instantiate_trainer(callbacks=callbacks, **kwargs)

    def _own_callbacks(self, configured: list[Callback]) -> list[Callback]:
        reorder = self._get(self.config_init, "reorder")
        own: list[Callback] = [reorder] if reorder is not None else []
        if self.subcommand == "fit":
            if own and not any(isinstance(c, OrderMonitor) for c in configured):
                own.append(OrderMonitor())
            return [*own, ResultWriter(), SameModel()]
        # Evaluation needs nothing of the callbacks that the training had.
        warnings.filterwarnings("ignore", "Be aware that when using `ckpt_path`, callbacks")
        if self.subcommand == "predict":
            own += [PredictionWriter(), PredictionTables()]
        return own

    def after_instantiate_classes(self) -> None:
        """The checkpoint must be for the data's classes and image size too."""
        saved = saved_arguments(self._get(self.config, "ckpt_path"))
        hparams = {k: v for k, v in self.model.hparams.items() if k in _FROM_DATA}
        check_same(hparams, saved, self._get(self.config, "ckpt_path"))

    # ------------------------------------------------------------------ what is run

    def before_fit(self) -> None:
        """Keep the metrics of the part of a resumed training that was before."""
        if self._get(self.config, "ckpt_path") and self.trainer.is_global_zero:
            for logger in self.trainer.loggers:
                if isinstance(logger, CSVLogger):
                    keep_metrics(Path(logger.log_dir))

    def predict(self, **kwargs: Any) -> None:
        """Predict; the writer keeps what is needed, not all probabilities of all images."""
        self.trainer.predict(**{**kwargs, "return_predictions": False})

    def after_fit(self) -> None:
        """Say what came out."""
        if self.trainer.is_global_zero and not getattr(self.trainer, "fast_dev_run", False):
            print_summary(self.trainer)


def _full_path(class_path: str | None) -> str | None:
    """One name for a class that can be imported from several places."""
    if class_path is None:
        return None
    cls = _find_class(class_path)
    return f"{cls.__module__}.{cls.__qualname__}"


def _find_class(class_path: str) -> type:
    cls = locate(class_path)
    if not isinstance(cls, type):
        raise ValueError(f"There is no class {class_path} to be found.")
    return cls
