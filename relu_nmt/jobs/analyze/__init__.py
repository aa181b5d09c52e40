"""Comparison of the attention of models."""
