"""Translate files: web pages, Word files, subtitles, plain text and others, one or several."""

import os
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from relu_nmt.applications.files import (
    check_options,
    format_name,
    format_of_ending,
    translate_file,
)
from relu_nmt.applications.files.sentences import SegmentTranslator, read_glossary
from relu_nmt.config import refuse_given
from relu_nmt.errors import ConfigError, DataError, ReluNmtError, counted, printable
from relu_nmt.io.progress import hidden_progress, progress_bar
from relu_nmt.io.safe_write import check_writable
from relu_nmt.jobs.translate.documents import translate_documents
from relu_nmt.jobs.translate.model import load_translator
from relu_nmt.jobs.translate.notes import length_note, print_notes
from relu_nmt.jobs.translate.settings import TranslateDocumentsSettings
from relu_nmt.jobs.translate.text import banning_request


def translate(settings: TranslateDocumentsSettings, *, progress: bool = True) -> None:
    """Translate plain text, printed or written, a file of another format, or several files."""
    if settings.output_dir is not None:
        _translate_several(settings, settings.output_dir, progress)
        return
    if os.path.isdir(settings.file):
        raise ConfigError(f"{settings.file}: is a folder, which needs --output-dir DIR")
    name = format_name(settings.file, settings.format)
    _check_flags(settings, {name})
    if name == "text":
        translate_documents(settings, progress=progress)
        return
    if settings.file == "-":
        raise ConfigError("-: standard input is plain text; give the name of a file")
    segments = _segment_translator(settings)
    path = Path(settings.file)  # page.html becomes page.en.html
    ending = f".{segments.languages.target}{path.suffix}"
    output = settings.output or str(path.with_suffix(ending))
    check_writable("--output", output)
    with hidden_progress(settings.no_progress_bar or not progress):
        translate_file(path, output, segments, settings, name, segments.languages)
    if progress:
        note = length_note(settings.max_doc_tokens, segments.translator.max_doc_tokens)
        print_notes(note, *segments.notes, f"translation: {output}")


def _check_flags(settings: TranslateDocumentsSettings, names: Collection[str]) -> None:
    """Raise a ConfigError for a flag that does nothing for the formats of these names."""
    check_options(names, settings)
    if all(name == "text" for name in names) and settings.glossary is not None:
        raise ConfigError(
            "--glossary belongs to files with markup; --constraints forces terms in lines of "
            "plain text"
        )
    if "text" in names:
        return
    for name in ("prefixes", "constraints"):
        if getattr(settings, name) is not None:
            raise ConfigError(f"--{name} belongs to lines of plain text; --glossary forces terms")
    remedy = "sentences of files with markup are always translated one by one"
    refuse_given(settings, ("split_sentences",), " belongs to plain text", remedy)
    if settings.model.max_source_length is not None or settings.model.truncate_source:
        raise ConfigError(
            "--max-source-length and --truncate-source belong to plain text; a file with markup is "
            "translated whole"
        )


def _segment_translator(settings: TranslateDocumentsSettings) -> SegmentTranslator:
    """Return the translator of segments. The model is loaded last, since that takes longest."""
    glossary = {}
    if settings.glossary is not None:
        glossary = read_glossary(settings.glossary)
    if glossary:
        settings.search.check_terms()
    template = banning_request(settings)
    translator = load_translator(settings.model)
    windows = settings.windows(translator.max_doc_tokens)
    return SegmentTranslator(translator, settings.search, windows, glossary, template)


# ------------------------------------------------------------------------- several files


def _translate_several(settings: TranslateDocumentsSettings, folder: str, progress: bool) -> None:
    """Translate files, each whole or not at all. After a file that fails, go on with the next."""
    sources, num_left = _sources(settings, Path(folder))
    names = set()
    for path in sources.values():
        with suppress(DataError):  # the error is reported when the file's turn comes
            names.add(format_name(path, settings.format))
    if names:
        _check_flags(settings, names)
    # A translation is renamed into its place, so a translation that exists is complete.
    waiting = {output: path for output, path in sources.items() if not output.exists()}
    num_failed = 0
    notes = []
    if waiting:
        check_writable("--output-dir", str(next(iter(waiting))))
        segments = _segment_translator(settings)
        num_failed = _translate_waiting(settings, waiting, segments, progress)
        notes.append(length_note(settings.max_doc_tokens, segments.translator.max_doc_tokens))
        notes += segments.notes
    if num_left:
        notes.append(f"NOTE: {counted(num_left, 'file')} of no known format left out")
    if len(waiting) < len(sources):
        num_before = counted(len(sources) - len(waiting), "translation")
        notes.append(f"NOTE: {num_before} in {folder} stayed; remove them to translate again")
    if progress:
        done = counted(len(waiting) - num_failed, "file")
        print_notes(*notes, f"translations: {done} in {folder}")
    if num_failed:
        raise DataError(f"{num_failed:,} of {counted(len(waiting), 'file')} not translated")


def _translate_waiting(
    settings: TranslateDocumentsSettings,
    waiting: Mapping[Path, Path],
    segments: SegmentTranslator,
    progress: bool,
) -> int:
    """Translate ``waiting`` files, keyed by the translations' paths. Return how many fail."""
    num_failed = 0
    with (
        hidden_progress(settings.no_progress_bar or not progress),
        progress_bar("translate", len(waiting), "files", shows_waiting=True) as advance,
        hidden_progress(),
    ):
        for output, path in waiting.items():
            try:
                _translate_one(settings, path, output, segments, progress)
            except ReluNmtError as error:
                num_failed += 1
                text = str(error)
                if str(path) not in text:
                    text = f"{path}: {text}"
                tqdm.write(printable(f"error: {text}"), file=sys.stderr)
            advance(1)
    return num_failed


def _translate_one(
    settings: TranslateDocumentsSettings,
    path: Path,
    output: Path,
    segments: SegmentTranslator,
    progress: bool,
) -> None:
    name = format_name(path, settings.format)
    check_writable("--output-dir", str(output))
    if name == "text":
        text_settings = replace(
            settings, file=str(path), further_files=(), output=str(output), output_dir=None
        )
        translate_documents(text_settings, translator=segments.translator, progress=progress)
    else:
        translate_file(path, output, segments, settings, name, segments.languages)


def _sources(settings: TranslateDocumentsSettings, folder: Path) -> tuple[dict[Path, Path], int]:
    """Return the source file of each translation, and the number of files in folders left out."""
    sources: dict[Path, Path] = {}
    num_left = 0
    for word in (settings.file, *settings.further_files):
        if word == "-":
            raise ConfigError("-: standard input is one text; leave --output-dir out")
        paths = [Path(word)]
        base = Path(word).parent
        if os.path.isdir(word):
            base = Path(word)
            paths = _files_of(base, folder)
            if settings.format is None:
                known = [path for path in paths if format_of_ending(path.suffix.lower())]
                num_left += len(paths) - len(known)
                paths = known
        for path in paths:
            output = folder / path.relative_to(base)
            other = sources.setdefault(output, path)
            if other != path:
                raise ConfigError(f"{other} and {path} would both become {output}; rename one")
    if not sources:
        raise DataError(f"{settings.file}: has no file of a known format")
    replaced = {os.path.realpath(path) for path in sources.values()}
    for output in sources:
        if os.path.realpath(output) in replaced:
            raise ConfigError(f"--output-dir {folder}: {output} is to be translated; give another")
    return sources, num_left


def _files_of(folder: Path, left_out: Path) -> list[Path]:
    """Return the files of a folder in order, without hidden files and the folder ``left_out``."""

    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot read it: {error.strerror}") from error

    hidden = os.path.realpath(left_out)
    paths = []
    for parent, folders, names in os.walk(folder, onerror=refuse):
        visible = [Path(parent, name) for name in sorted(folders) if not name.startswith(".")]
        folders[:] = [path.name for path in visible if os.path.realpath(path) != hidden]
        for name in sorted(names):
            if not name.startswith(".") and Path(parent, name).is_file():
                paths.append(Path(parent, name))
    return paths
