"""Checks that two models, or a model and data, agree in text steps and dictionaries."""

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from relu_nmt.data.data_folder import (
    dictionary_path,
    infer_languages,
    manifest_content,
    read_manifest,
)
from relu_nmt.data.dictionary import SENTENCE_SEPARATOR, Dictionary
from relu_nmt.errors import CheckpointError, DataError, ReluNmtError
from relu_nmt.tokenization.base import JOINED, tokenizers
from relu_nmt.tokenization.pipeline import TextPipeline, load_pipeline
from relu_nmt.training.checkpoint import read_metadata
from relu_nmt.translation.task import TranslationTask

NONE = "none"
WAY_BACK = ("detokenizer", "joining of pieces")
"""Steps that change decoded text but no token id."""
SAME_TEXT = "preprocess with the same --tokenizer, --lowercase, --subword and --subword-model"
LIKE = "make the data with relu-nmt-preprocess --like"
"""The remedies for a data folder whose text had other steps than another folder, or a model."""
WITH_SEPARATOR = "give it here too, with --max-doc-tokens or --doc-mixture"
APART = ("language", "dictionary", "sentence separator")
"""Names of properties that a training compares on its own, as some differences are allowed."""


def describe_task(task: TranslationTask, way_back: bool = True) -> dict[str, str]:
    """Return the languages, dictionaries and text steps of a task in words, by name.

    ``way_back`` includes the steps that change decoded text but no token id.
    """
    texts = {"source": task.source_text, "target": task.target_text}
    # Describe languages and dictionaries, which are always known.
    found = {f"{side} language": text.language for side, text in texts.items()}
    for side in texts:
        words = getattr(task, f"{side}_dictionary")
        symbols = fingerprint([words[i] for i in range(len(words))])
        found[f"{side} dictionary"] = f"{len(words):,} symbols {symbols}"
    # Describe the steps of the text.
    for side, text in texts.items() if _has_known_text(task) else ():
        steps = _describe_text(text)
        found |= {f"{side} {k}": v for k, v in steps.items() if way_back or k not in WAY_BACK}
    return found


def _has_known_text(task: TranslationTask) -> bool:
    """Return True if the steps of its text are known; a folder of fairseq does not record them."""
    return task.folder is None or manifest_content(task.folder) is not None


def _describe_text(pipeline: TextPipeline) -> dict[str, str]:
    """Return each step of one language's text in words, by name."""
    subword, joined = pipeline.subword.to_state(), NONE
    if subword["name"] == JOINED:  # it splits no words
        subword, joined = {"name": NONE}, repr(subword["symbol"])
    # Separate the model's name from its parameters, for which a checksum stands.
    model = subword.pop("name")
    tokenizer, version = pipeline.tokenizer, pipeline.tokenizer_version
    if version != tokenizers.get(tokenizer).version():
        tokenizer = f"{tokenizer} of version {version}"
    between = "" if pipeline.separates_alone else " in groups of sentences only"
    return {
        "tokenizer": tokenizer,
        "lower-casing": "on" if pipeline.lowercase else "off",
        "subword model": f"{model} {fingerprint(subword)}" if subword else model,
        "sentence separator": f"{pipeline.sentence_separator or NONE}{between}",
        "first symbol": pipeline.first_symbol or NONE,
        **dict(zip(WAY_BACK, (pipeline.detokenizer, joined), strict=True)),
    }


def fingerprint(value: Any) -> str:
    """Return a checksum of JSON values, in eight digits."""
    return f"{zlib.crc32(json.dumps(value, sort_keys=True).encode()):08x}"


def require_same(
    own: Mapping[str, str],
    own_place: str | os.PathLike[str],
    other: Mapping[str, str],
    other_place: str | os.PathLike[str],
    advice: str,
    error: type[ReluNmtError] = CheckpointError,
) -> None:
    """Compare two descriptions, values in words, in the names that both have.

    Raises:
        ReluNmtError: they differ; its class is ``error``, its message ends with the advice.
    """
    # Stop at the first difference, leaving out names that only one side has.
    for name, value in own.items():
        if other.get(name, value) != value:
            raise error(
                f"{other_place}: the {name} is {other[name]}, but in {own_place} it is {value}; "
                f"{advice}"
            )


def at_folder(
    task: TranslationTask, path: str | os.PathLike[str], own_place: str = "the checkpoint"
) -> TranslationTask:
    """Return a task with the splits of a data folder, whose token ids must mean the same.

    Raises:
        DataError: the folder's dictionaries, or steps of its text, differ from the task's.
    """
    manifest = read_manifest(path)
    if not dictionary_path(path, task.source_lang).exists():
        infer_languages(path)  # raises the error of a folder without data
    # Compare the dictionaries.
    for own, language, flag in (
        (task.source_dictionary, task.source_lang, "--srcdict"),
        (task.target_dictionary, task.target_lang, "--tgtdict"),
    ):
        file = dictionary_path(path, language)
        if language == task.target_lang and not file.exists():  # source-only data
            continue
        dictionary = Dictionary.load(file)
        # Add the separator that the task has but the folder's file lacks.
        if task.separators is not None and SENTENCE_SEPARATOR not in dictionary:
            place = own.index(SENTENCE_SEPARATOR)
            dictionary = dictionary.with_symbol(SENTENCE_SEPARATOR, place)
        if dictionary != own:
            remedy = f"preprocess with {flag} and that" if task.folder else f"{LIKE} {own_place}"
            raise DataError(f"{file}: not the dictionary of {own_place}; {remedy}")
    # Compare the steps of the text, except for separators and sides that the folder lacks.
    if manifest is not None and _has_known_text(task):
        found = [
            replace(
                load_pipeline(path, manifest, own.language),
                sentence_separator=own.sentence_separator,
                separates_alone=own.separates_alone,
            )
            if own.language in manifest["text"]
            else own
            for own in (task.source_text, task.target_text)
        ]
        theirs = replace(task, source_text=found[0], target_text=found[1])
        advice = SAME_TEXT if task.folder else f"{LIKE} {own_place}, or translate raw text"
        known, other = (describe_task(one, way_back=False) for one in (task, theirs))
        require_same(known, own_place, other, path, advice, DataError)
    return replace(task, folder=Path(path))


def compare_with_data(
    path: Path,
    theirs: TranslationTask,
    own: TranslationTask,
    data: str,
    goes_on: bool,
    fresh_start: str,
) -> list[str]:
    """Compare the task of a checkpoint with that of a data folder; return notes for the user.

    If the training itself ``goes_on``, the languages must be the same. ``fresh_start`` is the
    advice of :meth:`TrainerConfig.fresh_start`.

    Raises:
        CheckpointError: languages, dictionaries or preparation of text differ.
    """
    pairs = [f"{task.source_lang}-{task.target_lang}" for task in (theirs, own)]
    if goes_on and pairs[0] != pairs[1]:
        raise CheckpointError(
            f"{path}: was trained on {pairs[0]}, not {pairs[1]}; give the same --source-lang "
            f"and --target-lang, or {fresh_start}"
        )
    # Compare the dictionaries; one may only add the separator behind the other symbols.
    for side in ("source", "target"):
        stored, given = (getattr(task, f"{side}_dictionary") for task in (theirs, own))
        if stored == given:
            continue
        if theirs.separators is not None and own.separators is None:
            raise CheckpointError(
                f"{path}: trained with --sentence-separator; {WITH_SEPARATOR}, or {fresh_start}"
            )
        adds_symbol = own.separators is not None and SENTENCE_SEPARATOR not in stored
        if not adds_symbol or stored.with_symbol(SENTENCE_SEPARATOR, len(stored)) != given:
            raise CheckpointError(
                f"{path}: trained with another {side} dictionary than that of "
                f"{data}; {LIKE} {path}, or {fresh_start}"
            )
    # Compare the preparation of the text, without languages, dictionaries and separators.
    notes = []
    known, found = (
        {k: v for k, v in describe_task(one, way_back=False).items() if not k.endswith(APART)}
        for one in (theirs, own)
    )
    # Recognize models of other toolkits: their checkpoints name no data folder.
    is_imported = "data" not in (read_metadata(path).get("args") or {})
    if not (is_imported and own.source_text.keeps_text and own.target_text.keeps_text):
        require_same(known, path, found, data, f"{LIKE} {path}, or {fresh_start}")
    elif found and found != known:
        notes.append(
            f"{path} takes raw text, but that of {data} is prepared; the new model takes "
            "text that is prepared in the same way"
        )
    if pairs[0] != pairs[1]:
        notes.append(f"{path} translates {pairs[0]}, and learns {pairs[1]} now")
    return notes
