"""Open and finished hypotheses, and the back-pointers from which they are read."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from relu_nmt.translation.search.config import GenerationConfig


@dataclass(frozen=True)
class Hypothesis:
    """One finished translation.

    Args:
        tokens: target symbols, int64 [T], ending in the end symbol.
        score: rank among the hypotheses of the sentence, from the search's scorer; by default
            the total log-probability (nats) over the length penalty.
        positional_scores: log-probability of each token in nats, float32 [T].
        alignment: source position that each token attends to most, int64 [T], if asked for.
        reached_limit: it ended at the longest output and may be cut off.
    """

    tokens: np.ndarray
    score: float
    positional_scores: np.ndarray
    alignment: np.ndarray | None = None
    reached_limit: bool = False

    def without_context(self, size: int) -> "Hypothesis":
        """Return the hypothesis without its first ``size`` tokens, which no score has counted."""
        size = min(size, len(self.tokens) - 1)  # the end symbol is new in any case
        alignment = None if self.alignment is None else self.alignment[size:]
        scores = self.positional_scores[size:]
        return Hypothesis(self.tokens[size:], self.score, scores, alignment, self.reached_limit)


@dataclass(frozen=True)
class LiveHypotheses:
    """The open hypotheses of all sentences of a batch.

    Args:
        tokens: newest token [B, K].
        parents: beam that each continues [B, K]; None: the same beam.
        totals: log-probability so far [B, K]; -inf is no hypothesis.
        attention: sum of the attention of all its tokens [B, K, S], if the scorer needs it.
    """

    tokens: Tensor
    parents: Tensor | None
    totals: Tensor
    attention: Tensor | None = None

    @classmethod
    def first(
        cls, num_sentences: int, beam_size: int, group_size: int, eos: int, device: torch.device
    ) -> "LiveHypotheses":
        """Return the beams before the first token, with one hypothesis in each group."""
        shape = (num_sentences, beam_size)
        totals = torch.full(shape, -torch.inf, device=device)
        totals[:, ::group_size] = 0.0
        return cls(torch.full(shape, eos, dtype=torch.int64, device=device), None, totals)

    def attention_with(self, weights: Tensor) -> Tensor:
        """Return the attention [B, K, S] with that of the next token, [B, K, S] or [B, 1, S]."""
        if self.attention is None:
            return weights.float().expand(-1, self.tokens.size(1), -1)
        return self.attention + weights.float()

    def keep(self, rows: Tensor) -> "LiveHypotheses":
        """Keep only the sentences with these rows [B']."""
        return LiveHypotheses(
            self.tokens.index_select(0, rows),
            None if self.parents is None else self.parents.index_select(0, rows),
            self.totals.index_select(0, rows),
            None if self.attention is None else self.attention.index_select(0, rows),
        )


def of_beams(attention: Tensor | None, parents: Tensor | None) -> Tensor | None:
    """Return the attention [B, M, S] of beams ``parents`` [B, M]; None: the same beams."""
    if attention is None or parents is None:
        return attention
    return attention.gather(1, parents[:, :, None].expand(-1, -1, attention.size(2)))


class SearchHistory:
    """Back-pointers of all steps, so that no step has to copy the hypotheses so far.

    :meth:`take` stores the best hypotheses of sentences that are done; :meth:`results` follows the
    back-pointers of all at the end.

    Args:
        num_sentences: N, sentences in the batch at the start.
        config: ``nbest`` and ``beam``.
    """

    def __init__(self, num_sentences: int, config: GenerationConfig, eos_index: int) -> None:
        # One entry a step: row of each sentence [N] (-1 if done), hypotheses, alignment [B, K].
        self._steps: list[tuple[np.ndarray, LiveHypotheses, Tensor | None]] = []
        self._num_sentences = num_sentences
        self._config = config
        self._eos_index = eos_index
        self._ended: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []

    def append(self, sentences: np.ndarray, live: LiveHypotheses, alignment: Tensor | None) -> None:
        """Record one step.

        Args:
            sentences: number of the sentence of each row, [B].
            live: hypotheses with the tokens of this step.
            alignment: source position that each **parent** beam attended to, [B, K].
        """
        row_of = np.full(self._num_sentences, -1, dtype=np.int64)
        row_of[sentences] = np.arange(len(sentences))
        self._steps.append((row_of, replace(live, attention=None), alignment))

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
            positions [M, T + 1], one for the end symbol too, if they were recorded. Values beyond
            the end of a hypothesis are meaningless.
        """
        longest = int(steps.max(initial=0))
        tokens = np.zeros((len(steps), longest), dtype=np.int64)
        totals = np.zeros((len(steps), longest), dtype=np.float32)
        aligned = self._steps[0][2] is not None
        alignment = np.zeros((len(steps), longest + 1), dtype=np.int64) if aligned else None
        # Copy the beams, which the way back changes step by step.
        beams = beams.copy()
        for t in range(longest, -1, -1):
            # Read the token of each hypothesis that is longer than t, and go to its parent.
            row_of, live, positions = self._steps[t]
            inside = steps > t
            rows, chosen = row_of[sentences[inside]], beams[inside]
            if inside.any():
                tokens[inside, t] = _numpy(live.tokens)[rows, chosen]
                totals[inside, t] = _numpy(live.totals)[rows, chosen]
                if live.parents is not None:
                    beams[inside] = _numpy(live.parents)[rows, chosen]
            # The parent beam attended while it chose the token, or the end symbol.
            if alignment is not None and positions is not None:
                reached = steps >= t
                rows = row_of[sentences[reached]]
                alignment[reached, t] = _numpy(positions)[rows, beams[reached]]
        return tokens, totals, alignment

    def take(self, sentences: np.ndarray, rows: Tensor, finished: "FinishedHypotheses") -> None:
        """Store the best finished hypotheses of the sentences [M] in the given rows [M]."""
        # Sort the finished hypotheses of all groups together, [M, G * k].
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
        # Join the hypotheses of all sentences, and leave out empty entries.
        columns = zip(*self._ended, strict=True)
        sentences, scores, totals, origins = (np.concatenate(column) for column in columns)
        sentences = np.repeat(sentences, scores.shape[1])
        scores, totals, origins = scores.ravel(), totals.ravel(), origins.ravel()
        real = scores > -np.inf
        sentences, scores, totals, origins = (
            values[real] for values in (sentences, scores, totals, origins)
        )
        # Read tokens and partial sums; the score of a token is a difference of sums.
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
        num_groups: G; 1 except for diverse beam search and sampling.
        beam_size: K = G * k.
    """

    def __init__(
        self, num_sentences: int, num_groups: int, beam_size: int, device: torch.device
    ) -> None:
        shape = (num_sentences, num_groups, beam_size // num_groups)
        self._beam_size = beam_size
        self.scores = torch.full(shape, -torch.inf, device=device)  # from the scorer
        self.totals = torch.zeros(shape, device=device)  # log-probabilities
        self.origins = torch.zeros(shape, dtype=torch.int64, device=device)  # step * K + beam
        self.count = torch.zeros(shape[:2], dtype=torch.int64, device=device)  # [B, G], all ever

    def add(self, step: int, totals: Tensor, parents: Tensor, scores: Tensor) -> None:
        """Add the hypotheses that end at ``step``, if they are among the best.

        Args:
            step: number of tokens before the end symbol.
            totals: log-probabilities [B, G, M]; -inf (or NaN) is no hypothesis.
            parents: beams from which they end, [B, G, M].
            scores: [B, G, M].
        """
        # Merge with the best so far, [B, G, k + M], and keep k.
        real = totals > -torch.inf
        self.count += real.sum(2)
        scores = torch.cat([self.scores, scores.masked_fill(~real, -torch.inf)], dim=2)
        self.scores, best = scores.topk(self.scores.size(2), dim=2)
        # Gather totals and origins in the order of the best scores, [B, G, k].
        self.totals = torch.cat([self.totals, totals], dim=2).gather(2, best)
        origins = step * self._beam_size + parents
        self.origins = torch.cat([self.origins, origins], dim=2).gather(2, best)

    def keep(self, rows: Tensor) -> None:
        """Keep only the sentences with these rows [B']."""
        for name in ("scores", "totals", "origins", "count"):
            setattr(self, name, getattr(self, name).index_select(0, rows))


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.cpu().numpy()
