"""Translation of token ids, in batches and by several processes."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.separators import Separators
from relu_nmt.data.translation_batches import pad_rows
from relu_nmt.errors import ConfigError, OutOfMemoryError, is_out_of_memory
from relu_nmt.io.memory import require_memory
from relu_nmt.io.workers import FORKS, ordered_map
from relu_nmt.translation.base import Ensemble
from relu_nmt.translation.decoder_state import SMALLER_SEARCH
from relu_nmt.translation.search.beam_search import BeamSearch
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.constraints import TokenConstraints, build_step_score
from relu_nmt.translation.search.reference_scores import score_references
from relu_nmt.translation.search.scoring import build_scorer, word_mask
from relu_nmt.translation.search.shortlist import Shortlist
from relu_nmt.translation.search.translations import Hypothesis, SourceSentence

DoneBatch = tuple[np.ndarray, list[list[Hypothesis]]]
"""The indices [B] of the sentences of a batch, and the n best hypotheses of each."""
Translate = Callable[[Sequence[np.ndarray]], Iterator[DoneBatch]]

DEFAULT_MAX_TOKENS = 12000
"""Most source tokens of a batch if no batch size is given. Several workers share them."""
MAX_LOGITS = {"cpu": 2**22, "cuda": 2**26}
"""Most entries of the [B, K, V] logits of a step if no batch size is given: 16 MB on a CPU, near
the size of its caches, and 256 MB on a GPU."""
BATCHES_EACH = 2
"""Fewest batches for each of several workers, so that none waits long for the last one."""
LEAST_SENTENCES = 8
"""Fewest sentences in a worker's batch. A step of one sentence is as slow as a step of four."""
LEAST_MAX_TOKENS = 2048  # smallest share of ``DEFAULT_MAX_TOKENS`` for each of several workers
MOST_BATCHES = 3  # most batches in one task of a worker. After each task it reports its results.
FLOAT_BYTES = 4
MOST_LEFT = 0.4
"""Begin the next batch when at most this fraction of a full batch's hypotheses is live."""


class Generator:
    """Finds hypotheses of sentences, or scores their references.

    With ``separators`` a translation has as many sentences as its source, unless
    ``config.free_sentence_count``. A ``shortlist`` restricts the symbols, unless prefixes or terms
    are forced, terms banned, or tokens have a bonus. ``first_symbol``, such as the code of a
    language, is a forced first token. It counts as a token, but costs nothing.

    Attributes:
        scorer: ranks the hypotheses.

    Raises:
        ConfigError: ``free_sentence_count`` without separators, or a wrong option of the scorer.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        config: GenerationConfig,
        symbols: Dictionary,
        separators: Separators | None = None,
        shortlist: Shortlist | None = None,
        first_symbol: str | None = None,
    ) -> None:
        # Refuse a shortlist for references, which may have any symbol.
        if shortlist is not None and config.score_reference:
            raise ConfigError(
                "--score-reference needs the scores of all symbols; leave out --shortlist"
            )
        if config.free_sentence_count and separators is None:
            raise ConfigError(
                "--free-sentence-count: the model was trained without --sentence-separator, so "
                "that sentences are not counted anyway; leave it out"
            )
        # Take the values for single sentences where a setting still depends on the use.
        self.config = config.resolved()
        self.ensemble = ensemble
        self.symbols = symbols
        self._separators = separators
        self._shortlist = shortlist
        self._first_symbol = first_symbol
        self._first = np.zeros(0, dtype=np.int64)  # ids of the first symbol, [0 or 1]
        if first_symbol is not None:
            self._first = np.array([symbols.index(first_symbol)])
        self.scorer = build_scorer(config)
        if config.step_score is not None:  # refuse wrong options now
            build_step_score(config, symbols)

    def with_config(self, config: GenerationConfig) -> "Generator":
        """Return a generator with the same models and other settings."""
        first_symbol = self._first_symbol
        return Generator(
            self.ensemble, config, self.symbols, self._separators, self._shortlist, first_symbol
        )

    def translate(
        self,
        sources: Sequence[SourceSentence],
        first_id: int = 0,
        on_progress: Callable[[int], object] | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each source, or its reference, in the sources' order.

        A source without words has one empty hypothesis with score 0, without a call of the model.
        ``first_id`` is the number of the first sentence, for the random numbers of sampling.
        ``on_progress`` gets the number of sentences without words, then the size of each batch.

        Raises:
            ConfigError: references are needed but missing, or limits leave a sentence no output.
        """
        config = self.config
        for source in sources:
            if source.reference is None and (config.score_reference or config.prefix_size):
                flag = "--score-reference" if config.score_reference else "--prefix-size"
                raise ConfigError(f"{flag} needs references: a data folder with a target side")
        # Begin with empty translations. Only sources with words need a search.
        end = np.array([self.symbols.eos_index])
        empty = Hypothesis(end, 0.0, np.zeros(1, np.float32), np.zeros(1, int))
        results = [[empty] for _ in sources]
        lengths = np.array([len(source.ids) for source in sources], dtype=np.int64)
        with_words = np.flatnonzero((lengths > 1) | config.score_reference)
        if on_progress is not None and len(with_words) < len(sources):
            on_progress(len(sources) - len(with_words))
        # Translate batches of similar lengths, in processes if there are several.
        workers = self._workers()
        translate = partial(self.translate_batches, sources, first_id)
        batches = [with_words[batch] for batch in self._batches(lengths[with_words], workers)]
        for indices, nbest_lists in _run_batches(translate, batches, workers):
            for i, hypotheses in zip(indices, nbest_lists, strict=True):
                results[i] = hypotheses
            if on_progress is not None:
                on_progress(len(indices))
        return results

    def _workers(self) -> int:
        """Return the number of processes. Raise ConfigError for several on a GPU."""
        workers = self.config.workers or 0
        if self.ensemble.device.type == "cpu" and FORKS:
            return workers or torch.get_num_threads()
        if self.ensemble.device.type != "cpu" and workers > 1:
            raise ConfigError(f"--workers {workers} is for CPUs; leave it out on a GPU")
        return workers or 1

    def _batches(self, lengths: np.ndarray, workers: int = 1) -> list[np.ndarray]:
        device_type = self.ensemble.device.type
        return plan_batches(lengths, self.config, len(self.symbols), device_type, workers)

    def first_batch(self, lengths: np.ndarray) -> int:
        """Return how many of the longest sources, of these lengths [N], form the first batch."""
        return len(self._batches(lengths)[0])

    def translate_batches(
        self, sources: Sequence[SourceSentence], first_id: int, batches: Sequence[np.ndarray]
    ) -> Iterator[DoneBatch]:
        """Yield the batches as they are done, from batches of indices [B] of sources.

        The batches share steps (continuous batching). The search of a batch begins when the
        searches before it have few live hypotheses left, so that the last words of a few long
        translations cost little.
        """
        if self.config.score_reference:
            for batch in batches:
                yield batch, self._score([sources[i] for i in batch])
            return
        running: list[BeamSearch] = []
        waiting = deque(([sources[i] for i in batch], batch + first_id) for batch in batches)
        while running or waiting:
            with self.ensemble.evaluating():  # leave this mode before each yield
                self._begin_next(waiting, running)
                while not any(search.is_done for search in running):
                    self._step(running)
                    self._begin_next(waiting, running)
            done = next(search for search in running if search.is_done)
            running.remove(done)
            yield done.ids - first_id, done.results()

    def _begin_next(
        self,
        waiting: deque[tuple[list[SourceSentence], np.ndarray]],
        running: list[BeamSearch],
    ) -> None:
        """Begin the search of the next batch if few hypotheses of the running ones are live."""
        size = max((len(search.src_tokens) for search in running), default=0)
        num_live = sum(search.num_live for search in running)
        if waiting and num_live <= MOST_LEFT * size * self.config.beam:
            running.append(self._begin(*waiting.popleft()))

    def _step(self, running: Sequence[BeamSearch]) -> None:
        """Advance all running searches by one token."""
        wants_weights = self.config.wants_alignment or self.scorer.needs_attention
        self._check_memory(running)
        with self._memory_advice([search.src_tokens for search in running]):
            steps = [search.next_steps for search in running]
            outputs = self.ensemble.step(steps, self.config.temperature, wants_weights)
            for search, scores in zip(running, outputs, strict=True):
                search.advance(scores)

    def _begin(self, sources: Sequence[SourceSentence], ids: np.ndarray) -> BeamSearch:
        """Encode the sources of a batch, and return its search."""
        config = self.config
        ensemble = self.ensemble
        src_tokens = self._padded([source.ids for source in sources])
        prefixes = self._padded(list(map(self._beginning, sources)))
        # With a shortlist, tokens of the search are indices into its symbols.
        separators = self._separators
        listed = self._listed_symbols(sources, src_tokens, prefixes)
        if listed is not None and separators is not None:
            index = int(torch.searchsorted(listed, separators.target))
            separators = separators._replace(target=index)
        num_free = len(self._first)
        constraints = TokenConstraints(
            config, self.symbols, ensemble, sources, prefixes, separators, num_free
        )
        # Encode the sources, which may need more memory than there is.
        is_word = word_mask(src_tokens, self.symbols, self._separators)
        with self._memory_advice([src_tokens]):
            return BeamSearch(
                ensemble, config, self.scorer, src_tokens, is_word, ids, constraints, listed
            )

    def _listed_symbols(
        self, sources: Sequence[SourceSentence], src_tokens: Tensor, prefixes: Tensor
    ) -> Tensor | None:
        """Return the only symbols to write. None: any, which prefixes and terms may need."""
        has_terms = any(source.num_forced or source.banned for source in sources)
        is_free = not prefixes.size(1) and self.config.step_score is None and not has_terms
        if self._shortlist is None or not is_free:
            return None
        separator_ids = [] if self._separators is None else [self._separators.target]
        return self._shortlist.of(src_tokens, separator_ids)

    def _beginning(self, source: SourceSentence) -> np.ndarray:
        """Return the forced first tokens, int64 [P]: context or first symbol, then prefixes."""
        beginning = [source.context, source.prefix]
        if not len(source.context):
            beginning[0] = self._first
        if source.reference is not None:  # it has the first symbol, too
            beginning.append(source.reference[len(self._first) :][: self.config.prefix_size])
        return np.concatenate(beginning)

    def _score(self, sources: Sequence[SourceSentence]) -> list[list[Hypothesis]]:
        """Return the references as hypotheses."""
        src_tokens = self._padded([source.ids for source in sources])
        with self._memory_advice([src_tokens]):
            tgt_tokens = self._padded([s.reference for s in sources if s.reference is not None])
            return score_references(
                self.ensemble, self.scorer, self.symbols, src_tokens, tgt_tokens, self._separators
            )

    def _padded(self, rows: Sequence[np.ndarray]) -> Tensor:
        return pad_rows(rows, self.symbols.pad_index).to(self.ensemble.device)

    def _check_memory(self, searches: Sequence[BeamSearch]) -> None:
        """Refuse a step whose scores do not fit in CPU memory (OutOfMemoryError)."""
        # Count logits and log-probabilities of all symbols for each live hypothesis.
        num_rows = sum(search.num_live for search in searches)
        if self.ensemble.device.type == "cpu" and self._shortlist is None:
            subject = f"the scores of {num_rows:,} hypotheses (--beam {self.config.beam})"
            num_bytes = 2 * FLOAT_BYTES * num_rows * len(self.symbols)
            require_memory(subject, num_bytes, SMALLER_SEARCH)

    @contextmanager
    def _memory_advice(self, src_tokens: Sequence[Tensor]) -> Iterator[None]:
        """Add a remedy to errors from lack of memory inside the block, for sources [B, S]."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            number = sum(map(len, src_tokens))
            longest = max(tokens.size(1) for tokens in src_tokens)
            raise OutOfMemoryError(
                f"out of memory with {number} sentences of up to {longest} tokens at once and "
                f"--beam {self.config.beam}; {SMALLER_SEARCH}"
            ) from error


def plan_batches(
    lengths: np.ndarray,
    config: GenerationConfig,
    vocab_size: int,
    device_type: str = "cpu",
    workers: int = 1,
) -> list[np.ndarray]:
    """Divide sentences into batches, longest first, by the settings or limits of the device."""
    # Without given sizes, limit the logits of a step, and leave batches for all workers.
    max_tokens = config.max_tokens
    batch_size = config.batch_size or len(lengths)
    if max_tokens is None and config.batch_size is None:
        max_tokens = DEFAULT_MAX_TOKENS
        max_logits = MAX_LOGITS.get(device_type, MAX_LOGITS["cpu"])
        batch_size = max(1, max_logits // (config.beam * vocab_size))
        if workers > 1:
            share = -(-len(lengths) // (BATCHES_EACH * workers))
            batch_size = min(batch_size, max(share, LEAST_SENTENCES))
            max_tokens = max(max_tokens // workers, LEAST_MAX_TOKENS)
    # Give each worker equally many batches of similar size.
    number = -(-len(lengths) // max(1, batch_size))
    if number > workers > 1:
        number = workers * -(-number // workers)
        batch_size = -(-len(lengths) // number)

    # Cut the sentences, longest first, into batches that both limits allow.
    def size_of(longest: int) -> int:
        return batch_size if max_tokens is None else min(batch_size, max_tokens // longest)

    return list(longest_first(lengths, size_of))


def longest_first(lengths: np.ndarray, size_of: Callable[[int], int]) -> Iterator[np.ndarray]:
    """Yield batches, longest sentences first: ``size_of(longest)`` sentences, at least one."""
    order = np.argsort(-lengths, kind="stable")
    first = 0
    while first < len(order):
        last = first + max(1, size_of(max(1, int(lengths[order[first]]))))
        yield order[first:last]
        first = last


def deal_batches(batches: Sequence[np.ndarray], workers: int) -> list[Sequence[np.ndarray]]:
    """Return tasks with similar work, each with several batches for one worker."""
    # Blocks of batches, longest first. Worker w gets every workers-th batch of a block.
    rounds = -(-len(batches) // (workers * MOST_BATCHES))
    size = workers * -(-len(batches) // (workers * rounds))
    tasks = []
    for first in range(0, len(batches), size):
        block = batches[first : first + size]
        tasks += [block[worker::workers] for worker in range(min(workers, len(block)))]
    return tasks


def _run_batches(
    translate: Translate, batches: Sequence[np.ndarray], workers: int
) -> Iterator[DoneBatch]:
    """Yield each batch and its hypotheses, from at most ``workers`` processes."""
    workers = min(workers, len(batches))
    if workers <= 1:
        yield from translate(batches)
        return
    tasks = deal_batches(batches, workers)
    for _, results in ordered_map(partial(_translate_task, translate), tasks, workers):
        yield from results


def _translate_task(translate: Translate, batches: Sequence[np.ndarray]) -> list[DoneBatch]:
    torch.set_num_threads(1)  # of a worker process
    return list(translate(batches))
