"""Dictionaries, binarised corpora and batches."""
