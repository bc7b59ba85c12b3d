"""Tokens of pretrained VQ models: adapters for what `transformers` and `diffusers` ship."""

from __future__ import annotations

import inspect
import logging
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.utils._pytree import tree_leaves

from reorder_lightning.order_files import Grid
from reorder_lightning.patch_tokens import Tokenizer

_CENTRE = (0.5, 0.5)  # mean and standard deviation that map [0, 1] to [-1, 1]
_NO_CLASS = "its config.json names no class"


class _VQTokenizer(Tokenizer):
    """Resizes and normalises images and asks a VQ model for the index of each of its tokens.

    Args:
        model: has a ``quantize``, with the codes as ``embedding``.
        levels: resolutions of its encoder, each half of the one before.
        normalisation: mean and standard deviation of the values that it was trained on.
        grid_size: rows and columns of tokens.
        device: where to run.
    """

    def __init__(
        self,
        model: Any,
        levels: int,
        normalisation: tuple[Any, Any],
        grid_size: Grid | None,
        device: str | None,
    ) -> None:
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model = model.float().eval().to(self.device)
        self.num_codes: int = model.quantize.embedding.num_embeddings
        self.grid_size = grid_size
        self.factor = 2 ** (levels - 1)
        self._mean, self._std = (
            torch.as_tensor(value, dtype=torch.float32, device=self.device).reshape(-1, 1, 1)
            for value in normalisation
        )

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Images float32 ``(B, 3, height, width)`` in [0, 1] to int64 ``(B, H, W)``."""
        sides = images.shape[-2:]
        rows, columns = self.grid_size or (max(1, round(side / self.factor)) for side in sides)
        size = (rows * self.factor, columns * self.factor)
        images = images.float().to(self.device)
        if size != tuple(sides):
            images = interpolate(images, size, mode="bicubic", antialias=True).clamp(0, 1)
        tokens = self._quantise((images - self._mean) / self._std)
        if tokens.numel() != len(images) * rows * columns:
            raise ValueError(
                f"Expected {type(self.model).__name__} to give one token for {self.factor}x"
                f"{self.factor} pixels, but got {tuple(tokens.shape)} for images "
                f"{tuple(images.shape)}."
            )
        return tokens.reshape(len(images), rows, columns)

    @abstractmethod
    def _quantise(self, pixels: Tensor) -> Tensor:
        """Normalised images to the indices of their codes, in any shape ``(B, ...)``."""


class TransformersVQ(_VQTokenizer):
    """Tokens of a VQ model of `transformers`: Chameleon's, which the paper used, Emu3's, Janus's.

    From the weights of a whole model, only those of its VQ part are loaded. Images are normalised
    as the image processor beside the weights says; without one, to [-1, 1].

    Args:
        model: a name at the Hugging Face hub, or a folder.
        grid_size: rows and columns of tokens, to which images are resized; give the grid of your
            model's patches. None: the images as they are, one token for every 16x16 pixels
            (Chameleon, Janus) or 8x8 (Emu3), or the nearest size that divides so.
        device: where to run. None: on a GPU if there is one.

    Raises:
        ValueError: `transformers` is not installed; ``model`` is no such model, or not all of its
            VQ weights are there.

    Example:
        >>> tokenizer = TransformersVQ("path/to/chameleon", grid_size=(14, 14))  # doctest: +SKIP
    """

    def __init__(
        self, model: str, grid_size: tuple[int, int] | None = None, device: str | None = None
    ) -> None:
        try:
            import transformers
        except ImportError as error:
            raise _not_installed("transformers") from error
        try:
            given, _ = transformers.PretrainedConfig.get_config_dict(model)
            whole = given.get("vq_config") is not None
            config = transformers.AutoConfig.from_pretrained(model).vq_config if whole else None
        except (OSError, ValueError) as error:
            raise _not_found(model, error) from error
        name = (given.get("architectures") or [_NO_CLASS])[0]
        if whole:
            name = type(config).__name__.removesuffix("Config")
        cls: Any = getattr(transformers, name, nn.Module)
        if "VQ" not in name or not hasattr(cls, "encode"):
            raise _no_vq(model, name, "one of transformers, such as ChameleonVQVAE or Emu3VQVAE")
        # transformers 4 drops "model." from the names where the whole model has it.
        inside = {r"^.*vqmodel\.": "model." if cls.base_model_prefix == "model" else ""}
        verbosity = transformers.logging.get_verbosity()
        # Else it lists the weights that it leaves out.
        transformers.logging.set_verbosity(logging.ERROR)
        try:
            loaded, report = cls.from_pretrained(
                model, config=config, key_mapping=inside, output_loading_info=True
            )
        finally:
            transformers.logging.set_verbosity(verbosity)
        if not hasattr(loaded, "encoder"):
            raise _no_vq(model, name, "a model that encodes images by itself")
        _check_whole(model, report)
        levels = len(loaded.config.channel_multiplier)
        super().__init__(loaded, levels, _normalisation(model), grid_size, device)

    def _quantise(self, pixels: Tensor) -> Tensor:
        # What `encode` returns has changed over the years; what `quantize` gives it has not.
        found: list[Any] = []
        hook = self.model.quantize.register_forward_hook(lambda m, args, out: found.append(out))
        try:
            if "image_sizes" in inspect.signature(self.model.encode).parameters:
                sizes = torch.tensor([pixels.shape[-2:]] * len(pixels))
                self.model.encode(pixels, image_sizes=sizes)
            else:
                self.model.encode(pixels)
        finally:
            hook.remove()
        return _indices(found)


class DiffusersVQ(_VQTokenizer):
    """Tokens of a ``VQModel`` of `diffusers`: those of latent diffusion, Kandinsky, aMUSEd, ...

    Args:
        model: a name at the Hugging Face hub, or a folder.
        subfolder: where in it the VQ model is, if it is a whole pipeline: ``"vqvae"``, ``"movq"``.
        value_range: what black and white are to the model; aMUSEd's has (0, 1).
        grid_size: rows and columns of tokens, see `TransformersVQ`.
        device: where to run. None: on a GPU if there is one.

    Raises:
        ValueError: `diffusers` is not installed; there is no such model, or not all of its weights.

    Example:
        >>> tokenizer = DiffusersVQ("path/to/pipeline", subfolder="vqvae")  # doctest: +SKIP
    """

    def __init__(
        self,
        model: str,
        subfolder: str | None = None,
        value_range: tuple[float, float] = (-1.0, 1.0),
        grid_size: tuple[int, int] | None = None,
        device: str | None = None,
    ) -> None:
        try:
            import diffusers
        except ImportError as error:
            raise _not_installed("diffusers") from error
        cls: Any = diffusers.VQModel
        black, white = value_range
        if black == white:
            raise ValueError(f"Expected two values in `value_range`, but got {value_range}.")
        place = {} if subfolder is None else {"subfolder": subfolder}
        try:
            name = cls.load_config(model, **place).get("_class_name", _NO_CLASS)
        except (OSError, ValueError) as error:
            cure = "" if place else " If it is a whole pipeline, give `subfolder`, e.g. 'vqvae'."
            raise _not_found(model, f"{error}{cure}") from error
        if name != "VQModel":
            raise _no_vq(model, name, "diffusers' VQModel; in a pipeline, give its `subfolder`")
        loaded, report = cls.from_pretrained(model, output_loading_info=True, **place)
        _check_whole(model, report)
        scale = 1 / (white - black)
        levels = len(loaded.config.block_out_channels)
        super().__init__(loaded, levels, (-black * scale, scale), grid_size, device)

    def _quantise(self, pixels: Tensor) -> Tensor:
        return _indices(self.model.quantize(self.model.encode(pixels).latents))


def _indices(quantised: Any) -> Tensor:
    """The one tensor of integers among what a quantiser returns."""
    leaves = [leaf for leaf in tree_leaves(quantised) if isinstance(leaf, Tensor)]
    return next(leaf for leaf in leaves if not leaf.is_floating_point())


def _normalisation(model: str) -> tuple[Any, Any]:
    """Mean and standard deviation of pixels in [0, 1], by the image processor of a model."""
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        given, _ = ImageProcessingMixin.get_image_processor_dict(model)
    except OSError:
        return _CENTRE
    scale = 255 * given.get("rescale_factor", 1 / 255)
    mean, std = (torch.tensor(given.get(key) or 0.5) for key in ("image_mean", "image_std"))
    return mean / scale, std / scale


def _check_whole(model: str, report: dict[str, Any]) -> None:
    """Codes of weights that are not there would be those of random ones."""
    lacking = [key for key in report["missing_keys"] if not key.startswith(("decoder", "post_"))]
    if lacking:
        raise ValueError(
            f"`model={model!r}` lacks {len(lacking)} weights of its VQ model: "
            f"{', '.join(sorted(lacking)[:3])}{', ...' if len(lacking) > 3 else ''}."
        )


def _not_installed(package: str) -> ValueError:
    return ValueError(
        f"This tokenizer needs {package}: pip install 'reorder-lightning[vq]', or use k-means "
        "tokens."
    )


def _not_found(model: str, error: object) -> ValueError:
    return ValueError(f"`model={model!r}` cannot be loaded: {error}")


def _no_vq(model: str, name: str, expected: str) -> ValueError:
    return ValueError(
        f"`model={model!r}` is no VQ model ({name}): expected {expected}. Wrap another "
        "one in a class like `reorder_lightning.patch_tokens.Tokenizer`."
    )
