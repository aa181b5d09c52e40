"""Translate a plain text of whole documents, with blank lines between them."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from relu_nmt.cli.translate_document import TranslateDocumentsSettings as Settings
from relu_nmt.data.documents import (
    SEPARATOR_TESTS,
    SINGLE_SENTENCES,
    WindowConfig,
    join_texts,
)
from relu_nmt.data.groups import plan_groups
from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import read_input, read_lines
from relu_nmt.io.work import hidden_progress, progress_bar
from relu_nmt.recipes.translation import (
    length_note,
    limit_note,
    load_translator,
    print_notes,
    share,
    source_limit,
    split_terms,
    tab_note,
    too_long_note,
)
from relu_nmt.tokenization.base import sentence_splitter
from relu_nmt.translation.search.document_search import TranslatedDocuments
from relu_nmt.translation.search.translations import SourceDocuments, SourceLimit
from relu_nmt.translator import TranslationRequest

is_blank = SEPARATOR_TESTS["blank"]


@dataclass(frozen=True)
class TextTranslation:
    """A translated text: its lines, the same by document, and notes for standard error."""

    lines: list[str]
    documents: TranslatedDocuments
    notes: list[str]


def run(settings: Settings, *, progress: bool = True) -> TextTranslation:
    """Translate a text, and print it.

    Raises:
        ConfigError: the settings do not fit the model.
        CheckpointError: a checkpoint is missing or damaged.
        DataError: the text cannot be read, or a line is too long for the model.
    """
    # Read the text first, since loading the model takes longer.
    lines, prefixes, terms = _read(settings)
    translator = load_translator(settings.model)
    windows = settings.windows(translator.max_doc_tokens)
    # Print warnings before the translation starts.
    note = length_note(settings.max_doc_tokens, translator.max_doc_tokens)
    is_longer = windows.max_doc_tokens > translator.max_doc_tokens
    tabs = tab_note(lines, settings.constraints)
    if progress:
        print_notes(note * is_longer, tabs)
    # Divide the text into documents, their lines, and the sentences of each line.
    places = _line_numbers(lines)
    split = sentence_splitter(translator.task.source_lang) if settings.split_sentences else None
    paragraphs = [[[lines[i]] if split is None else split(lines[i]) for i in own] for own in places]
    # Prefixes and terms need one sentence a line, which the settings check.
    is_whole = split is None
    request = TranslationRequest(
        [list(itertools.chain.from_iterable(own)) for own in paragraphs],
        [[prefixes[i] for i in own] for own in places] if is_whole else None,
        [[terms[i] for i in own] for own in places] if is_whole else None,
        settings.constraints != "unordered",
        () if settings.banned_terms is None else read_lines(settings.banned_terms),
        [[i + 1 for i in own] for own in places] if is_whole else None,
    )
    # Encode the sentences; find long ones before the limit cuts or empties them.
    sources = translator.sources.encode(request)
    limit = source_limit(settings.model, translator)
    too_long = _too_long(sources, limit, places, paragraphs)
    sources = sources.limited(limit)
    # Translate all windows, and put the lines in their places.
    limits = windows.max_doc_tokens, windows.window_overlap
    groups = plan_groups(sources.sizes, sources.counts, *limits)
    with (
        hidden_progress(settings.no_progress_bar or not progress),
        progress_bar("translate", len(groups), "groups", shows_waiting=True) as advance,
    ):
        config = settings.search.resolved(documents=True, workers=0)
        found = translator.answer(sources, config, windows, on_progress=advance)
    # Join sentences to lines, and collect the notes.
    join = partial(_joined, language=translator.task.target_lang)
    text = _with_blank_lines(lines, map(join, found, paragraphs))
    report = [
        note,
        _report(sources, found, windows, int(groups.over_long.sum())),
        too_long_note(too_long, limit),
        _undivided_note(found),
        limit_note(found.num_at_limit, config),
        _empty_note([line for own in found for line in own]),
    ]
    if progress:
        print("".join(f"{line}\n" for line in text), end="")
        # Leave out the length note if it was printed at the start.
        print_notes(*report[is_longer:])
    return TextTranslation(text, found, [one for one in [tabs, *report] if one])


def _read(settings: Settings) -> tuple[list[str], list[str], list[list[str]]]:
    """Return the lines of the text, and the prefix and the forced terms of each."""
    lines, terms = split_terms(read_input(settings.file), settings.constraints)
    prefixes = [""] * len(lines) if settings.prefixes is None else read_lines(settings.prefixes)
    if len(prefixes) != len(lines):
        raise DataError(
            f"--prefixes {settings.prefixes}: {len(prefixes):,} lines, but the text has "
            f"{len(lines):,}; give one for each, empty for none"
        )
    # Refuse prefixes and terms of blank lines, since these are not translated.
    for number, (line, own) in enumerate(zip(lines, prefixes, strict=True)):
        if is_blank(line) and any(map(str.strip, (own, *terms[number]))):
            raise DataError(
                f"{settings.file}:{number + 1}: the line is blank, and so is its translation, but "
                "it has a prefix or forced terms; leave them out"
            )
    return lines, prefixes, terms


def _line_numbers(lines: Sequence[str]) -> list[list[int]]:
    """Return the numbers of the lines of each document, from 0."""
    runs = itertools.groupby(range(len(lines)), lambda i: is_blank(lines[i]))
    return [list(run) for blank, run in runs if not blank]


def _too_long(
    sources: SourceDocuments,
    limit: SourceLimit,
    places: Sequence[Sequence[int]],
    paragraphs: Sequence[Sequence[Sequence[str]]],
) -> list[int]:
    """Return the line number of each sentence that is too long."""
    # Repeat the number of each line for each of its sentences.
    numbers = [
        number
        for own, lines in zip(places, paragraphs, strict=True)
        for number, sentences in zip(own, lines, strict=True)
        for _ in sentences
    ]
    return [
        number
        for number, source in zip(numbers, sources.sentences, strict=True)
        if limit.refuses(source)
    ]


def _with_blank_lines(lines: Sequence[str], translated: Iterator[list[str]]) -> list[str]:
    """Return the lines of translated documents with the source's blank lines between them."""
    return [
        line
        for blank, run in itertools.groupby(lines, is_blank)
        for line in ([""] * len(list(run)) if blank else next(translated))
    ]


def _joined(lines: Sequence[str], paragraphs: Sequence[Sequence[str]], language: str) -> list[str]:
    """Join sentences to paragraphs if each has a translation; else return the lines unchanged."""
    counts = [len(sentences) for sentences in paragraphs]
    if sum(counts) != len(lines):
        return list(lines)
    rest = iter(lines)
    return [join_texts(itertools.islice(rest, count), language) for count in counts]


def _report(
    sources: SourceDocuments, found: TranslatedDocuments, windows: WindowConfig, num_over_long: int
) -> str:
    """Return the line that counts lines, groups, mismatches and repetitions."""
    # Name the size of the groups, then the exceptions.
    num_lines, limit = len(sources.sentences), windows.max_doc_tokens
    parts = [
        f"{num_lines:,} lines of {len(sources.counts):,} documents in {found.num_groups:,} "
        + ("groups of one" if limit == SINGLE_SENTENCES else f"groups of up to {limit} tokens")
    ]
    if num_over_long:
        parts.append(f"{num_over_long:,} longer lines translated whole")
    # Count mismatches only if separators divide groups of several lines.
    if sources.separators is not None and limit != SINGLE_SENTENCES:
        wrong = share(found.num_mismatched, found.num_groups)
        parts.append(f"{wrong} groups had another number of sentences than lines")
    if found.num_repeated:
        parts.append(f"{found.num_repeated:,} translated again in halves")
    return "; ".join(parts)


def _undivided_note(found: TranslatedDocuments) -> str:
    if not found.num_undivided:
        return ""
    return (
        "NOTE: the model was trained without --sentence-separator: "
        f"{share(found.num_undivided, len(found.windows))} groups of several lines became "
        f"one line each; --max-doc-tokens {SINGLE_SENTENCES} keeps every line apart"
    )


def _empty_note(texts: Sequence[str]) -> str:
    """Return a note on empty translations; "" without any."""
    empty = sum(not text.strip() for text in texts)
    if not empty:
        return ""
    return (
        f"NOTE: {share(empty, len(texts))} lines have an empty translation, which looks like a "
        "blank line between documents"
    )
