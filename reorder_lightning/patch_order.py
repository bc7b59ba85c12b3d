"""The layer that holds the patch order and applies it to a batch of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from reorder_lightning.orders import OrderLike, check_order, get_order


class _Permute(torch.autograd.Function):
    """A gather along the tokens whose backward is a gather as well.

    Autograd's own backward of an index adds into a zero tensor, which is ten times slower than
    reading along the inverse permutation.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        return _gather(tokens, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        inverse: Tensor = index.argsort(1)
        return permute_tokens(grads[0], inverse), None


def _gather(tokens: Tensor, index: Tensor) -> Tensor:
    if len(index) == 1:
        return tokens.index_select(1, index[0])
    batch, length, width = tokens.shape
    image = torch.arange(batch, device=index.device)
    flat = index[image % len(index)] + (image * length)[:, None]
    return tokens.reshape(batch * length, width).index_select(0, flat.flatten()).view_as(tokens)


def permute_tokens(tokens: Tensor, index: Tensor) -> Tensor:
    """Permute the tokens of each image: ``out[i, j] = tokens[i, index[i % K, j]]``.

    One gather forward and one backward, whatever K is.

    Args:
        tokens: ``(B, L, D)``, any dtype.
        index: int64 ``(K, L)``, each row a permutation of ``0 .. L-1``. Image ``i`` uses row
            ``i % K``.

    Returns:
        ``(B, L, D)``.

    Example:
        >>> tokens = torch.tensor([[[1.0], [2.0], [3.0]]])
        >>> permute_tokens(tokens, torch.tensor([[2, 0, 1]])).flatten()
        tensor([3., 1., 2.])
    """
    if torch.is_grad_enabled() and tokens.requires_grad:
        permuted: Tensor = _Permute.apply(tokens, index)
        return permuted
    return _gather(tokens, index)


class _OrderState:
    """The tensors of a `PatchOrder`, kept where no cast, buffer broadcast or average finds them."""

    def __init__(self, order: Tensor) -> None:
        self.order = order
        self.draw: Tensor | None = None
        self.used = False  # set by every forward in training, cleared by whoever watches
        self.loaded: bool | None = None  # None: nothing loaded; False: loaded without an entry

    def __deepcopy__(self, memo: dict[int, Any]) -> _OrderState:
        return self  # averaged and teacher copies must never read in a stale order

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"draw": None}


class PatchOrder(nn.Module):
    """Reads patch tokens in a given order; prefix tokens stay where they are.

    With an order ``o``, ``forward`` gives ``out[:, P + i] = tokens[:, P + o[i]]`` for the ``N``
    patches behind ``P`` prefix tokens. In training, a draw ``(K, N)``, if there is one, replaces
    the order: image ``i`` of the batch then uses draw ``i % K``.

    The layer has no parameters and no buffers. Parameters would enter the user's optimiser and
    break plain DDP; a float buffer is cast by bf16-true; an integer buffer is overwritten by DDP's
    buffer broadcast and averaged by EMA. Its one entry in the ``state_dict`` is the int64 order.
    The order follows the module's device and never its dtype; deep copies share it.

    Args:
        order: a name, a path, or the raster indices in reading order; see
            `reorder_lightning.orders.get_order`. None: row, until somebody sets another one.
        grid_size: rows and columns of the patch grid.

    Raises:
        ValueError: if the order is no permutation of the grid's patches.

    Example:
        >>> layer = PatchOrder("column", (2, 2))
        >>> layer(torch.arange(5.0).view(1, 5, 1), num_prefix_tokens=1).flatten()
        tensor([0., 1., 3., 2., 4.])
    """

    def __init__(self, order: OrderLike | None, grid_size: tuple[int, int]) -> None:
        super().__init__()
        self.grid_size = (int(grid_size[0]), int(grid_size[1]))
        self.given = order is not None  # the model's user chose this order
        with torch.device("cpu"):  # the order has values also where the model is built on meta
            self._state = _OrderState(get_order("row" if order is None else order, *self.grid_size))

    @property
    def order(self) -> Tensor:
        """The order used in evaluation and whenever there is no draw, int64 ``(N,)``."""
        return self._state.order

    @order.setter
    def order(self, order: OrderLike) -> None:
        checked = get_order(order, *self.grid_size)
        self._state.order = checked.to(self._state.order.device)

    @property
    def draw(self) -> Tensor | None:
        """The orders of the current training batch, int64 ``(K, N)``, or None."""
        return self._state.draw

    @draw.setter
    def draw(self, draw: Tensor | None) -> None:
        assert draw is None or (draw.ndim == 2 and draw.shape[1] == len(self.order))
        self._state.draw = draw

    @property
    def loaded(self) -> bool | None:
        """Whether the last loaded ``state_dict`` held an order; None before any was loaded."""
        return self._state.loaded

    @property
    def used(self) -> bool:
        """Whether `forward` ran in training since this was last set to False."""
        return self._state.used

    @used.setter
    def used(self, used: bool) -> None:
        self._state.used = used

    def share(self, other: PatchOrder) -> None:
        """Hold the same order and draw as ``other`` from now on, as deep copies of it do."""
        self._state = other._state

    def current(self) -> Tensor:
        """The orders that `forward` applies now, int64 ``(K, N)``: the draw, or the order."""
        draw = self._state.draw
        return draw if self.training and draw is not None else self._state.order[None]

    def forward(self, tokens: Tensor, num_prefix_tokens: int = 0) -> Tensor:
        """Put the patches of ``(B, P + N, D)`` into the current order.

        Raises:
            ValueError: if the number of tokens is not ``P + N``.
        """
        if self.training:
            self._state.used = True
        return self._permute(tokens, self.current(), num_prefix_tokens)

    def inverse(self, tokens: Tensor, num_prefix_tokens: int = 0) -> Tensor:
        """Put ordered patches ``(B, P + N, D)`` back into raster order, for dense heads."""
        return self._permute(tokens, self.current().argsort(1), num_prefix_tokens)

    def _permute(self, tokens: Tensor, index: Tensor, num_prefix_tokens: int) -> Tensor:
        count = index.shape[1]
        if tokens.shape[1] != num_prefix_tokens + count:
            height, width = self.grid_size
            raise ValueError(
                f"PatchOrder expected {num_prefix_tokens} + {count} tokens (prefix + a grid of "
                f"{height}x{width} patches), got {num_prefix_tokens} + "
                f"{tokens.shape[1] - num_prefix_tokens}. Give the model images of the size that "
                f"its order was made for, or resize the order (reorder_lightning.resize_order)."
            )
        index = index.to(tokens.device)
        if num_prefix_tokens:
            prefix = torch.arange(num_prefix_tokens, device=index.device)
            prefix = prefix.expand(len(index), num_prefix_tokens)
            index = torch.cat([prefix, index + num_prefix_tokens], dim=1)
        return permute_tokens(tokens, index)

    def get_extra_state(self) -> Tensor:
        """The order, as the one entry in the ``state_dict``."""
        return self._state.order.detach().clone()

    def set_extra_state(self, state: Tensor) -> None:
        """Take the order of a checkpoint; it must be one of this layer's grid."""
        order = check_order(state, len(self._state.order), "The patch order to load")
        self._state.order = order.to(self._state.order.device)
        self._state.loaded = True

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        key = f"{prefix}_extra_state"
        if key not in state_dict:
            # Pretrained weights and checkpoints from before have no order: keep the one we have.
            self._state.loaded = False
            return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PatchOrder:
        # `fn` may cast, empty or move to meta, none of which an order survives: ask it for a device
        # only, with a tensor that has nothing to lose.
        device = fn(torch.empty(0, device=self._state.order.device)).device
        if device.type != "meta":
            self._state.order = self._state.order.to(device)
        return self

    def extra_repr(self) -> str:
        """The grid, in `repr`."""
        return f"grid_size={self.grid_size}"
