"""Model families, each a LightningModule."""
