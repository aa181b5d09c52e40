"""Open and finished hypotheses, and the back-pointers that lead to their tokens."""

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
        score: rank among the hypotheses of the sentence, from the search's scorer. By default
            the total log-probability (nats) over the length penalty.
        positional_scores: log-probability of each token in nats, float32 [T].
        alignment: source position that each token attends to most, int64 [T], -1 if it attends to
            none, if asked for.
        reached_limit: it ended at the longest output and may be cut off.
    """

    tokens: np.ndarray
    score: float
    positional_scores: np.ndarray
    alignment: np.ndarray | None = None
    reached_limit: bool = False


@dataclass(frozen=True)
class Continuations:
    """Hypotheses with their newest token: candidates in groups of beams, or the chosen K beams.

    Plain beam search is one group of K beams. Diverse beam search has several smaller ones, and
    sampling K groups of one beam.
    """

    tokens: Tensor  # the newest token, int64 [B, G, C] of candidates, best first, or [B, K]
    parents: Tensor | None  # the beam 0 .. K-1 that each continues, likewise. None: the same beam.
    totals: Tensor  # log-probability with that token, likewise. -inf: no hypothesis
    # Sum of the attention of all tokens, [B, K, S], if the scorer needs it.
    attention: Tensor | None = None

    def keep(self, rows: Tensor) -> "Continuations":
        """Return the hypotheses of the sentences in these rows [B']."""
        tensors: dict[str, Any] = {}
        for name, tensor in vars(self).items():
            tensors[name] = None if tensor is None else tensor.index_select(0, rows)
        return Continuations(**tensors)


def of_beams(attention: Tensor | None, parents: Tensor | None) -> Tensor | None:
    """Return the attention [B, M, S] of beams ``parents`` [B, M]. None: the same beams."""
    if attention is None or parents is None:
        return attention
    return attention.gather(1, parents[:, :, None].expand(-1, -1, attention.size(2)))


class SearchHistory:
    """The finished hypotheses of one batch, and back-pointers, so that no step copies hypotheses.

    For each live sentence it holds the best k finished hypotheses of every group of beams.
    :meth:`take` stores the hypotheses of done sentences. :meth:`results` follows the back-pointers.
    ``limits`` and ``context_sizes`` come from the constraints.

    Attributes:
        scores: of the best k finished hypotheses, best first, [B, G, k].
        count: hypotheses that have ever finished, [B, G].
    """

    def __init__(
        self,
        config: GenerationConfig,
        limits: np.ndarray,
        context_sizes: np.ndarray,
        num_groups: int,
        eos_index: int,
        device: torch.device,
    ) -> None:
        self._config = config
        self._limits = limits
        self._context_sizes = context_sizes
        self._eos_index = eos_index
        # One entry a step: row of each sentence [N] (-1 if done), beams, alignment [B, K].
        self._steps: list[tuple[np.ndarray, Continuations, Tensor | None]] = []
        # Done sentences [M], then their scores, totals and origins [M, n].
        self._ended: list[list[np.ndarray]] = []
        # The best finished hypotheses, [B, G, k].
        shape = (len(limits), num_groups, config.beam // num_groups)
        self.scores = torch.full(shape, -torch.inf, device=device)
        self.count = torch.zeros(shape[:2], dtype=torch.int64, device=device)
        self._totals = torch.zeros(shape, device=device)  # log-probabilities
        self._origins = torch.zeros(shape, dtype=torch.int64, device=device)  # step * K + beam

    def append(self, sentences: np.ndarray, live: Continuations, alignment: Tensor | None) -> None:
        """Record the beams of one step for the rows of these sentences [B].

        ``alignment`` [B, K] has the source position that each **parent** beam attended to, or -1.
        """
        row_of = np.full(len(self._limits), -1, dtype=np.int64)
        row_of[sentences] = np.arange(len(sentences))
        beams = Continuations(live.tokens, live.parents, live.totals)
        self._steps.append((row_of, beams, alignment))

    def finish(self, step: int, totals: Tensor, parents: Tensor, scores: Tensor) -> None:
        """Add the hypotheses that end at ``step``, if they are among the best.

        Totals, beams from which they end, and scores are [B, G, M]. -inf or NaN is no hypothesis.
        """
        # Merge with the best so far, [B, G, k + M], and keep k.
        real = totals > -torch.inf
        self.count += real.sum(2)
        scores = torch.cat([self.scores, scores.masked_fill(~real, -torch.inf)], dim=2)
        self.scores, best = scores.topk(self.scores.size(2), dim=2)
        # Gather totals and origins in the order of the best scores, [B, G, k].
        self._totals = torch.cat([self._totals, totals], dim=2).gather(2, best)
        origins = step * self._config.beam + parents
        self._origins = torch.cat([self._origins, origins], dim=2).gather(2, best)

    def take(self, sentences: np.ndarray, rows: Tensor) -> None:
        """Store the best finished hypotheses of the sentences [M] in these rows [M]."""
        # Sort the finished hypotheses of all groups together, [M, G * k].
        scores, best = self.scores[rows].flatten(1).sort(dim=1, descending=True, stable=True)
        nbest = self._config.nbest
        best = best[:, :nbest]
        totals = self._totals[rows].flatten(1).gather(1, best)
        origins = self._origins[rows].flatten(1).gather(1, best)
        entry = [sentences]
        for column in (scores[:, :nbest], totals, origins):
            entry.append(column.cpu().numpy())
        self._ended.append(entry)

    def keep(self, rows: Tensor) -> None:
        """Keep the finished hypotheses of the sentences in these rows [B'] only."""
        for name in ("scores", "count", "_totals", "_origins"):
            setattr(self, name, getattr(self, name).index_select(0, rows))

    def results(self, symbols: np.ndarray | None = None) -> list[list[Hypothesis]]:
        """Return each sentence's hypotheses, best first. ``symbols`` [V'] are the ids of tokens."""
        hypotheses: list[list[Hypothesis]] = [[] for _ in self._limits]
        if not self._ended:
            return hypotheses
        # Join the hypotheses of all sentences, and leave out empty entries.
        sentences, *columns = map(np.concatenate, zip(*self._ended, strict=True))
        real = columns[0].ravel() > -np.inf
        sentences = np.repeat(sentences, columns[0].shape[1])[real]
        scores, totals, origins = (column.ravel()[real] for column in columns)
        # Read tokens and partial sums. The score of a token is a difference of sums.
        steps, beams = np.divmod(origins, self._config.beam)
        tokens, partial, alignment = self._trace(sentences, steps, beams)
        for i, (sentence, end) in enumerate(zip(sentences, steps, strict=True)):
            ids = np.append(tokens[i, :end], self._eos_index)
            if symbols is not None:
                ids = symbols[ids]
            all_totals = np.append(partial[i, :end], totals[i])
            # Remove the context, after which the end symbol is new in any case.
            new = slice(min(self._context_sizes[sentence], end), end + 1)
            hypothesis = Hypothesis(
                ids[new],
                score=float(scores[i]),
                positional_scores=np.diff(all_totals, prepend=np.float32(0))[new],
                alignment=None if alignment is None else alignment[i, new],
                reached_limit=bool(len(ids) > self._limits[sentence]),
            )
            hypotheses[sentence].append(hypothesis)
        return hypotheses

    def _trace(
        self, sentences: np.ndarray, steps: np.ndarray, beams: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Follow M hypotheses back from the beams [M] in which they ended, at these steps [M].

        Return tokens and log-probabilities [M, T] up to the end symbol, and, if recorded, source
        positions [M, T + 1]. Values beyond the end of a hypothesis are meaningless.
        """
        longest = int(steps.max(initial=0))
        tokens = np.zeros((len(steps), longest), dtype=np.int64)
        totals = np.zeros((len(steps), longest), dtype=np.float32)
        alignment = None
        if self._steps[0][2] is not None:
            alignment = np.zeros((len(steps), longest + 1), dtype=np.int64)
        # Copy the beams, which the way back changes step by step.
        beams = beams.copy()
        for t in range(longest, -1, -1):
            # Read the token of each hypothesis that is longer than t, and go to its parent.
            row_of, live, positions = self._steps[t]
            inside = steps > t
            if inside.any():
                rows = row_of[sentences[inside]]
                chosen = beams[inside]
                tokens[inside, t] = live.tokens.cpu().numpy()[rows, chosen]
                totals[inside, t] = live.totals.cpu().numpy()[rows, chosen]
                if live.parents is not None:
                    beams[inside] = live.parents.cpu().numpy()[rows, chosen]
            # The parent beam attended while it chose the token, or the end symbol.
            if alignment is not None and positions is not None:
                reached = steps >= t
                rows = row_of[sentences[reached]]
                alignment[reached, t] = positions.cpu().numpy()[rows, beams[reached]]
        return tokens, totals, alignment
