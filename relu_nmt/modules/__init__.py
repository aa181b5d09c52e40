"""Shared building blocks of the models: embeddings, positions, multi-head attention."""
