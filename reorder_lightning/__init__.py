"""Learn the order in which a vision sequence model reads its patches."""

__version__ = "0.1.0.dev0"
