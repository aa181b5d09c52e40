"""Back ends of attention. Each mechanism declares its own in ``backends``.

``reference``, ``blockwise`` and ``triton`` compute pointwise attention, ``reference`` also
mechanisms whose weights need whole rows of scores. ``tuned`` holds the measured constants.
"""
