"""Translate raw text: lines as they arrive, documents between blank lines, requests over HTTP."""

import io
import itertools
import math
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from relu_nmt.applications.serving import LOOPBACK
from relu_nmt.data.documents import (
    SEPARATOR_TESTS,
    SINGLE_SENTENCES,
    WindowConfig,
    join_texts,
    plan_groups,
)
from relu_nmt.errors import ConfigError, DataError, counted, needing, reporting
from relu_nmt.io.plain_text import MOST_LINES, refuse_markup
from relu_nmt.io.process import standard_input
from relu_nmt.io.safe_write import check_writable, write_file
from relu_nmt.io.text_lines import (
    decode_lines,
    named_input,
    open_text,
    read_input,
    read_lines,
    reading,
)
from relu_nmt.io.work import hidden_progress, progress_bar
from relu_nmt.jobs.translate.settings import (
    ServeSettings,
    TranslateDocumentsSettings,
    TranslateLinesSettings,
)
from relu_nmt.jobs.translate.shared import (
    LineFormat,
    length_note,
    limit_note,
    load_translator,
    named_lines,
    print_notes,
    share,
    source_limit,
    split_note,
    split_terms,
    tab_note,
    too_long_note,
)
from relu_nmt.modules.config import AttentionPlace
from relu_nmt.tokenization.base import SentenceSplitter
from relu_nmt.translation.search.document_search import TranslatedDocuments
from relu_nmt.translation.search.translations import (
    SourceDocuments,
    SourceLimit,
    SourceSentence,
    TranslatedLines,
    Translation,
)
from relu_nmt.translator import TranslationRequest, Translator

READ_BYTES = 1 << 16
MOST_BYTES = 1 << 28
"""Longest line. A longer one is no text, but a device that never ends, for example."""
LAST_CROSS = AttentionPlace("cross", -1)
is_blank = SEPARATOR_TESTS["blank"]


def translate_lines(settings: TranslateLinesSettings, *, progress: bool = True) -> TranslatedLines:
    """Translate lines, print each translation at once, and return the best translations.

    Raises:
        ConfigError: the settings do not fit the model.
        CheckpointError: a checkpoint is missing or damaged.
        DataError: the input cannot be read or is not UTF-8, or pictures would replace others.
    """
    config = settings.search
    texts: list[str] = []
    at_limit: list[int] = []
    too_long: list[int] = []
    split_lines: list[int] = []
    pictures: list[Path] = []
    if settings.attention_pictures is not None:
        _check_pictures(Path(settings.attention_pictures))
    # Open the input before loading the model, so that a missing file fails at once.
    with reporting(f"--input {settings.input}: cannot read it"):
        opened = standard_input() if settings.input == "-" else open_text(settings.input)
    with opened as file:
        translator = load_translator(settings.model, settings.data)
        limit = source_limit(settings.model, translator)
        formatted = LineFormat(translator.task, settings.model, config)
        split = None
        if settings.attention_pictures is None:  # which show a line as it is read at once
            split = translator.sources.splitter(settings.split_sentences)
        try:
            for line, source, translations in _translated(
                file, settings, translator, limit, progress, split
            ):
                number = len(texts)
                if source.parts:
                    split_lines.append(number)
                # A line that is too long is marked. Pictures are drawn of all others.
                if limit.refuses(source):
                    too_long.append(number)
                    if not limit.truncate:
                        translations = list(map(_untranslated, translations))
                elif settings.attention_pictures is not None and source.tokens:
                    tokens = translations[0].hypothesis.tokens
                    pictures.append(Path(settings.attention_pictures, f"{number}.svg"))
                    translator.attention_at(LAST_CROSS, source, tokens).save(pictures[-1])
                # Keep the best translation, and note the line if it may be cut off.
                texts.append(translations[0].text)
                if translations[0].reached_limit:
                    at_limit.append(number)
                if not progress:
                    continue
                # Print the line in the format of --format.
                if number == 0:
                    print_notes(_length_note(translator.max_doc_tokens))
                output = [texts[-1]]
                if settings.format == "json":
                    output = [formatted.json(number, line, source, translations)]
                elif settings.format == "fairseq":
                    output = formatted.of_line(number, source, translations)
                elif config.nbest > 1:
                    output = formatted.nbest(number, translations, config.nbest)
                print("\n".join(output))
        finally:  # print notes also after Ctrl-C at the keyboard
            if progress:
                if pictures:
                    several = f" to {pictures[-1]}" if len(pictures) > 1 else ""
                    print_notes(f"attention pictures: {pictures[0]}{several}")
                print_notes(too_long_note(too_long, limit))
                print_notes(split_note(split_lines, split, settings.split_sentences))
                if note := limit_note(len(at_limit), config):
                    print_notes(f"{note} ({named_lines(at_limit)})")
    return TranslatedLines(texts, at_limit, too_long)


def _check_pictures(folder: Path) -> None:
    """Check that the folder can be written and has no pictures of an earlier run."""
    earlier = sorted(path.name for path in folder.glob("*.svg") if path.stem.isdecimal())
    if earlier:
        raise DataError(
            f"--attention-pictures {folder}: {earlier[0]} is there already; give another folder"
        )
    check_writable("--attention-pictures", f"{folder}/0.svg")


def _length_note(trained: int) -> str:
    """Return a note that lines are not joined, for a model that was trained on longer groups."""
    if trained == SINGLE_SENTENCES:
        return ""
    return (
        "NOTE: each line is translated on its own, but the model was trained on up to "
        f"{trained} tokens; relu-nmt-translate-document joins the lines of a document"
    )


def _translated(
    file: io.BufferedReader,
    settings: TranslateLinesSettings,
    translator: Translator,
    limit: SourceLimit,
    progress: bool,
    split: SentenceSplitter | None,
) -> Iterator[tuple[str, SourceSentence, list[Translation]]]:
    """Yield each line, its token ids before the limit, and its translations, as lines arrive."""
    num_done = 0  # lines of earlier buffers
    has_tabs = False
    config = settings.search.resolved(workers=0)
    # Make one search for all buffers. It moves the progress bar of the current one.
    search = translator.searcher(config, on_progress=lambda number: advance(number))
    prefixes = None if settings.prefixes is None else read_lines(settings.prefixes)
    banned = () if settings.banned_terms is None else read_lines(settings.banned_terms)
    # Read lines as they arrive.
    beginning: list[str] = []
    for lines in read_buffers(file, settings.input, settings.buffer_size):
        # Look for markup at the beginning, which may arrive line by line.
        if num_done < MOST_LINES:
            beginning += lines
            refuse_markup(beginning, named_input(settings.input))
        if progress and not has_tabs and (note := tab_note(lines, settings.constraints, num_done)):
            has_tabs = True  # print this note once
            print_notes(note)
        # Compare the prefixes with the lines so far, since their total is not known yet.
        end = num_done + len(lines)
        if prefixes is not None and len(prefixes) < end:
            raise _wrong_prefixes(settings.prefixes, prefixes, "input has more")
        # Encode the lines with their prefixes and terms.
        lines, terms = split_terms(lines, settings.constraints)
        request = TranslationRequest(
            lines,
            prefixes=None if prefixes is None else prefixes[num_done:end],
            forced=terms,
            ordered=settings.constraints != "unordered",
            banned=banned,
            match_case=settings.match_case,
            inside_words=settings.inside_words,
            numbers=range(num_done + 1, end + 1),
        )
        encoded = translator.sources.encode(request, split)
        limited = encoded.limited(limit)
        # Translate them.
        sentences = [part for source in limited.sentences for part in source.sentences]
        longest = max(len(sentence.ids) for sentence in sentences)
        label = f"translate {counted(len(lines), 'line')} of up to {longest:,} tokens"
        with (
            hidden_progress(settings.no_progress_bar or not progress),
            progress_bar(
                label, len(sentences), "lines", shows_waiting=True, only_if_slow=True
            ) as advance,
        ):
            answer = translator.answer(limited, config, search=search)
        # Yield the sentences before the limit, so that the caller can mark long ones.
        translations = [window.translations for window in answer.windows]
        yield from zip(lines, encoded.sentences, translations, strict=True)
        num_done = end
        if progress:  # show these translations before waiting for more lines
            sys.stdout.flush()
    if prefixes is not None and len(prefixes) > num_done:
        raise _wrong_prefixes(settings.prefixes, prefixes, f"input has only {num_done:,}")


def _wrong_prefixes(path: str | None, prefixes: list[str], lines: str) -> DataError:
    return DataError(
        f"--prefixes {path}: {counted(len(prefixes), 'line')}, but the {lines}; give one for each, "
        "empty for none"
    )


def _untranslated(translation: Translation) -> Translation:
    """Return the empty translation of a line that is too long, marked by its score."""
    hypothesis = replace(translation.hypothesis, score=-math.inf)
    return replace(translation, hypothesis=hypothesis)


def read_buffers(file: io.BufferedReader, origin: str, buffer_size: int) -> Iterator[list[str]]:
    """Yield lines as they arrive, at most ``buffer_size`` together (0: no limit).

    A read waits only while no byte has arrived.
    """
    origin = named_input(origin)
    # Parts of a line without its end yet. Join them once, as a line may be as long as a file.
    parts: list[bytes] = []
    number = 1
    unended = 0
    while True:
        # Read a block. Keep the bytes after its last line end for the next block.
        with reading(origin):
            block = file.read1(READ_BYTES)
        end = block.rfind(b"\n") + 1
        parts.append(block[:end] if end else block)
        unended += len(block)
        # Refuse endless input before it fills the memory.
        if unended > MOST_BYTES:
            raise DataError(f"{origin}:{number}: a line without an end; expected text")
        # Go on reading until a line ends or the input does.
        if block and not end:
            continue
        # Decode the whole lines, and yield them in buffers.
        lines = decode_lines(b"".join(parts), origin, number)
        parts = [block[end:]]
        unended = len(block) - end
        number += len(lines)
        size = buffer_size or max(1, len(lines))
        for first in range(0, len(lines), size):
            yield lines[first : first + size]
        if not block:
            return


def translate_documents(
    settings: TranslateDocumentsSettings, *, progress: bool = True
) -> tuple[list[str], TranslatedDocuments]:
    """Translate a text, and print it. Return its lines, and the same by document.

    Raises:
        ConfigError: the settings do not fit the model.
        CheckpointError: a checkpoint is missing or damaged.
        DataError: the text cannot be read, or a line is too long for the model.
    """
    # Read the text first, since loading the model takes longer.
    check_writable("--output", settings.output)
    lines, prefixes, terms = _read(settings)
    translator = load_translator(settings.model)
    windows = settings.windows(translator.max_doc_tokens)
    # Print warnings before the translation starts.
    note = length_note(settings.max_doc_tokens, translator.max_doc_tokens)
    is_longer = windows.max_doc_tokens > translator.max_doc_tokens
    tabs = tab_note(lines, settings.constraints)
    if progress:
        print_notes(note if is_longer else "", tabs)
    # Divide the text into documents and their sentences, with the line number of each sentence.
    splitter = SentenceSplitter(translator.task.source_lang) if settings.split_sentences else None
    split = None
    if splitter is None:  # lines that are translated alone may be cut by default
        split = translator.sources.splitter(settings.split_sentences, windows.max_doc_tokens)
    sentences: list[str] = []
    numbers: list[int] = []
    counts: list[int] = []
    for document in _line_numbers(lines):
        num_before = len(sentences)
        for number in document:
            parts = [lines[number]] if splitter is None else splitter(lines[number])
            sentences += parts
            numbers += [number] * len(parts)
        counts.append(len(sentences) - num_before)
    # Encode the sentences. A line with a prefix or terms is one sentence, as the settings check.
    request = TranslationRequest(
        sentences,
        counts,
        prefixes=[prefixes[number] for number in numbers],
        forced=[terms[number] for number in numbers],
        ordered=settings.constraints != "unordered",
        banned=() if settings.banned_terms is None else read_lines(settings.banned_terms),
        match_case=settings.match_case,
        inside_words=settings.inside_words,
        numbers=[number + 1 for number in numbers],
    )
    sources = translator.sources.encode(request, split)
    # Find long sentences before the limit cuts or empties them.
    limit = source_limit(settings.model, translator)
    too_long = []
    split_lines = []
    for number, source in zip(numbers, sources.sentences, strict=True):
        if limit.refuses(source):
            too_long.append(number)
        if source.parts:
            split_lines.append(number)
    sources = sources.limited(limit)
    # Translate all windows, and put the lines in order.
    groups = plan_groups(
        sources.sizes, sources.counts, windows.max_doc_tokens, windows.window_overlap
    )
    num_searches = len(groups) + sum(len(source.parts[1:]) for source in sources.sentences)
    with (
        hidden_progress(settings.no_progress_bar or not progress),
        progress_bar("translate", num_searches, "groups", shows_waiting=True) as advance,
    ):
        config = settings.search.resolved(documents=True, workers=0)
        search = translator.searcher(config, on_progress=advance)
        translated = translator.answer(sources, config, windows, search)
    # Join sentences to lines, and collect the notes.
    language = translator.task.target_lang
    joined = []
    begin = 0
    for document_lines, count in zip(translated, counts, strict=True):
        joined.append(_joined(document_lines, numbers[begin : begin + count], language))
        begin += count
    text = _with_blank_lines(lines, iter(joined))
    undivided = empty = ""
    if translated.num_undivided:
        undivided = (
            "NOTE: the model was trained without --sentence-separator: "
            f"{share(translated.num_undivided, len(translated.windows))} groups of several lines "
            f"became one line each; --max-doc-tokens {SINGLE_SENTENCES} keeps every line apart"
        )
    blank = list(map(is_blank, itertools.chain.from_iterable(translated)))
    if any(blank):
        empty = (
            f"NOTE: {share(sum(blank), len(blank))} lines have an empty translation, which looks "
            "like a blank line between documents"
        )
    report = [
        note,
        _report(sources, translated, windows, int(groups.over_long.sum())),
        too_long_note(too_long, limit),
        split_note(split_lines, split, settings.split_sentences),
        undivided,
        limit_note(translated.num_at_limit, config),
        empty,
    ]
    whole_text = "".join(f"{line}\n" for line in text)
    if settings.output is not None:
        write_file("--output", settings.output, whole_text)
    elif progress:
        print(whole_text, end="")
    if progress:
        # Leave out the length note if it was printed at the start.
        print_notes(*report[is_longer:])
    return text, translated


def _read(settings: TranslateDocumentsSettings) -> tuple[list[str], list[str], list[list[str]]]:
    """Return the lines of the text, and the prefix and the forced terms of each."""
    lines = read_input(settings.file)
    refuse_markup(lines, named_input(settings.file))
    lines, terms = split_terms(lines, settings.constraints)
    prefixes = [""] * len(lines) if settings.prefixes is None else read_lines(settings.prefixes)
    if len(prefixes) != len(lines):
        raise _wrong_prefixes(settings.prefixes, prefixes, f"text has {len(lines):,}")
    # Refuse prefixes and terms of blank lines, since these are not translated.
    for number, (line, prefix) in enumerate(zip(lines, prefixes, strict=True)):
        if is_blank(line) and any(map(str.strip, (prefix, *terms[number]))):
            raise DataError(
                f"{settings.file}:{number + 1}: the line is blank, and so is its translation, but "
                "it has a prefix or forced terms; leave them out"
            )
    return lines, prefixes, terms


def _line_numbers(lines: Sequence[str]) -> list[list[int]]:
    """Return the numbers of the lines of each document, from 0."""
    runs = itertools.groupby(range(len(lines)), lambda i: is_blank(lines[i]))
    return [list(run) for blank, run in runs if not blank]


def _with_blank_lines(lines: Sequence[str], translated: Iterator[list[str]]) -> list[str]:
    """Return the lines of translated documents with the source's blank lines between them."""
    text: list[str] = []
    for blank, run in itertools.groupby(lines, is_blank):
        text += [""] * len(list(run)) if blank else next(translated)
    return text


def _joined(lines: Sequence[str], numbers: Sequence[int], language: str) -> list[str]:
    """Join the sentences of each line. If sentences are missing, leave them apart."""
    if len(numbers) != len(lines):
        return list(lines)
    sentences = iter(lines)
    return [
        join_texts(itertools.islice(sentences, len(list(run))), language)
        for _, run in itertools.groupby(numbers)
    ]


def _report(
    sources: SourceDocuments,
    translated: TranslatedDocuments,
    windows: WindowConfig,
    num_over_long: int,
) -> str:
    """Return the line that counts lines, groups, mismatches and repetitions."""
    # Name the size of the groups, then the exceptions.
    limit = windows.max_doc_tokens
    lines = counted(len(sources.sentences), "line")
    documents = counted(len(sources.counts), "document")
    groups = counted(translated.num_groups, "group")
    size = "one" if limit == SINGLE_SENTENCES else f"up to {limit} tokens"
    parts = [f"{lines} of {documents} in {groups} of {size}"]
    if num_over_long:
        parts.append(f"{counted(num_over_long, 'longer line')} translated whole")
    # Count mismatches only if separators divide groups of several lines.
    if sources.separators is not None and limit != SINGLE_SENTENCES:
        wrong = share(translated.num_mismatched, translated.num_groups)
        parts.append(f"{wrong} groups had another number of sentences than lines")
    if translated.num_repeated:
        parts.append(f"{translated.num_repeated:,} translated again in halves")
    return "; ".join(parts)


def serve(settings: ServeSettings, *, progress: bool = True) -> None:
    """Serve until a signal. Answer the requests that have begun before the end.

    Raises:
        ConfigError: the settings do not fit the model, or the address cannot be used.
        CheckpointError: a checkpoint is missing or damaged.
        MissingExtraError: the web server is not installed.
    """
    # Import the web server only here, since it is an extra.
    with needing('the server needs the package {}: pip install "relu-nmt[serve]"'):
        from relu_nmt.applications.serving.app import make_app
        from relu_nmt.applications.serving.limits import run_server
    # Open the port before loading the model: an address in use is an error at once.
    address = settings.host, settings.port
    wrong = f"--host {settings.host} --port {settings.port}: cannot listen there"
    with reporting(wrong, ConfigError, (OSError, UnicodeError)):
        family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server(address, family=family)
    with listener:
        translator = load_translator(settings.model)
        windows = settings.windows(translator.max_doc_tokens)
        # At a local address, accept only local host names by default.
        local_hosts = LOOPBACK if settings.host in LOOPBACK else ()
        limits = replace(settings, allowed_hosts=settings.allowed_hosts or local_hosts)
        app = make_app(translator, settings.search, windows, limits)
        split = translator.sources.splitter(settings.split_sentences, windows.max_doc_tokens)
        if split is not None:
            split("One. Two.")  # which gives a note if the library is missing
            print_notes(split.note)
        if progress:
            print_notes(length_note(settings.max_doc_tokens, translator.max_doc_tokens))
            pair = f"{translator.task.source_lang}-{translator.task.target_lang}"
            host, port = listener.getsockname()[:2]
            if ":" in host:
                host = f"[{host}]"
            print_notes(f"{pair} at http://{host}:{port}/ (Ctrl-C stops it)")
        run_server(app, listener, limits)
