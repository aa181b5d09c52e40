"""What translation training minimises: cross-entropy, guided alignment, attention regulariser."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from relu_nmt.attention.base import NOTHING, Need
from relu_nmt.attention.records import record_attention
from relu_nmt.attention.spec import AttentionRegularizerConfig
from relu_nmt.attention.statistics import NULL_SUM
from relu_nmt.errors import ConfigError
from relu_nmt.modules.objective import LossOutput, Metric, RegularizedObjective
from relu_nmt.translation.encoder_decoder import EncoderDecoder

if TYPE_CHECKING:
    from relu_nmt.data.translation_batches import TranslationBatch


BLOCK_TOKENS = 2048
"""Rows of logits held at a time; one gradient product each."""

CPU_BLOCK_BYTES = 512
"""The same on a CPU, in bytes of a column: 128 rows of 32 bits, which stay in the cache from one
pass to the next (6 MB with a vocabulary of 12,000)."""


class TranslationObjective(RegularizedObjective):
    """Label-smoothed cross-entropy per target token plus the attention regulariser.

    Where batches have word alignments, the :func:`alignment_loss` of the attention that aligns
    tokens is added, per target token too, and has a line of its own in the log.

    Where the output projection is a plain ``nn.Linear``, its weight is read without holding all the
    logits; any other module that stands there, such as an adapter, is called.

    Args:
        report_accuracy: also report how many percent of the target tokens are the likeliest, given
            the right ones before.
        alignment_lambda: weight of the alignment loss; 0: none.

    Raises:
        ConfigError: there is to be an alignment loss, and the attention that aligns tokens has no
            weights, or signed ones, or stays inside sentences.
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

    def loss(self, batch: "TranslationBatch") -> LossOutput:
        """Return the cross-entropy of a batch, summed over its target tokens."""
        decoder = self.model.decoder
        alignments = batch.alignments if self.alignment_lambda else None
        need = NOTHING if alignments is None else Need(weights=True)
        with record_attention(decoder.aligning_attention, need) as records:
            features = self.model(batch.src_tokens, batch.prev_output_tokens)
        targets = batch.tgt_tokens
        assert targets is not None, "batches to train on have targets"
        is_real = (targets != self.model.decoder.pad_index).flatten()
        # The count is known, so the CPU need not wait for the GPU to find it.
        real = torch.nonzero_static(is_real, size=batch.num_tokens).squeeze(1)
        features = features.flatten(0, 1).index_select(0, real)
        targets = targets.flatten().index_select(0, real)
        projection = self.model.output_projection
        if type(projection) is nn.Linear and projection.bias is None:
            loss, nll, correct = projected_cross_entropy(
                features, projection.weight, targets, self.label_smoothing
            )
        else:  # such as an adapter, which computes more than the product with its weight
            logits = self.model.logits(features)
            loss, nll, correct = smoothed_cross_entropy(logits, targets, self.label_smoothing)
        count = float(batch.num_tokens)
        metrics = {"loss": Metric(loss.detach(), count), "nll_loss": Metric(nll, count)}
        if self.report_accuracy:
            metrics["accuracy"] = Metric(100 * correct, count)
        if alignments is not None:
            guided = alignment_loss(decoder.alignment_weights(records[0]), alignments)
            metrics["alignment_loss"] = Metric(guided.detach(), count)
            loss = loss + self.alignment_lambda * guided
        return LossOutput(loss, batch.num_tokens, metrics)


def _check_aligning(model: EncoderDecoder) -> None:
    attention = model.decoder.aligning_attention
    if not (attention.capabilities.weights and attention.capabilities.non_negative):
        raise ConfigError(
            f"--load-alignments: --cross-attention {attention.name} has no weights that are never "
            "negative, which could learn alignments; choose another, such as softmax"
        )
    if model.config.document_attention != "full":
        raise ConfigError(
            "--load-alignments does not work with --document-attention aligned, where a layer "
            "attends to a sentence and to the whole document; leave one of them out"
        )


def alignment_loss(weights: Tensor, alignments: Tensor) -> Tensor:
    """Return the cross-entropy of attention to the alignments of target tokens, summed, in nats.

    A token that is aligned with n source tokens is to attend to each with 1 / n; one that is
    aligned with none may attend as it likes. Rows of weights count as divided by their sums; a
    null row has a large loss, but no gradient.

    Args:
        weights: [B, T, S], not negative.
        alignments: int64 [P, 3]: row of the batch, source and target position of each pair.

    Reference: Garg et al. 2019, "Jointly learning to align and translate with Transformer models",
    section 4; that weights need not sum to 1, or may be 0, is ours.
    """
    rows, sources, targets = alignments.unbind(1)
    tokens = rows * weights.size(1) + targets
    counts = torch.bincount(tokens, minlength=weights[..., 0].numel())
    totals = weights.sum(-1)[rows, targets]
    shares = weights[rows, targets, sources] / totals.clamp_min(NULL_SUM)
    return -((shares + NULL_SUM).log() / counts[tokens]).sum()


def projected_cross_entropy(
    features: Tensor, weight: Tensor, targets: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the label-smoothed loss, the negative log-likelihood and the number of right tokens.

    Loss and likelihood are summed, in nats; a token is right if no other is likelier.

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


def smoothed_cross_entropy(
    logits: Tensor, targets: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what :func:`projected_cross_entropy` does, of logits [N, V] held as a whole."""
    log_probs = logits.log_softmax(-1)
    at_target = log_probs.gather(1, targets[:, None])
    nll = -at_target.sum()
    off_target = smoothing / (logits.size(1) - 1)
    loss = (1.0 - smoothing - off_target) * nll - off_target * log_probs.sum()
    return loss, nll.detach(), (at_target >= log_probs.amax(-1, keepdim=True)).sum()


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Projection, log-softmax, loss and gradient, one chunk of tokens after the other.

    The gradient of the logits is simple (softmax minus the smoothed target), so it is computed
    while a chunk's logits are in the cache and turned at once into the gradients of the features
    and the weight; backward only multiplies them by the incoming scalar. What is the same for
    all symbols (the smoothing mass, a row's softmax denominator) is applied to the D-wide
    results instead of the V-wide rows.
    """

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, targets: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        device = features.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        with torch.autocast(device, enabled=False):
            h, w = features.to(dtype or features.dtype), weight.to(dtype or weight.dtype)
            blocks = _Blocks(h, w, targets, smoothing, with_gradient=any(ctx.needs_input_grad))
            blocks.run()
        ctx.save_for_backward(blocks.grad_h, blocks.grad_w)
        ctx.dtypes = features.dtype, weight.dtype
        ctx.mark_non_differentiable(blocks.nll, blocks.correct)
        return blocks.loss, blocks.nll, blocks.correct

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (grad_h, grad_w), (h_dtype, w_dtype) = ctx.saved_tensors, ctx.dtypes
        return (grad_h * grad_loss).to(h_dtype), (grad_w * grad_loss).to(w_dtype), None, None


class _Blocks:
    """The loop over blocks of tokens and its buffers; N tokens, V symbols, width D."""

    def __init__(
        self, h: Tensor, w: Tensor, targets: Tensor, smoothing: float, with_gradient: bool
    ) -> None:
        self.h, self.w, self.targets = h, w, targets
        self.off_target = smoothing / (w.size(0) - 1)
        self.on_target = 1.0 - smoothing - self.off_target
        self.exact = torch.promote_types(h.dtype, torch.float32)
        self.w_sum = w.sum(0, dtype=self.exact)  # [D], for the sum of all logits of a row
        on_cpu = h.device.type == "cpu"
        self.rows = min(CPU_BLOCK_BYTES // h.itemsize if on_cpu else BLOCK_TOKENS, h.size(0))
        self.logits = h.new_empty(self.rows, w.size(0))
        is_exact = h.dtype == self.exact  # then one buffer holds both
        self.exponentials = self.logits if is_exact else self.logits.to(self.exact)
        self.grad_h = torch.empty_like(h, dtype=self.exact) if with_gradient else None
        self.grad_w = torch.zeros_like(w, dtype=self.exact) if with_gradient else None
        self.loss = torch.zeros((), dtype=self.exact, device=h.device)
        self.nll = torch.zeros_like(self.loss)
        self.correct = torch.zeros_like(self.loss, dtype=torch.int64)

    def run(self) -> None:
        """Sum the loss and the negative log-likelihood; compute the gradients."""
        for start in range(0, self.h.size(0), max(1, self.rows)):
            block = slice(start, start + self.rows)
            h, target = self.h[block], self.targets[block, None]
            exponentials, denominator = self._add_loss(h, target)
            if self.grad_h is None or self.grad_w is None:
                continue
            # The slopes of the logits, but for the denominator and the smoothing mass.
            slopes = exponentials.scatter_add_(1, target, -self.on_target * denominator)
            slopes = slopes.to(h.dtype)
            self.grad_h[block] = (slopes @ self.w) / denominator
            scaled = (h / denominator).to(h.dtype)
            if h.dtype == self.exact:
                self.grad_w.addmm_(slopes.T, scaled)
            else:
                self.grad_w += slopes.T @ scaled
        if self.off_target and self.grad_h is not None and self.grad_w is not None:
            self.grad_h -= self.off_target * self.w_sum
            self.grad_w -= self.off_target * self.h.sum(0, dtype=self.exact)

    def _add_loss(self, h: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Add the loss of a block [C, D]; return exp(logits - peak) [C, V] and its sums [C, 1]."""
        logits = torch.mm(h, self.w.T, out=self.logits[: h.size(0)])
        peak = logits.amax(-1, keepdim=True)
        at_target = logits.gather(1, target)
        self.correct += (at_target >= peak).sum()
        at_target = at_target.to(self.exact)
        exponentials = torch.sub(logits, peak, out=self.exponentials[: h.size(0)]).exp_()
        denominator = exponentials.sum(-1, keepdim=True)
        log_total = denominator.log() + peak
        nll = (log_total - at_target).sum()
        self.nll += nll
        self.loss += self.on_target * nll
        if self.off_target:
            all_logits = h.to(self.exact) @ self.w_sum  # [C], each row's logits summed
            self.loss += self.off_target * (self.w.size(0) * log_total.sum() - all_logits.sum())
        return exponentials, denominator
