"""Translations of whole documents, window by window, and the lines of their sentences.

The context of a window is part of the source. Its translation is known from earlier windows and is
forced as the beginning of the target, as in training, where the target of a group is one text. A
second translation of the context could differ, and a separator too many in it would shift all later
sentences. Hypotheses are ranked by the new sentences alone, else a long context would favour short
ones. So the windows of a document wait for each other; those of different documents share batches.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from relu_nmt.data.documents import SINGLE_SENTENCES
from relu_nmt.data.groups import sentence_slices
from relu_nmt.errors import ConfigError
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.translations import (
    Line,
    SourceDocuments,
    SourceSentence,
    TranslatedLines,
    Translation,
)
from relu_nmt.translation.search.windows import Window, WindowConfig, WindowPlan


@dataclass(frozen=True)
class WindowTranslation:
    """Translations of the new sentences of a window.

    Args:
        source: the source, context included, with the references of the new sentences.
        translations: of all new sentences together, best first.
        lines: the best translation of each new sentence; or a single line for all.
        divided: each sentence has its own line. False if the model has no separators, or if the
            translation has another number of sentences than the source.
    """

    window: Window
    source: SourceSentence
    translations: list[Translation]
    lines: list[Line]
    divided: bool

    @property
    def reached_limit(self) -> bool:
        """Return True if the translation ended at the longest output and may be cut off."""
        return self.translations[0].reached_limit


class TranslatedDocuments(list[TranslatedLines]):
    """A list with the lines of each translated document, and statistics of the search.

    Args:
        windows: all windows in order; each sentence is new in one window.
        num_groups: windows that were planned.
        num_mismatched: planned windows whose translation had another number of sentences.
        num_repeated: windows, planned ones or halves, that were translated again in halves.

    Attributes:
        lines: lines of each document, with their tokens.
        num_undivided: windows of several sentences that became one line.
        num_at_limit: translations that reached the longest output and may be cut off; see
            :attr:`TranslatedLines.at_limit` for their lines.
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
        # Append the lines of each window, and note those of windows that reached the limit.
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
        """Share of the planned windows that were mismatched, 0 to 1; None if it is unknown."""
        return None if self.num_undivided else self.num_mismatched / max(1, self.num_groups)


Search = Callable[[Sequence[SourceSentence]], list[list[Translation]]]
"""Finds the n best translations of each source, as continuations of its ``context``."""


class DocumentSearch:
    """Translates documents window by window.

    Args:
        config: settings of the search, for the longest output.
        max_positions: see :meth:`GenerationConfig.length_limits`.
        decode: returns the raw text of target tokens.

    Raises:
        ConfigError: windows overlap, or a sentence has forced terms or a prefix, but the
            translation has no separators that show where its sentences end.
    """

    def __init__(
        self,
        documents: SourceDocuments,
        windows: WindowConfig,
        config: GenerationConfig,
        max_positions: int | None,
        decode: Callable[[Sequence[str]], str],
    ) -> None:
        # Require separators for overlap: they show the end of the context.
        if windows.window_overlap and documents.separators is None:
            raise ConfigError(
                f"--window-overlap {windows.window_overlap}: the model was trained without "
                "--sentence-separator, so the end of the context in a translation is unknown; "
                "leave the overlap out"
            )
        _check_forced(documents, windows, config)
        self._plan = WindowPlan(documents.sizes, documents.counts, windows)
        self._documents = documents
        self._windows = windows
        self._config = config
        self._max_positions = max_positions
        self._decode = decode
        self._kept: dict[int, np.ndarray] = {}  # target tokens of each sentence, with separator

    def run(self, search: Search) -> TranslatedDocuments:
        """Translate all documents; ``search`` gets all windows that are ready at a time."""
        documents, planned = self._documents, self._plan.windows
        # Queue the windows of each document.
        waiting: dict[int, deque[Window]] = {}
        for window in planned:
            waiting.setdefault(window.document, deque()).append(window)
        ranges = {(window.first, window.end) for window in planned}
        done: list[WindowTranslation] = []
        num_mismatched = num_repeated = 0
        while waiting:
            # Translate all windows whose context is known.
            asked = [self._ask(window) for window in self._next(waiting)]
            found = search([source for _, source in asked])
            for (window, source), translations in zip(asked, found, strict=True):
                result = self._result(window, source, translations)
                mismatched = not result.divided and documents.separators is not None
                num_mismatched += mismatched and (window.first, window.end) in ranges
                # Divide a window that failed, or keep the result.
                failed = self._windows.repair and (mismatched or result.reached_limit)
                if failed and len(documents.with_words(window.first, window.end)) > 1:
                    num_repeated += 1
                    later = waiting.setdefault(window.document, deque())
                    later.extendleft(reversed(window.halves()))
                else:
                    done.append(result)
        # Halves were translated later than their neighbours.
        done.sort(key=lambda result: result.window.first)
        counts = len(documents.counts), len(planned), num_mismatched, num_repeated
        return TranslatedDocuments(done, *counts)

    def _next(self, waiting: dict[int, deque[Window]]) -> list[Window]:
        """Take the windows that are ready: with overlap, the next one of each document."""
        ready = []
        for document, windows in list(waiting.items()):
            # Take one window at a time with overlap, since the next needs its translation.
            number = 1 if self._windows.window_overlap else len(windows)
            ready += [windows.popleft() for _ in range(number)]
            if not windows:
                del waiting[document]
        return ready

    def _ask(self, window: Window) -> tuple[Window, SourceSentence]:
        """Return a window with as much context as fits and has a translation, and its source."""
        documents = self._documents
        if not self._windows.window_overlap:
            return window, documents.joined(window)
        # Shorten the context until its translation is known and short enough.
        window = self._plan.with_context(window)
        if not documents.with_words(window.first, window.end):
            window = replace(window, context=window.first)
        while (context := self._context(window)) is None:
            window = replace(window, context=window.context + 1)
        return window, replace(documents.joined(window), context=context)

    def _context(self, window: Window) -> np.ndarray | None:
        """Return the translation of the context; None if it is unknown or too long."""
        documents = self._documents
        # All its sentences must have been translated.
        numbers = documents.with_words(window.context, window.first)
        if not self._kept.keys() >= set(numbers):
            return None
        nothing = np.zeros(0, dtype=np.int64)
        context = np.concatenate([nothing, *(self._kept[number] for number in numbers)])
        # It may take its proportional share of the longest output.
        length = len(documents.joined(window).ids)
        longest = self._config.length_limits(np.array([length]), self._max_positions)[0]
        share = sum(len(documents.sentences[number].ids) - 1 for number in numbers) / length
        return context if len(context) <= longest * share else None

    def _result(
        self, window: Window, source: SourceSentence, translations: list[Translation]
    ) -> WindowTranslation:
        """Cut the best translation into sentences and store them for the next windows."""
        best, separators = translations[0], self._documents.separators
        tokens = best.hypothesis.tokens[:-1]
        numbers = self._documents.with_words(window.first, window.end)
        # A single sentence gets the whole translation, even with separators in it.
        slices = [slice(0, len(tokens))] * len(numbers)
        if len(numbers) > 1:
            slices = [] if separators is None else sentence_slices(tokens, separators[1])
        lines = [Line(best.text, best.tokens)]
        divided = len(slices) == len(numbers)
        if divided:
            # Store each sentence with one separator at its end.
            where = dict(zip(numbers, slices, strict=True))
            if separators is not None:
                for number, own in where.items():
                    words = tokens[own][tokens[own] != separators[1]]
                    self._kept[number] = np.append(words, separators[1])
            # Sentences without words get empty lines.
            if window.num_new > 1:
                every = range(window.first, window.end)
                shown = [best.tokens[where[i]] if i in where else [] for i in every]
                lines = [Line(self._decode(own), own) for own in shown]
        return WindowTranslation(window, source, translations, lines, divided)


def _check_forced(
    documents: SourceDocuments, windows: WindowConfig, config: GenerationConfig
) -> None:
    """Check that sentences with prefixes or forced terms can be found in their translation."""
    if not any(len(own.prefix) or own.forced.terms for own in documents.sentences):
        return
    are_counted = documents.separators is not None and not config.free_sentence_count
    # Refuse windows of several sentences, whose parts could not be assigned.
    if not are_counted and windows.max_doc_tokens != SINGLE_SENTENCES:
        reason = (
            "was trained without --sentence-separator"
            if documents.separators is None
            else "may write any number of them (--free-sentence-count)"
        )
        raise ConfigError(
            "prefixes and forced terms belong to single sentences, but the ends of the sentences "
            f"in a translation are unknown: the model {reason}; translate line by line "
            f"(--max-doc-tokens {SINGLE_SENTENCES})"
        )
