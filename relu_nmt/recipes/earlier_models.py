"""Check the trained models that a translation training goes on from, starts from or learns from."""

from pathlib import Path

from relu_nmt.data.dictionary import SENTENCE_SEPARATOR
from relu_nmt.errors import CheckpointError
from relu_nmt.training.checkpoint import read_metadata
from relu_nmt.translation.agreement import LIKE, require_same
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator.models import load_models

APART = ("language", "dictionary", "sentence separator")
"""Names of properties that a training compares on its own, as some differences are allowed."""
FRESH_START = "or choose another --save-dir for a fresh start"


def compare_with_data(
    path: Path, theirs: TranslationTask, own: TranslationTask, data: str, goes_on: bool
) -> list[str]:
    """Compare the task of a checkpoint with that of the data; return notes for the user.

    Args:
        path: of the checkpoint.
        theirs: its task.
        own: the task of the data.
        data: the data folder, for messages.
        goes_on: True if the training itself goes on, which requires the same languages.

    Raises:
        CheckpointError: languages, dictionaries or preparation of text differ.
    """
    pairs = [f"{task.source_lang}-{task.target_lang}" for task in (theirs, own)]
    if goes_on and pairs[0] != pairs[1]:
        raise CheckpointError(
            f"{path}: was trained on {pairs[0]}, not {pairs[1]}; give the same --source-lang "
            "and --target-lang, or another --save-dir for a fresh start"
        )
    for side in ("source", "target"):
        _check_dictionary(path, theirs, own, side, data)
    notes = _compare_text(path, theirs, own, data)
    if pairs[0] != pairs[1]:
        notes.append(f"{path} translates {pairs[0]}, and learns {pairs[1]} now")
    return notes


def _compare_text(
    path: Path, theirs: TranslationTask, own: TranslationTask, data: str
) -> list[str]:
    """Compare the preparation of a checkpoint's text with that of the data."""
    # Leave out the properties that other checks compare.
    known, given = (
        {k: v for k, v in one.describe(way_back=False).items() if not k.endswith(APART)}
        for one in (theirs, own)
    )
    # Recognise models of other toolkits: their checkpoints name no data folder.
    is_imported = "data" not in (read_metadata(path).get("args") or {})
    if is_imported and own.source_text.keeps_text and own.target_text.keeps_text:
        if not given or given == known:
            return []
        return [
            f"{path} takes raw text, but that of {data} is prepared; the new model takes "
            "text that is prepared in the same way"
        ]
    require_same(known, path, given, data, f"{LIKE} {path}, {FRESH_START}")
    return []


def _check_dictionary(
    path: Path, theirs: TranslationTask, own: TranslationTask, side: str, data: str
) -> None:
    """Compare a dictionary of a checkpoint with the data's."""
    stored, given = (getattr(task, f"{side}_dictionary") for task in (theirs, own))
    if stored == given:
        return
    if theirs.has_sentence_separator and not own.has_sentence_separator:
        raise CheckpointError(f"{path}: trained with --sentence-separator; give it here too")
    # Accept a dictionary that only adds the separator behind the others.
    adds_symbol = own.has_sentence_separator and SENTENCE_SEPARATOR not in stored
    if adds_symbol and stored.with_symbol(SENTENCE_SEPARATOR, len(stored)) == given:
        return
    raise CheckpointError(
        f"{path}: trained with another {side} dictionary than that of "
        f"{data}; {LIKE} {path}, {FRESH_START}"
    )


def load_teachers(path: str, own: TranslationTask, data: str) -> list[EncoderDecoder]:
    """Load the models of ``--teacher``.

    Args:
        path: of one or more checkpoints, with colons between them.
        own: the task of the student.
        data: its data folder, for messages.

    Raises:
        CheckpointError: one cannot be read, or has other dictionaries than the student.
    """
    models, task, _ = load_models(path, "auto", None)
    # Name the separator first, which makes dictionaries differ.
    if task.has_sentence_separator != own.has_sentence_separator:
        how = "without --sentence-separator; take a teacher of documents, or leave the flag out"
        if task.has_sentence_separator:
            how = "with --sentence-separator; give it here too"
        raise CheckpointError(f"--teacher {path}: trained {how}")
    for side in ("source_dictionary", "target_dictionary"):
        if getattr(task, side) != getattr(own, side):
            raise CheckpointError(
                f"--teacher {path}: has another {side.replace('_', ' ')} than that of "
                f"{data}; {LIKE} CKPT, or train a teacher on this data"
            )
    return models
