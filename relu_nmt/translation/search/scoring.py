"""Scores of finished hypotheses: log-probability, length penalty, coverage penalty, or your own.

A search ranks hypotheses by its :class:`Scorer` alone. The scorer also bounds the score that an
open hypothesis can still reach, for the rules that stop the search.
"""

from abc import ABC, abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from relu_nmt.attention.base import Need
from relu_nmt.attention.records import record_attention
from relu_nmt.config import build_part, option
from relu_nmt.config.classes import with_own_config
from relu_nmt.config.registry import Spec
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.documents import Separators
from relu_nmt.data.translation_batches import shift_right
from relu_nmt.errors import ConfigError
from relu_nmt.translation.base import Ensemble
from relu_nmt.translation.next_token_scores import average_log_probs
from relu_nmt.translation.search import scorers
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.step_rules import exclude_token
from relu_nmt.translation.search.translations import Hypothesis

CHUNK = 1024  # target tokens whose logits exist at a time: 128 MB for 32,000 symbols
LEAST_COVERAGE = 1e-6
"""Smallest coverage of a word: attention weights may be exactly 0, whose logarithm is infinite."""


@dataclass(frozen=True)
class Outputs:
    """Hypotheses of several sentences, as if each ended now.

    Args:
        totals: log-probabilities in nats, [B, M].
        lengths: tokens that count for the score, the end symbol included, int64 [B].
        attention: weight that each source position got from all output tokens together,
            [B, M, S]. None unless the scorer ``needs_attention``.
        is_word: bool [B, S]. False for padding, separators and end symbols of the source.
    """

    totals: Tensor
    lengths: np.ndarray
    attention: Tensor | None
    is_word: Tensor


class Scorer(ABC):
    """The base class of scorers, which rank finished hypotheses.

    Args:
        config: options from ``--scorer NAME:option=value``.
        search: settings of the search, with the length penalty.
    """

    Config: ClassVar[type]

    needs_attention: ClassVar[bool] = False
    """The score reads :attr:`Outputs.attention`, from the cross-attention that aligns tokens."""

    uses_length_penalty: ClassVar[bool] = False
    """The score depends on the flags of the length penalty. If not, the flags are refused."""

    def __init_subclass__(cls) -> None:
        with_own_config(cls)

    def __init__(self, config: Any, search: GenerationConfig) -> None:
        self.config = config
        self.search = search

    @abstractmethod
    def score(self, outputs: Outputs) -> Tensor:
        """Return the scores [B, M]. The highest is the best."""

    def joined(self, scores: np.ndarray, lengths: np.ndarray, length: int) -> float:
        """Return a line's score: by default the mean of its sentences' scores [N] by length [N]."""
        return float(np.average(scores, weights=lengths))

    def bound(self, totals: Tensor, shortest: np.ndarray, longest: np.ndarray) -> Tensor:
        """Return scores [B, M] that no continuation of open hypotheses exceeds.

        Infinity, the default, lets the stop rule ``exact`` search to the longest output. Totals so
        far, [B, M], can only fall. A continuation has ``shortest`` to ``longest`` tokens, int64
        [B].
        """
        return torch.full_like(totals, torch.inf)


@scorers.register("length")
class LengthScorer(Scorer):
    """Log-probability over a length penalty: T^lenpen, or ((5 + T) / 6)^lenpen for ``gnmt``.

    Reference: Wu et al. 2016, "Google's neural machine translation system", section 7, Eq. 14.
    """

    uses_length_penalty = True

    def __init__(self, config: Any, search: GenerationConfig) -> None:
        super().__init__(config, search)
        self._exponent = 0.0 if search.unnormalized else search.lenpen

    def divisors(self, lengths: np.ndarray) -> np.ndarray:
        """Return the length penalties of these numbers of tokens, float64."""
        base = lengths if self.search.lenpen_form == "power" else (5 + lengths) / 6
        return np.float_power(base, self._exponent)

    def score(self, outputs: Outputs) -> Tensor:
        totals = outputs.totals
        return totals / torch.from_numpy(self.divisors(outputs.lengths)).to(totals)[:, None]

    def joined(self, scores: np.ndarray, lengths: np.ndarray, length: int) -> float:
        """Return the sum of the sentences' log-probabilities over the line's length penalty."""
        total = np.dot(scores, self.divisors(lengths))
        return float(total / self.divisors(np.array([length]))[0])

    def bound(self, totals: Tensor, shortest: np.ndarray, longest: np.ndarray) -> Tensor:
        """Divide by the largest length penalty, which gives a negative total its highest score."""
        largest = np.maximum(self.divisors(shortest), self.divisors(longest))
        return totals / torch.from_numpy(largest).to(totals)[:, None]


@scorers.register("coverage")
class CoverageScorer(LengthScorer):
    """Adds beta * sum over source words of log(min(attention to the word, 1)).

    A translation that leaves out words of its source scores lower.

    Reference: Wu et al. 2016, "Google's neural machine translation system", section 7, Eq. 14.
    """

    beta: float = option(0.2, "weight of the coverage penalty", least=0)
    needs_attention = True

    def score(self, outputs: Outputs) -> Tensor:
        """Return the scores with the penalty, which is at most 0, so the bound still holds."""
        assert outputs.attention is not None, "needs_attention"
        logs = outputs.attention.clamp(LEAST_COVERAGE, 1.0).log()  # [B, M, S]
        penalty = logs.masked_fill(~outputs.is_word[:, None], 0.0).sum(2)
        return super().score(outputs) + self.config.beta * penalty


def build_scorer(search: GenerationConfig) -> Scorer:
    """Return the scorer that the settings name (ConfigError: it is unknown, or a flag is wrong)."""
    spec = Spec.parse(search.scorer)
    kind = scorers.get(spec.name)
    default = GenerationConfig()
    for name in ("lenpen", "lenpen_form", "unnormalized"):
        if not kind.uses_length_penalty and getattr(search, name) != getattr(default, name):
            raise ConfigError(
                f"--{name.replace('_', '-')} does nothing with --scorer {spec}, which has no "
                "length penalty; leave it out, or set uses_length_penalty in a scorer that has one"
            )
    return build_part(kind, spec, "--scorer", search)


def words_of(
    src_tokens: Tensor, symbols: Dictionary, separators: Separators | None = None
) -> Tensor:
    """Return the positions of words in sources [B, S], bool [B, S]. Separators are no words."""
    special = (src_tokens == symbols.pad_index) | (src_tokens == symbols.eos_index)
    if separators is not None:
        special |= src_tokens == separators.source
    return ~special


def score_references(
    ensemble: Ensemble,
    scorer: Scorer,
    symbols: Dictionary,
    src_tokens: Tensor,
    tgt_tokens: Tensor,
    separators: Separators | None = None,
) -> list[list[Hypothesis]]:
    """Return references [B, T] as hypotheses of the sources [B, S] (``--score-reference``)."""
    pad = symbols.pad_index
    # Shift the references right, as decoder input that begins with the end symbol.
    prev_output_tokens = shift_right(tgt_tokens, pad, symbols.eos_index)
    real = tgt_tokens != pad
    targets = tgt_tokens[real]  # [N]
    # Like the search, exclude separators from translations without any.
    is_single = torch.zeros_like(targets, dtype=torch.bool)  # [N]
    if separators is not None:
        num_separators = [separators.num_expected(row) for row in src_tokens.cpu().numpy()]
        no_separator = torch.tensor(num_separators, device=real.device) == 0
        is_single = no_separator[:, None].expand_as(real)[real]
    chosen = []
    attention = None
    with ensemble.evaluating():
        # One forward pass of each model, then the logits of a chunk of tokens at a time.
        features = []
        weights = []
        for model in ensemble.models:
            recording: Any = nullcontext()
            if scorer.needs_attention:
                recording = record_attention(model.aligning_attention, Need(weights=True))
            with recording as records:
                features.append(model(src_tokens, prev_output_tokens)[real])
            if scorer.needs_attention:
                weights.append(model.alignment_weights(records[0]).float())
        if weights:
            mean = torch.stack(weights).mean(0)  # [B, T, S]
            attention = mean.masked_fill(~real[:, :, None], 0.0).sum(1, keepdim=True)
        for start in range(0, len(targets), CHUNK):
            chunk = slice(start, start + CHUNK)
            by_model = []
            for model, states in zip(ensemble.models, features, strict=True):
                logits = model.logits(states[chunk]) / scorer.search.temperature
                by_model.append(logits.log_softmax(-1))
            log_probs = average_log_probs(by_model)  # [C, V]
            if separators is not None and is_single.any():
                exclude_token(log_probs[None], separators.target, is_single[None, chunk])
            chosen.append(log_probs.gather(1, targets[chunk, None])[:, 0])
        # Divide the token scores among the sentences again.
        by_sentence = torch.cat(chosen).split(real.sum(1).tolist())
        # Score each reference as a finished hypothesis, in float64.
        totals = torch.stack([log_probs.double().sum() for log_probs in by_sentence])[:, None]
        lengths = real.sum(1).cpu().numpy()
        is_word = words_of(src_tokens, symbols, separators)
        scores = scorer.score(Outputs(totals, lengths, attention, is_word))[:, 0].tolist()
    results = []
    for row, mask, score, token_scores in zip(tgt_tokens, real, scores, by_sentence, strict=True):
        results.append([Hypothesis(row[mask].cpu().numpy(), score, token_scores.cpu().numpy())])
    return results
