"""Translation of segments by a model: sentence by sentence, with the context of the document."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relu_nmt.applications.files.placing import (
    Link,
    Translation,
    literal_pattern,
    proportional_links,
)
from relu_nmt.applications.files.segments import Kept, Segment, Span
from relu_nmt.data.documents import SINGLE_SENTENCES, join_texts
from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import read_lines
from relu_nmt.tokenization.base import SentenceSplitter
from relu_nmt.translator import Translator

TranslateSegments = Callable[[Sequence[Segment]], list[Translation]]
"""Translates the segments of one document, in reading order."""


@dataclass(frozen=True)
class _Sentence:
    """A sentence of a segment, its place there, and the terms that its translation must have."""

    text: str
    begin: int
    terms: list[str]


@dataclass
class SegmentTranslator:
    """Translates segments with a model. Kept texts and terms of a glossary are forced.

    Args:
        translator: the model.
        glossary: target terms by source terms.
        arguments: further arguments of :meth:`Translator.translate_documents` (``beam=5``).
    """

    translator: Translator
    glossary: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        task = self.translator.task
        self._split = SentenceSplitter(task.source_lang, is_required=False)
        self._writable: dict[str, bool] = {}
        self._arguments = dict(self.arguments)
        # Without separators, the sentences of a group would become one line.
        if task.separators is None:
            self._arguments["max_doc_tokens"] = SINGLE_SENTENCES
        patterns = map(literal_pattern, sorted(self.glossary, key=len, reverse=True))
        self._terms = re.compile("|".join(patterns)) if self.glossary else None

    @property
    def note(self) -> str:
        """Says what to install if paragraphs could not be split into sentences."""
        return self._split.note

    def __call__(self, segments: Sequence[Segment]) -> list[Translation]:
        """Return the translations of the segments of one document."""
        divided = [self._sentences(segment) for segment in segments]
        flat = [sentence for sentences in divided for sentence in sentences]
        translations = iter(self._translated(flat))
        language = self.translator.task.target_lang
        results = []
        for sentences in divided:
            parts = [next(translations) for _ in sentences]
            results.append(joined(sentences, parts, language))
        return results

    def _sentences(self, segment: Segment) -> list[_Sentence]:
        spans = sentence_spans(segment.text, self._split(segment.text), segment.kept)
        return [self._sentence(segment, span) for span in spans]

    def _sentence(self, segment: Segment, span: Span) -> _Sentence:
        begin, end = span
        kept = [entry for entry in segment.kept if begin <= entry.begin and entry.end <= end]
        terms = [segment.text[entry.begin : entry.end] for entry in kept]
        text = segment.text[begin:end]
        if self._terms is not None:
            terms += [self.glossary[match[0]] for match in self._terms.finditer(text)]
        return _Sentence(text, begin, list(filter(self._can_write, terms)))

    def _can_write(self, term: str) -> bool:
        """Return True if the model has symbols for all of a term."""
        if term not in self._writable:
            try:
                self.translator.sources.sentence(term, forced=[term])
                self._writable[term] = True
            except DataError:
                self._writable[term] = False
        return self._writable[term]

    def _translated(self, sentences: Sequence[_Sentence]) -> list[Translation]:
        """Return the translation of each sentence with its word links."""
        if not sentences:
            return []
        texts = [sentence.text for sentence in sentences]
        terms = [sentence.terms for sentence in sentences]
        [lines] = self.translator.translate_documents(
            [texts], forced=[terms], ordered=False, split_sentences=False, **self._arguments
        )
        return [
            Translation(line, proportional_links(text, line))
            for text, line in zip(texts, lines, strict=True)
        ]


def sentence_spans(text: str, sentences: Iterable[str], kept: Sequence[Kept]) -> list[Span]:
    """Return the places of the sentences of a text. None ends within a kept text."""
    spans: list[Span] = []
    position = 0
    for sentence in sentences:
        begin = text.index(sentence, position)
        position = begin + len(sentence)
        if spans and any(entry.begin < begin < entry.end for entry in kept):
            begin = spans.pop()[0]
        spans.append((begin, position))
    return spans


def joined(
    sentences: Sequence[_Sentence], translations: Sequence[Translation], language: str
) -> Translation:
    """Return the translation of a segment from those of its sentences."""
    text = join_texts([translation.text for translation in translations], language)
    links: list[Link] = []
    position = 0
    for sentence, translation in zip(sentences, translations, strict=True):
        position = text.index(translation.text, position)
        for source, target in translation.links:
            links.append((_moved(source, sentence.begin), _moved(target, position)))
        position += len(translation.text)
    return Translation(text, links)


def _moved(span: Span, offset: int) -> Span:
    return span[0] + offset, span[1] + offset


def read_glossary(path: str) -> dict[str, str]:
    """Read a glossary: lines of a source term, a tab and its target term.

    Raises:
        DataError: the file cannot be read, or a line has another form.
    """
    glossary = {}
    for number, line in enumerate(read_lines(path), 1):
        terms = [term.strip() for term in line.split("\t")]
        if len(terms) != 2 or not all(terms):
            raise DataError(
                f"{path}:{number}: expected a source term, a tab and its target term, found "
                f"{line.strip()[:60]!r}"
            )
        glossary[terms[0]] = terms[1]
    return glossary
