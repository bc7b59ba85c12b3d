"""Tiny models and data for the tests of the callback; importable from other processes too."""

from __future__ import annotations

import hashlib

import timm
import torch
from lightning import Callback, LightningDataModule, LightningModule, Trainer
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from reorder_lightning.datamodules.base import ImageDataModule
from reorder_lightning.datamodules.sources import TensorImages
from reorder_lightning.orders import get_order
from reorder_lightning.patch_order import PatchOrder

QUIET = {
    "max_epochs": 1,
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


def trainer(root, *callbacks, **kwargs):
    return Trainer(default_root_dir=root, callbacks=list(callbacks), **{**QUIET, **kwargs})


def images(n=32, size=8, classes=3):
    """The class is where the bright corner is, so it takes all patches to see it."""
    g = torch.Generator().manual_seed(n)
    x = torch.randn(n, 3, size, size, generator=g)
    y = torch.arange(n) % classes
    return TensorDataset(x + y[:, None, None, None], y)


def loader(n=32, batch_size=8, **kwargs):
    return DataLoader(images(n, **kwargs), batch_size=batch_size)


class ToyData(ImageDataModule):
    """Noise of 8x8 pixels; epoch-seeded and resumable."""

    def __init__(self, n=32, batch_size=8):
        super().__init__(
            class_names="abc",
            image_size=8,
            mean=(0.5,) * 3,
            std=(0.25,) * 3,
            batch_size=batch_size,
            num_workers=0,
            augment="flip",
            seed=3,
        )
        self.n = n

    val_dataloader = LightningDataModule.val_dataloader  # a training only

    def source(self, split):
        g = torch.Generator().manual_seed(7)
        x = torch.randint(256, (self.n, 3, 8, 8), generator=g, dtype=torch.uint8)
        names = [str(i) for i in range(self.n)]
        return TensorImages(
            x,
            torch.arange(self.n) % 3,
            names,
            augment=self.augment,
            image_size=self.image_size,
            seed=self.seed,
        )


class ScanBlock(nn.Module):
    """A block that reads its tokens one after the other."""

    def __init__(self, dim, *args, **kwargs):
        super().__init__()
        self.read = nn.Linear(dim, dim)

    def forward(self, x, **kwargs):
        return x + self.read(x).tanh().cumsum(1) / x.shape[1]


def sequence_vit(**kwargs):
    """timm's VisionTransformer, 4x4 patches, with blocks that the order matters to."""
    args = {"img_size": 8, "patch_size": 2, "embed_dim": 8, "depth": 2, "num_heads": 2}
    args |= {"num_classes": 3, "block_fn": ScanBlock, "global_pool": "avg"}  # the class token
    # stands in front, where it would see nothing of what comes behind it
    return timm.models.vision_transformer.VisionTransformer(**{**args, **kwargs})


class Classifier(LightningModule):
    """What a stranger's LightningModule looks like."""

    def __init__(self, net=None, lr=0.05):
        super().__init__()
        torch.manual_seed(1)
        self.net = net if net is not None else sequence_vit()
        self.lr = lr
        self.losses = []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x).float(), y)
        self.losses.append(loss.detach().clone())
        return loss

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test", F.cross_entropy(self(x).float(), y), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


class Validated(Classifier):
    """With a validation loop."""

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        x, y = batch
        self.log("val", F.cross_entropy(self(x).float(), y), sync_dist=True)


class KnownAnswer(LightningModule):
    """Rewards orders for being near the Hilbert curve; there is nothing else to learn."""

    def __init__(self, side=8, noise=0.02):
        super().__init__()
        self.patch_order = PatchOrder(None, (side, side))
        self.goal = get_order("hilbert", side, side).argsort()
        self.noise = noise
        self.weight = nn.Parameter(torch.zeros(()))

    def training_step(self, batch, batch_idx):
        n = len(self.goal)
        patches = torch.arange(n).view(1, n, 1).expand(len(batch), n, 1)
        rank = self.patch_order(patches)[..., 0].argsort(1)
        reward = -(rank - self.goal).abs().float().mean(1) / n
        noise = torch.randn(len(batch), generator=torch.Generator().manual_seed(batch_idx))
        return {
            "loss": self.weight.square(),
            "reorder_reward": reward + self.noise * len(batch) ** 0.5 * noise,
        }

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def digest(*tensors):
    """Short hash of tensors, bit for bit."""
    content = b"".join(_plain(t).numpy().tobytes() for t in tensors)
    return hashlib.sha256(content).hexdigest()[:10]


def _plain(tensor):
    tensor = getattr(tensor.detach(), "full_tensor", tensor.detach)()  # sharded over ranks
    tensor = tensor.cpu().contiguous()
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor  # numpy has none


class Record(Callback):
    """Keeps what the callback did, batch by batch: put it behind REOrder."""

    def __init__(self, reorder):
        self.reorder = reorder
        self.rows = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        draw = self.reorder.layer.draw
        self.row = {
            "epoch": trainer.current_epoch,
            "batch": batch_idx,
            "phase": self.reorder.phase,
            "data": digest(*[t for t in batch if isinstance(t, torch.Tensor)]),
            "draw": "" if draw is None else digest(draw),
        }

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        policy = self.reorder.policy
        state = {} if policy is None else policy.state_dict()
        tensors = [v.flatten().double() for _, v in sorted(state.items()) if torch.is_tensor(v)]
        numbers = [v for _, v in sorted(state.items()) if isinstance(v, int | float)]
        self.row |= {
            "updates": 0 if policy is None else policy.updates,
            "logits": "" if policy is None else digest(policy.logits),
            "order": digest(self.reorder.order),
            "policy": digest(*tensors, torch.tensor(numbers, dtype=torch.float64)),
            "weights": digest(*pl_module.parameters()),
        }
        self.rows.append(self.row)
