"""A first block that runs several times in one forward pass."""

from typing import Any

from torch import nn

from reorder_lightning.attachment import describe
from reorder_lightning.patch_order import PatchOrder
from reorder_lightning.token_sites import submodule


class LoopCheck:
    """Watches one training step for a block that a loop runs again and again, as ALBERT's.

    Its tokens would be put into order in every round. When attaching, only a block that is
    registered twice can be noticed. Two forward passes of the whole model in a step are fine, and
    so is the recomputation of a block in the backward pass: stop before it.

    Args:
        module: the LightningModule.
        layer: its `PatchOrder`; one of the model's own needs no watching.
    """

    def __init__(self, module: nn.Module, layer: PatchOrder) -> None:
        self.rounds = 0
        self.most = 0
        self._handles: list[Any] = []
        site = describe(module, layer)
        compiled = any(hasattr(m, "_orig_mod") or m._compiled_call_impl for m in module.modules())
        if site is None or compiled:  # a hook would be compiled into the model
            return
        self.name: str = site["first"]
        above = self.name
        while above:
            above = above.rpartition(".")[0]
            if not isinstance(submodule(module, above), nn.ModuleList | nn.ModuleDict):
                break
        owner, block = submodule(module, above), submodule(module, self.name)
        self._handles = [
            owner.register_forward_pre_hook(self._begin),
            block.register_forward_pre_hook(self._count),
        ]

    def _begin(self, owner: nn.Module, args: Any) -> None:
        self.rounds = 1  # the next one is the second

    def _count(self, block: nn.Module, args: Any) -> None:
        if self.rounds:  # else the block is not called from where it is registered
            self.most = max(self.most, self.rounds)
            self.rounds += 1

    def remove(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()

    def stop(self) -> None:
        """Stop watching, and say what was seen.

        Raises:
            ValueError: if the block ran more than once in a forward pass.
        """
        self.remove()
        if self.most > 1:
            raise ValueError(
                f"The block {self.name!r} runs {self.most} times in one forward pass, and would "
                "put its tokens into order each time. Put a reorder_lightning.PatchOrder into the "
                "model, before the loop; REOrder finds it."
            )
