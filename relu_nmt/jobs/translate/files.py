"""Translate files with markup: web pages, Word files, subtitles and others."""

from pathlib import Path

from relu_nmt.applications.files import check_options, format_name, translate_file
from relu_nmt.applications.files.sentences import SegmentTranslator, read_glossary
from relu_nmt.config.fields import options_of
from relu_nmt.errors import ConfigError
from relu_nmt.io.safe_write import check_writable
from relu_nmt.io.text_lines import read_lines
from relu_nmt.io.work import hidden_progress
from relu_nmt.jobs.translate.settings import TranslateDocumentsSettings
from relu_nmt.jobs.translate.shared import length_note, load_translator, print_notes
from relu_nmt.jobs.translate.text import translate_documents


def translate(settings: TranslateDocumentsSettings, *, progress: bool = True) -> None:
    """Translate plain text, printed or written, or a file of another format, which is written.

    Raises:
        ConfigError: the settings do not fit the model or the format.
        CheckpointError: a checkpoint is missing or damaged.
        DataError: the file cannot be read or written, or is damaged.
    """
    name = format_name(settings.file, settings.format)
    check_options(name, settings)
    if name == "text":
        if settings.glossary is not None:
            raise ConfigError(
                "--glossary belongs to files with markup; --constraints forces terms in lines of "
                "plain text"
            )
        translate_documents(settings, progress=progress)
    else:
        _translate_markup(settings, progress)


def _translate_markup(settings: TranslateDocumentsSettings, progress: bool) -> None:
    """Translate a file of a format with markup."""
    for flag, value in (
        ("--prefixes", settings.prefixes),
        ("--constraints", settings.constraints),
    ):
        if value is not None:
            raise ConfigError(f"{flag} belongs to lines of plain text; --glossary forces terms")
    if settings.split_sentences is not None:
        entry = options_of(TranslateDocumentsSettings)["split_sentences"]
        raise ConfigError(
            f"{entry.with_value(settings.split_sentences)} belongs to plain text; sentences of "
            "files with markup are always translated one by one"
        )
    if settings.model.max_source_length is not None or settings.model.truncate_source:
        raise ConfigError(
            "--max-source-length and --truncate-source belong to plain text; a file with markup is "
            "translated whole"
        )
    if settings.file == "-":
        raise ConfigError("-: standard input is plain text; give the name of a file")
    glossary = {} if settings.glossary is None else read_glossary(settings.glossary)
    if glossary:
        settings.search.check_terms()
    # Load the model last, since that takes longest.
    translator = load_translator(settings.model)
    output = settings.output or _output_name(settings.file, translator.task.target_lang)
    check_writable("--output", output)
    banned = () if settings.banned_terms is None else read_lines(settings.banned_terms)
    segments = SegmentTranslator(
        translator,
        settings.search,
        settings.windows(translator.max_doc_tokens),
        glossary,
        {
            "banned": banned,
            "match_case": settings.match_case,
            "inside_words": settings.inside_words,
        },
    )
    with hidden_progress(settings.no_progress_bar or not progress):
        translate_file(settings.file, output, segments, settings, settings.format)
    if progress:
        note = length_note(settings.max_doc_tokens, translator.max_doc_tokens)
        print_notes(note, *segments.notes, f"translation: {output}")


def _output_name(path: str, language: str) -> str:
    """Return the name of the translation, beside the file: ``page.en.html`` for ``page.html``."""
    return str(Path(path).with_suffix(f".{language}{Path(path).suffix}"))
