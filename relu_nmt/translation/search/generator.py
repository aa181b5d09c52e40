"""Translation of token ids, in batches and by several processes."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.translation_batches import pad_rows
from relu_nmt.errors import ConfigError
from relu_nmt.io.work import FORKS
from relu_nmt.translation.search.batch_search import (
    BatchSearches,
    RunningSearch,
    SourceBatch,
    memory_advice,
)
from relu_nmt.translation.search.batches import Job, plan_batches, run_job
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.ensemble import Ensemble
from relu_nmt.translation.search.forced_terms import ForcedTerms, Term
from relu_nmt.translation.search.hypotheses import Hypothesis
from relu_nmt.translation.search.scoring import build_scorer, score_references
from relu_nmt.translation.search.shortlist import Shortlist
from relu_nmt.translation.search.translations import SourceSentence
from relu_nmt.translation.step_decoder import StepDecoder

MOST_LEFT = 0.4
"""Begin the next batch when at most this fraction of the hypotheses of the last is open."""


class Generator:
    """Finds hypotheses of sentences, or scores their references.

    Args:
        decoders: of one model, or of several whose probabilities are averaged.
        config: settings of the search.
        symbols: the target dictionary.
        dtype: ``torch.float16`` or ``torch.bfloat16`` to compute in; scores stay in float32.
        separators: the symbol that ends each sentence of a source, and of a target: a translation
            then has as many as its source, unless ``config.free_sentence_count``. None for none.
        shortlist: restricts the symbols of the translations; None for all. It is ignored if
            prefixes or terms are forced, or terms banned.

    Raises:
        ConfigError: ``free_sentence_count`` without separators, or a wrong option of the scorer.

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
        # Settings that still depend on the use are those of single sentences.
        config = config.resolved()
        self.ensemble = Ensemble(decoders, config.temperature, dtype)
        self.config = config
        self.symbols = symbols
        self._separators = separators
        self._shortlist = shortlist
        self._scorer = build_scorer(config)
        self._searches = BatchSearches(
            self.ensemble, config, self._scorer, symbols, separators, shortlist
        )

    def with_config(self, config: GenerationConfig) -> "Generator":
        """Return a generator with the same models and other settings."""
        decoders, dtype = self.ensemble.decoders, self.ensemble.dtype
        return Generator(decoders, config, self.symbols, dtype, self._separators, self._shortlist)

    def translate(
        self,
        sources: Sequence[SourceSentence],
        first_id: int = 0,
        on_progress: Callable[[int], object] | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each source, or its reference, in the sources' order.

        A source without words has one empty hypothesis with score 0, without a call of the model.

        Args:
            sources: any number of sentences; a batch has sentences of similar length.
            first_id: number of the first sentence, for the random numbers of sampling.
            on_progress: called with the number of sentences of each finished batch.

        Raises:
            ConfigError: the settings need references that the sentences do not have, or leave a
                sentence no output at all.
        """
        config, symbols = self.config, self.symbols
        needed = config.score_reference or config.prefix_size
        if needed and any(source.reference is None for source in sources):
            flag = "--score-reference" if config.score_reference else "--prefix-size"
            raise ConfigError(f"{flag} needs references: a data folder with a target side")
        # Begin with empty translations; only sources with words need a search.
        end, score = np.array([symbols.eos_index]), np.zeros(1, np.float32)
        results = [[Hypothesis(end, 0.0, score, np.zeros(1, int))] for _ in sources]
        lengths = np.array([len(source.ids) for source in sources], dtype=np.int64)
        wanted = np.flatnonzero((lengths > 1) | config.score_reference)
        # Translate batches of similar lengths, in several processes.
        job = Job(self.of_batches, sources, first_id)
        workers = self._workers()
        batches = [wanted[batch] for batch in self._batches(lengths[wanted], workers)]
        for members, found in run_job(job, batches, workers):
            for i, hypotheses in zip(members, found, strict=True):
                results[i] = hypotheses
            if on_progress is not None:
                on_progress(len(members))
        return results

    def _workers(self) -> int:
        """Return the number of processes from the settings.

        Raises:
            ConfigError: several on a GPU.
        """
        asked = self.config.workers or 0
        if self.ensemble.device.type != "cpu":
            if asked > 1:
                raise ConfigError(f"--workers {asked} is for CPUs; leave it out on a GPU")
            return 1
        return asked or (torch.get_num_threads() if FORKS else 1)

    def _batches(self, lengths: np.ndarray, workers: int = 1) -> list[np.ndarray]:
        device_type = self.ensemble.device.type
        return plan_batches(lengths, self.config, len(self.symbols), device_type, workers)

    def first_batch(self, lengths: np.ndarray) -> int:
        """Return the number of longest sources that are translated together.

        Args:
            lengths: tokens of each, with the end symbol, int [N].
        """
        return len(self._batches(lengths)[0])

    def of_batches(
        self, batches: Iterable[tuple[Sequence[SourceSentence], np.ndarray]]
    ) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
        """Yield the number and the hypotheses of each batch, as batches are done.

        A search begins when the searches before it have few open hypotheses left. They go on
        together, so the last words of a few long translations cost little.

        Args:
            batches: sentences with words, and their numbers, int64 [B], for the random numbers of
                sampling.

        Raises:
            ConfigError: see :meth:`generate`.
            OutOfMemoryError: there is not enough memory.
        """
        # Score references batch by batch; a search runs several batches together.
        if self.config.score_reference:
            for number, (sources, _) in enumerate(batches):
                yield number, self._score(sources)
        else:
            yield from self._run(enumerate(self._source_batch(*batch) for batch in batches))

    def _score(self, sources: Sequence[SourceSentence]) -> list[list[Hypothesis]]:
        src_tokens = self._padded([source.ids for source in sources])
        with memory_advice(self.config.beam, src_tokens):
            tgt_tokens = self._padded(_references(sources))
            separator = -1 if self._separators is None else self._separators[0]
            return score_references(
                self.ensemble, self._scorer, self.symbols, src_tokens, tgt_tokens, separator
            )

    def _run(
        self, batches: Iterator[tuple[int, SourceBatch]]
    ) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
        """Yield the hypotheses of numbered batches, as they are done."""
        running: dict[int, RunningSearch] = {}
        while True:
            with self.ensemble.evaluating():  # leave this mode before each yield
                ended = self._run_to_an_end(running, batches)
            if ended is None:
                return
            yield ended, self._searches.hypotheses(running.pop(ended))

    def _run_to_an_end(
        self,
        running: dict[int, RunningSearch],
        batches: Iterator[tuple[int, SourceBatch]],
    ) -> int | None:
        """Advance all searches until one is done; return its number, or None without a search.

        Args:
            running: the searches that have begun, by number; new ones are added.
            batches: numbers and sources of searches that have not begun.
        """
        wants_weights = self.config.wants_alignment or self._scorer.needs_attention
        while True:
            # Begin the next batch if few hypotheses are open.
            size = max((len(each.batch.ids) for each in running.values()), default=0)
            live = sum(each.search.num_live for each in running.values())
            if live <= MOST_LEFT * size * self.config.beam:
                for number, batch in itertools.islice(batches, 1):
                    running[number] = self._searches.begin(batch)
            # Return a search that is done before another step begins.
            for number, each in running.items():
                if each.search.is_done:
                    return number
            if not running:
                return None
            # Advance all searches by one token.
            searches = [each.search for each in running.values()]
            sources = (each.batch.src_tokens for each in running.values())
            with memory_advice(self.config.beam, *sources):
                outputs = self.ensemble.step([each.next_step for each in searches], wants_weights)
                for search, output in zip(searches, outputs, strict=True):
                    search.advance(output)

    def _source_batch(self, sources: Sequence[SourceSentence], ids: np.ndarray) -> SourceBatch:
        # Forced first tokens: context, prefix, then --prefix-size tokens of the reference.
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
            src_tokens: see :class:`SourceBatch`, as all arguments.
            prefix_tokens: None for none.
            sentence_ids: 0 to B - 1 by default.
            context_sizes: None for no context.
            forced: empty for no terms.
            banned: empty for no terms.

        Raises:
            ConfigError: the settings leave a sentence no output at all, or force terms in another
                search than plain beam search.
        """
        # Fill in defaults: consecutive numbers, and no context.
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
