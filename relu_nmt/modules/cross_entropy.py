"""Label-smoothed cross-entropy that never holds the whole logit matrix."""

from typing import Any

import torch
from torch import Tensor

CHUNK_TOKENS = 1024
"""Rows of logits held at a time; with a vocabulary of 8,000 that is 32 MB in float32."""


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Projection, log-softmax, loss and gradient, one chunk of tokens after the other.

    The gradient of the logits is simple (softmax minus the smoothed target), so it is computed
    while a chunk's logits are in the cache and turned at once into the gradients of the features
    and the weight; backward only multiplies them by the incoming scalar.
    """

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, targets: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        needs_gradient = features.requires_grad or weight.requires_grad
        vocab_size = weight.size(0)
        off_target = smoothing / (vocab_size - 1)
        on_target = 1.0 - smoothing - off_target
        compute_dtype = (
            torch.get_autocast_dtype(features.device.type)
            if torch.is_autocast_enabled(features.device.type)
            else features.dtype
        )
        with torch.autocast(features.device.type, enabled=False):
            h, w = features.to(compute_dtype), weight.to(compute_dtype)
            grad_h = torch.empty_like(h) if needs_gradient else None
            grad_w = torch.zeros_like(weight) if needs_gradient else None
            exact = torch.promote_types(compute_dtype, torch.float32)
            loss = torch.zeros((), dtype=exact, device=h.device)
            nll = torch.zeros((), dtype=exact, device=h.device)
            for start in range(0, h.size(0), CHUNK_TOKENS):
                chunk = slice(start, start + CHUNK_TOKENS)
                target = targets[chunk, None]  # [C, 1]
                logits = (h[chunk] @ w.T).to(exact)  # [C, V]
                log_total = logits.logsumexp(-1, keepdim=True)
                chunk_nll = (log_total - logits.gather(1, target)).sum()
                nll += chunk_nll
                loss += on_target * chunk_nll
                if smoothing:
                    loss += off_target * (vocab_size * log_total.sum() - logits.sum())
                if grad_h is not None and grad_w is not None:
                    slope = logits.sub_(log_total).exp_().sub_(off_target)
                    slope.scatter_add_(1, target, torch.full_like(log_total, -on_target))
                    slope = slope.to(compute_dtype)
                    grad_h[chunk] = slope @ w
                    grad_w += slope.T @ h[chunk]
        ctx.save_for_backward(grad_h, grad_w)
        ctx.feature_dtype = features.dtype
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_h, grad_w = ctx.saved_tensors
        return (grad_h * grad_loss).to(ctx.feature_dtype), grad_w * grad_loss, None, None


def projected_cross_entropy(
    features: Tensor, weight: Tensor, targets: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Return the label-smoothed loss and the negative log-likelihood, summed, in nats.

    The smoothed target gives 1 - smoothing to the right symbol and smoothing / (V - 1) to each
    other, as fairseq's ``label_smoothed_cross_entropy`` does. The logits are ``features`` times
    the transposed ``weight``.

    Args:
        features: [N, D] decoder states of real target positions.
        weight: [V, D] output projection.
        targets: [N] int64.
        smoothing: probability mass taken from the right symbol, 0 to less than 1.
    """
    return _ProjectedCrossEntropy.apply(features, weight, targets, smoothing)
