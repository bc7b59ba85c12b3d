"""Mamba: selective scans over the patch sequence in one, two or four directions.

The block of ARM (Ren et al., "Autoregressive Pretraining with Mamba in Vision", ICLR 2025,
arXiv 2406.07537), which REOrder (Kutscher et al., 2025, arXiv 2505.23751) trains; the recurrence is
Mamba's (Gu and Dao, 2023, arXiv 2312.00752).
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from einops import rearrange
from timm.layers import DropPath, SwiGLU, calculate_drop_path_rates, to_2tuple
from timm.models import checkpoint
from torch import Tensor, nn
from torch.nn import functional as F

from reorder_lightning.kernels.causal_conv import causal_conv1d
from reorder_lightning.kernels.selective_scan import selective_scan
from reorder_lightning.models.backbone import (
    Position,
    ReadOut,
    SequenceBackbone,
)
from reorder_lightning.models.base import ImageClassifier, Order, size_of
from reorder_lightning.orders import column
from reorder_lightning.patch_order import permute_tokens

ScanGrid = Literal["sequence", "image"]

_SIZES = {  # depth, width
    "tiny": (12, 192),
    "small": (12, 384),
    "base": (12, 768),
    "large": (24, 1024),
    "huge": (24, 1536),
}


class MambaMixer(nn.Module):
    """Scans the tokens in several directions and sums what they read, gated once.

    Direction 1 reads the sequence forwards, 2 backwards, 3 and 4 read the transposed grid forwards
    and backwards. Each has its own convolution, step sizes, projections and rates; the input and
    output projections are shared.

    Args:
        dim: width ``D`` of the tokens.
        directions: 1, 2 or 4.
        state_size: values ``S`` of a channel's state.
        kernel_size: of the causal convolution in front of the scan.
    """

    def __init__(
        self, dim: int, directions: int = 4, state_size: int = 16, kernel_size: int = 4
    ) -> None:
        super().__init__()
        self.dim = dim
        self.directions = directions
        self.state_size = state_size
        self.dt_rank = rank = math.ceil(dim / 16)
        self.in_proj = nn.Linear(dim, 2 * dim, bias=False)
        self.conv_weight = nn.Parameter(torch.empty(directions * dim, kernel_size))
        self.conv_bias = nn.Parameter(torch.empty(directions * dim))
        self.x_proj = nn.Parameter(torch.empty(directions, dim, rank + 2 * state_size))
        self.dt_proj = nn.Parameter(torch.empty(directions, rank, dim))
        self.dt_bias = nn.Parameter(torch.empty(directions * dim))
        self.A_log = nn.Parameter(torch.empty(directions * dim, state_size))
        self.D = nn.Parameter(torch.empty(directions * dim))
        self.out_proj = nn.Linear(dim, dim, bias=False)
        self._init_scan()

    def _init_scan(self) -> None:
        """Mamba's initialisation: rates 1..S, step sizes log-uniform in [0.001, 0.1]."""
        for weight, fan_in in (
            (self.conv_weight, self.conv_weight.shape[1]),
            (self.conv_bias, self.conv_weight.shape[1]),
            (self.x_proj, self.dim),
            (self.dt_proj, self.dt_rank),
        ):
            nn.init.uniform_(weight, -(fan_in**-0.5), fan_in**-0.5)
        with torch.no_grad():
            rates = torch.arange(1, self.state_size + 1, device=self.A_log.device)
            self.A_log.copy_(rates.log().expand_as(self.A_log))
            low, high = math.log(1e-3), math.log(1e-1)
            step = (torch.rand_like(self.dt_bias) * (high - low) + low).exp().clamp(min=1e-4)
            self.dt_bias.copy_(step + (-torch.expm1(-step)).log())  # the inverse of softplus
        nn.init.ones_(self.D)

    def forward(self, tokens: Tensor, transposed: Tensor | None = None) -> Tensor:
        """Mix tokens ``(B, L, D)``.

        Args:
            tokens: ``(B, L, D)`` in reading order.
            transposed: int64 ``(K, L)``, where the transposed scan of image ``i`` reads its tokens
                (row ``i % K``); needed with four directions.

        Returns:
            ``(B, L, D)``.
        """
        x, gate = self.in_proj(tokens).chunk(2, dim=-1)
        merged = self._merge(self._scan(self._spread(x, transposed)), transposed)
        out: Tensor = self.out_proj(merged * F.silu(gate))
        return out

    def _spread(self, x: Tensor, transposed: Tensor | None) -> Tensor:
        """``(B, L, D)`` to ``(B, L, G * D)``, one copy for each direction, in its reading order."""
        if self.directions == 1:
            return x
        if self.directions == 4:
            assert transposed is not None
            x = torch.stack([x, permute_tokens(x, transposed)], dim=2)
        else:
            x = x.unsqueeze(2)
        return torch.stack([x, x.flip(1)], dim=3).flatten(2)

    def _merge(self, y: Tensor, transposed: Tensor | None) -> Tensor:
        """The inverse of `_spread`, summed over the directions."""
        if self.directions == 1:
            return y
        y = y.unflatten(2, (-1, 2, self.dim))
        y = y[:, :, :, 0] + y[:, :, :, 1].flip(1)
        if self.directions == 2:
            return y.squeeze(2)
        assert transposed is not None
        return y[:, :, 0] + permute_tokens(y[:, :, 1].contiguous(), transposed.argsort(1))

    def _scan(self, x: Tensor) -> Tensor:
        """Convolution and selective scan of ``(B, L, G * D)``, all directions in one call."""
        length, groups = x.shape[1], self.directions
        x = F.silu(causal_conv1d(x.transpose(1, 2), self.conv_weight, self.conv_bias))
        # each direction through its own projections, as one batched product
        grouped = rearrange(x, "b (g d) l -> g (b l) d", g=groups)
        dt, B, C = (grouped @ self.x_proj).split(
            [self.dt_rank, self.state_size, self.state_size], dim=-1
        )
        wide = torch.promote_types(self.A_log.dtype, torch.float32)  # bf16 is too coarse for rates
        y = selective_scan(
            x,
            rearrange(dt @ self.dt_proj, "g (b l) d -> b (g d) l", l=length),
            -self.A_log.to(wide).exp(),
            rearrange(B, "g (b l) n -> b g n l", l=length),
            rearrange(C, "g (b l) n -> b g n l", l=length),
            D=self.D,
            delta_bias=self.dt_bias,
            delta_softplus=True,
        )
        assert isinstance(y, Tensor)
        return y.transpose(1, 2)


class MambaBlock(nn.Module):
    """``x + mixer(norm(x))``, then ``x + mlp(norm(x))`` with a SwiGLU of 8/3 the width."""

    def __init__(self, dim: int, directions: int, state_size: int, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.mixer = MambaMixer(dim, directions, state_size)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = SwiGLU(dim, dim * 8 // 3)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, tokens: Tensor, transposed: Tensor | None = None) -> Tensor:
        """``(B, L, D)`` to ``(B, L, D)``; see `MambaMixer.forward`."""
        tokens = tokens + self.drop_path(self.mixer(self.norm1(tokens), transposed))
        out: Tensor = tokens + self.drop_path(self.mlp(self.norm2(tokens)))
        return out


class MambaBackbone(SequenceBackbone):
    """A stack of `MambaBlock` over the ordered patches.

    Args:
        depth: number of blocks.
        embed_dim: width of the tokens.
        directions: 1: forward. 2: and backward. 4: and both over the transposed grid.
        scan_grid: what the transposed scans transpose. ``"sequence"``: the sequence laid out in
            rows of the grid's width, as the published model does; ``"image"``: the image, so that
            these scans read its columns whatever the order is.
        state_size: values of a channel's state.
        drop_path_rate: stochastic depth of the last block, rising linearly from 0.
        img_size: height and width in pixels.
        patch_size: side of a patch in pixels.
        read_out: where the class token stands in the sequence (transposition and reversal leave
            it there and mirror it), or ``"mean"``.
        kwargs: see `SequenceBackbone`.
    """

    def __init__(
        self,
        *,
        depth: int = 12,
        embed_dim: int = 192,
        directions: int = 4,
        scan_grid: ScanGrid = "sequence",
        state_size: int = 16,
        drop_path_rate: float = 0.0,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        read_out: ReadOut = "last",
        **kwargs: Any,
    ) -> None:
        if directions not in (1, 2, 4):
            raise ValueError(f"Expected `directions` to be 1, 2 or 4, but got {directions}.")
        if scan_grid not in ("sequence", "image"):
            raise ValueError(
                f"Expected `scan_grid` to be 'sequence' or 'image', but got {scan_grid!r}."
            )
        rates = calculate_drop_path_rates(drop_path_rate, depth)
        super().__init__(
            [MambaBlock(embed_dim, directions, state_size, rate) for rate in rates],
            img_size=img_size,
            patch_size=patch_size,
            embed_dim=embed_dim,
            read_out=read_out,
            **kwargs,
        )
        self.directions = directions
        self.scan_grid = scan_grid

    def no_weight_decay(self) -> set[str]:
        """Positions, class token, and the rates of the scans."""
        rates = {name for name, _ in self.named_parameters() if name.endswith("A_log")}
        return super().no_weight_decay() | rates

    def transposed_index(self) -> Tensor:
        """Where the transposed scans read: int64 ``(K, L)``, indices into the sequence.

        The class token keeps its place; the patches around it are read by columns.
        """
        columns = column(*self.grid_size).to(self.patch_order.order.device)
        if self.scan_grid == "image":
            index = self.patch_order.current().argsort(1)[:, columns]
        else:
            index = columns[None]
        at = self.read_out_index
        if at is None:
            return index
        index = index + (index >= at)  # the class token moves what stands behind it
        token = torch.full_like(index[:, :1], at)
        return torch.cat([index[:, :at], token, index[:, at:]], dim=1)

    def forward_blocks(self, tokens: Tensor) -> Tensor:
        """``(B, L, D)`` through all blocks."""
        transposed = self.transposed_index().to(tokens.device) if self.directions == 4 else None
        recompute = self.grad_checkpointing and torch.is_grad_enabled()
        for block in self.blocks:
            if recompute:
                tokens = checkpoint(block, tokens, transposed)
            else:
                tokens = block(tokens, transposed)
        return tokens


class Mamba(ImageClassifier):
    """Mamba (ARM block) as a LightningModule.

    Args:
        num_classes: number of classes.
        image_size: height and width of the images in pixels.
        size: tiny, small, base, large or huge.
        patch_size: side of a patch in pixels.
        order: the patch order at the start: a name, a path or a list. None: row, or the order of
            the checkpoint in ``init_from``.
        position: ``"patch"`` or ``"slot"``; see `SequenceBackbone`.
        read_out: place of the class token, or ``"mean"``; see `SequenceBackbone`.
        directions: 1, 2 or 4 scans; see `MambaBackbone`.
        scan_grid: ``"sequence"`` or ``"image"``; see `MambaBackbone`.
        depth: number of blocks, if not that of the size.
        embed_dim: width of the tokens, if not that of the size.
        state_size: values of a channel's state.
        drop_path_rate: stochastic depth of the last block.
        kwargs: how to train; see `ImageClassifier`.

    Example:
        >>> model = Mamba(num_classes=10, image_size=32, patch_size=8, depth=1, order="hilbert")
        >>> model(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: int,
        image_size: int | tuple[int, int] = 224,
        size: str = "tiny",
        patch_size: int = 16,
        order: Order = None,
        position: Position = "patch",
        read_out: ReadOut = "last",
        directions: int = 4,
        scan_grid: ScanGrid = "sequence",
        depth: int | None = None,
        embed_dim: int | None = None,
        state_size: int = 16,
        drop_path_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        layers, width = size_of(size, _SIZES)
        backbone = MambaBackbone(
            img_size=to_2tuple(image_size),
            patch_size=patch_size,
            num_classes=num_classes,
            depth=depth or layers,
            embed_dim=embed_dim or width,
            directions=directions,
            scan_grid=scan_grid,
            state_size=state_size,
            order=order,
            position=position,
            read_out=read_out,
            drop_path_rate=drop_path_rate,
        )
        super().__init__(backbone, **kwargs)
