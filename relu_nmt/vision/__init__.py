"""Image classification with any registered attention; a client of the generic trainer."""
