"""Documents, their translation window by window, and the lines of their sentences.

The context of a window is part of the source. Its translation is known from earlier windows and is
forced as the beginning of the target, as in training, where the target of a group is one text. A
second translation of the context could differ, and one separator too many would shift all later
sentences. The windows of a document therefore wait for each other, while windows of different
documents share batches. Hypotheses are ranked by the new sentences alone, since otherwise a long
context would favor short hypotheses.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.document_settings import SINGLE_SENTENCES, WindowConfig
from relu_nmt.data.groups import Groups, Window, first_context, plan_groups
from relu_nmt.data.separators import Separators, join_sentences, sentence_slices
from relu_nmt.errors import ConfigError
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.forced_terms import ForcedTerms
from relu_nmt.translation.search.translations import (
    SourceSentence,
    TranslatedLines,
    Translation,
    joined_tokens,
)

SINGLE_LINES = WindowConfig(SINGLE_SENTENCES)


@dataclass(frozen=True)
class SourceDocuments:
    """Documents to translate, sentence by sentence."""

    # Each as the model reads it alone. A sentence without words is left out of its window. Its
    # translation is empty. Sentences of a document have the same banned terms.
    sentences: Sequence[SourceSentence]
    counts: np.ndarray  # sentences of each document, int [documents]
    # Tokens that each sentence counts toward the limit, separator and </s> included, int [N].
    sizes: np.ndarray
    # The symbol that ends sentences, in source and target. None: the translation of several
    # sentences cannot be cut into them.
    separators: Separators | None
    windows: WindowConfig = SINGLE_LINES  # division of the documents
    whole: Sequence[SourceSentence] = ()  # sentences of a text, before the limit cut any
    note: str = ""  # says what to install, so that lines of several sentences are split

    @cached_property
    def groups(self) -> Groups:
        """The sentences that are translated together."""
        windows = self.windows
        return plan_groups(self.sizes, self.counts, windows.max_doc_tokens, windows.window_overlap)

    def with_words(self, begin: int, end: int) -> list[int]:
        """Return the numbers of sentences ``begin`` to ``end - 1`` that have words."""
        ends = {Dictionary.eos_index}
        if self.separators is not None:
            ends.add(self.separators.source)
        return [i for i in range(begin, end) if int(self.sentences[i].ids[0]) not in ends]

    def sentences_of(self, window: Window) -> list[SourceSentence]:
        """Return the sentences of a window, context included, as the model reads them at once."""
        sentences = list(self.sentences[window.context : window.end])
        if self.separators is not None and len(self.with_words(window.context, window.end)) > 1:
            sentences = [sentence.in_group(self.separators) for sentence in sentences]
        return sentences

    def joined(self, window: Window) -> SourceSentence:
        """Return a window as one sentence, with prefixes and terms of its new sentences."""
        # Join source, tokens and references. Sentences without words are left out.
        numbers = self.with_words(window.context, window.end)
        sentences = self.sentences_of(window)
        ids, tokens = joined_tokens(sentences[i - window.context] for i in numbers)
        references = []
        for sentence in sentences[window.first - window.context :]:
            if sentence.reference is not None:
                references.append(sentence.reference)
        reference = join_sentences(references) if references else None
        written = [self.sentences[i] for i in self.with_words(window.first, window.end)]
        if not written:
            return SourceSentence(ids, tokens, reference)
        # Take prefix and terms of the first new sentence, then of the later sentences.
        first, *later_sentences = written
        forced = None
        if any(sentence.num_forced or len(sentence.prefix) for sentence in written):
            later = []
            for sentence in later_sentences:
                terms = sentence.forced or ForcedTerms()
                later.append(replace(terms, prefix=tuple(sentence.prefix.tolist())))
            forced = replace(first.forced or ForcedTerms(), later=tuple(later))
        return SourceSentence(
            ids, tokens, reference, prefix=first.prefix, forced=forced, banned=first.banned
        )


@dataclass(frozen=True)
class WindowTranslation:
    """Translations of the new sentences of a window."""

    window: Window
    source: SourceSentence  # the source, context included, with the references of the new sentences
    translations: list[Translation]  # of all new sentences together, best first
    # The best translation of each new sentence, or a single one of all sentences.
    lines: list[Translation]
    # Each sentence has its own line. False if the model has no separators, or if the translation
    # has another number of sentences than the source.
    divided: bool

    @property
    def reached_limit(self) -> bool:
        """Return True if the translation ended at the longest output and may be cut off."""
        return self.translations[0].reached_limit


class TranslatedDocuments(list[TranslatedLines]):
    """A list with the lines of each translated document, and statistics of the search.

    Args:
        windows: all windows in order. Each sentence is new in one window.
        num_groups: windows that were planned.
        num_mismatched: planned windows whose translation had another number of sentences.
        num_repeated: windows, planned ones or halves, that were translated again in halves.

    Attributes:
        num_undivided: windows of several sentences that became one line.
        num_at_limit: translations that reached the longest output and may be cut off.
    """

    def __init__(
        self,
        windows: list[WindowTranslation],
        num_documents: int,
        num_groups: int,
        num_mismatched: int,
        num_repeated: int,
    ) -> None:
        lines_of: list[list[Translation]] = [[] for _ in range(num_documents)]
        for result in windows:
            lines_of[result.window.document] += result.lines
        super().__init__()
        for lines in lines_of:
            texts = [line.text for line in lines]
            at_limit = [i for i, line in enumerate(lines) if line.reached_limit]
            self.append(TranslatedLines(texts, at_limit, translations=lines))
        self.windows = windows
        self.num_groups = num_groups
        self.num_mismatched = num_mismatched
        self.num_repeated = num_repeated
        self.num_undivided = sum(not result.divided for result in windows)
        self.num_at_limit = sum(result.reached_limit for result in windows)

    @property
    def mismatch_rate(self) -> float | None:
        """Share of the planned windows that were mismatched, 0 to 1, or None if unknown."""
        return None if self.num_undivided else self.num_mismatched / max(1, self.num_groups)


TranslateWindows = Callable[[Sequence[SourceSentence], int], list[list[Translation]]]
"""Returns the n best translations of each window, as continuations of its ``context``. The number
of the first sentence seeds the draws of sampling."""
Decode = Callable[[Sequence[str]], str]  # returns the raw text of target tokens


def translate_windows(
    documents: SourceDocuments,
    config: GenerationConfig,
    max_positions: int | None,
    decode: Decode,
    translate: TranslateWindows,
    first_id: int = 0,
) -> TranslatedDocuments:
    """Translate documents window by window. ``translate`` gets all windows that are ready at once.

    ``config`` and ``max_positions`` bound the output (:meth:`GenerationConfig.length_limits`).
    ``first_id`` is the number of the first sentence.

    Raises:
        ConfigError: windows that overlap or have forced text do not end sentences in separators,
            or windows that overlap have prefixes of the references.
    """
    if documents.windows.max_doc_tokens == SINGLE_SENTENCES:
        return _translate_lines(documents, translate, first_id)
    _check_windows(documents, config)
    contexts = None
    if documents.windows.window_overlap:
        contexts = _Contexts(documents, config, max_positions)
    windows = _Windows(documents, contexts, decode)
    while windows.waiting:
        requests = windows.take_ready()
        results = translate([source for _, source in requests], first_id)
        first_id += len(requests)
        for (window, source), translations in zip(requests, results, strict=True):
            windows.add(window, source, translations)
    # Halves were translated later than their neighbors.
    windows.done.sort(key=lambda result: result.window.first)
    return TranslatedDocuments(
        windows.done,
        len(documents.counts),
        len(documents.groups),
        windows.num_mismatched,
        windows.num_repeated,
    )


def _translate_lines(
    documents: SourceDocuments, translate: TranslateWindows, first_id: int
) -> TranslatedDocuments:
    """Translate every sentence on its own, all at once."""
    sources = []
    for number, sentence in enumerate(documents.sentences):
        if not documents.with_words(number, number + 1):  # the end symbol remains
            sentence = SourceSentence(sentence.ids[-1:], reference=sentence.reference)
        sources.append(sentence)
    results = translate(sources, first_id) if sources else []
    numbers = np.repeat(np.arange(len(documents.counts)), documents.counts).tolist()
    done = []
    for i, (source, translations) in enumerate(zip(sources, results, strict=True)):
        window = Window(numbers[i], i, i, i + 1)
        done.append(WindowTranslation(window, source, translations, translations[:1], divided=True))
    return TranslatedDocuments(done, len(documents.counts), len(sources), 0, 0)


class _Windows:
    """The windows of documents: those that wait, and the translations of those that are done."""

    def __init__(
        self, documents: SourceDocuments, contexts: "_Contexts | None", decode: Decode
    ) -> None:
        self.waiting: dict[int, deque[Window]] = {}  # by document. No queue is empty
        self.done: list[WindowTranslation] = []
        self.num_mismatched = 0  # planned windows with another number of sentences
        self.num_repeated = 0  # windows that were divided into halves
        self._documents = documents
        self._contexts = contexts
        self._decode = decode
        planned = documents.groups.windows()
        for window in planned:
            self.waiting.setdefault(window.document, deque()).append(window)
        self._planned = {(window.first, window.end) for window in planned}  # without halves

    def take_ready(self) -> list[tuple[Window, SourceSentence]]:
        """Take the windows that are ready, with their contexts, from the queues of documents."""
        requests = []
        for document, queue in list(self.waiting.items()):
            if self._contexts is not None:
                requests.append(self._contexts.with_context(queue.popleft()))
            else:
                requests += [(window, self._documents.joined(window)) for window in queue]
                queue.clear()
            if not queue:
                del self.waiting[document]
        return requests

    def add(self, window: Window, source: SourceSentence, translations: list[Translation]) -> None:
        """Add a translated window, or let its halves wait if it failed."""
        documents = self._documents
        best = translations[0]
        slices = self._slices(window, best)
        if self._contexts is not None and slices is not None:
            self._contexts.store(slices, best.hypothesis.ids)
        mismatched = slices is None and documents.separators is not None
        self.num_mismatched += mismatched and (window.first, window.end) in self._planned
        failed = documents.windows.repair and (mismatched or best.reached_limit)
        if failed and len(documents.with_words(window.first, window.end)) > 1:
            self.num_repeated += 1
            self._divide(window)
            return
        lines = [best]
        if slices is not None and window.end - window.context > 1:
            lines = self._lines(window, best, slices)
        divided = slices is not None
        self.done.append(WindowTranslation(window, source, translations, lines, divided))

    def _slices(self, window: Window, best: Translation) -> dict[int, slice] | None:
        """Return the tokens of each new sentence with words by number. None: the counts differ."""
        ids = best.hypothesis.ids[:-1]
        numbers = self._documents.with_words(window.first, window.end)
        separators = self._documents.separators
        slices: list[slice] = []
        if len(numbers) == 1:  # a single sentence gets all, even with separators in it
            slices = [slice(0, len(ids))]
        elif numbers and separators is not None:
            slices = sentence_slices(ids, separators.target)
        if len(slices) != len(numbers):
            return None
        return dict(zip(numbers, slices, strict=True))

    def _divide(self, window: Window) -> None:
        """Put the halves of a window, without context, before its document's other windows."""
        document, _, first, end = window
        middle = (first + end) // 2
        queue = self.waiting.setdefault(document, deque())
        queue.appendleft(Window(document, middle, middle, end))
        queue.appendleft(Window(document, first, first, middle))

    def _lines(
        self, window: Window, best: Translation, slices: dict[int, slice]
    ) -> list[Translation]:
        """Return a translation for each new sentence, which is empty if the sentence is."""
        documents = self._documents
        with_words = documents.with_words(window.context, window.end)
        begin = 0  # number of source tokens before the sentence
        lines = []
        for number, sentence in enumerate(documents.sentences_of(window), window.context):
            if number >= window.first:
                span = slices.get(number, slice(0, 0))
                text = best.text if window.num_new == 1 else self._decode(best.tokens[span])
                lines.append(best.part(span, sentence, begin, text))
            if number in with_words:
                begin += len(sentence.ids) - 1
        return lines


class _Contexts:
    """Translations of the sentences so far, which later windows get as context."""

    def __init__(
        self, documents: SourceDocuments, config: GenerationConfig, max_positions: int | None
    ) -> None:
        self._documents = documents
        self._config = config
        self._max_positions = max_positions
        self._begins = np.append(0, np.cumsum(documents.counts)).tolist()
        self._totals = np.append(0, np.cumsum(documents.sizes.astype(np.int64) - 1)).tolist()
        self._translations: dict[int, np.ndarray] = {}  # target ids, ending in the separator

    def store(self, slices: dict[int, slice], ids: np.ndarray) -> None:
        """Store each sentence of a translation, with one separator at its end."""
        assert self._documents.separators is not None
        separator = self._documents.separators.target
        for number, part in slices.items():
            is_text = ids[part] != separator
            self._translations[number] = np.append(ids[part][is_text], separator)

    def with_context(self, window: Window) -> tuple[Window, SourceSentence]:
        """Return a window with the longest context that fits and is translated, and its source."""
        documents = self._documents
        windows = documents.windows
        document, _, first, end = window
        # Begin with the longest context. A window without words needs none.
        earliest = max(self._begins[document], first - windows.window_overlap)
        start = first_context(self._totals, earliest, first, end, windows.max_doc_tokens)
        if not documents.with_words(first, end):
            start = first
        # Shorten it until its translation is known and short enough.
        window = window._replace(context=start)
        context = self._translated(window)
        while context is None:
            window = window._replace(context=window.context + 1)
            context = self._translated(window)
        return window, replace(documents.joined(window), context=context)

    def _translated(self, window: Window) -> np.ndarray | None:
        """Return the translation of the context, or None if it is unknown or too long."""
        documents = self._documents
        # All sentences of the context must have been translated.
        numbers = documents.with_words(window.context, window.first)
        if not self._translations.keys() >= set(numbers):
            return None
        translations = [np.zeros(0, dtype=np.int64)]
        num_read = 0
        sentences = documents.sentences_of(window)
        for number in numbers:
            translations.append(self._translations[number])
            num_read += len(sentences[number - window.context].ids) - 1
        context = np.concatenate(translations)
        # Limit the context's share of the longest output to its share of the source.
        length = len(documents.joined(window).ids)
        longest = self._config.length_limits(np.array([length]), self._max_positions)[0]
        return context if len(context) <= longest * (num_read / length) else None


def _check_windows(documents: SourceDocuments, config: GenerationConfig) -> None:
    """Check that separators show the end of each context, prefix and forced term."""
    windows = documents.windows
    overlap = windows.window_overlap
    if overlap and (config.score_reference or config.prefix_size):
        raise ConfigError(
            "--window-overlap forces prefixes itself; it goes with neither "
            "--prefix-size nor --score-reference"
        )
    if overlap and documents.separators is None:
        raise ConfigError(
            f"--window-overlap {overlap}: the model was trained without "
            "--sentence-separator, so the end of the context in a translation is unknown; "
            "leave the overlap out"
        )
    # Prefixes and terms of several sentences could not be assigned to the parts.
    reason = ""
    if documents.separators is None:
        reason = "was trained without --sentence-separator"
    elif config.free_sentence_count:
        reason = "may write any number of them (--free-sentence-count)"
    if reason and any(len(source.prefix) or source.forced for source in documents.sentences):
        raise ConfigError(
            "prefixes and forced terms belong to single sentences, but the ends of the sentences "
            f"in a translation are unknown: the model {reason}; translate line by line "
            f"(--max-doc-tokens {SINGLE_SENTENCES})"
        )
