"""Generic training: any objective, any batches."""
