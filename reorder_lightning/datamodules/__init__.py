"""DataModules: each owns the facts of its data and feeds its images to a Trainer."""

from reorder_lightning.datamodules.base import ImageDataModule
from reorder_lightning.datamodules.cifar import CIFAR100
from reorder_lightning.datamodules.cifar_c import CIFAR100C
from reorder_lightning.datamodules.fmow import FMoW
from reorder_lightning.datamodules.imagenet import ImageNet
from reorder_lightning.datamodules.ucmerced import UCMerced

__all__ = ["CIFAR100", "CIFAR100C", "FMoW", "ImageDataModule", "ImageNet", "UCMerced"]
