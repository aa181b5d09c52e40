"""Whole jobs as functions: every recipe is a module with ``Settings`` and ``run(settings)``.

``run(settings, progress=True)`` does the job of a command and returns its result. With
``progress=False`` it prints nothing; files are written anyway. The settings stand beside the parser
in :mod:`relu_nmt.cli`, which needs no PyTorch, so that commands start at once.
"""
