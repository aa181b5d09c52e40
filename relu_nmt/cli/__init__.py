"""The commands: description and job of each, without PyTorch."""
