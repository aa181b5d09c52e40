"""Settings, text steps and dictionaries that a data folder takes from a model (``--like``)."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from relu_nmt.cli.preprocess import PreprocessSettings as Settings
from relu_nmt.config.fields import flag_of, options_of
from relu_nmt.data.dictionary import SENTENCE_SEPARATOR, Dictionary
from relu_nmt.errors import CheckpointError, ConfigError
from relu_nmt.tokenization.base import WholeWords, subword_models
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.training.checkpoint import read_metadata
from relu_nmt.translation.encoder_decoder import refuse_images
from relu_nmt.translation.task import TranslationTask

UNNAMED = ("source", "target")
"""Languages of an imported model whose files name none."""


def like_model(
    settings: Settings, say: Callable[[str], None]
) -> tuple[Settings, dict[str, str], dict[str, TextPipeline], dict[str, Dictionary]]:
    """Return the settings with languages and text steps of the model of ``--like``, and its parts.

    Returns:
        the settings; by language the ending of its files, its text steps and its dictionary.

    Raises:
        CheckpointError: the file is missing, damaged, or not that of a translation model.
        ConfigError: a flag contradicts the model.
    """
    path = str(settings.like)
    metadata = read_metadata(path)
    refuse_images(path, metadata)
    if "task" not in metadata:
        raise CheckpointError(
            f"{path}: has no dictionaries; give a checkpoint of a translation model"
        )
    task = TranslationTask.from_state(metadata["task"])
    for name, text in (("source_lang", task.source_text), ("target_lang", task.target_text)):
        _check_language(settings, name, text.language, task, say)
    texts = _of_data(task.source_text), _of_data(task.target_text)
    # Free the place of the separator: reading adds it to sentences.
    words = [task.source_dictionary, task.target_dictionary]
    if task.has_sentence_separator:
        words = [one.without_symbol(SENTENCE_SEPARATOR) for one in words]
    endings = settings.source_lang, settings.target_lang
    settings = _with_steps(settings, TranslationTask(texts[0], texts[1], words[0], words[1]))
    if texts[0].keeps_text:
        say(f"NOTE: the model of {path} takes prepared text; prepare this text in the same way")
    # Leave out the target side if there is no target text.
    sides = list(zip(settings.languages, endings, texts, words, strict=False))
    return (
        settings,
        {language: ending or language for language, ending, _, _ in sides},
        {language: text for language, _, text, _ in sides},
        {language: dictionary for language, _, _, dictionary in sides},
    )


def _of_data(text: TextPipeline) -> TextPipeline:
    """Return the steps from raw text to the tokens of a data folder."""
    subword = WholeWords() if isinstance(text.subword, WholeWords) else text.subword
    return replace(text, subword=subword, sentence_separator=None, detokenizer="")


def _check_language(
    settings: Settings, name: str, theirs: str, task: TranslationTask, say: Callable[[str], None]
) -> None:
    """Raise a ConfigError if the given code of a language cannot be that of the model.

    ``de`` may name the same as ``deu_Latn``, but not as ``fra``.
    """
    given = getattr(settings, name)
    if given in (None, theirs):
        return
    # Compare the first parts of the codes, if they are of one length.
    own, other = (re.split("[_-]", code)[0].lower() for code in (given, theirs))
    if own != other and len(own) == len(other) and theirs not in UNNAMED:
        raise ConfigError(
            f"{flag_of(name)} {given}: the model of --like {settings.like} translates from "
            f"{task.source_lang} to {task.target_lang}; give text of these languages"
        )
    say(f"NOTE: {given} is taken for {theirs}, the language's name in {settings.like}")


def _with_steps(settings: Settings, task: TranslationTask) -> Settings:
    """Return the settings with the languages and the text steps of a task."""
    steps: list[dict[str, Any]] = [
        {
            "tokenizer": text.tokenizer,
            "lowercase": text.lowercase,
            "subword": subword_models.name_of(type(text.subword)),
        }
        for text in (task.source_text, task.target_text)
    ]
    # Refuse sides with other steps, which no settings describe, and flags that change steps.
    if steps[0] != steps[1]:
        raise ConfigError(
            f"--like {settings.like}: source and target have other text steps; prepare the text "
            "yourself, and give --srcdict and --tgtdict"
        )
    theirs = steps[0] | {"joined_dictionary": task.joined_dictionary}
    for name, value in theirs.items():
        entry, given = options_of(Settings)[name], getattr(settings, name)
        if given not in (entry.default, value):
            raise ConfigError(
                f"{entry.with_value(given)}: the model of --like {settings.like} has "
                f"{entry.with_value(value)}; leave the flag out"
            )
    if settings.only_source:
        return replace(settings, **steps[0], source_lang=task.source_lang)
    return replace(settings, **theirs, source_lang=task.source_lang, target_lang=task.target_lang)
