"""The training loss: cross-entropy, guided alignment and attention regularizer.

:func:`smoothed_loss` is the cross-entropy. :mod:`relu_nmt.translation.blockwise_loss` computes the
same with less memory.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from relu_nmt.attention.base import Need
from relu_nmt.attention.records import AttentionRecord, record_attention
from relu_nmt.attention.regularizer import NULL_SUM
from relu_nmt.data.translation_batches import TranslationBatch
from relu_nmt.errors import ConfigError
from relu_nmt.modules.config import AttentionRegularizerConfig
from relu_nmt.modules.objective import LossOutput, RegularizedObjective
from relu_nmt.translation.base import TranslationModel
from relu_nmt.translation.blockwise_loss import projected_cross_entropy


class CrossEntropy(NamedTuple):
    """Sums over target tokens. A token is correct if no other symbol is more probable."""

    loss: Tensor  # label-smoothed cross-entropy, in nats
    nll: Tensor  # negative log-likelihood, in nats
    num_correct: Tensor


def smoothed_loss(log_probs: Tensor, targets: Tensor, smoothing: float) -> CrossEntropy:
    """Return the label-smoothed cross-entropy of N target tokens.

    The smoothed target gives 1 - smoothing to the correct symbol, and smoothing / (V - 1) to each
    other symbol, as fairseq's ``label_smoothed_cross_entropy`` does.

    Args:
        log_probs: [N, V], logarithms of the model's probabilities.
        targets: [N] int64, the correct symbols.
        smoothing: probability of all wrong symbols together, 0 to below 1.
    """
    at_target = log_probs.gather(1, targets[:, None])
    nll = -at_target.sum()
    off_target = smoothing / (log_probs.size(1) - 1)
    loss = (1.0 - smoothing - off_target) * nll - off_target * log_probs.sum()
    num_correct = (at_target >= log_probs.amax(-1, keepdim=True)).sum()
    return CrossEntropy(loss, nll.detach(), num_correct)


class TranslationObjective(RegularizedObjective):
    """Label-smoothed cross-entropy per target token plus the attention regularizer.

    If batches have word alignments, the :func:`alignment_loss` of the aligning attention is added,
    also per target token, and logged as ``alignment_loss``.

    :meth:`loss` calls ``states``, ``cross_entropy`` and ``output``. ``TaughtObjective`` has
    a ``loss`` of its own. With an ``nn.Linear`` without bias as output projection, memory never
    holds all logits at once. Another module, such as an adapter, is called as usual.

    Args:
        report_accuracy: also report the percentage of target tokens that are the most probable
            ones, given the right prefix.
        alignment_lambda: weight of the alignment loss. 0: none.

    Raises:
        ConfigError: the alignment loss needs an aligning attention with weights that are never
            negative and cover the whole source.
    """

    model: TranslationModel

    def __init__(
        self,
        model: TranslationModel,
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
        with self.aligning_records(batch) as records:
            states, targets = self.states(batch)
        return self.output(batch, self.cross_entropy(states, targets), records)

    def states(self, batch: TranslationBatch) -> tuple[Tensor, Tensor]:
        """Return the decoder states [N, D] of the real target tokens, and these targets [N]."""
        states = self.model(batch.src_tokens, batch.prev_output_tokens).flatten(0, 1)
        real = real_targets(batch, self.model.pad_index)
        return states.index_select(0, real), batch.tgt_tokens.flatten().index_select(0, real)

    def cross_entropy(self, states: Tensor, targets: Tensor) -> CrossEntropy:
        """Return the cross-entropy of decoder states [N, D] with their targets [N]."""
        projection = self.model.output_projection
        smoothing = self.label_smoothing
        # Compute a plain product block by block. An adapter computes more than a product.
        if type(projection) is nn.Linear and projection.bias is None:
            sums = projected_cross_entropy(states, projection.weight, targets, smoothing)
            return CrossEntropy(*sums)
        log_probs = self.model.logits(states).log_softmax(-1)
        return smoothed_loss(log_probs, targets, smoothing)

    @contextmanager
    def aligning_records(self, batch: TranslationBatch) -> Iterator[list[AttentionRecord]]:
        """Record the aligning attention in the block, if the batch has alignments to learn."""
        if batch.alignments is None or self.alignment_lambda == 0:
            yield []
            return
        with record_attention(self.model.aligning_attention, Need(weights=True)) as records:
            yield records

    def output(
        self, batch: TranslationBatch, sums: CrossEntropy, records: Sequence[AttentionRecord]
    ) -> LossOutput:
        """Return the loss and its metrics from cross-entropy and aligning attention."""
        # Report sums with the number of tokens, so that batches average correctly.
        loss, nll, num_correct = sums
        count = float(batch.num_tokens)
        metrics = {"loss": (loss.detach(), count), "nll_loss": (nll, count)}
        if self.report_accuracy:
            metrics["accuracy"] = (100 * num_correct, count)
        if batch.alignments is not None and self.alignment_lambda != 0:
            weights = self.model.alignment_weights(records[0])  # [B, T, S]
            guided = alignment_loss(weights, batch.alignments)
            metrics["alignment_loss"] = (guided.detach(), count)
            loss = loss + self.alignment_lambda * guided
        return LossOutput(loss, batch.num_tokens, metrics)


def real_targets(batch: TranslationBatch, pad: int) -> Tensor:
    """Return the indices [N] int64 of the target tokens that are no padding, among all B T."""
    # The known count saves a wait for the GPU.
    is_real = (batch.tgt_tokens != pad).flatten()
    return torch.nonzero_static(is_real, size=batch.num_tokens).squeeze(1)


def _check_aligning(model: TranslationModel) -> None:
    attention = model.aligning_attention
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

    Weights are [B, T, S]. Alignments int64 [P, 3] are row, source and target position of each pair.
    The target of a token with n aligned source tokens is 1 / n for each of them. Tokens without
    alignment have no loss. Each row of weights is divided by its sum. A null row has a large loss,
    but no gradient.

    Reference: Garg et al. 2019, "Jointly learning to align and translate with Transformer models",
    section 4. The treatment of rows that do not sum to 1 is our addition.
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
