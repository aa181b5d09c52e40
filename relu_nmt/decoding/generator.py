"""Translations of token ids, by whatever search the settings ask for: of a batch, of many."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from relu_nmt.data.batches import pad_rows
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.decoding.batches import deal_batches, plan_batches
from relu_nmt.decoding.beam_search import BeamSearch
from relu_nmt.decoding.config import GenerationConfig
from relu_nmt.decoding.constraints import SentencesLeft, TokenConstraints, length_limits
from relu_nmt.decoding.ensemble import Ensemble
from relu_nmt.decoding.forced_terms import ForcedTerms, Term, TermSelector, TermTracker
from relu_nmt.decoding.hypotheses import Hypothesis
from relu_nmt.decoding.reference_scores import score_references
from relu_nmt.decoding.selectors import (
    BeamSelector,
    SamplingSelector,
    Selector,
    draw_uniforms,
)
from relu_nmt.decoding.shortlist import Shortlist
from relu_nmt.decoding.translations import SourceSentence
from relu_nmt.errors import ConfigError, OutOfMemoryError, is_out_of_memory
from relu_nmt.io.worker_pool import FORKS, ordered_map
from relu_nmt.models.encoder_decoder import EncoderDecoder

MOST_LEFT = 0.25
"""Of a batch's hypotheses, the most that go on when the next one begins beside them."""


class Generator:
    """Finds or scores hypotheses, as the settings ask: of any number of sentences, or of a batch.

    Args:
        models: one model, or several whose probabilities are averaged.
        config: settings of the search.
        symbols: the target dictionary.
        dtype: ``torch.float16`` or ``torch.bfloat16`` to compute in; scores stay in float32.
        separators: the symbol that ends each sentence of a source, and of a target: a translation
            then has as many as its source, unless ``config.free_sentence_count``. None for none.
        shortlist: restricts the symbols of the translations; None for all. Where prefixes or terms
            are forced, or terms banned, all are allowed.

    Raises:
        ConfigError: ``free_sentence_count`` without separators.

    Example:
        >>> from relu_nmt.models.config import TransformerConfig
        >>> config = TransformerConfig(encoder_layers=1, decoder_layers=1)
        >>> model = EncoderDecoder(config, 10, 12, pad_index=1)
        >>> generator = Generator([model], GenerationConfig(beam=2, max_len_b=5), Dictionary())
        >>> [[best]] = generator.generate(torch.tensor([[4, 5, 2]]))
        >>> int(best.tokens[-1])
        2
    """

    def __init__(
        self,
        models: Sequence[EncoderDecoder],
        config: GenerationConfig,
        symbols: Dictionary,
        dtype: torch.dtype | None = None,
        separators: tuple[int, int] | None = None,
        shortlist: Shortlist | None = None,
    ) -> None:
        if shortlist is not None and config.score_reference:
            raise ConfigError(
                "--score-reference needs the scores of all symbols; leave out --shortlist"
            )
        if config.free_sentence_count and separators is None:
            raise ConfigError(
                "--free-sentence-count: the model was trained without --sentence-separator, so "
                "that sentences are not counted anyway; leave it out"
            )
        self.ensemble = Ensemble(models, config.temperature, dtype)
        self.config = config
        self.symbols = symbols
        self._shortlist = shortlist
        self._separators = None if config.free_sentence_count else separators
        self._source_separator = -1 if separators is None else separators[0]

    def translate(
        self,
        sources: Sequence[SourceSentence],
        first_id: int = 0,
        on_progress: Callable[[int], object] | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each source, or its reference, in the sources' order.

        A source without words has one hypothesis without words and with score 0, so that an empty
        line stays empty; the model is not asked.

        Args:
            sources: any number of sentences; batches are made of those of similar length.
            first_id: number of the first sentence, for the random numbers of sampling.
            on_progress: called with the number of sentences of each batch that is done.

        Raises:
            ConfigError: the settings need references that the sentences do not have, or leave a
                sentence no output at all.
        """
        config, symbols = self.config, self.symbols
        needed = config.score_reference or config.prefix_size
        if needed and any(source.reference is None for source in sources):
            flag = "--score-reference" if config.score_reference else "--prefix-size"
            raise ConfigError(f"{flag} needs references: a data folder with a target side")
        end, score = np.array([symbols.eos_index]), np.zeros(1, np.float32)
        results = [[Hypothesis(end, 0.0, score, np.zeros(1, int))] for _ in sources]
        lengths = np.array([len(source.ids) for source in sources], dtype=np.int64)
        wanted = np.flatnonzero((lengths > 1) | config.score_reference)
        job = _Job(self, sources, first_id)
        workers = self._workers()
        batches = [wanted[batch] for batch in self._batches(lengths[wanted], workers)]
        for members, found in self._translated(job, batches, workers):
            for i, hypotheses in zip(members, found, strict=True):
                results[i] = hypotheses
            if on_progress is not None:
                on_progress(len(members))
        return results

    def _workers(self) -> int:
        """Return how many processes the settings ask for.

        Raises:
            ConfigError: several on a GPU.
        """
        asked = self.config.workers
        if self.ensemble.device.type != "cpu":
            if asked > 1:
                raise ConfigError(f"--workers {asked} is for CPUs; leave it out on a GPU")
            return 1
        return asked or (torch.get_num_threads() if FORKS else 1)

    def _translated(
        self, job: "_Job", batches: list[np.ndarray], workers: int
    ) -> Iterator[tuple[np.ndarray, list[list[Hypothesis]]]]:
        """Yield each batch and its hypotheses, by at most so many processes."""
        workers = min(workers, len(batches))
        if workers <= 1:
            return job.run(batches)
        tasks = deal_batches(batches, workers)
        found = ordered_map(_run_batches, tasks, workers, _start_worker, job)
        return (each for _, of_task in found for each in of_task)

    def _batches(self, lengths: np.ndarray, workers: int = 1) -> list[np.ndarray]:
        device_type = self.ensemble.device.type
        return plan_batches(lengths, self.config, len(self.symbols), device_type, workers)

    def first_batch(self, lengths: np.ndarray) -> int:
        """Return how many of the longest sources are translated together.

        Args:
            lengths: tokens of each, with the end symbol, int [N].
        """
        return len(self._batches(lengths)[0])

    def of_batches(
        self, batches: Iterable[tuple[Sequence[SourceSentence], np.ndarray]]
    ) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
        """Yield what :meth:`translate` does of batches, with their numbers, as they are done.

        A search begins when those before have few sentences left, and they go on together: the
        last words of a few long translations cost little beside those of many others.

        Args:
            batches: sentences with words, and their numbers, int64 [B], for the random numbers of
                sampling.

        Raises:
            ConfigError: see :meth:`generate`.
            OutOfMemoryError: there is not enough memory.
        """
        if self.config.score_reference:
            for number, (sources, _) in enumerate(batches):
                yield number, self._score(sources)
        else:
            starts = (partial(self._begin_batch, *batch) for batch in batches)
            yield from self._run(enumerate(starts))

    def _score(self, sources: Sequence[SourceSentence]) -> list[list[Hypothesis]]:
        src_tokens = self._padded([source.ids for source in sources])
        with self._telling_of_memory(src_tokens):
            tgt_tokens = self._padded(_references(sources))
            return score_references(
                self.ensemble, self.config, self.symbols, src_tokens, tgt_tokens
            )

    def _run(
        self, starts: Iterator[tuple[int, Callable[[], "_Search"]]]
    ) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
        """Yield the hypotheses of numbered searches, as they are done."""
        running: dict[int, _Search] = {}
        while True:
            with self.ensemble.evaluating():  # not while the caller has its turn
                ended = self._run_to_an_end(running, starts)
            if ended is None:
                return
            yield ended, self._hypotheses(running.pop(ended))

    def _run_to_an_end(
        self, running: dict[int, "_Search"], starts: Iterator[tuple[int, Callable[[], "_Search"]]]
    ) -> int | None:
        """Go on until a search is done; return its number, or None if there is none left.

        Args:
            running: the searches that have begun, by number; others are added.
            starts: numbers and beginnings of the others.
        """
        while True:
            size = max((len(each.ids) for each in running.values()), default=0)
            live = sum(each.search.num_live for each in running.values())
            if live <= MOST_LEFT * size * self.config.beam:
                for number, begin in itertools.islice(starts, 1):
                    running[number] = begin()
            for number, each in running.items():
                if each.search.is_done:
                    return number
            if not running:
                return None
            searches = [each.search for each in running.values()]
            with self._telling_of_memory(*(each.src_tokens for each in running.values())):
                outputs = self.ensemble.step(
                    [search.tokens for search in searches],
                    [search.states for search in searches],
                    self.config.wants_alignment,
                )
                for search, output in zip(searches, outputs, strict=True):
                    search.advance(output)

    @contextmanager
    def _telling_of_memory(self, *src_tokens: Tensor) -> Iterator[None]:
        """Say what to do where these sources [B, S] are too many at once.

        Raises:
            OutOfMemoryError: they are.
        """
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            number, longest = sum(map(len, src_tokens)), max(each.size(1) for each in src_tokens)
            raise OutOfMemoryError(
                f"out of memory with {number} sentences of up to {longest} tokens at once "
                f"and --beam {self.config.beam}; a smaller --max-tokens, --batch-size or --beam "
                "needs less"
            ) from error

    def _begin_batch(self, sources: Sequence[SourceSentence], ids: np.ndarray) -> "_Search":
        forced = [
            np.concatenate([source.context, source.prefix, target[: self.config.prefix_size]])
            for source, target in zip(sources, _references(sources), strict=True)
        ]
        return self._begin(
            self._padded([source.ids for source in sources]),
            self._padded(forced) if any(map(len, forced)) else None,
            ids,
            np.array([len(source.context) for source in sources]),
            [own.forced for own in sources],
            [own.banned for own in sources],
        )

    def _padded(self, rows: Sequence[np.ndarray]) -> Tensor:
        return pad_rows(rows, self.symbols.pad_index).to(self.ensemble.device)

    def generate(
        self,
        src_tokens: Tensor,
        prefix_tokens: Tensor | None = None,
        sentence_ids: np.ndarray | None = None,
        context_sizes: np.ndarray | None = None,
        forced: Sequence[ForcedTerms] = (),
        banned: Sequence[Sequence[Term]] = (),
    ) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each sentence, best first.

        Args:
            src_tokens: [B, S] int64, right-padded, each ending in the end symbol.
            prefix_tokens: forced first tokens [B, P] int64, right-padded; as in fairseq they are
                part of the hypothesis and its score.
            sentence_ids: what each sentence's random numbers depend on (``--sampling``), int64 [B];
                0 to B - 1 by default.
            context_sizes: how many of the forced tokens are the translation of what comes before,
                int64 [B]: these are neither scored nor returned, and count only for the longest
                output. None for none.
            forced: terms that each translation must have, [B]; none for none at all. The longest
                output grows if they need it.
            banned: token ids of the terms that each may not have, [B]; none for none at all.

        Raises:
            ConfigError: the settings leave a sentence no output at all, or force terms on other
                than plain beam search.
        """
        begin = partial(
            self._begin, src_tokens, prefix_tokens, sentence_ids, context_sizes, forced, banned
        )
        [(_, found)] = self._run(iter([(0, begin)]))
        return found

    def _begin(
        self,
        src_tokens: Tensor,
        prefix_tokens: Tensor | None,
        sentence_ids: np.ndarray | None,
        context_sizes: np.ndarray | None,
        forced: Sequence[ForcedTerms],
        banned: Sequence[Sequence[Term]],
    ) -> "_Search":
        """Return the search that :meth:`generate` describes; the sources are read."""
        config = self.config
        lengths = (src_tokens != self.symbols.pad_index).sum(1).cpu().numpy()
        limits = length_limits(config, lengths, self.ensemble.max_positions)
        if context_sizes is None:
            context_sizes = np.zeros_like(limits)
        sentences, shortlist = None, None
        terms = self._tracker(forced, context_sizes)
        separator = -1 if self._separators is None else self._separators[1]
        if self._shortlist is not None and prefix_tokens is None and not (terms or any(banned)):
            shortlist = self._shortlist.of(src_tokens, [] if separator < 0 else [separator])
            separator = int(torch.searchsorted(shortlist, separator))
        if self._separators is not None:
            number = (src_tokens == self._separators[0]).sum(1).clamp_min(1)
            sentences = SentencesLeft(separator, number[:, None])
            limits = np.maximum(limits, sentences.room(prefix_tokens, context_sizes))
        if terms is not None:
            limits = np.maximum(limits, self._room_for(forced, prefix_tokens, sentences))
        if sentences is not None or terms is not None:
            self._check_room(limits)
        constraints = TokenConstraints(
            config,
            self.symbols,
            limits,
            context_sizes,
            prefix_tokens,
            sentences,
            banned,
            terms,
        )
        ids = np.arange(len(limits)) if sentence_ids is None else sentence_ids
        selector = self._selector(ids, limits, src_tokens.device, terms)
        with self._telling_of_memory(src_tokens):
            search = BeamSearch(
                self.ensemble,
                config,
                self.symbols,
                selector,
                src_tokens,
                constraints,
                shortlist,
                self._source_separator,
            )
        return _Search(search, src_tokens, ids, context_sizes, limits, shortlist)

    def _hypotheses(self, ended: "_Search") -> list[list[Hypothesis]]:
        """Return what a search has found, without what was given.

        Raises:
            ConfigError: nothing for a sentence.
        """
        results = ended.search.results()
        for sentence, hypotheses in zip(ended.ids, results, strict=True):
            if not hypotheses:
                raise ConfigError(f"sentence {sentence}: no possible output; {self._reason()}")
        if ended.shortlist is not None:
            ids_of = ended.shortlist.cpu().numpy()
            results = [[replace(h, tokens=ids_of[h.tokens]) for h in own] for own in results]
        sizes, limits = ended.context_sizes.tolist(), ended.limits.tolist()
        return [
            [replace(h.without_context(size), reached_limit=len(h.tokens) > limit) for h in own]
            for own, size, limit in zip(results, sizes, limits, strict=True)
        ]

    def _tracker(
        self, forced: Sequence[ForcedTerms], context_sizes: np.ndarray
    ) -> TermTracker | None:
        """Return what follows the terms of a batch, if there are any.

        Raises:
            ConfigError: they do not go with this search.
        """
        if not any(own.num_tokens for own in forced):
            return None
        self.config.check_terms()
        separator = -1 if self._separators is None else self._separators[1]
        return TermTracker(forced, context_sizes, separator)

    def _room_for(
        self,
        forced: Sequence[ForcedTerms],
        prefixes: Tensor | None,
        sentences: SentencesLeft | None,
    ) -> np.ndarray:
        """Return how long an output with all that is forced can become, int64 [B]; 0: no terms."""
        room = np.array([own.num_tokens for own in forced], dtype=np.int64)
        has_terms = room > 0
        if prefixes is not None:
            room += (prefixes != self.symbols.pad_index).sum(1).cpu().numpy()
        if sentences is not None:
            room += sentences.number[:, 0].cpu().numpy()
        return room * has_terms

    def _check_room(self, limits: np.ndarray) -> None:
        """See that the models can write the sentences of each source, and all that is forced."""
        longest, positions = int(limits.max(initial=0)), self.ensemble.max_positions
        if positions is not None and longest >= positions:
            raise ConfigError(
                f"{longest} tokens are needed for the sentences to translate at once, or for "
                f"forced terms, but the model can write {positions - 1}; give a smaller "
                "--max-doc-tokens, or fewer terms"
            )

    def _reason(self) -> str:
        if self.config.min_len > 1 or self.config.no_repeat_ngram_size:
            return (
                "--min-len and --no-repeat-ngram-size forbid every token; lower them, and if that "
                "does not help, the training of the model has diverged"
            )
        return "the model's scores are not finite (training diverged)"

    def _selector(
        self,
        ids: np.ndarray,
        limits: np.ndarray,
        device: torch.device,
        terms: TermTracker | None,
    ) -> Selector:
        config = self.config
        if terms is not None:
            return TermSelector(terms)
        if config.sampling:
            num_steps = int(limits.max(initial=0)) + 1
            uniforms = draw_uniforms(config.seed, ids, config.beam, num_steps)
            return SamplingSelector(
                torch.from_numpy(uniforms).to(device), config.sampling_topk, config.sampling_topp
            )
        return BeamSelector(max(1, config.diverse_beam_groups), config.diverse_beam_strength)


def _references(sources: Sequence[SourceSentence]) -> list[np.ndarray]:
    """Return the reference of each source; no tokens where it has none."""
    nothing = np.zeros(0, dtype=np.int64)
    return [nothing if source.reference is None else source.reference for source in sources]


@dataclass(frozen=True)
class _Search:
    """The search of one batch.

    Args:
        search: what goes on.
        src_tokens: its sources [B, S].
        ids: their numbers, int64 [B].
        context_sizes: how many tokens of each translation were given, int64 [B].
        limits: the most tokens before the end symbol, int64 [B].
        shortlist: ids of the only symbols that may be written; None for all.
    """

    search: BeamSearch
    src_tokens: Tensor
    ids: np.ndarray
    context_sizes: np.ndarray
    limits: np.ndarray
    shortlist: Tensor | None


@dataclass(frozen=True)
class _Job:
    """What a worker process translates batches of; see :meth:`Generator.translate`."""

    generator: Generator
    sources: Sequence[SourceSentence]
    first_id: int

    def run(
        self, batches: Sequence[np.ndarray]
    ) -> Iterator[tuple[np.ndarray, list[list[Hypothesis]]]]:
        """Yield batches, indices [B] of sources, and their hypotheses, as they are done."""
        given = (([self.sources[i] for i in own], own + self.first_id) for own in batches)
        for number, hypotheses in self.generator.of_batches(given):
            yield batches[number], hypotheses


_jobs: list[_Job] = []


def _start_worker(job: _Job) -> None:
    torch.set_num_threads(1)
    _jobs.append(job)


def _run_batches(
    batches: Sequence[np.ndarray],
) -> list[tuple[np.ndarray, list[list[Hypothesis]]]]:
    return list(_jobs[-1].run(batches))
