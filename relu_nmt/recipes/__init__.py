"""Whole jobs as functions: every recipe is a module with ``Settings`` and ``run(settings)``.

``run(settings, progress=True)`` does the job of the command of that name and returns its result.
``progress=False`` prints nothing. The settings stand beside the parser in :mod:`relu_nmt.cli`,
which needs no PyTorch, so that commands start at once.
"""
