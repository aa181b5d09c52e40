"""The commands; thin, and imported by nothing."""
