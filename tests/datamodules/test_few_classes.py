"""Case 40: top-k accuracy with fewer classes than k."""

import pytest
import torch
from lightning import Trainer
from torchmetrics.classification import MulticlassAccuracy

from reorder_lightning.datamodules import ImageNet
from reorder_lightning.models import ViT
from tests.data import layouts


def test_top_k_of_the_report():
    """Case 40: micro top-k counts the k best (torchmetrics issue 3068)."""
    logits = torch.tensor(
        [
            [[0.0, 0.1, 0.5, 0.4], [0.0, 0.2, 0.7, 0.1]],
            [[0.0, 0.4, 0.3, 0.3], [1.0, 0.0, 0.0, 0.0]],
        ]
    )
    targets = torch.tensor([[3, 2], [1, 0]])
    found = [
        MulticlassAccuracy(4, top_k=k, average="micro", ignore_index=0)(logits.mT, targets).item()
        for k in (1, 2, 3, 4)
    ]
    assert found == pytest.approx([2 / 3, 1, 1, 1])


def test_a_subset_of_four_classes(tmp_path):
    """Case 40: top-5 of 4 classes is top-4 here, and called so."""
    root = layouts.imagenet(tmp_path, layouts.WNIDS)
    data = ImageNet(str(root), image_size=16, batch_size=4, num_workers=0)
    size = {"depth": 1, "embed_dim": 16, "num_heads": 2, "patch_size": 8}
    model = ViT(num_classes=data.num_classes, image_size=data.image_size, **size)
    trainer = Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    (metrics,) = trainer.validate(model, datamodule=data, verbose=False)
    assert metrics["val/top4"] == 1
    assert 0 <= metrics["val/top1"] <= 1
