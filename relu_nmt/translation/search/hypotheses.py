"""Open and finished hypotheses, their lengths, and the back-pointers that lead to their tokens."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.forced_terms import TermTracker


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


@dataclass(frozen=True)
class Continuations:
    """Hypotheses with their newest token: candidates in groups of beams, or the chosen K beams.

    Plain beam search is one group of K beams; diverse beam search has several smaller ones, and
    sampling K groups of one beam.
    """

    tokens: Tensor  # the newest token, int64 [B, G, C] of candidates, best first, or [B, K]
    parents: Tensor | None  # the beam 0 .. K-1 that each continues, likewise; None: the same beam.
    totals: Tensor  # log-probability with that token, likewise; -inf is no hypothesis
    # Sum of the attention of all tokens, [B, K, S], if the scorer needs it.
    attention: Tensor | None = None

    def keep(self, rows: Tensor) -> "Continuations":
        """Return those of the sentences in these rows [B']."""
        columns = (self.tokens, self.parents, self.totals, self.attention)
        return Continuations(*(x if x is None else x.index_select(0, rows) for x in columns))  # type: ignore[arg-type]


def of_parents(values: Tensor, parents: Tensor | None, like: Tensor) -> Tensor:
    """Return the values [B, K] or [B, 1] of each beam's parent, [B, K] as ``like``."""
    values = values.expand(like.shape)
    return values if parents is None else values.gather(1, parents)


def of_beams(attention: Tensor | None, parents: Tensor | None) -> Tensor | None:
    """Return the attention [B, M, S] of beams ``parents`` [B, M]; None: the same beams."""
    if attention is None or parents is None:
        return attention
    return attention.gather(1, parents[:, :, None].expand(-1, -1, attention.size(2)))


class SearchHistory:
    """The finished hypotheses of one batch, and back-pointers, so that no step copies hypotheses.

    For each live sentence it holds the best k finished hypotheses of every group of beams.
    :meth:`take` stores those of sentences that are done; :meth:`results` follows the back-pointers.
    ``limits`` and ``context_sizes`` are those of :class:`LengthLimits`.

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
        # Sentences [M], then scores, totals and origins [M, n] of those that are done.
        self._ended: list[list[np.ndarray]] = []
        # The best finished hypotheses, [B, G, k].
        shape = (len(limits), num_groups, config.beam // num_groups)
        self.scores = torch.full(shape, -torch.inf, device=device)
        self.count = torch.zeros(shape[:2], dtype=torch.int64, device=device)
        self._totals = torch.zeros(shape, device=device)  # log-probabilities
        self._origins = torch.zeros(shape, dtype=torch.int64, device=device)  # step * K + beam

    def append(self, sentences: np.ndarray, live: Continuations, alignment: Tensor | None) -> None:
        """Record the beams of one step for the rows of these sentences [B].

        ``alignment`` [B, K] has the source position that each **parent** beam attended to.
        """
        row_of = np.full(len(self._limits), -1, dtype=np.int64)
        row_of[sentences] = np.arange(len(sentences))
        beams = Continuations(live.tokens, live.parents, live.totals)
        self._steps.append((row_of, beams, alignment))

    def finish(self, step: int, totals: Tensor, parents: Tensor, scores: Tensor) -> None:
        """Add the hypotheses that end at ``step``, if they are among the best.

        Totals, beams from which they end, and scores are [B, G, M]; -inf or NaN is no hypothesis.
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
        columns = (scores[:, :nbest], totals, origins)
        self._ended.append([sentences, *(column.cpu().numpy() for column in columns)])

    def keep(self, rows: Tensor) -> None:
        """Keep the finished hypotheses of the sentences in these rows [B'] only."""
        for name in ("scores", "count", "_totals", "_origins"):
            setattr(self, name, getattr(self, name).index_select(0, rows))

    def results(self, symbols: np.ndarray | None = None) -> list[list[Hypothesis]]:
        """Return each sentence's hypotheses, best first; ``symbols`` [V'] are the ids of tokens."""
        found: list[list[Hypothesis]] = [[] for _ in self._limits]
        if not self._ended:
            return found
        # Join the hypotheses of all sentences, and leave out empty entries.
        sentences, *columns = map(np.concatenate, zip(*self._ended, strict=True))
        real = columns[0].ravel() > -np.inf
        sentences = np.repeat(sentences, columns[0].shape[1])[real]
        scores, totals, origins = (column.ravel()[real] for column in columns)
        # Read tokens and partial sums; the score of a token is a difference of sums.
        steps, beams = np.divmod(origins, self._config.beam)
        tokens, partial, alignment = self._trace(sentences, steps, beams)
        for i, (sentence, end) in enumerate(zip(sentences, steps, strict=True)):
            own = np.append(tokens[i, :end], self._eos_index)
            all_totals = np.append(partial[i, :end], totals[i])
            # Remove the context, after which the end symbol is new in any case.
            new = slice(min(self._context_sizes[sentence], end), None)
            found[sentence].append(
                Hypothesis(
                    (own if symbols is None else symbols[own])[new],
                    float(scores[i]),
                    np.diff(all_totals, prepend=np.float32(0))[new],
                    None if alignment is None else alignment[i, : end + 1][new],
                    reached_limit=bool(len(own) > self._limits[sentence]),
                )
            )
        return found

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
        aligned = self._steps[0][2] is not None
        alignment = np.zeros((len(steps), longest + 1), dtype=np.int64) if aligned else None
        # Copy the beams, which the way back changes step by step.
        beams = beams.copy()
        for t in range(longest, -1, -1):
            # Read the token of each hypothesis that is longer than t, and go to its parent.
            row_of, live, positions = self._steps[t]
            inside = steps > t
            if inside.any():
                rows, chosen = row_of[sentences[inside]], beams[inside]
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


class LengthLimits:
    """The shortest and the longest output of each sentence of a batch, for every search.

    :class:`~relu_nmt.translation.search.constraints.TokenConstraints` adds prefixes, sentences,
    repetitions and terms, where any is asked for. ``min_len`` counts the tokens after a context.

    Attributes:
        limits: most tokens before the end symbol, int64 [B].
        context_sizes: forced tokens of a known context, int64 [B].
        terms: progress with forced terms; None for none.
        idle_token: token for beams without a hypothesis, so that no sentence of theirs gets long.
    """

    terms: TermTracker | None = None
    idle_token: int | None = None

    def __init__(
        self,
        config: GenerationConfig,
        symbols: Dictionary,
        source_lengths: np.ndarray,
        context_sizes: np.ndarray,
        most_tokens: int | None = None,
    ) -> None:
        self._config, self._symbols = config, symbols
        self.limits = config.length_limits(source_lengths, most_tokens)
        self.context_sizes = context_sizes
        # Outputs are too short only before the first step, and end only from the second one.
        self._last_too_short = int(context_sizes.max(initial=0)) + config.min_len
        self._first_limit = int(self.limits.min())

    def are_alike(self, step: int) -> bool:
        """Return True if the same tokens are forbidden for all hypotheses at a step."""
        return self._last_too_short <= step < self._first_limit

    def apply(self, log_probs: Tensor, step: int) -> None:
        """Change log_probs [B, K, V] of the token after ``step`` others, in place.

        Forbidden tokens become -inf. If :meth:`are_alike`, log_probs may be those of any
        hypotheses, in any shape [..., ..., V].
        """
        self._penalise(log_probs)
        if self._config.unkpen == math.inf:
            log_probs[:, :, self._symbols.unk_index] = -torch.inf
        if self.are_alike(step):
            return
        # Save the scores of the end, which the limit may allow again.
        eos = self._symbols.eos_index
        before = {eos: log_probs[:, :, eos].clone()}
        log_probs[:, :, eos].masked_fill_(self._too_short(step, log_probs), -torch.inf)
        self._end_at_limit(log_probs, step, before)

    def _penalise(self, log_probs: Tensor) -> None:
        """Forbid the symbols that no output has, and subtract the finite penalty of <unk>."""
        config, symbols = self._config, self._symbols
        log_probs[:, :, symbols.bos_index : symbols.pad_index + 1] = -torch.inf  # neighbours
        if config.unkpen and config.unkpen < math.inf:
            log_probs[:, :, symbols.unk_index] -= config.unkpen

    def _too_short(self, step: int, like: Tensor) -> Tensor:
        """Return True for sentences that must not end after ``step`` tokens, bool [B, 1]."""
        return column(step < self.context_sizes + self._config.min_len, like)

    def _end_at_limit(self, log_probs: Tensor, step: int, before: dict[int, Tensor]) -> None:
        """End hypotheses at the longest output; ``before`` has the end's scores."""
        if step >= self._first_limit:
            at_limit = column(step >= self.limits, log_probs)
            allow_only(self._symbols.eos_index, before, log_probs, at_limit)

    def advance(self, parents: Tensor | None, tokens: Tensor) -> None:
        """Append the chosen tokens [B, K] to beams ``parents`` [B, K]; None: the same beams."""

    def keep(self, rows: Tensor, mask: np.ndarray) -> None:
        """Keep only these rows [B'], the sentences of the mask [B]."""
        self.limits, self.context_sizes = self.limits[mask], self.context_sizes[mask]


def column(values: np.ndarray, like: Tensor) -> Tensor:
    """Return values of each sentence [B] as [B, 1] on the device of ``like``."""
    return torch.from_numpy(values).to(like.device)[:, None]


def allow_only(token: int, before: dict[int, Tensor], log_probs: Tensor, where: Tensor) -> None:
    """Forbid all tokens except one, in place, for the beams ``where``, bool [B, K] or [B, 1].

    ``before`` has the token's log-probabilities [B, K] from the model, by token id.
    """
    sentence, beam = where.expand(before[token].shape).nonzero(as_tuple=True)
    if len(sentence):
        log_probs[sentence, beam] = -torch.inf
        log_probs[sentence, beam, token] = before[token][sentence, beam]
