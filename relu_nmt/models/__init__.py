"""Encoder-decoder models, their configuration and `--arch` presets."""
