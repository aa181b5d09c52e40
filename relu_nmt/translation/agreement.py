"""Checks that two models, or a model and data, agree in text steps and dictionaries."""

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from relu_nmt.data import data_folder
from relu_nmt.data.dictionary import SENTENCE_SEPARATOR, Dictionary
from relu_nmt.errors import CheckpointError, DataError, ReluNmtError
from relu_nmt.tokenization.base import JOINED, tokenizers
from relu_nmt.tokenization.pipeline import TextPipeline, load_pipeline
from relu_nmt.training.checkpoint import read_metadata
from relu_nmt.translation.task import TranslationTask

NONE = "none"
DECODING_STEPS = ("detokenizer", "joining of pieces")
"""Steps that change decoded text but no token id."""
SAME_TEXT = "preprocess with the same --tokenizer, --lowercase, --subword and --subword-model"
LIKE = "make the data with relu-nmt-preprocess --like"
"""Remedies for a data folder whose text steps differ from another folder or from a model."""
WITH_SEPARATOR = "give it here too, with --max-doc-tokens or --doc-mixture"
ALLOWED_TO_DIFFER = ("language", "dictionary", "sentence separator")
"""Last words of the properties for which :func:`compare_with_data` has separate rules."""


def describe_task(task: TranslationTask, with_decoding: bool = True) -> dict[str, str]:
    """Return the languages, dictionaries and text steps of a task in words, by name.

    ``with_decoding`` includes the steps that change only decoded text.
    """
    texts = {"source": task.source_text, "target": task.target_text}
    # Describe languages and dictionaries, which are always known.
    description = {f"{side} language": text.language for side, text in texts.items()}
    for side in texts:
        dictionary = getattr(task, f"{side}_dictionary")
        symbols = fingerprint([dictionary[i] for i in range(len(dictionary))])
        description[f"{side} dictionary"] = f"{len(dictionary):,} symbols {symbols}"
    # Describe the steps of the text. A folder of fairseq does not record them.
    if task.folder is not None and data_folder.manifest_content(task.folder) is None:
        return description
    for side, text in texts.items():
        for name, step in _describe_text(text).items():
            if with_decoding or name not in DECODING_STEPS:
                description[f"{side} {name}"] = step
    return description


def _describe_text(pipeline: TextPipeline) -> dict[str, str]:
    """Return each step of one language's text in words, by name."""
    subword = pipeline.subword.to_state()
    joined = NONE
    if subword["name"] == JOINED:  # it splits no words
        joined = repr(subword["symbol"])
        subword = {"name": NONE}
    # Give the model's name, and a checksum instead of its parameters.
    model = subword.pop("name")
    tokenizer = pipeline.tokenizer
    if pipeline.tokenizer_version != tokenizers.get(tokenizer).version():
        tokenizer = f"{tokenizer} of version {pipeline.tokenizer_version}"
    between = "" if pipeline.separates_alone else " in groups of sentences only"
    return {
        "tokenizer": tokenizer,
        "lower-casing": "on" if pipeline.lowercase else "off",
        "subword model": f"{model} {fingerprint(subword)}" if subword else model,
        "sentence separator": f"{pipeline.sentence_separator or NONE}{between}",
        "first symbol": pipeline.first_symbol or NONE,
        **dict(zip(DECODING_STEPS, (pipeline.detokenizer, joined), strict=True)),
    }


def fingerprint(value: Any) -> str:
    """Return a checksum of JSON values, in eight digits."""
    return f"{zlib.crc32(json.dumps(value, sort_keys=True).encode()):08x}"


def require_same(
    first: Mapping[str, str],
    first_place: str | os.PathLike[str],
    second: Mapping[str, str],
    second_place: str | os.PathLike[str],
    advice: str,
    error: type[ReluNmtError] = CheckpointError,
) -> None:
    """Raise ``error`` with ``advice`` if a property differs between two descriptions."""
    # Stop at the first difference. Ignore properties that only one description has.
    for name, value in first.items():
        if second.get(name, value) != value:
            raise error(
                f"{second_place}: the {name} is {second[name]}, but in {first_place} it is "
                f"{value}; {advice}"
            )


def at_folder(
    task: TranslationTask, path: str | os.PathLike[str], task_place: str = "the checkpoint"
) -> TranslationTask:
    """Return the task for a data folder in which token ids mean the same (DataError)."""
    manifest = data_folder.read_manifest(path)
    if not data_folder.dictionary_path(path, task.source_lang).exists():
        data_folder.infer_languages(path)  # raises the error of a folder without data
    for expected, language, flag in (
        (task.source_dictionary, task.source_lang, "--srcdict"),
        (task.target_dictionary, task.target_lang, "--tgtdict"),
    ):
        file = data_folder.dictionary_path(path, language)
        if language == task.target_lang and not file.exists():  # source-only data
            continue
        dictionary = Dictionary.load(file)
        # Add the separator that the task has but the folder's file lacks.
        if task.separators is not None and SENTENCE_SEPARATOR not in dictionary:
            index = expected.index(SENTENCE_SEPARATOR)
            dictionary = dictionary.with_symbol(SENTENCE_SEPARATOR, index)
        if dictionary != expected:
            remedy = f"preprocess with it as {flag}" if task.folder else f"{LIKE} {task_place}"
            raise DataError(f"{file}: not the dictionary of {task_place}; {remedy}")
    # Compare the text steps. The task's own separators and missing sides count as equal.
    if manifest is not None:
        texts = []
        for text in (task.source_text, task.target_text):
            if text.language in manifest["text"]:
                text = replace(
                    load_pipeline(path, manifest, text.language),
                    sentence_separator=text.sentence_separator,
                    separates_alone=text.separates_alone,
                )
            texts.append(text)
        in_folder = replace(task, source_text=texts[0], target_text=texts[1], folder=Path(path))
        advice = SAME_TEXT if task.folder else f"{LIKE} {task_place}, or translate raw text"
        require_same(
            describe_task(task, with_decoding=False),
            task_place,
            describe_task(in_folder, with_decoding=False),
            path,
            advice,
            DataError,
        )
    return replace(task, folder=Path(path))


def compare_with_data(
    path: Path,
    stored: TranslationTask,
    present: TranslationTask,
    data: str,
    goes_on: bool,
    fresh_start: str,
) -> list[str]:
    """Refuse data with other dictionaries or text steps than a stored model. Return notes.

    If ``goes_on``, the languages must be equal as well.
    """
    stored_pair = f"{stored.source_lang}-{stored.target_lang}"
    present_pair = f"{present.source_lang}-{present.target_lang}"
    if goes_on and stored_pair != present_pair:
        raise CheckpointError(
            f"{path}: was trained on {stored_pair}, not {present_pair}; give the same "
            f"--source-lang and --target-lang, or {fresh_start}"
        )
    # Compare the dictionaries. The data may only add the separator as its last symbol.
    for side in ("source", "target"):
        earlier = getattr(stored, f"{side}_dictionary")
        dictionary = getattr(present, f"{side}_dictionary")
        if earlier == dictionary:
            continue
        if stored.separators is not None and present.separators is None:
            raise CheckpointError(
                f"{path}: trained with --sentence-separator; {WITH_SEPARATOR}, or {fresh_start}"
            )
        adds_symbol = present.separators is not None and SENTENCE_SEPARATOR not in earlier
        if not adds_symbol or earlier.with_symbol(SENTENCE_SEPARATOR, len(earlier)) != dictionary:
            raise CheckpointError(
                f"{path}: trained with another {side} dictionary than that of "
                f"{data}; {LIKE} {path}, or {fresh_start}"
            )
    # Compare the preparation of the text, without languages, dictionaries and separators.
    notes = []
    stored_steps = _steps_to_compare(stored)
    steps = _steps_to_compare(present)
    # Recognize models of other toolkits: their checkpoints name no data folder.
    is_imported = "data" not in (read_metadata(path).get("args") or {})
    if not (is_imported and present.source_text.keeps_text and present.target_text.keeps_text):
        require_same(stored_steps, path, steps, data, f"{LIKE} {path}, or {fresh_start}")
    elif steps and steps != stored_steps:
        notes.append(
            f"{path} takes raw text, but that of {data} is prepared; the new model takes "
            "text that is prepared in the same way"
        )
    if stored_pair != present_pair:
        notes.append(f"{path} translates {stored_pair}, and learns {present_pair} now")
    return notes


def _steps_to_compare(task: TranslationTask) -> dict[str, str]:
    """Return the text steps of a task without languages, dictionaries and separators."""
    description = describe_task(task, with_decoding=False)
    return {k: v for k, v in description.items() if not k.endswith(ALLOWED_TO_DIFFER)}
