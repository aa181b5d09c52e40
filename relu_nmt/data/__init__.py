"""Dictionaries, binarized corpora and batches."""
