"""Whole jobs as functions: a module with ``run(settings)``, or a function of one.

``run(settings, progress=True)`` does the job of a command and returns its result. With
``progress=False`` it prints nothing; files are written anyway. The settings stand beside the parser
in :mod:`relu_nmt.cli`, those of the sweep in :mod:`relu_nmt.applications.sweep.settings`. Both need
no PyTorch, so that commands start at once.
"""
