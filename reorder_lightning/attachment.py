"""Give a model that knows nothing of orders a `PatchOrder`, without changing its code."""

from __future__ import annotations

import io
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning import LightningModule
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from reorder_lightning.order_files import load_checkpoint, save_order
from reorder_lightning.orders import OrderLike
from reorder_lightning.patch_order import PatchOrder
from reorder_lightning.token_sites import find_site, is_order_blind, submodule

NAME = "reorder_lightning_patch_order"
"""Name of the attached layer in the first block; so the ``state_dict`` says where it comes from."""

_M = TypeVar("_M", bound=LightningModule)


class _OrderTokens:
    """Forward pre-hook of the first block: puts its input tokens into order.

    It finds the layer in the block that it is called for, so that it survives pickling and copies.
    """

    def __init__(self, num_prefix_tokens: int) -> None:
        self.num_prefix_tokens = num_prefix_tokens

    def __call__(
        self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        layer = getattr(block, NAME)
        if args:
            return (layer(args[0], self.num_prefix_tokens), *args[1:]), kwargs
        name = next(name for name, value in kwargs.items() if isinstance(value, Tensor))
        return args, {**kwargs, name: layer(kwargs[name], self.num_prefix_tokens)}


class _RestoreTokens:
    """Forward hook of the last block: puts its output tokens back into raster order."""

    def __init__(self, layer: PatchOrder, num_prefix_tokens: int) -> None:
        self.layer = layer
        self.num_prefix_tokens = num_prefix_tokens

    def __call__(self, block: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, tuple):  # (tokens, state), as recurrent layers give it
            return (self.layer.inverse(output[0], self.num_prefix_tokens), *output[1:])
        return self.layer.inverse(output, self.num_prefix_tokens)


def attach(
    module: nn.Module,
    order: OrderLike | None = None,
    *,
    target: str | None = None,
    grid_size: tuple[int, int] | None = None,
    num_prefix_tokens: int | None = None,
    restore: bool = False,
) -> PatchOrder:
    """Make a model read its patches in an order, and return the `PatchOrder` that holds it.

    A model with a PatchOrder of its own keeps it. In any other, a forward pre-hook of the first
    block orders the tokens: they have their positions by then, which so travel with their patches.
    Attaching twice is attaching once.

    Args:
        module: the model, usually a LightningModule; changed in place.
        order: order to start from, see `reorder_lightning.get_order`. None: the model's own, or
            row.
        target: path of the first block, e.g. ``"encoder.layers.0"``; its input must be tokens
            ``(B, P + N, D)``. Or path of the part of the model that holds the one VisionTransformer
            or PatchOrder that is meant. None: the only one in ``module``.
        grid_size: rows and columns of patches. None: what the model's ``patch_embed`` says.
        num_prefix_tokens: class, distillation and register tokens in front of the patches, which
            stay where they are. None: what the model says, or 0.
        restore: put the tokens that leave the last block back into raster order, for dense heads.

    Raises:
        ValueError: if there are no tokens, or several, or an order of them would be wrong: rotary
            or relative positions in the blocks, patch dropout, hierarchical models, shared blocks.

    Example:
        >>> import timm
        >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=32)
        >>> attach(vit, "column").order
        tensor([0, 2, 1, 3])
    """
    layer = find_layer(module, target)
    if layer is None:
        site = find_site(module, target, grid_size, num_prefix_tokens)
        layer = PatchOrder(order, site.grid_size)
        block, last = submodule(module, site.first), submodule(module, site.last)
        block.add_module(NAME, layer)
        block.register_forward_pre_hook(_OrderTokens(site.num_prefix_tokens), with_kwargs=True)
        if restore:
            last.register_forward_hook(_RestoreTokens(layer, site.num_prefix_tokens))
        parameter = next((p for p in block.parameters() if not p.is_meta), None)
        if parameter is not None:
            layer.to(parameter.device)
        layer.train(block.training)
        if is_order_blind(module, site):
            rank_zero_warn(
                f"The blocks of {type(module).__name__} are full self-attention, which gives the "
                "same result for every order of its patches: there is nothing to learn. Use a "
                "model that reads a sequence (Mamba, a recurrent or windowed one)."
            )
        return layer
    if grid_size is not None and tuple(grid_size) != layer.grid_size:
        raise ValueError(
            f"`grid_size={tuple(grid_size)}` differs from {layer.grid_size}, the grid of the "
            "model's PatchOrder. Leave it out."
        )
    if order is not None:
        before = layer.order
        layer.order = order
        if layer.given and not before.equal(layer.order):
            layer.order = before
            raise ValueError(
                f"The order to start from, {order!r}, and the model's own order differ. Give one "
                "of them: leave out `start`, or build the model without an order."
            )
    return layer


def find_layer(module: nn.Module, target: str | None = None) -> PatchOrder | None:
    """The one `PatchOrder` in a model, or in its part ``target``; None if there is none.

    Raises:
        ValueError: if there are several.
    """
    part = submodule(module, target or "")
    layers = {name: m for name, m in part.named_modules() if isinstance(m, PatchOrder)}
    if len(layers) > 1:
        raise ValueError(
            f"Found {len(layers)} PatchOrder layers: {', '.join(layers)}. Give the path of one of "
            "them, or of the part that holds it, as `target`; for several, one REOrder each, told "
            "apart by `name`."
        )
    return next(iter(layers.values()), None)


def describe(module: nn.Module, layer: PatchOrder) -> dict[str, Any] | None:
    """Where an attached layer sits, as plain values; None for a layer of the model's own."""
    for name, block in module.named_modules():
        if block._modules.get(NAME) is layer:
            hooks = block._forward_pre_hooks.values()
            prefix = next(h.num_prefix_tokens for h in hooks if isinstance(h, _OrderTokens))
            ends = [h for m in module.modules() for h in m._forward_hooks.values()]
            return {
                "first": name,
                "grid_size": list(layer.grid_size),
                "num_prefix_tokens": prefix,
                "restore": any(isinstance(h, _RestoreTokens) and h.layer is layer for h in ends),
            }
    return None


def detach(module: nn.Module) -> None:
    """Take away what `attach` added; the model reads its patches in raster order again.

    A model's own PatchOrder stays.

    Example:
        >>> import timm
        >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=32)
        >>> keys = set(vit.state_dict())
        >>> layer = attach(vit, "column")
        >>> detach(vit)
        >>> set(vit.state_dict()) == keys
        True
    """
    for part in list(module.modules()):
        part._modules.pop(NAME, None)
        for hooks in (part._forward_pre_hooks, part._forward_hooks):
            for key, hook in list(hooks.items()):
                if isinstance(hook, _OrderTokens | _RestoreTokens):
                    del hooks[key]
                    part._forward_pre_hooks_with_kwargs.pop(key, None)


def export_order(module: nn.Module, path: str | PathLike[str], target: str | None = None) -> Path:
    """Save the order of a model as JSON, as `reorder_lightning.load_order` reads it.

    Args:
        module: a model with a PatchOrder, its own or an attached one.
        path: file to write.
        target: the part of the model that is meant, if it has several orders.

    Returns:
        The path.

    Raises:
        ValueError: if the model has no PatchOrder.
    """
    layer = find_layer(module, target)
    if layer is None:
        raise ValueError(
            f"{type(module).__name__} has no order: it holds no PatchOrder. Was it loaded with "
            "reorder_lightning.load_from_checkpoint?"
        )
    return save_order(path, layer.order.cpu(), layer.grid_size, f"the {type(module).__name__}")


def load_from_checkpoint(
    cls: type[_M],
    path: str | PathLike[str],
    *,
    grid_size: tuple[int, int] | None = None,
    num_prefix_tokens: int | None = None,
    restore: bool | None = None,
    **kwargs: Any,
) -> _M:
    """Load a LightningModule that was trained with the REOrder callback, with its order.

    The class's own ``load_from_checkpoint`` refuses such a checkpoint, because the class knows no
    order ("Unexpected key(s) in state_dict: ...reorder_lightning_patch_order..."); with
    ``strict=False`` it would load the weights and silently lose the order.

    Args:
        cls: the LightningModule's class.
        path: the checkpoint.
        grid_size: as in `attach`; None: what the callback saved, or the model says.
        num_prefix_tokens: likewise.
        restore: likewise.
        kwargs: for ``cls.load_from_checkpoint``: ``map_location``, hyperparameters, ...

    Returns:
        The model, which reads its patches as at the time of saving.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no checkpoint, or has to be told where the tokens are.
    """
    trusted = kwargs.get("weights_only") is False  # the user's own objects may be in there
    checkpoint = torch.load(path, "cpu", weights_only=False) if trusted else load_checkpoint(path)
    sites = attached_sites(checkpoint)
    given = {"grid_size": grid_size, "num_prefix_tokens": num_prefix_tokens, "restore": restore}
    given = {name: value for name, value in given.items() if value is not None}
    orders = {t: checkpoint["state_dict"].pop(f"{t}.{NAME}._extra_state") for t in sites}
    without = io.BytesIO()
    torch.save(checkpoint, without)
    without.seek(0)
    model = cls.load_from_checkpoint(without, **kwargs)
    for target, site in sites.items():
        attach(model, target=target, **{**site, **given}).order = orders[target]
    return model


def attached_sites(checkpoint: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """First blocks with an attached order in a checkpoint, with `attach`'s arguments for each.

    The arguments are what the callback saved; a checkpoint with weights only has none of them.
    """
    end = f".{NAME}._extra_state"
    keys = [str(key) for key in checkpoint.get("state_dict", {})]
    sites: dict[str, dict[str, Any]] = {k.removesuffix(end): {} for k in keys if k.endswith(end)}
    for state in checkpoint.get("callbacks", {}).values():
        site = state.get("site") if isinstance(state, dict) else None
        if site and site["first"] in sites:
            grid = tuple(site["grid_size"])
            sites[site["first"]] = {k: v for k, v in site.items() if k != "first"} | {
                "grid_size": grid
            }
    return sites
