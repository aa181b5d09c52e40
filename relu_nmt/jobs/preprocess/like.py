"""The data folder of ``--like``: the languages, text steps and dictionaries of a model."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from relu_nmt.config import flag_of
from relu_nmt.config.fields import options_of
from relu_nmt.data.dictionary import SENTENCE_SEPARATOR
from relu_nmt.errors import CheckpointError, ConfigError
from relu_nmt.jobs.preprocess.inputs import NewFolder
from relu_nmt.jobs.preprocess.settings import PreprocessSettings as Settings
from relu_nmt.tokenization.base import WholeWords, subword_models
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.building import stored_task

UNNAMED = ("source", "target")  # languages of an imported model whose files name none


def folder_like(settings: Settings, path: str, say: Callable[[str], None]) -> NewFolder:
    """Return a data folder with the languages, steps and dictionaries of the model at a path."""
    task = stored_task(path)
    if task is None:
        raise CheckpointError(
            f"{path}: has no dictionaries; give a checkpoint of a translation model"
        )
    pair = f"{task.source_lang} to {task.target_lang}"
    _check_language(settings, "source_lang", task.source_lang, pair, say)
    _check_language(settings, "target_lang", task.target_lang, pair, say)
    # Take the steps from raw text to the tokens of a data folder.
    pipelines = []
    for pipeline in (task.source_text, task.target_text):
        subword = pipeline.subword
        if isinstance(subword, WholeWords):
            subword = WholeWords()
        pipelines.append(
            replace(pipeline, subword=subword, sentence_separator=None, detokenizer="")
        )
    # Remove the separator from the dictionary: reading adds it to sentences.
    dictionaries = [task.source_dictionary, task.target_dictionary]
    if task.separators is not None:
        dictionaries = [words.without_symbol(SENTENCE_SEPARATOR) for words in dictionaries]
    config = _with_steps(settings, pipelines, dictionaries[0] == dictionaries[1])
    if pipelines[0].keeps_text:
        say(f"NOTE: the model of {path} takes prepared text; prepare this text in the same way")
    endings = (settings.source_lang or task.source_lang, settings.target_lang or task.target_lang)
    by_language = config.by_language
    return NewFolder(
        config, say, by_language(endings), by_language(pipelines), by_language(dictionaries)
    )


def _check_language(
    settings: Settings, name: str, model_code: str, pair: str, say: Callable[[str], None]
) -> None:
    """Refuse a code that cannot name the model's language: ``de`` is ``deu``, not ``fra``."""
    code = getattr(settings, name)
    if code in (None, model_code):
        return
    # Compare the first parts of the codes, if they are of one length.
    first = re.split("[_-]", code)[0].lower()
    second = re.split("[_-]", model_code)[0].lower()
    if first != second and len(first) == len(second) and model_code not in UNNAMED:
        raise ConfigError(
            f"{flag_of(name)} {code}: the model of --like {settings.like} translates from "
            f"{pair}; give text of these languages"
        )
    say(f"NOTE: {code} is taken for {model_code}, the language's name in {settings.like}")


def _with_steps(settings: Settings, pipelines: Sequence[TextPipeline], joined: bool) -> Settings:
    """Return the settings with the languages and the text steps of a model."""
    steps: list[dict[str, Any]] = []
    for pipeline in pipelines:
        subword = subword_models.name_of(type(pipeline.subword))
        step = {"tokenizer": pipeline.tokenizer, "lowercase": pipeline.lowercase}
        steps.append({**step, "subword": subword})
    # Refuse sides with different steps, which no settings describe, and flags that change steps.
    if steps[0] != steps[1]:
        raise ConfigError(
            f"--like {settings.like}: source and target have different text steps; prepare the "
            "text yourself, and give --srcdict and --tgtdict"
        )
    model_steps = steps[0] | {"joined_dictionary": joined}
    for name, value in model_steps.items():
        entry = options_of(Settings)[name]
        setting = getattr(settings, name)
        if setting not in (entry.default, value):
            raise ConfigError(
                f"{entry.with_value(setting)}: the model of --like {settings.like} has "
                f"{entry.with_value(value)}; leave the flag out"
            )
    source, target = pipelines
    if settings.only_source:
        return replace(settings, **steps[0], source_lang=source.language)
    return replace(
        settings, **model_steps, source_lang=source.language, target_lang=target.language
    )
