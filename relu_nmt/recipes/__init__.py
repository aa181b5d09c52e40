"""Whole jobs as functions: every recipe is a module with ``Settings`` and ``run(settings)``.

``run(settings, progress=True)`` does the job of the command of that name and returns its result.
``progress=False`` prints nothing. Settings stand in modules named ``..._settings`` and need no
PyTorch, so that the parsers of the commands start at once.
"""
