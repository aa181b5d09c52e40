"""Distillation: a model learns from the probabilities and the attention of trained models.

For each target token the teacher gives its k most probable symbols, and the student has logits z:

    q = softmax(log probabilities / T)         the other V - k symbols have equal probabilities
    p = softmax(z / T)
    KL(q || p) = sum_v q_v log(q_v / p_v)

With the teacher's share w the loss is (1 - w) cross-entropy + w T^2 KL(q || p). A second term
compares the attention outputs y of the student and t of the teacher: it is a weight times the mean
of |y - t|^2 / |t|^2 over all slots and layers.

Reference: Hinton et al. 2015, "Distilling the knowledge in a neural network", section 2 (T^2). Kim
and Rush 2016, "Sequence-level knowledge distillation", Eq. 3 (each token). Tan et al. 2019,
"Multilingual neural machine translation with knowledge distillation", section 3.3 (k symbols).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from relu_nmt.data.translation_batches import TranslationBatch
from relu_nmt.errors import ConfigError
from relu_nmt.modules.config import AttentionRegularizerConfig
from relu_nmt.modules.multihead import MultiheadAttention
from relu_nmt.modules.objective import LossOutput
from relu_nmt.translation.base import TranslationModel, average_log_probs
from relu_nmt.translation.blockwise_loss import block_rows
from relu_nmt.translation.config import TeacherConfig
from relu_nmt.translation.encoder_decoder import encoder_decoder_of
from relu_nmt.translation.loss import (
    CrossEntropy,
    TranslationObjective,
    real_targets,
    smoothed_loss,
)
from relu_nmt.translation.teacher_cache import BestSymbols, TeacherCache

LEAST_REST = 1e-6  # lower bound of the probability of all other symbols, before its logarithm


class TaughtObjective(TranslationObjective):
    """The translation loss, to which training adds the distance from the mean of the teachers."""

    def __init__(
        self,
        teachers: Sequence[TranslationModel],
        config: TeacherConfig,
        model: TranslationModel,
        label_smoothing: float,
        regularizer: AttentionRegularizerConfig,
        report_accuracy: bool = False,
        alignment_lambda: float = 0.0,
    ) -> None:
        super().__init__(model, label_smoothing, regularizer, report_accuracy, alignment_lambda)
        self.config = config
        # Keep the teachers in a plain list, so that their weights do not learn.
        self._teachers = [model.eval().requires_grad_(False) for model in teachers]
        self._teaches_attention = config.teacher_attention_weight > 0
        if self._teaches_attention:
            student_shape = _shape_in_words(self.model)
            teacher_shape = _shape_in_words(teachers[0])
            if student_shape != teacher_shape:
                raise ConfigError(
                    f"--teacher-attention-weight: the teacher has {teacher_shape}, but the model "
                    f"{student_shape}; leave it out, or train a model of the teacher's shape"
                )
        self._cache = None if config.teacher_cache is None else TeacherCache(config)

    def loss(self, batch: TranslationBatch) -> LossOutput:
        """Return the cross-entropy of a batch. In training, mix in the losses of the teacher."""
        if not self.training:
            return super().loss(batch)
        config = self.config
        pad = self.model.pad_index
        with (
            attention_outputs(self.model, self._teaches_attention) as student,
            self.aligning_records(batch) as records,
        ):
            states, targets = self.states(batch)
        # Compare the N real target positions with the teacher's.
        best, teacher = self.taught(batch, block_rows(states))
        cross_entropy, kl = self._compared(states, targets, best)
        output = self.output(batch, cross_entropy, records)
        # Put w T^2 KL in the place of the share w of the cross-entropy.
        count = float(batch.num_tokens)
        scale = config.teacher_temperature**2
        metrics = {**output.metrics, "teacher_loss": (kl.detach(), count)}
        loss = output.loss + config.teacher_weight * (scale * kl - cross_entropy.loss)
        if student:
            distance = count * attention_distance(student, teacher, batch, pad)
            metrics["teacher_attention"] = (distance.detach(), count)
            loss = loss + config.teacher_attention_weight * distance
        return replace(output, loss=loss, metrics=metrics)

    @torch.no_grad()
    def taught(self, batch: TranslationBatch, rows: int) -> tuple[BestSymbols, dict[str, Tensor]]:
        """Return the teacher's best symbols, ``rows`` tokens at a time, and its attention."""
        real = real_targets(batch, self.model.pad_index)
        if self._cache is not None:
            compute = partial(self._best, batch, real, rows)
            stored = self._cache.best_symbols(batch, compute)
            return BestSymbols(stored.ids.to(real.device), stored.log_probs.to(real.device)), {}
        with attention_outputs(self._teachers[0], self._teaches_attention) as attention:
            best = self._best(batch, real, rows)
        return best, attention

    def forget_largest(self) -> None:
        """Let the teacher run for the next batch even if its results are in the cache."""
        if self._cache is not None:
            self._cache.forget_largest()

    def _best(self, batch: TranslationBatch, real: Tensor, rows: int) -> BestSymbols:
        """Compute the best symbols of the real target tokens, at the indices ``real`` [N]."""
        states = []
        for model in self._teachers:
            features = model(batch.src_tokens, batch.prev_output_tokens)
            states.append(features.flatten(0, 1).index_select(0, real).split(rows))
        # Average the probabilities of the models, block by block of tokens.
        tops = []
        for blocks in zip(*states, strict=True):
            by_model = []
            for model, block in zip(self._teachers, blocks, strict=True):
                by_model.append(model.logits(block).log_softmax(-1))
            log_probs = average_log_probs(by_model)
            tops.append(log_probs.topk(min(self.config.teacher_top_k, log_probs.size(1))))
        ids = torch.cat([top.indices for top in tops])
        return BestSymbols(ids, torch.cat([top.values for top in tops]))

    def _compared(
        self, states: Tensor, targets: Tensor, best: BestSymbols
    ) -> tuple[CrossEntropy, Tensor]:
        """Return the cross-entropy and the divergence from the teacher.

        They compare decoder states [N, D] with targets [N] and with the teacher's best symbols. The
        backward pass computes the logits of a block of tokens again, so that memory never holds all
        of them.
        """
        temperature = self.config.teacher_temperature

        def of_block(x: Tensor, targets: Tensor, ids: Tensor, log_probs: Tensor) -> list[Tensor]:
            logits = self.model.logits(x)
            log_p = logits.log_softmax(-1)
            sums = smoothed_loss(log_p, targets, self.label_smoothing)
            if temperature != 1:
                log_p = (logits / temperature).log_softmax(-1)
            return [*sums, divergence(log_p, ids, log_probs, temperature)]

        columns = [x.split(block_rows(states)) for x in (states, targets, *best)]
        sums: list[list[Tensor]] = [[], [], [], []]
        for x, y, ids, log_probs in zip(*columns, strict=True):
            values = checkpoint(
                of_block, x, y, ids, log_probs, use_reentrant=False, preserve_rng_state=False
            )
            for column, value in zip(sums, values, strict=True):
                column.append(value)
        *cross_entropy, kl = [torch.stack(column).sum(0) for column in sums]
        return CrossEntropy(*cross_entropy), kl


def divergence(log_p: Tensor, ids: Tensor, log_probs: Tensor, temperature: float) -> Tensor:
    """Return KL(q || p) at a temperature, summed over tokens, in nats.

    The teacher's k symbols ``ids`` [N, k] have ``log_probs`` [N, k] at temperature 1. The other
    V - k symbols have equal probabilities, since the teacher was trained on smoothed targets.
    ``log_p`` [N, V] are the logarithms of the student's probabilities p at this temperature.
    """
    num_others = log_p.size(1) - ids.size(1)
    share = (1.0 - log_probs.exp().sum(-1, keepdim=True)).clamp(min=LEAST_REST)  # of all others
    # Divide logarithms by T and normalize: k symbols, then one value for each other symbol.
    log_share = (share / max(num_others, 1)).log()
    scores = torch.cat([log_probs, log_share], -1) / temperature  # [N, k + 1]
    counts = torch.ones_like(scores[0])
    counts[-1] = num_others
    log_q = scores - (scores.exp() * counts).sum(-1, keepdim=True).log()
    at_ids = log_p.gather(1, ids)  # [N, k]
    sums = torch.cat([at_ids, (log_p.sum(-1) - at_ids.sum(-1))[:, None]], -1)  # [N, k + 1]
    return (log_q.exp() * (counts * log_q - sums)).sum()


def attention_distance(
    student: Mapping[str, Tensor], teacher: Mapping[str, Tensor], batch: TranslationBatch, pad: int
) -> Tensor:
    """Return the mean of |y - t|^2 / |t|^2 over modules, student y and teacher t [B, N, D]."""
    sides = {"encoder": batch.src_tokens != pad, "decoder": batch.prev_output_tokens != pad}
    distances = []
    for name, y in student.items():
        is_real = sides[name.partition(".")[0]][..., None]  # [B, N, 1]
        t = teacher[name].to(y.device, torch.promote_types(y.dtype, torch.float32))
        error = ((y - t).square() * is_real).sum()
        distances.append(error / (t.square() * is_real).sum())
    return torch.stack(distances).mean()


@contextmanager
def attention_outputs(model: nn.Module, is_taught: bool) -> Iterator[dict[str, Tensor]]:
    """Collect the outputs [B, N, D] of all attention modules inside the block, by name."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str, _module: nn.Module, _inputs: Any, output: Tensor) -> None:
        outputs[name] = output

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if is_taught and isinstance(module, MultiheadAttention):
                hooks.enter_context(module.register_forward_hook(partial(keep, name)))
        yield outputs


def _shape_in_words(model: TranslationModel) -> str:
    config = encoder_decoder_of(model, "--teacher-attention-weight").config
    layers = f"{config.encoder_layers} + {config.decoder_layers} layers"
    return f"{layers} of width {config.decoder_embed_dim}"
