"""Conversion of models."""
