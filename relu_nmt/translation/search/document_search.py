"""Translations of whole documents, window by window, and the lines of their sentences.

Without overlap the windows are the groups that training uses. With overlap, each window also holds
the last sentences of the one before as context; only what follows them is new. No sentence is ever
left out or cut: one that is longer than the limit is a window of its own.

The sentences before the new ones are part of the source, and their translations, which were kept
from earlier windows, are forced as the beginning of the target. So the new sentences follow what
the reader really has before him, as in training, where the target of a group is one text too; a
second translation of the context, thrown away afterwards, could differ from the one that was kept,
and a separator too many in it would shift all that follows. Hypotheses are ranked by the new
sentences alone, else a long context would favour short ones. The price is that the windows of a
document wait for each other; those of different documents share batches.
"""

import bisect
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from relu_nmt.data.documents import SINGLE_SENTENCES
from relu_nmt.data.groups import Groups, join_sentences, plan_groups, sentence_slices
from relu_nmt.errors import ConfigError
from relu_nmt.translation.search.config import GenerationConfig, WindowConfig
from relu_nmt.translation.search.constraints import length_limits
from relu_nmt.translation.search.translations import (
    Line,
    SourceLimit,
    SourceSentence,
    TranslatedLines,
    Translation,
)


@dataclass(frozen=True)
class Window:
    """Consecutive sentences of a document that the model reads at once.

    Args:
        document: the document.
        context: number of the first sentence; those before ``first`` are translated already.
        first: number of the first new sentence.
        end: number behind the last.
    """

    document: int
    context: int
    first: int
    end: int

    @property
    def num_new(self) -> int:
        """Sentences that it translates."""
        return self.end - self.first

    def halves(self) -> tuple["Window", "Window"]:
        """Return two windows without context for the new sentences."""
        middle = (self.first + self.end) // 2
        return (
            Window(self.document, self.first, self.first, middle),
            Window(self.document, middle, middle, self.end),
        )


class WindowPlan:
    """Divides documents into windows, from the lengths of their sentences alone.

    Args:
        sizes: tokens of each sentence with its ``</s>``, int [N].
        documents: sentences of each document, int [documents].
        config: limit and overlap.

    Example:
        >>> sizes, documents = np.array([4, 4, 4, 4]), np.array([4])
        >>> plan = WindowPlan(sizes, documents, WindowConfig(10, window_overlap=1))
        >>> [(window.context, window.first, window.end) for window in plan.windows]
        [(0, 0, 3), (2, 3, 4)]
    """

    def __init__(self, sizes: np.ndarray, documents: np.ndarray, config: WindowConfig) -> None:
        self._limit = config.max_doc_tokens
        self._overlap = config.window_overlap
        self._begins = np.append(0, np.cumsum(documents)).tolist()
        self._totals = np.append(0, np.cumsum(sizes.astype(np.int64) - 1)).tolist()
        if config.window_overlap:
            self.windows = self._overlapping()
        else:
            groups = plan_groups(sizes, documents, config.max_doc_tokens)
            columns = (groups.document, groups.first, groups.count)
            self.windows = [
                Window(document, first, first, first + count)
                for document, first, count in zip(*map(np.ndarray.tolist, columns), strict=True)
            ]

    def _overlapping(self) -> list[Window]:
        windows = []
        for document, (begin, end) in enumerate(itertools.pairwise(self._begins)):
            first = begin
            while first < end:
                # As much context as the first new sentence leaves room for; then more sentences.
                window = self.with_context(Window(document, first, first, first + 1))
                last = first + 1
                while last < end and self.tokens(window.context, last + 1) <= self._limit:
                    last += 1
                windows.append(Window(document, window.context, first, last))
                first = last
        return windows

    def tokens(self, begin: int, end: int) -> int:
        """Return the tokens of sentences ``begin`` to ``end - 1`` with one ``</s>``."""
        return 1 + self._totals[end] - self._totals[begin]

    def with_context(self, window: Window) -> Window:
        """Return the window with as much context as overlap and limit allow."""
        first = window.first
        context = max(self._begins[window.document], first - self._overlap)
        # The first sentence from which on the tokens are within the limit.
        least = 1 + self._totals[window.end] - self._limit
        context = bisect.bisect_left(self._totals, least, context, first)
        return Window(window.document, context, first, window.end)

    def groups(self) -> Groups:
        """Return the new sentences of each window; ``tokens`` are those of the whole window."""
        first = np.array([window.first for window in self.windows], dtype=np.int64)
        return Groups(
            first,
            np.array([window.num_new for window in self.windows], dtype=np.int64),
            np.array([window.document for window in self.windows], dtype=np.int64),
            np.full(len(first), self._limit, dtype=np.int64),
            np.array([self.tokens(w.context, w.end) for w in self.windows], dtype=np.int64),
        )


@dataclass(frozen=True)
class SourceDocuments:
    """Documents to translate, sentence by sentence.

    Args:
        sentences: the sentences; each ends in the separator, if there is one, and ``</s>``. One
            without words is not shown to the model; its translation is empty. Those of a document
            have the same banned terms.
        counts: sentences of each document, int [documents].
        sizes: tokens that each sentence counts towards the limit, ``</s>`` included, int [N].
        separators: the symbol that ends sentences, in source and target; None: the model knows
            none, so that a translation of several sentences cannot be cut up.
    """

    sentences: Sequence[SourceSentence]
    counts: np.ndarray
    sizes: np.ndarray
    separators: tuple[int, int] | None

    def limited(self, limit: SourceLimit) -> "SourceDocuments":
        """Return the documents without sentences that are too long, or with their beginnings."""
        sentences = [limit.applied(sentence) for sentence in self.sentences]
        if limit.tokens is None:
            return self
        return replace(self, sentences=sentences, sizes=np.minimum(self.sizes, limit.tokens))

    def with_words(self, begin: int, end: int) -> list[int]:
        """Return which of the sentences ``begin`` to ``end - 1`` have words."""
        least = 1 + (self.separators is not None)
        return [i for i in range(begin, end) if len(self.sentences[i].ids) > least]

    def joined(self, window: Window) -> SourceSentence:
        """Return the sentences of a window as one, with what the new ones are to become."""
        read = [self.sentences[i] for i in self.with_words(window.context, window.end)]
        new = [self.sentences[i].reference for i in range(window.first, window.end)]
        references = [reference for reference in new if reference is not None]
        written = [self.sentences[i] for i in self.with_words(window.first, window.end)]
        ids = join_sentences([sentence.ids for sentence in read])
        tokens = [token for sentence in read for token in sentence.tokens]
        reference = join_sentences(references) if references else None
        if not written:
            return SourceSentence(ids, tokens, reference)
        first, *rest = written
        later = tuple(replace(own.forced, prefix=tuple(own.prefix.tolist())) for own in rest)
        return SourceSentence(
            ids,
            tokens,
            reference,
            prefix=first.prefix,
            forced=replace(first.forced, later=later),
            banned=first.banned,
        )


@dataclass(frozen=True)
class WindowTranslation:
    """What became of the new sentences of a window.

    Args:
        window: its sentences.
        source: what the model read, context included; with the references of the new sentences.
        translations: of the new sentences, best first.
        lines: the best translation of each new sentence; or a single line for all of them.
        divided: whether each has its own line. If not, there is no telling where they end, or the
            translation has not as many sentences as the source.
    """

    window: Window
    source: SourceSentence
    translations: list[Translation]
    lines: list[Line]
    divided: bool

    @property
    def reached_limit(self) -> bool:
        """Return whether the translation was ended at the longest output and may be cut off."""
        return self.translations[0].reached_limit


class TranslatedDocuments(list[TranslatedLines]):
    """The lines of each translated document, with what happened on the way.

    It is a list of documents like any other; a slice of it is a plain list, without the rest.

    Args:
        windows: what was translated at once, in order; each sentence is new in one of them.
        num_documents: how many documents they are of.
        num_groups: groups of lines that were to be translated at once.
        num_mismatched: of these, how many translations had another number of sentences than lines.
        num_repeated: groups, whole or parts, that were translated again in halves.

    Attributes:
        lines: of each document, with their tokens.
        num_undivided: groups that became one line each, though they have several sentences.
        num_at_limit: translations that reached the longest output and may be cut off; the lines
            of a document tell which (:class:`TranslatedLines`).
    """

    def __init__(
        self,
        windows: list[WindowTranslation],
        num_documents: int,
        num_groups: int,
        num_mismatched: int,
        num_repeated: int,
    ) -> None:
        self.lines: list[list[Line]] = [[] for _ in range(num_documents)]
        at_limit: list[list[int]] = [[] for _ in range(num_documents)]
        for own in windows:
            lines = self.lines[own.window.document]
            if own.reached_limit:
                at_limit[own.window.document] += range(len(lines), len(lines) + len(own.lines))
            lines += own.lines
        super().__init__(
            TranslatedLines([line.text for line in lines], cut)
            for lines, cut in zip(self.lines, at_limit, strict=True)
        )
        self.windows = windows
        self.num_groups = num_groups
        self.num_mismatched = num_mismatched
        self.num_repeated = num_repeated
        self.num_undivided = sum(not own.divided for own in windows)
        self.num_at_limit = sum(own.reached_limit for own in windows)

    @property
    def mismatch_rate(self) -> float | None:
        """Share of the groups that were mismatched, 0 to 1; None: that cannot be told."""
        return None if self.num_undivided else self.num_mismatched / max(1, self.num_groups)


Search = Callable[[Sequence[SourceSentence]], list[list[Translation]]]
"""Finds the n best translations of each source, each going on from the source's ``context``."""


class DocumentSearch:
    """Translates documents window by window.

    Args:
        documents: what to translate.
        windows: how to divide it.
        config: settings of the search, for output lengths and scores.
        max_positions: see :func:`relu_nmt.translation.search.constraints.length_limits`.
        decode: makes raw text of target tokens.

    Raises:
        ConfigError: an overlap, or something forced in one of several sentences, but no separators
            that tell where they end.
    """

    def __init__(
        self,
        documents: SourceDocuments,
        windows: WindowConfig,
        config: GenerationConfig,
        max_positions: int | None,
        decode: Callable[[Sequence[str]], str],
    ) -> None:
        if windows.window_overlap and documents.separators is None:
            raise ConfigError(
                f"--window-overlap {windows.window_overlap}: the model was trained without "
                "--sentence-separator, so that nothing in a translation tells where the context "
                "ends; leave the overlap out"
            )
        _check_forced(documents, windows, config)
        self.plan = WindowPlan(documents.sizes, documents.counts, windows)
        self._documents = documents
        self._windows = windows
        self._config = config
        self._max_positions = max_positions
        self._decode = decode
        self._kept: dict[int, np.ndarray] = {}  # target tokens of each sentence, with separator

    def run(self, search: Search) -> TranslatedDocuments:
        """Translate everything; ``search`` gets all windows that need not wait for others."""
        documents = self._documents
        waiting: dict[int, deque[Window]] = {}
        for window in self.plan.windows:
            waiting.setdefault(window.document, deque()).append(window)
        planned = {(window.first, window.end) for window in self.plan.windows}
        done: list[WindowTranslation] = []
        num_mismatched = num_repeated = 0
        while waiting:
            asked = [self._ask(window) for window in self._next(waiting)]
            found = search([source for _, source in asked])
            for (window, source), translations in zip(asked, found, strict=True):
                result = self._result(window, source, translations)
                mismatched = not result.divided and documents.separators is not None
                num_mismatched += mismatched and (window.first, window.end) in planned
                failed = self._windows.repair and (mismatched or result.reached_limit)
                if failed and len(documents.with_words(window.first, window.end)) > 1:
                    num_repeated += 1
                    later = waiting.setdefault(window.document, deque())
                    later.extendleft(reversed(window.halves()))
                else:
                    done.append(result)
        done.sort(key=lambda result: result.window.first)
        return TranslatedDocuments(
            done, len(documents.counts), len(planned), num_mismatched, num_repeated
        )

    def _next(self, waiting: dict[int, deque[Window]]) -> list[Window]:
        """Take the windows that can be translated now: with overlap, the next of each document."""
        ready = []
        for document, windows in list(waiting.items()):
            number = 1 if self._windows.window_overlap else len(windows)
            ready += [windows.popleft() for _ in range(number)]
            if not windows:
                del waiting[document]
        return ready

    def _ask(self, window: Window) -> tuple[Window, SourceSentence]:
        """Return a window with as much context as there is room and a translation for."""
        documents = self._documents
        if not self._windows.window_overlap:
            return window, documents.joined(window)
        window = self.plan.with_context(window)
        if not documents.with_words(window.first, window.end):
            window = replace(window, context=window.first)
        while (context := self._context(window)) is None:
            window = replace(window, context=window.context + 1)
        return window, replace(documents.joined(window), context=context)

    def _context(self, window: Window) -> np.ndarray | None:
        """Return the context's translation; None: unknown, or it leaves the rest too little."""
        documents = self._documents
        numbers = documents.with_words(window.context, window.first)
        if not self._kept.keys() >= set(numbers):
            return None
        nothing = np.zeros(0, dtype=np.int64)
        context = np.concatenate([nothing, *(self._kept[number] for number in numbers)])
        # It may take the share of the longest output that its source has of the source.
        length = len(documents.joined(window).ids)
        longest = length_limits(self._config, np.array([length]), self._max_positions)[0]
        share = sum(len(documents.sentences[number].ids) - 1 for number in numbers) / length
        return context if len(context) <= longest * share else None

    def _result(
        self, window: Window, source: SourceSentence, translations: list[Translation]
    ) -> WindowTranslation:
        """Cut the best translation into sentences, and remember them for the next windows."""
        best, separators = translations[0], self._documents.separators
        tokens = best.hypothesis.tokens[:-1]
        numbers = self._documents.with_words(window.first, window.end)
        # Alone, a sentence has all of it, whatever separators there are.
        slices = [slice(0, len(tokens))] * len(numbers)
        if len(numbers) > 1:
            slices = [] if separators is None else sentence_slices(tokens, separators[1])
        lines = [Line(best.text, best.tokens)]
        divided = len(slices) == len(numbers)
        if divided:
            where = dict(zip(numbers, slices, strict=True))
            if separators is not None:
                for number, own in where.items():
                    words = tokens[own][tokens[own] != separators[1]]
                    self._kept[number] = np.append(words, separators[1])
            if window.num_new > 1:
                every = range(window.first, window.end)
                shown = [best.tokens[where[i]] if i in where else [] for i in every]
                lines = [Line(self._decode(own), own) for own in shown]
        return WindowTranslation(window, source, translations, lines, divided)


def _check_forced(
    documents: SourceDocuments, windows: WindowConfig, config: GenerationConfig
) -> None:
    """See that what is forced in a sentence can be seen to be there.

    Raises:
        ConfigError: nothing tells the sentences of a translation apart.
    """
    if not any(len(own.prefix) or own.forced.terms for own in documents.sentences):
        return
    are_counted = documents.separators is not None and not config.free_sentence_count
    if not are_counted and windows.max_doc_tokens != SINGLE_SENTENCES:
        reason = (
            "was trained without --sentence-separator"
            if documents.separators is None
            else "may write any number of them (--free-sentence-count)"
        )
        raise ConfigError(
            "prefixes and forced terms are of single sentences, but nothing tells where those of a "
            f"translation end: the model {reason}; translate line by line "
            f"(--max-doc-tokens {SINGLE_SENTENCES})"
        )
