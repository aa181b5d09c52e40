"""The ways to compute attention.

``reference``, ``blockwise`` and ``triton`` compute pointwise attention, ``rows`` what has weights
of whole rows; ``choice`` chooses.
"""
