"""Finished hypotheses, how they are compared, and the back-pointers they are read from."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relu_nmt.translation.search.config import GenerationConfig


@dataclass(frozen=True)
class Hypothesis:
    """One finished translation.

    Args:
        tokens: target symbols, int64 [T], ending in the end symbol.
        score: what hypotheses are ranked by: total log-probability (nats) over length penalty.
        positional_scores: log-probability of each token in nats, float32 [T].
        alignment: source position each token attends to most, int64 [T], if asked for.
        reached_limit: whether it was ended at the longest output and may be cut off.
    """

    tokens: np.ndarray
    score: float
    positional_scores: np.ndarray
    alignment: np.ndarray | None = None
    reached_limit: bool = False

    def without_context(self, size: int) -> "Hypothesis":
        """Return what follows the first ``size`` tokens, which no score has counted."""
        size = min(size, len(self.tokens) - 1)  # the end symbol is new in any case
        alignment = None if self.alignment is None else self.alignment[size:]
        scores = self.positional_scores[size:]
        return Hypothesis(self.tokens[size:], self.score, scores, alignment, self.reached_limit)


@dataclass(frozen=True)
class LengthPenalty:
    """What the total log-probability of a hypothesis is divided by.

    Args:
        exponent: 0 leaves the total as it is.
        form: ``power``, T ** exponent, or ``gnmt``, ((5 + T) / 6) ** exponent.

    Reference: Wu et al. 2016, section 7, equation 14 (``gnmt``).

    Example:
        >>> LengthPenalty(1.0)(9)
        9.0
        >>> LengthPenalty(1.0, "gnmt")(7)
        2.0
    """

    exponent: float
    form: str = "power"

    @classmethod
    def of(cls, config: GenerationConfig) -> "LengthPenalty":
        """Return the penalty that the settings describe."""
        return cls(0.0 if config.unnormalized else config.lenpen, config.lenpen_form)

    def __call__(self, length: int | np.ndarray) -> Any:
        """Return the divisor for hypotheses of ``length`` tokens, the end symbol included.

        Args:
            length: an int (gives a float) or an array of them (gives float64 of the same shape).
        """
        base = length if self.form == "power" else (5 + length) / 6
        return (base * 1.0) ** self.exponent

    def kindest(self, shortest: int | np.ndarray, longest: np.ndarray) -> np.ndarray:
        """Return the largest divisor, the best for a negative sum, of any length in between."""
        return np.maximum(self(shortest), self(longest))


@dataclass(frozen=True)
class _Step:
    """What one step did to the sentences that were alive; beams are numbered within a sentence.

    Args:
        row_of: row of each sentence of the batch at this step, int64 [N].
        parents: beam that each beam goes on from, [B, K].
        tokens: token that each beam appended, [B, K].
        totals: log-probability of each beam with it, [B, K].
        alignment: source position that each **parent** beam attended to, [B, K].
    """

    row_of: np.ndarray
    parents: Tensor
    tokens: Tensor
    totals: Tensor
    alignment: Tensor | None


class SearchHistory:
    """Back-pointers of all steps, so that no step has to copy the hypotheses so far.

    What has ended is taken from it as sentences are done, and read out when all are.

    Args:
        num_sentences: N, sentences in the batch at the start.
        config: ``nbest`` and ``beam``.
        eos_index: id of the end symbol.
    """

    def __init__(self, num_sentences: int, config: GenerationConfig, eos_index: int) -> None:
        self._steps: list[_Step] = []
        self._num_sentences = num_sentences
        self._config = config
        self._eos_index = eos_index
        self._ended: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []

    def append(
        self,
        sentences: np.ndarray,
        parents: Tensor,
        tokens: Tensor,
        totals: Tensor,
        alignment: Tensor | None,
    ) -> None:
        """Record one step; see :class:`_Step`. ``sentences`` [B] says which are still alive."""
        row_of = np.full(self._num_sentences, -1, dtype=np.int64)
        row_of[sentences] = np.arange(len(sentences))
        self._steps.append(_Step(row_of, parents, tokens, totals, alignment))

    def _trace(
        self, sentences: np.ndarray, steps: np.ndarray, beams: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Follow hypotheses back to their beginnings.

        Args:
            sentences: sentence of each hypothesis, [M].
            steps: step at which it ended, so its number of tokens before the end symbol, [M].
            beams: beam that it ended from, [M].

        Returns:
            tokens [M, T] without the end symbol, total log-probabilities [M, T], and source
            positions [M, T + 1] (the end symbol has one too) if recorded. What lies beyond a
            hypothesis's end is meaningless.
        """
        longest = int(steps.max(initial=0))
        tokens = np.zeros((len(steps), longest), dtype=np.int64)
        totals = np.zeros((len(steps), longest), dtype=np.float32)
        aligned = self._steps[0].alignment is not None
        alignment = np.zeros((len(steps), longest + 1), dtype=np.int64) if aligned else None
        beams = beams.copy()
        for t in range(longest, -1, -1):
            record = self._steps[t]
            inside = steps > t
            rows = record.row_of[sentences[inside]]
            chosen = beams[inside]
            if inside.any():
                tokens[inside, t] = _numpy(record.tokens)[rows, chosen]
                totals[inside, t] = _numpy(record.totals)[rows, chosen]
                beams[inside] = _numpy(record.parents)[rows, chosen]
            if alignment is not None and record.alignment is not None:
                reached = steps >= t
                rows = record.row_of[sentences[reached]]
                alignment[reached, t] = _numpy(record.alignment)[rows, beams[reached]]
        return tokens, totals, alignment

    def take(self, sentences: np.ndarray, rows: Tensor, finished: "FinishedHypotheses") -> None:
        """Store what is finished of the given rows [M], which are these sentences [M]."""
        scores, best = finished.scores[rows].flatten(1).sort(dim=1, descending=True, stable=True)
        best = best[:, : self._config.nbest]
        totals = finished.totals[rows].flatten(1).gather(1, best)
        origins = finished.origins[rows].flatten(1).gather(1, best)
        scores = scores[:, : self._config.nbest]
        self._ended.append((sentences, _numpy(scores), _numpy(totals), _numpy(origins)))

    def results(self) -> list[list[Hypothesis]]:
        """Return for each sentence its hypotheses, best first."""
        results: list[list[Hypothesis]] = [[] for _ in range(self._num_sentences)]
        if not self._ended:
            return results
        columns = zip(*self._ended, strict=True)
        sentences, scores, totals, origins = (np.concatenate(column) for column in columns)
        sentences = np.repeat(sentences, scores.shape[1])
        scores, totals, origins = scores.ravel(), totals.ravel(), origins.ravel()
        real = scores > -np.inf
        sentences, scores, totals, origins = (
            values[real] for values in (sentences, scores, totals, origins)
        )
        steps, beams = np.divmod(origins, self._config.beam)
        tokens, partial, alignment = self._trace(sentences, steps, beams)
        for i, (sentence, end) in enumerate(zip(sentences, steps, strict=True)):
            all_totals = np.append(partial[i, :end], totals[i])
            results[sentence].append(
                Hypothesis(
                    tokens=np.append(tokens[i, :end], self._eos_index),
                    score=float(scores[i]),
                    positional_scores=np.diff(all_totals, prepend=np.float32(0)),
                    alignment=None if alignment is None else alignment[i, : end + 1],
                )
            )
        return results


class FinishedHypotheses:
    """The best k finished hypotheses of every group of beams of each live sentence, best first.

    Args:
        num_sentences: B.
        num_groups: G; one but for diverse beam search and sampling.
        beam_size: K = G * k.
        device: where the search runs.
    """

    def __init__(
        self, num_sentences: int, num_groups: int, beam_size: int, device: torch.device
    ) -> None:
        shape = (num_sentences, num_groups, beam_size // num_groups)
        self._beam_size = beam_size
        self.scores = torch.full(shape, -torch.inf, device=device)  # with length penalty
        self.totals = torch.zeros(shape, device=device)  # log-probabilities
        self.origins = torch.zeros(shape, dtype=torch.int64, device=device)  # step * K + beam
        self.count = torch.zeros(shape[:2], dtype=torch.int64, device=device)  # [B, G], all ever

    def add(self, step: int, totals: Tensor, parents: Tensor, divisors: Tensor) -> None:
        """Add the hypotheses that end at ``step``, if they are among the best.

        Args:
            step: number of tokens before the end symbol.
            totals: log-probabilities [B, G, M]; -inf (or NaN) is no hypothesis.
            parents: beams that they end from [B, G, M].
            divisors: the length penalties of the sentences [B].
        """
        real = totals > -torch.inf
        self.count += real.sum(2)
        totals = totals.masked_fill(~real, -torch.inf)
        scores = torch.cat([self.scores, totals / divisors[:, None, None]], dim=2)
        self.scores, best = scores.topk(self.scores.size(2), dim=2)
        self.totals = torch.cat([self.totals, totals], dim=2).gather(2, best)
        origins = step * self._beam_size + parents
        self.origins = torch.cat([self.origins, origins], dim=2).gather(2, best)

    def keep(self, rows: Tensor) -> None:
        """Keep only the sentences with these rows [B']."""
        for name in ("scores", "totals", "origins", "count"):
            setattr(self, name, getattr(self, name).index_select(0, rows))


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.cpu().numpy()
