"""Whole jobs as functions: ``run(settings)`` does what the command of the same name does."""
