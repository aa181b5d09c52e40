"""Scores of finished hypotheses: log-probability, length penalty, coverage penalty, or your own.

A search ranks hypotheses by its :class:`Scorer` alone. The scorer also bounds the score that a
live hypothesis can still reach, for the rules that stop the search.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from relu_nmt.config import build_part, option
from relu_nmt.config.classes import with_own_config
from relu_nmt.config.registry import Spec
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.separators import Separators
from relu_nmt.errors import ConfigError
from relu_nmt.translation.search import scorers
from relu_nmt.translation.search.config import GenerationConfig

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
        """Return scores [B, M] that no continuation of live hypotheses exceeds.

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


def word_mask(
    src_tokens: Tensor, symbols: Dictionary, separators: Separators | None = None
) -> Tensor:
    """Return the positions of words in sources [B, S], bool [B, S]. Separators are no words."""
    special = (src_tokens == symbols.pad_index) | (src_tokens == symbols.eos_index)
    if separators is not None:
        special |= src_tokens == separators.source
    return ~special
