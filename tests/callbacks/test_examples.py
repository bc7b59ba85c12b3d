"""Models that people bring: a timm ViT with registers, causal convolutions, a Hugging Face ViT."""

import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from reorder_lightning import REOrder, get_order
from tests.toys import Classifier, images, trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The blocks of .* are full self-attention"),
]


def train(root, model, data=None, **where):
    reorder = REOrder("spiral", warmup=1, policy=2, **where)
    data = data or images(16, size=32)
    trainer(root, reorder, max_epochs=4).fit(model, DataLoader(data, batch_size=8))
    assert reorder.phase == "frozen"
    assert reorder.policy.updates == 6
    assert torch.equal(reorder.start_order, get_order("spiral", 4, 4))


def test_a_timm_vit_with_registers(tmp_path):
    vit = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, reg_tokens=4, num_classes=3, depth=1
    )
    train(tmp_path, Classifier(vit))


class CausalConv(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv = nn.Conv1d(dim, dim, 5)

    def forward(self, x):
        return x + F.gelu(self.conv(F.pad(x.transpose(1, 2), (4, 0)))).transpose(1, 2)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 8, 8)
        self.layers = nn.Sequential(CausalConv(8), CausalConv(8))
        self.classifier = nn.Linear(8, 3)

    def forward(self, x):
        return self.classifier(self.layers(self.patches(x).flatten(2).transpose(1, 2))[:, -1])


def test_causal_convolutions(tmp_path):
    train(tmp_path, Classifier(Convolutions()), target="net.layers", grid_size=(4, 4))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_hugging_face_vit(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=32,
        patch_size=8,
        num_labels=3,
    )

    class HuggingFace(Classifier):
        def training_step(self, batch, batch_idx):
            return self.net(**batch).loss

    model = HuggingFace(transformers.ViTForImageClassification(config))
    first = next(n for n, _ in model.named_modules() if n.endswith(("layer.0", "layers.0")))
    data = [{"pixel_values": x, "labels": y} for x, y in images(16, size=32)]
    train(tmp_path, model, data, target=first, grid_size=(4, 4), num_prefix_tokens=1)
