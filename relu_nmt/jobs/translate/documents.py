"""Translate raw text, document by document, with blank lines between documents."""

import itertools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from relu_nmt.data.documents import SEPARATOR_TESTS, SINGLE_SENTENCES, join_texts
from relu_nmt.errors import DataError, counted
from relu_nmt.io.plain_text import refuse_markup
from relu_nmt.io.safe_write import check_writable, write_file
from relu_nmt.io.text_lines import named_input, read_input, read_lines
from relu_nmt.io.work import hidden_progress, progress_bar
from relu_nmt.jobs.translate import shared
from relu_nmt.jobs.translate.settings import TranslateDocumentsSettings
from relu_nmt.tokenization.base import SentenceSplitter
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.document_search import TranslatedDocuments
from relu_nmt.translation.search.translations import SourceDocuments, SourceSentence
from relu_nmt.translator import TranslationRequest, Translator

is_blank = SEPARATOR_TESTS["blank"]


def translate_documents(
    settings: TranslateDocumentsSettings,
    *,
    translator: Translator | None = None,
    progress: bool = True,
) -> tuple[list[str], TranslatedDocuments]:
    """Translate a text, and print it. Return its lines, and its documents as translated.

    A given ``translator`` translates several files, so that all notes name the file.
    """
    is_one_of_several = translator is not None
    # Read the text first, since loading the model takes longer.
    check_writable("--output", settings.output)
    text = _Text(settings)
    translator = translator or shared.load_translator(settings.model)
    windows = settings.windows(translator.max_doc_tokens)
    # Print warnings before the translation starts.
    length = shared.length_note(settings.max_doc_tokens, translator.max_doc_tokens)
    about_tabs = shared.tab_note(text.lines, settings.constraints)
    if progress and not is_one_of_several:
        if windows.max_doc_tokens > translator.max_doc_tokens:
            shared.print_notes(length)
            length = ""
        shared.print_notes(about_tabs)
    # If asked, divide the lines into sentences here. Otherwise only lines that are translated alone
    # may be cut, later.
    options = shared.term_options(settings)
    if settings.split_sentences:
        text.cut(SentenceSplitter(translator.task.source_lang))
        options["split_sentences"] = False
    limit = shared.source_limit(settings.model, translator)
    sources = translator.sources.encode(text.request(windows=windows, limit=limit, **options))
    config = settings.search.resolved(documents=True, workers=0)
    translated = _search(settings, translator, sources, config, progress)
    lines = text.translated(translated, translator.task.target_lang)
    _write(settings, lines, progress)
    if progress:
        notes = [
            shared.too_long_note(text.numbers_where(limit.refuses, sources), limit),
            shared.split_note(text.numbers_where(attrgetter("parts"), sources), sources.note),
            _undivided_note(translated),
            shared.limit_note(translated.num_at_limit, config),
            _empty_note(translated),
        ]
        if is_one_of_several:
            for note in filter(None, [about_tabs, *notes]):
                shared.print_notes(f"{settings.file}: {note}")
        else:
            shared.print_notes(length, _report(sources, translated), *notes)
    return lines, translated


class _Text:
    """The lines of a text, their prefixes and forced terms, and their sentences by document."""

    def __init__(self, settings: TranslateDocumentsSettings) -> None:
        lines = read_input(settings.file)
        refuse_markup(lines, named_input(settings.file))
        self.lines, self._terms = shared.split_terms(lines, settings.constraints)
        self._prefixes = [""] * len(lines)
        if settings.prefixes is not None:
            self._prefixes = read_lines(settings.prefixes)
        if len(self._prefixes) != len(lines):
            raise shared.wrong_prefixes(
                settings.prefixes, self._prefixes, f"text has {len(lines):,}"
            )
        # Refuse prefixes and terms of blank lines, since these are not translated.
        for number, line in enumerate(self.lines):
            if is_blank(line) and "".join([self._prefixes[number], *self._terms[number]]).strip():
                raise DataError(
                    f"{settings.file}:{number + 1}: the line is blank, and so is its translation, "
                    "but it has a prefix or forced terms; leave them out"
                )
        self.cut(lambda line: [line])

    def cut(self, splitter: Callable[[str], list[str]]) -> None:
        """Cut the lines into sentences. Blank lines stand between documents."""
        self.sentences: list[str] = []  # of all documents
        self.numbers: list[int] = []  # of each sentence's line, from 0
        self.counts: list[int] = []  # sentences of each document
        numbered = enumerate(self.lines)
        for blank, run in itertools.groupby(numbered, lambda entry: is_blank(entry[1])):
            if blank:
                continue
            num_before = len(self.sentences)
            for number, line in run:
                parts = splitter(line)
                self.sentences += parts
                self.numbers += [number] * len(parts)
            self.counts.append(len(self.sentences) - num_before)

    def request(self, **options: Any) -> TranslationRequest:
        """Return the request for the sentences. A line with prefix or terms is one sentence."""
        return TranslationRequest(
            self.sentences,
            self.counts,
            prefixes=[self._prefixes[number] for number in self.numbers],
            forced=[self._terms[number] for number in self.numbers],
            numbers=[number + 1 for number in self.numbers],
            **options,
        )

    def numbers_where(
        self, is_noted: Callable[[SourceSentence], object], sources: SourceDocuments
    ) -> list[int]:
        """Return the line numbers of the sentences for which ``is_noted`` is true."""
        sentences = zip(self.numbers, sources.whole, strict=True)
        return [number for number, sentence in sentences if is_noted(sentence)]

    def translated(self, documents: TranslatedDocuments, language: str) -> list[str]:
        """Return the translated lines, with the blank lines of the source between documents."""
        lines: list[str] = []
        numbers = iter(self.numbers)
        translations = zip(documents, self.counts, strict=True)
        for blank, run in itertools.groupby(self.lines, is_blank):
            if blank:
                lines += [""] * len(list(run))
            else:
                sentences, count = next(translations)
                lines += _joined(sentences, list(itertools.islice(numbers, count)), language)
        return lines


def _write(settings: TranslateDocumentsSettings, lines: Sequence[str], progress: bool) -> None:
    text = "".join(f"{line}\n" for line in lines)
    if settings.output is not None:
        write_file("--output", settings.output, text)
    elif progress:
        print(text, end="")


def _search(
    settings: TranslateDocumentsSettings,
    translator: Translator,
    sources: SourceDocuments,
    config: GenerationConfig,
    progress: bool,
) -> TranslatedDocuments:
    """Translate documents with a progress bar."""
    num_searches = len(sources.groups)
    num_searches += sum(len(source.parts[1:]) for source in sources.sentences)
    with (
        hidden_progress(settings.no_progress_bar or not progress),
        progress_bar("translate", num_searches, "groups", shows_waiting=True) as advance,
    ):
        search = translator.searcher(config, on_progress=advance)
        return translator.answer(sources, config, search)


def _undivided_note(translated: TranslatedDocuments) -> str:
    """Return a note on groups of lines that became one line, or an empty text."""
    number = translated.num_undivided
    if not number:
        return ""
    return (
        "NOTE: the model was trained without --sentence-separator: "
        f"{shared.share(number, len(translated.windows))} groups of several lines became one line "
        f"each; --max-doc-tokens {SINGLE_SENTENCES} keeps every line apart"
    )


def _empty_note(translated: TranslatedDocuments) -> str:
    """Return a note on lines that look like boundaries of documents, or an empty text."""
    lines = list(itertools.chain.from_iterable(translated))
    num_blank = sum(map(is_blank, lines))
    if not num_blank:
        return ""
    return (
        f"NOTE: {shared.share(num_blank, len(lines))} lines have an empty translation, which looks "
        "like a blank line between documents"
    )


def _joined(lines: Sequence[str], numbers: Sequence[int], language: str) -> list[str]:
    """Join the sentences of each line. If sentences are missing, return them unjoined."""
    if len(numbers) != len(lines):
        return list(lines)
    sentences_of_line: dict[int, list[str]] = {}
    for number, sentence in zip(numbers, lines, strict=True):
        sentences_of_line.setdefault(number, []).append(sentence)
    return [join_texts(sentences, language) for sentences in sentences_of_line.values()]


def _report(sources: SourceDocuments, translated: TranslatedDocuments) -> str:
    """Return the line that counts lines, groups, mismatches and repetitions."""
    limit = sources.windows.max_doc_tokens
    lines = counted(len(sources.sentences), "line")
    documents = counted(len(sources.counts), "document")
    groups = counted(translated.num_groups, "group")
    size = f"up to {limit} tokens"
    if limit == SINGLE_SENTENCES:
        size = "one"
    parts = [f"{lines} of {documents} in {groups} of {size}"]
    num_over_long = int(sources.groups.over_long.sum())
    if num_over_long:
        parts.append(f"{counted(num_over_long, 'longer line')} translated whole")
    # Count mismatches only if separators divide groups of several lines.
    if sources.separators is not None and limit != SINGLE_SENTENCES:
        wrong = shared.share(translated.num_mismatched, translated.num_groups)
        parts.append(f"{wrong} groups had another number of sentences than lines")
    if translated.num_repeated:
        parts.append(f"{translated.num_repeated:,} translated again in halves")
    return "; ".join(parts)
