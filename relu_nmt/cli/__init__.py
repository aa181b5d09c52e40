"""The commands: flags and settings of each, without PyTorch."""
