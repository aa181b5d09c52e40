"""Translate raw text, document by document, with blank lines between documents."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from relu_nmt.data.document_settings import SINGLE_SENTENCES
from relu_nmt.data.documents import SEPARATOR_TESTS
from relu_nmt.errors import DataError, counted
from relu_nmt.io.progress import hidden_progress, progress_bar
from relu_nmt.io.safe_write import check_writable, write_output
from relu_nmt.io.text_lines import read_input
from relu_nmt.jobs.translate.model import load_translator, source_limit
from relu_nmt.jobs.translate.notes import (
    LineNotes,
    length_note,
    limit_note,
    print_notes,
    share,
)
from relu_nmt.jobs.translate.settings import TranslateDocumentsSettings
from relu_nmt.jobs.translate.text import InputText, request_template
from relu_nmt.tokenization.sentences import SentenceSplitter, join_texts
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.document_search import SourceDocuments, TranslatedDocuments
from relu_nmt.translator import Translator

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
    text = _read_text(settings)
    translator = translator or load_translator(settings.model)
    windows = settings.windows(translator.max_doc_tokens)
    # Print warnings before the translation starts.
    length = length_note(settings.max_doc_tokens, translator.max_doc_tokens)
    about_tabs = text.tab_note()
    if progress and not is_one_of_several:
        if windows.max_doc_tokens > translator.max_doc_tokens:
            print_notes(length)
            length = ""
        print_notes(about_tabs)
    template = request_template(settings, source_limit(settings.model, translator), windows)
    # Divide the lines into sentences if asked. By default, lines that are translated alone are cut.
    split = None
    if settings.split_sentences:
        split = SentenceSplitter(translator.task.source_lang)
        template = replace(template, split_sentences=False)
    sentences, documents = _divided(text.lines, split)
    numbers = list(itertools.chain.from_iterable(documents))
    request = text.request(template, sentences, numbers, counts=list(map(len, documents)))
    sources = translator.sources.encode(request)
    config = settings.search.resolved(documents=True, workers=0)
    num_searches = len(sources.groups) + sum(len(source.parts[1:]) for source in sources.sentences)
    with (
        hidden_progress(settings.no_progress_bar or not progress),
        progress_bar("translate", num_searches, "groups", shows_waiting=True) as advance,
    ):
        translate = partial(translator.window_translator(config), on_progress=advance)
        translated = translator.translate_sources(sources, config, translate)
    lines = _joined_lines(text.lines, documents, translated, translator.task.target_lang)
    content = "".join(f"{line}\n" for line in lines)
    if settings.output is not None:
        write_output("--output", settings.output, content)
    elif progress:
        print(content, end="")
    if progress:
        line_notes = LineNotes(
            request.limit, settings.split_sentences, missing_splitter=sources.note
        )
        for number, sentence in zip(numbers, sources.whole, strict=True):
            line_notes.add(number, sentence)
        notes = [*line_notes.texts(), *_notes(translated, config)]
        if is_one_of_several:
            print_notes(*(f"{settings.file}: {note}" for note in (about_tabs, *notes) if note))
        else:
            print_notes(length, _report(sources, translated), *notes)
    return lines, translated


def _read_text(settings: TranslateDocumentsSettings) -> InputText:
    """Read the text. Refuse a wrong number of prefixes, and prefixes and terms of blank lines."""
    text = InputText(settings, settings.file, read_input(settings.file))
    text.check_prefixes()
    for number, line in enumerate(text.lines):
        if is_blank(line) and "".join([text.prefix(number), *text.terms[number]]).strip():
            raise DataError(
                f"{settings.file}:{number + 1}: the line is blank, and so is its translation, "
                "but it has a prefix or forced terms; leave them out"
            )
    return text


def _divided(
    lines: Sequence[str], split: SentenceSplitter | None
) -> tuple[list[str], list[list[int]]]:
    """Return the sentences of a text, and the number of each sentence's line by document."""
    sentences: list[str] = []
    documents: list[list[int]] = []
    for blank, run in itertools.groupby(enumerate(lines), lambda entry: is_blank(entry[1])):
        if blank:
            continue
        documents.append([])
        for number, line in run:
            parts = [line]
            if split is not None:
                parts = split(line)
            sentences += parts
            documents[-1] += [number] * len(parts)
    return sentences, documents


def _joined_lines(
    lines: Sequence[str],
    documents: Sequence[Sequence[int]],
    translated: TranslatedDocuments,
    language: str,
) -> list[str]:
    """Return the translated lines, with the blank lines of the source between documents."""
    results: list[str] = []
    translations = zip(translated, documents, strict=True)
    for blank, run in itertools.groupby(lines, is_blank):
        if blank:
            results += [""] * len(list(run))
        else:
            sentences, numbers = next(translations)
            results += _joined(sentences, numbers, language)
    return results


def _notes(translated: TranslatedDocuments, config: GenerationConfig) -> Iterator[str]:
    """Yield notes on groups that became one line or may be cut off, and on empty translations."""
    number = translated.num_undivided
    if number:
        yield (
            "NOTE: the model was trained without --sentence-separator: "
            f"{share(number, len(translated.windows))} groups of several lines became one "
            f"line each; --max-doc-tokens {SINGLE_SENTENCES} keeps every line apart"
        )
    yield limit_note(translated.num_at_limit, config)
    lines = list(itertools.chain.from_iterable(translated))
    num_blank = sum(map(is_blank, lines))
    if num_blank:
        yield (
            f"NOTE: {share(num_blank, len(lines))} lines have an empty translation, which "
            "looks like a blank line between documents"
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
        wrong = share(translated.num_mismatched, translated.num_groups)
        parts.append(f"{wrong} groups had another number of sentences than lines")
    if translated.num_repeated:
        parts.append(f"{translated.num_repeated:,} translated again in halves")
    return "; ".join(parts)
