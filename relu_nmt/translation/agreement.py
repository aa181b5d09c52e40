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
SAME_TEXT = "preprocess with the same --tokenizer, --lowercase, --subword and --subword-model"
LIKE = "make the data with relu-nmt-preprocess --like"
"""Remedies for a data folder whose text steps differ from another folder or from a model."""
WITH_SEPARATOR = "give it here too, with --max-doc-tokens or --doc-mixture"


def describe_task(task: TranslationTask) -> dict[str, str]:
    """Return the languages, dictionaries and text steps of a task in words, by name."""
    description = {"source language": task.source_lang, "target language": task.target_lang}
    for name, dictionary in (
        ("source dictionary", task.source_dictionary),
        ("target dictionary", task.target_dictionary),
    ):
        symbols = fingerprint([dictionary[i] for i in range(len(dictionary))])
        description[name] = f"{len(dictionary):,} symbols {symbols}"
    # Add the separators, and the steps that change decoded text but no token id.
    steps = describe_steps(task)
    for side, text in _recorded_texts(task).items():
        between = "" if text.separates_alone else " in groups of sentences only"
        steps[f"{side} sentence separator"] = f"{text.sentence_separator or NONE}{between}"
        steps[f"{side} detokenizer"] = text.detokenizer
        subword = text.subword.to_state()
        is_joined = subword["name"] == JOINED
        steps[f"{side} joining of pieces"] = repr(subword["symbol"]) if is_joined else NONE
    return description | steps


def describe_steps(task: TranslationTask) -> dict[str, str]:
    """Return the steps from raw text to token ids in words, by name, without separators."""
    steps = {}
    for side, text in _recorded_texts(task).items():
        tokenizer = text.tokenizer
        if text.tokenizer_version != tokenizers.get(tokenizer).version():
            tokenizer = f"{tokenizer} of version {text.tokenizer_version}"
        subword = text.subword.to_state()
        if subword["name"] == JOINED:  # it splits no words
            subword = {"name": NONE}
        # Give the model's name, and a checksum instead of its parameters.
        model = subword.pop("name")
        steps[f"{side} tokenizer"] = tokenizer
        steps[f"{side} lower-casing"] = "on" if text.lowercase else "off"
        steps[f"{side} subword model"] = f"{model} {fingerprint(subword)}" if subword else model
        steps[f"{side} first symbol"] = text.first_symbol or NONE
    return steps


def _recorded_texts(task: TranslationTask) -> dict[str, TextPipeline]:
    """Return the text steps of both sides. A folder of fairseq does not record them."""
    if task.folder is not None and data_folder.manifest_content(task.folder) is None:
        return {}
    return {"source": task.source_text, "target": task.target_text}


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
    # Compare the text steps. Missing sides count as equal.
    if manifest is not None:
        texts = []
        for text in (task.source_text, task.target_text):
            if text.language in manifest["text"]:
                text = load_pipeline(path, manifest, text.language)
            texts.append(text)
        in_folder = replace(task, source_text=texts[0], target_text=texts[1], folder=Path(path))
        advice = SAME_TEXT if task.folder else f"{LIKE} {task_place}, or translate raw text"
        require_same(
            describe_steps(task), task_place, describe_steps(in_folder), path, advice, DataError
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
    for side, earlier, dictionary in (
        ("source", stored.source_dictionary, present.source_dictionary),
        ("target", stored.target_dictionary, present.target_dictionary),
    ):
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
    # Compare the preparation of the text.
    notes = []
    stored_steps = describe_steps(stored)
    steps = describe_steps(present)
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
