"""Probes of the features of image models."""
