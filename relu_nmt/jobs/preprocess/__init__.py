"""Data folders from text."""
