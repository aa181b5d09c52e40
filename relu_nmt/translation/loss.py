"""The training loss: cross-entropy, guided alignment and attention regulariser.

The cross-entropy never has the logits of all target tokens in memory.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from relu_nmt.attention.base import NOTHING, Need
from relu_nmt.attention.records import NULL_SUM, record_attention
from relu_nmt.data.translation_batches import TranslationBatch
from relu_nmt.errors import ConfigError
from relu_nmt.modules.config import AttentionRegularizerConfig
from relu_nmt.modules.objective import LossOutput, RegularizedObjective
from relu_nmt.translation.encoder_decoder import EncoderDecoder

BLOCK_TOKENS = 2048
"""Number of rows of logits in memory at a time on a GPU."""

CPU_BLOCK_BYTES = 512
"""The same on a CPU, as bytes per column: 128 rows of float32.

Such a block (6 MB with a vocabulary of 12,000) stays in the processor's cache between passes."""

MOST_SYMBOLS = 60_000
"""Sums of so many exponentials, each at most 1, fit into float16, whose maximum is 65,504."""


class TranslationObjective(RegularizedObjective):
    """Label-smoothed cross-entropy per target token plus the attention regulariser.

    If batches have word alignments, the :func:`alignment_loss` of the aligning attention is added,
    also per target token, and logged as ``alignment_loss``.

    A plain ``nn.Linear`` as output projection never has all logits in memory at once. Another
    module, such as an adapter, is called as usual.

    Args:
        report_accuracy: also report the percentage of target tokens that are the most probable
            ones, given the right prefix.
        alignment_lambda: weight of the alignment loss; 0: none.

    Raises:
        ConfigError: the alignment loss needs an aligning attention with weights that are never
            negative and cover the whole source.
    """

    model: EncoderDecoder

    def __init__(
        self,
        model: EncoderDecoder,
        label_smoothing: float,
        regularizer: AttentionRegularizerConfig,
        report_accuracy: bool = False,
        alignment_lambda: float = 0.0,
    ) -> None:
        super().__init__(model, label_smoothing, regularizer)
        self.report_accuracy = report_accuracy
        self.alignment_lambda = alignment_lambda
        if alignment_lambda:
            _check_aligning(model)

    def loss(self, batch: TranslationBatch) -> LossOutput:
        """Return the cross-entropy of a batch, summed over its target tokens."""
        features, targets, weights = self.states(batch)
        return self.output(batch, self.cross_entropy(features, targets), weights)

    def cross_entropy(self, features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return loss, negative log-likelihood and right tokens of decoder states [N, D]."""
        projection = self.model.output_projection
        if type(projection) is nn.Linear and projection.bias is None:
            return projected_cross_entropy(
                features, projection.weight, targets, self.label_smoothing
            )
        # Call another module as usual: an adapter computes more than a product.
        log_probs = self.model.logits(features).log_softmax(-1)
        return smoothed_loss(log_probs, targets, self.label_smoothing)

    def states(self, batch: TranslationBatch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return decoder states [N, D] and targets [N] of the real target positions.

        The third result is the attention [B, T, S] that learns alignments, if the batch has some.
        """
        decoder = self.model.decoder
        is_guided = batch.alignments is not None and self.alignment_lambda != 0
        need = Need(weights=True) if is_guided else NOTHING
        with record_attention(decoder.aligning_attention, need) as records:
            features = self.model(batch.src_tokens, batch.prev_output_tokens)
        assert batch.tgt_tokens is not None, "training batches have targets"
        # Select the N real target positions among all B T.
        real = real_targets(batch, decoder.pad_index)
        features = features.flatten(0, 1).index_select(0, real)
        targets = batch.tgt_tokens.flatten().index_select(0, real)
        return features, targets, decoder.alignment_weights(records[0]) if is_guided else None

    def output(
        self, batch: TranslationBatch, values: Sequence[Tensor], weights: Tensor | None
    ) -> LossOutput:
        """Return the loss from the sums of :meth:`cross_entropy` and the aligning attention."""
        # Report sums with the number of tokens, so that batches average correctly.
        loss, nll, correct = values
        count = float(batch.num_tokens)
        metrics = {"loss": (loss.detach(), count), "nll_loss": (nll, count)}
        if self.report_accuracy:
            metrics["accuracy"] = (100 * correct, count)
        if weights is not None and batch.alignments is not None:
            guided = alignment_loss(weights, batch.alignments)
            metrics["alignment_loss"] = (guided.detach(), count)
            loss = loss + self.alignment_lambda * guided
        return LossOutput(loss, batch.num_tokens, metrics)


def real_targets(batch: TranslationBatch, pad: int) -> Tensor:
    """Return the indices [N] int64 of the target tokens that are no padding, among all B T."""
    assert batch.tgt_tokens is not None, "training batches have targets"
    # The known count saves a wait for the GPU.
    is_real = (batch.tgt_tokens != pad).flatten()
    return torch.nonzero_static(is_real, size=batch.num_tokens).squeeze(1)


def _check_aligning(model: EncoderDecoder) -> None:
    attention = model.decoder.aligning_attention
    if not (attention.capabilities.weights and attention.capabilities.non_negative):
        raise ConfigError(
            f"--load-alignments: --cross-attention {attention.name} has no weights that are never "
            "negative, as alignments need; choose another, such as softmax"
        )
    if model.config.document_attention != "full":
        raise ConfigError(
            "--load-alignments does not work with --document-attention aligned, where a layer "
            "attends to a sentence and to the whole document; leave one of them out"
        )


def alignment_loss(weights: Tensor, alignments: Tensor) -> Tensor:
    """Return the cross-entropy of attention to the alignments of target tokens, summed, in nats.

    Weights are [B, T, S]; alignments int64 [P, 3] are row, source and target position of each pair.
    The target of a token with n aligned source tokens is 1 / n for each of them. Tokens without
    alignment have no loss. Each row of weights is divided by its sum; a null row has a large loss,
    but no gradient.

    Reference: Garg et al. 2019, "Jointly learning to align and translate with Transformer models",
    section 4; the treatment of rows that do not sum to 1 is our addition.
    """
    rows, sources, targets = alignments.unbind(1)
    # Number the target tokens of the batch, and count the pairs of each.
    tokens = rows * weights.size(1) + targets
    counts = torch.bincount(tokens, minlength=weights[..., 0].numel())
    # Divide each aligned weight by the sum of its row, [P].
    totals = weights.sum(-1)[rows, targets]
    shares = weights[rows, targets, sources] / totals.clamp_min(NULL_SUM)
    # Average the logarithms over the pairs of a token.
    return -((shares + NULL_SUM).log() / counts[tokens]).sum()


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
