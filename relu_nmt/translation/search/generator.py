"""Translations of token ids, by whatever search the settings ask for: of a batch, of many."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.translation_batches import pad_rows
from relu_nmt.errors import ConfigError
from relu_nmt.io.worker_pool import FORKS, ordered_map
from relu_nmt.translation.search.batch_search import (
    BatchSearches,
    RunningSearch,
    SourceBatch,
    telling_of_memory,
)
from relu_nmt.translation.search.batches import deal_batches, plan_batches
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.ensemble import Ensemble
from relu_nmt.translation.search.forced_terms import ForcedTerms, Term
from relu_nmt.translation.search.hypotheses import Hypothesis
from relu_nmt.translation.search.reference_scores import score_references
from relu_nmt.translation.search.shortlist import Shortlist
from relu_nmt.translation.search.translations import SourceSentence
from relu_nmt.translation.step_decoder import StepDecoder

MOST_LEFT = 0.4
"""Of a batch's hypotheses, the most that go on when the next one begins beside them."""


class Generator:
    """Finds or scores hypotheses, as the settings ask: of any number of sentences, or of a batch.

    Args:
        decoders: of one model, or of several whose probabilities are averaged.
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
        >>> from relu_nmt.translation.config import TransformerConfig
        >>> from relu_nmt.translation.encoder_decoder import EncoderDecoder
        >>> from relu_nmt.translation.step_decoder import PlainDecoder
        >>> config = TransformerConfig(encoder_layers=1, decoder_layers=1)
        >>> decoder = PlainDecoder(EncoderDecoder(config, 10, 12, pad_index=1))
        >>> generator = Generator([decoder], GenerationConfig(beam=2, max_len_b=5), Dictionary())
        >>> [[best]] = generator.generate(torch.tensor([[4, 5, 2]]))
        >>> int(best.tokens[-1])
        2
    """

    def __init__(
        self,
        decoders: Sequence[StepDecoder],
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
        self.ensemble = Ensemble(decoders, config.temperature, dtype)
        self.config = config
        self.symbols = symbols
        self._separators = separators
        self._shortlist = shortlist
        self._searches = BatchSearches(self.ensemble, config, symbols, separators, shortlist)

    def with_config(self, config: GenerationConfig) -> "Generator":
        """Return one that searches with the same models in another way."""
        decoders, dtype = self.ensemble.decoders, self.ensemble.dtype
        return Generator(decoders, config, self.symbols, dtype, self._separators, self._shortlist)

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
            yield from self._run(enumerate(self._source_batch(*batch) for batch in batches))

    def _score(self, sources: Sequence[SourceSentence]) -> list[list[Hypothesis]]:
        src_tokens = self._padded([source.ids for source in sources])
        with telling_of_memory(self.config.beam, src_tokens):
            tgt_tokens = self._padded(_references(sources))
            return score_references(
                self.ensemble, self.config, self.symbols, src_tokens, tgt_tokens
            )

    def _run(
        self, batches: Iterator[tuple[int, SourceBatch]]
    ) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
        """Yield the hypotheses of numbered batches, as they are done."""
        running: dict[int, RunningSearch] = {}
        while True:
            with self.ensemble.evaluating():  # not while the caller has its turn
                ended = self._run_to_an_end(running, batches)
            if ended is None:
                return
            yield ended, self._searches.hypotheses(running.pop(ended))

    def _run_to_an_end(
        self,
        running: dict[int, RunningSearch],
        batches: Iterator[tuple[int, SourceBatch]],
    ) -> int | None:
        """Go on until a search is done; return its number, or None if there is none left.

        Args:
            running: the searches that have begun, by number; others are added.
            batches: numbers and sources of the others.
        """
        while True:
            size = max((len(each.batch.ids) for each in running.values()), default=0)
            live = sum(each.search.num_live for each in running.values())
            if live <= MOST_LEFT * size * self.config.beam:
                for number, batch in itertools.islice(batches, 1):
                    running[number] = self._searches.begin(batch)
            for number, each in running.items():
                if each.search.is_done:
                    return number
            if not running:
                return None
            searches = [each.search for each in running.values()]
            sources = (each.batch.src_tokens for each in running.values())
            with telling_of_memory(self.config.beam, *sources):
                outputs = self.ensemble.step(
                    [search.next_step for search in searches], self.config.wants_alignment
                )
                for search, output in zip(searches, outputs, strict=True):
                    search.advance(output)

    def _source_batch(self, sources: Sequence[SourceSentence], ids: np.ndarray) -> SourceBatch:
        given = [
            np.concatenate([source.context, source.prefix, target[: self.config.prefix_size]])
            for source, target in zip(sources, _references(sources), strict=True)
        ]
        return SourceBatch(
            self._padded([source.ids for source in sources]),
            self._padded(given) if any(map(len, given)) else None,
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
        if sentence_ids is None:
            sentence_ids = np.arange(len(src_tokens))
        if context_sizes is None:
            context_sizes = np.zeros(len(src_tokens), dtype=np.int64)
        batch = SourceBatch(src_tokens, prefix_tokens, sentence_ids, context_sizes, forced, banned)
        [(_, found)] = self._run(iter([(0, batch)]))
        return found


def _references(sources: Sequence[SourceSentence]) -> list[np.ndarray]:
    """Return the reference of each source; no tokens where it has none."""
    nothing = np.zeros(0, dtype=np.int64)
    return [nothing if source.reference is None else source.reference for source in sources]


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
