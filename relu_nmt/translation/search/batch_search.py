"""The search of one batch, set up from settings, sentences, prefixes, terms and shortlist."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.errors import ConfigError, OutOfMemoryError, is_out_of_memory
from relu_nmt.translation.search.beam_search import BeamSearch
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.constraints import TokenConstraints
from relu_nmt.translation.search.ensemble import Ensemble
from relu_nmt.translation.search.forced_terms import ForcedTerms, Term, TermTracker
from relu_nmt.translation.search.hypotheses import Hypothesis
from relu_nmt.translation.search.output_limits import (
    SentenceLengths,
    SentencesLeft,
    length_limits,
)
from relu_nmt.translation.search.scoring import Scorer, words_of
from relu_nmt.translation.search.selectors import (
    BeamSelector,
    SamplingSelector,
    Selector,
    TermSelector,
    draw_uniforms,
)
from relu_nmt.translation.search.shortlist import Shortlist


@dataclass(frozen=True)
class SourceBatch:
    """Sentences that one search translates, with everything forced and banned.

    Args:
        src_tokens: [B, S] int64, right-padded, each ending in the end symbol.
        prefix_tokens: forced first tokens [B, P] int64, right-padded; None for none. They are part
            of the hypothesis and its score, as in fairseq.
        ids: seeds of the sentences' random numbers (``--sampling``), int64 [B].
        context_sizes: forced tokens that translate the context, int64 [B]. They are neither scored
            nor returned, and count only for the longest output.
        forced: terms that each translation must have, [B]; empty for none. The longest output grows
            if they need it.
        banned: token ids of the terms that each may not have, [B]; empty for none.
    """

    src_tokens: Tensor
    prefix_tokens: Tensor | None
    ids: np.ndarray
    context_sizes: np.ndarray
    forced: Sequence[ForcedTerms] = ()
    banned: Sequence[Sequence[Term]] = ()


@dataclass(frozen=True)
class RunningSearch:
    """A search that has begun.

    Args:
        limits: most tokens before the end symbol, int64 [B].
        shortlist: ids of the only symbols that may be written; None for all.
    """

    search: BeamSearch
    batch: SourceBatch
    limits: np.ndarray
    shortlist: Tensor | None


class BatchSearches:
    """Begins the searches of batches and reads their results.

    Args:
        symbols: the target dictionary.
        separators: the symbol that ends each sentence of a source, and of a target, or None; a
            translation then has as many as its source, unless ``config.free_sentence_count``.
        shortlist: restricts the symbols of the translations; None for all. It is ignored if
            prefixes or terms are forced, or terms banned.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        config: GenerationConfig,
        scorer: Scorer,
        symbols: Dictionary,
        separators: tuple[int, int] | None,
        shortlist: Shortlist | None,
    ) -> None:
        self._ensemble = ensemble
        self._config = config
        self._scorer = scorer
        self._symbols = symbols
        self._shortlist = shortlist
        self._counted = None if config.free_sentence_count else separators
        self._source_separator = -1 if separators is None else separators[0]
        self._most_of_a_sentence = ensemble.max_sentence_positions
        if separators is None or self._most_of_a_sentence == ensemble.max_positions:
            self._most_of_a_sentence = None  # the limit of the whole output is enough
        # The target's separator, if the search counts sentences or their tokens.
        asked = self._counted or (separators if self._most_of_a_sentence is not None else None)
        self._separator = -1 if asked is None else asked[1]

    def begin(self, batch: SourceBatch) -> RunningSearch:
        """Encode the sources of a batch and return its search.

        Raises:
            ConfigError: the settings leave a sentence no output at all, or force terms in another
                search than plain beam search.
            OutOfMemoryError: there is not enough memory.
        """
        config, src_tokens, prefixes = self._config, batch.src_tokens, batch.prefix_tokens
        # The longest output of each sentence, from the length of its source.
        lengths = (src_tokens != self._symbols.pad_index).sum(1).cpu().numpy()
        limits = length_limits(config, lengths, self._ensemble.max_positions)
        # The allowed symbols; prefixes and terms may need any.
        sentences, shortlist = None, None
        terms = self._tracker(batch)
        separator = self._separator
        if self._shortlist is not None and prefixes is None and not (terms or any(batch.banned)):
            shortlist = self._shortlist.of(src_tokens, [] if separator < 0 else [separator])
            separator = int(torch.searchsorted(shortlist, separator))
        # Count sentences and their tokens; outputs must have room for sentences and terms.
        sentence_lengths = None
        if self._most_of_a_sentence is not None:
            none_yet = torch.zeros_like(src_tokens[:, :1])
            sentence_lengths = SentenceLengths(separator, self._most_of_a_sentence, none_yet)
        if self._counted is not None:
            number = (src_tokens == self._counted[0]).sum(1).clamp_min(1)
            sentences = SentencesLeft(separator, number[:, None])
            limits = np.maximum(limits, sentences.room(prefixes, batch.context_sizes))
        if terms is not None:
            limits = np.maximum(limits, self._room_for_terms(batch, sentences))
        if sentences is not None or terms is not None:
            self._check_room(limits)
        constraints = TokenConstraints(
            config,
            self._symbols,
            limits,
            batch.context_sizes,
            prefixes,
            sentences,
            sentence_lengths,
            batch.banned,
            terms,
        )
        # Encode the sources, which may need more memory than there is.
        with memory_advice(config.beam, src_tokens):
            search = BeamSearch(
                self._ensemble,
                config,
                self._scorer,
                self._symbols,
                self._selector(batch, limits, terms),
                src_tokens,
                words_of(src_tokens, self._symbols, self._source_separator),
                constraints,
                shortlist,
            )
        return RunningSearch(search, batch, limits, shortlist)

    def hypotheses(self, ended: RunningSearch) -> list[list[Hypothesis]]:
        """Return the hypotheses of a finished search, without the context.

        Raises:
            ConfigError: a sentence has no hypothesis.
        """
        results = ended.search.results()
        # Report sentences without hypothesis: all their tokens were forbidden or not finite.
        for sentence, found in zip(ended.batch.ids, results, strict=True):
            if not found:
                raise ConfigError(f"sentence {sentence}: no possible output; {self._reason()}")
        # Translate indices into the shortlist back to ids of the dictionary.
        if ended.shortlist is not None:
            ids_of = ended.shortlist.cpu().numpy()
            results = [[replace(h, tokens=ids_of[h.tokens]) for h in own] for own in results]
        # Remove the context, and mark translations that fill the longest output.
        sizes, limits = ended.batch.context_sizes.tolist(), ended.limits.tolist()
        return [
            [replace(h.without_context(size), reached_limit=len(h.tokens) > limit) for h in own]
            for own, size, limit in zip(results, sizes, limits, strict=True)
        ]

    def _tracker(self, batch: SourceBatch) -> TermTracker | None:
        """Return the tracker of forced terms, if the batch has any.

        Raises:
            ConfigError: this search cannot force terms.
        """
        if not any(own.num_tokens for own in batch.forced):
            return None
        self._config.check_terms()
        separator = -1 if self._counted is None else self._counted[1]
        return TermTracker(batch.forced, batch.context_sizes, separator)

    def _room_for_terms(self, batch: SourceBatch, sentences: SentencesLeft | None) -> np.ndarray:
        """Return the longest output with all forced tokens, int64 [B]; 0 without terms."""
        room = np.array([own.num_tokens for own in batch.forced], dtype=np.int64)
        has_terms = room > 0
        if batch.prefix_tokens is not None:
            room += (batch.prefix_tokens != self._symbols.pad_index).sum(1).cpu().numpy()
        if sentences is not None:
            room += sentences.number[:, 0].cpu().numpy()
        return room * has_terms

    def _check_room(self, limits: np.ndarray) -> None:
        """Check that the models can write outputs of these limits."""
        longest, positions = int(limits.max(initial=0)), self._ensemble.max_positions
        if positions is not None and longest >= positions:
            raise ConfigError(
                f"{longest} tokens are needed for the sentences to translate at once, or for "
                f"forced terms, but the model can write {positions - 1}; give a smaller "
                "--max-doc-tokens, or fewer terms"
            )

    def _selector(
        self, batch: SourceBatch, limits: np.ndarray, terms: TermTracker | None
    ) -> Selector:
        config = self._config
        if terms is not None:
            return TermSelector(terms)
        if config.sampling:
            # Draw all random numbers at once, with one more step for the end symbol.
            num_steps = int(limits.max(initial=0)) + 1
            uniforms = draw_uniforms(config.seed, batch.ids, config.beam, num_steps)
            return SamplingSelector(
                torch.from_numpy(uniforms).to(batch.src_tokens.device),
                config.sampling_topk,
                config.sampling_topp,
            )
        # Treat plain beam search as a single group.
        return BeamSelector(max(1, config.diverse_beam_groups), config.diverse_beam_strength)

    def _reason(self) -> str:
        if self._config.min_len > 1 or self._config.no_repeat_ngram_size:
            return (
                "--min-len and --no-repeat-ngram-size forbid every token; lower them, and if that "
                "does not help, the training of the model has diverged"
            )
        return "the model's scores are not finite (training diverged)"


@contextmanager
def memory_advice(beam: int, *src_tokens: Tensor) -> Iterator[None]:
    """Add a remedy to errors of missing memory while sources [B, S] are translated at once.

    Raises:
        OutOfMemoryError: there is not enough memory.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        number, longest = sum(map(len, src_tokens)), max(each.size(1) for each in src_tokens)
        raise OutOfMemoryError(
            f"out of memory with {number} sentences of up to {longest} tokens at once and "
            f"--beam {beam}; a smaller --max-tokens, --batch-size or --beam needs less"
        ) from error
