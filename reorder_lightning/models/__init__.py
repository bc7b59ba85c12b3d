"""Model families, each a LightningModule."""

from reorder_lightning.models import timm_models as timm_models  # registers the names
from reorder_lightning.models.base import ImageClassifier
from reorder_lightning.models.longformer import Longformer
from reorder_lightning.models.mamba import Mamba
from reorder_lightning.models.transformer_xl import TransformerXL
from reorder_lightning.models.vit import ViT

__all__ = ["ImageClassifier", "Longformer", "Mamba", "TransformerXL", "ViT"]
