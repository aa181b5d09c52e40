"""Translation of segments by a model: sentence by sentence, with the context of the document."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import Any

from relu_nmt.applications.files import (
    FileOptions,
    Languages,
    check_options,
    format_name,
    translate_file,
)
from relu_nmt.applications.files.aligned_words import (
    AlignedText,
    Link,
    literal_pattern,
    proportional_links,
)
from relu_nmt.applications.files.segments import Protected, Segment, Span
from relu_nmt.data.document_settings import SINGLE_SENTENCES, WindowConfig
from relu_nmt.errors import DataError, counted
from relu_nmt.io.progress import hidden_progress, progress_bar
from relu_nmt.io.text_lines import read_lines
from relu_nmt.tokenization.sentences import SentenceSplitter, join_texts
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.search.config import GenerationConfig, generation_config
from relu_nmt.translation.search.document_search import SourceDocuments, TranslateWindows
from relu_nmt.translation.search.translations import SourceSentence, TranslatedLines
from relu_nmt.translator import TranslationRequest, Translator

TranslateSegments = Callable[[Sequence[Segment]], list[AlignedText]]
"""Translates the segments of one document, in reading order."""


@dataclass(frozen=True)
class _Sentence:
    """A sentence of a segment, its place there, and the terms that its translation must have."""

    text: str
    begin: int
    terms: list[str]


@dataclass
class SegmentTranslator:
    """Translates segments with a model. The search is forced to write terms of a glossary."""

    translator: Translator
    config: GenerationConfig = field(default_factory=GenerationConfig)
    windows: WindowConfig | None = None  # division of the documents. None: as in training.
    glossary: Mapping[str, str] = field(default_factory=dict)  # target terms by source terms
    # A request without lines, whose copies get lines. It may ban terms.
    template: TranslationRequest = field(default_factory=partial(TranslationRequest, ()))
    # Translates windows, and adds their sentences to ``num_done``. This number can exceed
    # ``num_sentences``, since some are translated twice. None: as the translator does.
    translate_windows: TranslateWindows | None = None
    # Makes a list of the sentences that are being encoded.
    read: Callable[[Iterator[SourceSentence]], list[SourceSentence]] = list

    def __post_init__(self) -> None:
        task = self.translator.task
        self._split = SentenceSplitter(task.source_lang, is_required=False)
        self.num_copied = 0
        self.num_sentences = 0
        self.num_done = 0
        # Without separators, the sentences of a group would become one line.
        windows = self.windows or WindowConfig(self.translator.max_doc_tokens, repair=True)
        if task.separators is None:
            windows = WindowConfig(SINGLE_SENTENCES)
        self._windows = windows
        has_weights = all(
            isinstance(model, EncoderDecoder) and model.aligning_attention.capabilities.weights
            for model in self.translator.models
        )
        alignment = "hard" if has_weights else None
        self.config = replace(self.config, print_alignment=alignment).resolved(documents=True)
        patterns = map(literal_pattern, sorted(self.glossary, key=len, reverse=True))
        self._terms = re.compile("|".join(patterns) or "(?!)")

    @property
    def languages(self) -> Languages:
        """The languages of the model."""
        task = self.translator.task
        return Languages(task.source_lang, task.target_lang)

    @property
    def notes(self) -> list[str]:
        """Notes on a missing splitter of sentences, and on texts that had to be copied."""
        notes = [self._split.note]
        if self.num_copied:
            copied = counted(self.num_copied, "protected text")
            notes.append(
                f"NOTE: {copied} copied to the aligned words, as the model did not write them"
            )
        return notes

    def __call__(self, segments: Sequence[Segment]) -> list[AlignedText]:
        """Return the translations of the segments of one document."""
        language = self.translator.task.target_lang
        divided = [self._sentences(segment) for segment in segments]
        translations = iter(self._translated(list(chain.from_iterable(divided))))
        results = []
        for segment, sentences in zip(segments, divided, strict=True):
            result = joined(sentences, list(islice(translations, len(sentences))), language)
            texts = Counter(segment.text[slice(*entry.span)] for entry in segment.protected)
            for text, count in texts.items():
                num_written = len(re.findall(literal_pattern(text), result.text))
                self.num_copied += max(0, count - num_written)
            results.append(result)
        return results

    def _sentences(self, segment: Segment) -> list[_Sentence]:
        sentences = []
        texts = self._split(segment.text)
        for begin, end in sentence_spans(segment.text, texts, segment.protected):
            terms = self._glossary_terms(segment, begin, end)
            sentences.append(_Sentence(segment.text[begin:end], begin, terms))
        return sentences

    def _glossary_terms(self, segment: Segment, begin: int, end: int) -> list[str]:
        """Return the target terms of a sentence, except for source terms in protected texts."""
        terms: list[str] = []
        for match in self._terms.finditer(segment.text, begin, end):
            term = self.glossary[match[0]]
            is_protected = any(
                entry.begin <= match.start() and match.end() <= entry.end
                for entry in segment.protected
            )
            if not is_protected and self._can_write(term):
                terms.append(term)
        return terms

    def _can_write(self, term: str) -> bool:
        """Return True if the search can force a term, and the model has symbols for the term."""
        if self.config.not_for_terms or self.config.free_sentence_count:
            return False
        try:
            sources = self.translator.sources
            sources.forcing(sources.sentence(term), "", [term], self.template)
        except DataError:
            return False
        return True

    def _translated(self, sentences: Sequence[_Sentence]) -> list[AlignedText]:
        if not sentences:
            return []
        self.num_sentences = len(sentences)
        texts = [sentence.text for sentence in sentences]
        terms = [sentence.terms for sentence in sentences]
        request = replace(
            self.template,
            lines=texts,
            counts=[len(texts)],
            windows=self._windows,
            forced=terms,
            ordered=False,
            split_sentences=False,
        )
        lines = self._translated_lines(
            self.translator.sources.encode(request, self.read)
        ).translations
        results = []
        for text, translation in zip(texts, lines, strict=True):
            if translation.alignment is None:
                links = proportional_links(text, translation.text)
            else:
                words = self.translator.align_words(text, translation)
                links = [(words.source[i], words.target[j]) for i, j in words.links]
            results.append(AlignedText(translation.text, links))
        return results

    def _translated_lines(self, sources: SourceDocuments) -> TranslatedLines:
        """Return the translations of the only document, and show the progress."""
        translator = self.translator
        translate = self.translate_windows
        if translate is not None:
            return translator.translate_sources(sources, self.config, translate)[0]
        num_groups = len(sources.groups)
        with progress_bar("translate", num_groups, "groups", shows_waiting=True) as advance:
            translate = partial(translator.window_translator(self.config), on_progress=advance)
            return translator.translate_sources(sources, self.config, translate)[0]


def translate_with(
    translator: Translator,
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    format: str | None = None,
    glossary: Mapping[str, str] | None = None,
    options: FileOptions | None = None,
    **settings: Any,
) -> None:
    """Translate a file with a translator, as :meth:`Translator.translate_file` describes."""
    config = generation_config(None, settings)
    translate = SegmentTranslator(translator, config, glossary=glossary or {})
    name = format_name(path, format)
    options = options or FileOptions()
    check_options([name], options)
    with hidden_progress():
        translate_file(path, output, translate, options, name, translate.languages)


def sentence_spans(
    text: str, sentences: Iterable[str], protected: Sequence[Protected]
) -> list[Span]:
    """Return the places of the sentences of a text. No sentence ends within a protected text."""
    spans: list[Span] = []
    position = 0
    for sentence in sentences:
        begin = text.index(sentence, position)
        position = begin + len(sentence)
        if spans and any(entry.begin < begin < entry.end for entry in protected):
            begin = spans.pop()[0]
        spans.append((begin, position))
    return spans


def joined(
    sentences: Sequence[_Sentence], translations: Sequence[AlignedText], language: str
) -> AlignedText:
    """Return the translation of a segment from the translations of its sentences."""
    text = join_texts([translation.text for translation in translations], language)
    links: list[Link] = []
    target = 0
    for sentence, translation in zip(sentences, translations, strict=True):
        source = sentence.begin
        target = text.index(translation.text, target)
        for (begin, end), (first, last) in translation.links:
            links.append(((source + begin, source + end), (target + first, target + last)))
        target += len(translation.text)
    return AlignedText(text, links)


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
