"""The encoder-decoder model, its settings and loss, the task around it, and the search."""
