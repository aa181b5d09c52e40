"""Whole jobs as functions: every recipe is a module with ``Settings`` and ``run(settings)``.

``run(settings, progress=True)`` does what the command of that name does, and returns what came of
it; ``progress=False`` prints nothing. Settings can be imported without PyTorch, so that the parsers
of the commands start at once: they lie in the modules named ``..._settings``.
"""
