"""The cross-entropy of ``loss.smoothed_loss``, block by block of target tokens, to save memory."""

import math
from typing import Any

import torch
from torch import Tensor

BLOCK_TOKENS = 2048  # number of rows of logits in memory at a time on a GPU

CPU_BLOCK_BYTES = 512
"""Bytes per column of a block on a CPU: 128 rows of float32.

Such a block (6 MB with a vocabulary of 12,000) stays in the processor's cache between passes."""

MOST_SYMBOLS = 60_000
"""The sum of this many exponentials, each at most 1, fits into float16 (at most 65,504)."""


def projected_cross_entropy(
    features: Tensor, weight: Tensor, targets: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``loss.smoothed_loss`` of the logits features @ weight.T, [N, D] times [D, V]."""
    # Within the function, autograd looks switched on even where it is off, as in a validation.
    has_gradients = torch.is_grad_enabled() and (features.requires_grad or weight.requires_grad)
    return _ProjectedCrossEntropy.apply(features, weight, targets, smoothing, has_gradients)


def block_rows(features: Tensor) -> int:
    """Return the number of rows of logits that are in memory at a time."""
    return CPU_BLOCK_BYTES // features.itemsize if features.device.type == "cpu" else BLOCK_TOKENS


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Projection, log-softmax, loss and gradient, block by block of tokens."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        targets: Tensor,
        smoothing: float,
        has_gradients: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        # The gradient of the logits is the softmax minus the smoothed target. It is computed while
        # a block's logits are in the cache, and turned at once into the gradients of features and
        # weight. Factors that are equal for all symbols (smoothing mass, softmax denominator) scale
        # the D-wide results, not the V-wide rows.
        # Read the dtype of autocast, then switch it off for the explicit casts.
        device = features.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        with torch.autocast(device, enabled=False):
            h = features.to(dtype or features.dtype)
            w = weight.to(dtype or weight.dtype)
            loss, nll, num_correct, *gradients = _blockwise_loss(
                h, w, targets, smoothing, has_gradients
            )
        # Keep the finished gradients, since backward only scales them.
        ctx.save_for_backward(*gradients)
        ctx.dtypes = features.dtype, weight.dtype
        ctx.mark_non_differentiable(nll, num_correct)
        return loss, nll, num_correct

    @staticmethod
    def backward(
        ctx: Any, grad_loss: Tensor, *_: Tensor
    ) -> tuple[Tensor, Tensor, None, None, None]:
        (grad_h, grad_w) = ctx.saved_tensors
        (h_dtype, w_dtype) = ctx.dtypes
        grad_features = (grad_h * grad_loss).to(h_dtype)
        grad_weight = (grad_w * grad_loss).to(w_dtype)
        return grad_features, grad_weight, None, None, None


def _blockwise_loss(
    h: Tensor, w: Tensor, targets: Tensor, smoothing: float, has_gradients: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return loss, negative log-likelihood, right tokens, gradients of h [N, D] and w [V, D]."""
    num_tokens = h.size(0)
    num_symbols = w.size(0)
    off_target = smoothing / (num_symbols - 1)
    on_target = 1.0 - smoothing - off_target
    exact = torch.promote_types(h.dtype, torch.float32)
    w_sum = w.sum(0, dtype=exact)  # [D], gives the sum of all logits of a row
    # With more symbols, shift the logits down, so that the sum is at most half of that.
    overflows = h.dtype == torch.float16 and num_symbols > MOST_SYMBOLS
    shift = math.log(2 * num_symbols / MOST_SYMBOLS) if overflows else 0.0
    # Allocate one block of logits [C, V] and the results.
    size = min(block_rows(h), num_tokens)
    logits_buffer = h.new_empty(size, num_symbols)
    exponentials_buffer = logits_buffer.to(exact)  # the same buffer if h has this dtype
    grad_h = torch.empty_like(h, dtype=exact) if has_gradients else None
    grad_w = torch.zeros_like(w, dtype=exact) if has_gradients else None
    loss = torch.zeros((), dtype=exact, device=h.device)
    nll = torch.zeros_like(loss)
    num_correct = torch.zeros_like(loss, dtype=torch.int64)
    for start in range(0, num_tokens, max(1, size)):
        block = slice(start, start + size)
        states = h[block]  # [C, D]
        target = targets[block, None]  # [C, 1]
        # Add the loss: log-sum-exp of the logits minus the logit of the target.
        logits = torch.mm(states, w.T, out=logits_buffer[: states.size(0)])
        peak = logits.amax(-1, keepdim=True)
        at_target = logits.gather(1, target)
        num_correct += (at_target >= peak).sum()
        at_target = at_target.to(exact)
        peak += shift
        exponentials = torch.sub(logits, peak, out=exponentials_buffer[: states.size(0)]).exp_()
        denominator = exponentials.sum(-1, keepdim=True)
        log_total = denominator.log() + peak
        block_nll = (log_total - at_target).sum()
        nll += block_nll
        loss += on_target * block_nll
        if off_target:
            sums = states.to(exact) @ w_sum  # [C], the sum of each row's logits
            loss += off_target * (num_symbols * log_total.sum() - sums.sum())
        if grad_h is None or grad_w is None:
            continue
        # Compute gradients of the logits [C, V], without denominator and smoothing mass.
        slopes = exponentials.scatter_add_(1, target, -on_target * denominator).to(h.dtype)
        # Turn them into gradients of the features [C, D] and the weight [V, D].
        grad_h[block] = (slopes @ w) / denominator
        scaled = (states / denominator).to(h.dtype)
        if h.dtype == exact:
            grad_w.addmm_(slopes.T, scaled)
        else:
            grad_w += slopes.T @ scaled
    # Apply the smoothing mass, which is equal for all symbols.
    if off_target and grad_h is not None and grad_w is not None:
        grad_h -= off_target * w_sum
        grad_w -= off_target * h.sum(0, dtype=exact)
    return loss, nll, num_correct, grad_h, grad_w
