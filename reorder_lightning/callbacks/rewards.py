"""Where the reward of each image comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F

RewardFn = Callable[[Any, Any], Tensor]
"""``(outputs of training_step, batch) -> rewards (B,)``, larger is better."""

_KEY = "reorder_reward"
_TARGET_KEYS = ("label", "labels", "target", "targets", "y")
_CURE = (
    f"Return {{'loss': loss, '{_KEY}': rewards}} from `training_step`, define "
    f"`{_KEY}(self, outputs, batch)` on the LightningModule, or pass `reward_fn` to REOrder; each "
    "gives one number per image, larger is better, e.g. minus the cross-entropy with "
    "reduction='none' of what the model was trained on."
)


class LogitCapture:
    """Keeps what the classifier of a model puts out during one training batch.

    Two hooks: one on the classifier, for its logits, and one on the model around it, for the images
    that went in. They hold no Python numbers that change, so a compiled model isn't compiled anew.
    """

    def __init__(self, model: nn.Module, classifier: nn.Module) -> None:
        self.logits: list[Tensor] = []
        self.images: list[Tensor] = []
        self._versions: dict[int, int] = {}
        self._handles = [
            model.register_forward_pre_hook(self._keep_images),
            classifier.register_forward_hook(self._keep_logits),
        ]

    def _keep_images(self, model: nn.Module, args: tuple[Any, ...]) -> None:
        if model.training and args and isinstance(args[0], Tensor):
            self.images = [*self.images, args[0]]

    def _keep_logits(self, classifier: nn.Module, args: Any, output: Tensor) -> None:
        if classifier.training:
            self.logits = [*self.logits, output.detach()]

    def start(self, batch: Any) -> None:
        """Forget the last batch; remember the state of this one's images."""
        self.logits, self.images = [], []
        self._versions = {id(t): t._version for t in _tensors(batch)}

    def images_unchanged(self) -> bool:
        """Whether the model got images of the batch as they were (MixUp makes new ones)."""
        same = [self._versions.get(id(images)) == images._version for images in self.images]
        return bool(same) and all(same)

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()


def capture_logits(module: nn.Module, layer: nn.Module) -> LogitCapture | None:
    """Watch the classifier of the model around ``layer``.

    The classifier is the linear layer that ``get_classifier()`` gives (timm), or the attribute
    ``classifier`` (Hugging Face). None if there is none, or it is not clear which.
    """
    around = [m for m in module.modules() if any(part is layer for part in m.modules())]
    with_head = [m for m in reversed(around) if _classifier(m) is not None]
    if not with_head:  # the layer may stand beside the model
        with_head = [m for m in module.modules() if _classifier(m) is not None]
        if len(with_head) != 1:
            return None
    classifier = _classifier(with_head[0])
    assert classifier is not None
    return LogitCapture(with_head[0], classifier)


def _classifier(module: nn.Module) -> nn.Module | None:
    get = getattr(module, "get_classifier", None)
    head = get() if callable(get) else getattr(module, "classifier", None)
    return head if isinstance(head, nn.Linear) else None


def batch_rewards(
    outputs: Any,
    batch: Any,
    pl_module: LightningModule,
    reward_fn: RewardFn | None = None,
    capture: LogitCapture | None = None,
    accumulated: int = 1,
) -> Tensor:
    """The reward of each image of a batch, float32 ``(B,)``, without a graph.

    The first of these that there is: ``reward_fn(outputs, batch)``,
    ``pl_module.reorder_reward(outputs, batch)``, ``outputs["reorder_reward"]``, and minus the
    cross-entropy of the captured logits with the batch's targets, the mean over several forwards.
    A ``training_step`` that skipped its batch (it returned None) gives an empty tensor.

    Args:
        outputs: what ``training_step`` returned.
        batch: the batch.
        pl_module: the LightningModule.
        reward_fn: the user's.
        capture: what the classifier put out.
        accumulated: number of batches that Lightning has divided the loss by.

    Raises:
        ValueError: if there is none, it is not one number per image, or it is not clear that the
            captured logits belong to the batch's targets.
    """
    method = getattr(pl_module, _KEY, None)
    if reward_fn is not None:
        rewards = reward_fn(outputs, batch)
    elif callable(method):
        rewards = method(outputs, batch)
    elif isinstance(outputs, Mapping) and _KEY in outputs:
        rewards = outputs[_KEY]
    elif not outputs and pl_module.automatic_optimization:
        return torch.empty(0)
    elif capture is not None and capture.logits:
        rewards = _captured_rewards(capture, batch, _loss(outputs), accumulated)
    else:
        raise ValueError(f"REOrder found no reward for this batch. {_CURE}")
    if not isinstance(rewards, Tensor) or rewards.ndim != 1:
        got = tuple(rewards.shape) if isinstance(rewards, Tensor) else type(rewards).__name__
        raise ValueError(f"Expected a reward of shape (B,), one per image, but got {got}. {_CURE}")
    return rewards.detach().float()


def _captured_rewards(
    capture: LogitCapture, batch: Any, loss: Tensor | None, accumulated: int
) -> Tensor:
    targets = _targets(batch)
    if targets is None:
        raise ValueError(
            "REOrder has the classifier's logits, but found no targets in the batch: neither "
            f"(images, targets) nor a mapping with one of {', '.join(_TARGET_KEYS)}. {_CURE}"
        )
    for logits in capture.logits:
        if len(logits) != len(targets) or (targets.ndim == 2 and targets.shape != logits.shape):
            raise ValueError(
                f"The classifier gave logits of shape {tuple(logits.shape)} for targets of shape "
                f"{tuple(targets.shape)}: which image has which target is unknown. {_CURE}"
            )
    rewards = [-F.cross_entropy(x.float(), targets, reduction="none") for x in capture.logits]
    reward = torch.stack(rewards).mean(0)
    if not capture.images_unchanged():
        # The training step made images of its own. That is harmless if it was, say, a flip; if it
        # was MixUp, the batch's targets are not what the model was trained on. The loss tells: it
        # is the mean, or the sum, of the cross-entropies of the forwards.
        expected = -reward.mean()
        got = (loss * accumulated if loss is not None else torch.tensor(float("nan"))).float()
        share = torch.stack([got, got / len(rewards)]) / expected
        if not ((share - 1).abs() < 0.01).any() and reward.isfinite().all():
            raise ValueError(
                "`training_step` gives the model other images than the batch's, and its loss "
                f"({got:.4g}) isn't the cross-entropy with the batch's targets ({expected:.4g}). "
                f"If it mixes images (MixUp, CutMix), these are the wrong targets. {_CURE}"
            )
    return reward


def _targets(batch: Any) -> Tensor | None:
    """Class indices ``(B,)`` or soft targets ``(B, C)`` of a batch."""
    if isinstance(batch, Mapping):
        found = next((batch[key] for key in _TARGET_KEYS if key in batch), None)
    else:
        found = batch[1] if isinstance(batch, Sequence) and len(batch) > 1 else None
    if not isinstance(found, Tensor):
        return None
    hard = found.ndim == 1 and found.dtype == torch.int64
    soft = found.ndim == 2 and found.is_floating_point()
    return found.float() if soft else found if hard else None


def _tensors(batch: Any) -> list[Tensor]:
    """The tensors at the top of a batch."""
    values = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(values, Tensor):
        return [values]
    return [v for v in values if isinstance(v, Tensor)]


def _loss(outputs: Any) -> Tensor | None:
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return loss.detach() if isinstance(loss, Tensor) else None
