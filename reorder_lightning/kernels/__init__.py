"""Sequence operations of the models, each with a portable path."""
