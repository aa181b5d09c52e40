"""Losses of target tokens that never have all logits in memory: cross-entropy, divergence."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

BLOCK_TOKENS = 2048
"""Number of rows of logits in memory at a time on a GPU."""

CPU_BLOCK_BYTES = 512
"""The same on a CPU, as bytes per column: 128 rows of float32.

Such a block (6 MB with a vocabulary of 12,000) stays in the processor's cache between passes."""

LEAST_REST = 1e-6
"""Least probability outside the teacher's symbols, for it has a logarithm."""

MOST_SYMBOLS = 60_000
"""Sums of so many exponentials, each at most 1, fit into float16, whose maximum is 65,504."""


def projected_cross_entropy(
    features: Tensor, weight: Tensor, targets: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the label-smoothed loss, the negative log-likelihood and the number of right tokens.

    Loss and likelihood are sums in nats. A token is right if no other is more probable.

    The smoothed target gives 1 - smoothing to the right symbol and smoothing / (V - 1) to each
    other symbol, as fairseq's ``label_smoothed_cross_entropy`` does. The logits [N, V] are the
    states ``features`` [N, D] of real target positions times the transposed ``weight`` [V, D].
    """
    return _ProjectedCrossEntropy.apply(features, weight, targets, smoothing)


def smoothed_loss(
    log_probs: Tensor, targets: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the values of :func:`projected_cross_entropy` for log-probabilities [N, V]."""
    at_target = log_probs.gather(1, targets[:, None])
    nll = -at_target.sum()
    off_target = smoothing / (log_probs.size(1) - 1)
    loss = (1.0 - smoothing - off_target) * nll - off_target * log_probs.sum()
    return loss, nll.detach(), (at_target >= log_probs.amax(-1, keepdim=True)).sum()


def block_rows(features: Tensor) -> int:
    """Return the number of rows of logits to have in memory at a time."""
    return CPU_BLOCK_BYTES // features.itemsize if features.device.type == "cpu" else BLOCK_TOKENS


def divergence(log_p: Tensor, ids: Tensor, log_probs: Tensor, temperature: float) -> Tensor:
    """Return KL(q || p) at a temperature, summed over tokens, in nats.

    The teacher's k symbols keep their probabilities. The other V - k symbols share the rest evenly,
    since the teacher was trained on smoothed targets.

    Args:
        log_p: [N, V], the logarithms of the student's probabilities p at this temperature.
        ids: [N, k] int64, the teacher's symbols.
        log_probs: [N, k], the logarithms of their probabilities at temperature 1.
        temperature: T.
    """
    others = log_p.size(1) - ids.size(1)
    rest = (1.0 - log_probs.exp().sum(-1, keepdim=True)).clamp(min=LEAST_REST)
    # Divide logarithms by T and normalise: k symbols, then the one value of all others.
    scores = torch.cat([log_probs, (rest / max(others, 1)).log()], -1) / temperature  # [N, k + 1]
    counts = torch.ones_like(scores[0])
    counts[-1] = others
    log_q = scores - (scores.exp() * counts).sum(-1, keepdim=True).log()
    own = log_p.gather(1, ids)  # [N, k]
    sums = torch.cat([own, (log_p.sum(-1) - own.sum(-1))[:, None]], -1)  # [N, k + 1]
    return (log_q.exp() * (counts * log_q - sums)).sum()


def taught_cross_entropy(
    logits_of: Callable[[Tensor], Tensor],
    features: Tensor,
    targets: Tensor,
    smoothing: float,
    ids: Tensor,
    log_probs: Tensor,
    temperature: float,
) -> list[Tensor]:
    """Return the values of :func:`projected_cross_entropy`, then the divergence from the teacher.

    ``logits_of`` maps states [n, D] to logits [n, V]. The backward pass computes the logits of a
    block of tokens again, so that memory never holds all of them. The other arguments are those of
    :func:`projected_cross_entropy` and :func:`divergence`.
    """

    def of_block(
        features: Tensor, targets: Tensor, ids: Tensor, log_probs: Tensor
    ) -> tuple[Tensor, ...]:
        logits = logits_of(features)
        log_p = own = logits.log_softmax(-1)
        if temperature != 1:
            log_p = (logits / temperature).log_softmax(-1)
        values = smoothed_loss(own, targets, smoothing)
        return *values, divergence(log_p, ids, log_probs, temperature)

    size = block_rows(features)
    tables = zip(*(x.split(size) for x in (features, targets, ids, log_probs)), strict=True)
    blocks = [
        checkpoint(of_block, *table, use_reentrant=False, preserve_rng_state=False)
        for table in tables
    ]
    return [torch.stack(values).sum(0) for values in zip(*blocks, strict=True)]


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Projection, log-softmax, loss and gradient, block by block of tokens."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, targets: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        # The gradient of the logits is the softmax minus the smoothed target. It is computed while
        # a block's logits are in the cache, and turned at once into the gradients of features and
        # weight. Factors that are equal for all symbols (smoothing mass, softmax denominator) scale
        # the D-wide results, not the V-wide rows.
        # Read the dtype of autocast, then switch it off for the explicit casts.
        device = features.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        with torch.autocast(device, enabled=False):
            h, w = features.to(dtype or features.dtype), weight.to(dtype or weight.dtype)
            loss, nll, correct, *gradients = _blockwise_loss(
                h, w, targets, smoothing, with_gradients=any(ctx.needs_input_grad)
            )
        # Keep the finished gradients, since backward only scales them.
        ctx.save_for_backward(*gradients)
        ctx.dtypes = features.dtype, weight.dtype
        ctx.mark_non_differentiable(nll, correct)
        return loss, nll, correct

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (grad_h, grad_w), (h_dtype, w_dtype) = ctx.saved_tensors, ctx.dtypes
        return (grad_h * grad_loss).to(h_dtype), (grad_w * grad_loss).to(w_dtype), None, None


def _blockwise_loss(
    h: Tensor, w: Tensor, targets: Tensor, smoothing: float, with_gradients: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return loss, negative log-likelihood, right tokens, gradients of h [N, D] and w [V, D]."""
    num_tokens, num_symbols = h.size(0), w.size(0)
    off_target = smoothing / (num_symbols - 1)
    on_target = 1.0 - smoothing - off_target
    exact = torch.promote_types(h.dtype, torch.float32)
    w_sum = w.sum(0, dtype=exact)  # [D], gives the sum of all logits of a row
    # Lower exponentials of more symbols, so that their sum is at most half of that.
    overflows = h.dtype == torch.float16 and num_symbols > MOST_SYMBOLS
    shift = math.log(2 * num_symbols / MOST_SYMBOLS) if overflows else 0.0

    # Allocate one block of logits [C, V], and the results.
    size = min(block_rows(h), num_tokens)
    logits_buffer = h.new_empty(size, num_symbols)
    exponentials_buffer = logits_buffer  # in place, if its dtype is exact enough
    if h.dtype != exact:
        exponentials_buffer = logits_buffer.to(exact)
    grad_h = torch.empty_like(h, dtype=exact) if with_gradients else None
    grad_w = torch.zeros_like(w, dtype=exact) if with_gradients else None
    loss = torch.zeros((), dtype=exact, device=h.device)
    nll, correct = torch.zeros_like(loss), torch.zeros_like(loss, dtype=torch.int64)

    for start in range(0, num_tokens, max(1, size)):
        block = slice(start, start + size)
        own, target = h[block], targets[block, None]  # [C, D], [C, 1]

        # Add the loss: log-sum-exp of the logits minus the logit of the target.
        logits = torch.mm(own, w.T, out=logits_buffer[: own.size(0)])
        peak = logits.amax(-1, keepdim=True)
        at_target = logits.gather(1, target)
        correct += (at_target >= peak).sum()
        at_target = at_target.to(exact)
        peak += shift
        exponentials = torch.sub(logits, peak, out=exponentials_buffer[: own.size(0)]).exp_()
        denominator = exponentials.sum(-1, keepdim=True)
        log_total = denominator.log() + peak
        block_nll = (log_total - at_target).sum()
        nll += block_nll
        loss += on_target * block_nll
        if off_target:
            sums = own.to(exact) @ w_sum  # [C], the sum of each row's logits
            loss += off_target * (num_symbols * log_total.sum() - sums.sum())
        if grad_h is None or grad_w is None:
            continue

        # Compute gradients of the logits [C, V], without denominator and smoothing mass.
        slopes = exponentials.scatter_add_(1, target, -on_target * denominator).to(h.dtype)
        # Turn them into gradients of the features [C, D] and the weight [V, D].
        grad_h[block] = (slopes @ w) / denominator
        scaled = (own / denominator).to(h.dtype)
        if h.dtype == exact:
            grad_w.addmm_(slopes.T, scaled)
        else:
            grad_w += slopes.T @ scaled

    # Apply the smoothing mass, which is equal for all symbols.
    if off_target and grad_h is not None and grad_w is not None:
        grad_h -= off_target * w_sum
        grad_w -= off_target * h.sum(0, dtype=exact)
    return loss, nll, correct, grad_h, grad_w
