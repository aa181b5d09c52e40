"""The ways to compute pointwise attention: dense, by blocks in PyTorch, by Triton kernels.

A back end is a run-time choice (``--attention-backend``), never part of a checkpoint. All have the
signature of :func:`relu_nmt.attention.backends.reference.pointwise`.
"""
