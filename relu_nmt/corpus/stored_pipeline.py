"""The text pipeline of a data folder: described in its manifest, subword model beside it."""

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relu_nmt.data.manifest import file_record
from relu_nmt.errors import DataError
from relu_nmt.tokenization.base import SUBWORDS, SubwordModel
from relu_nmt.tokenization.pipeline import TextPipeline

FILE_NAMES = {"subword-nmt": ("subword", "codes"), "sentencepiece": ("sentencepiece", "model")}
AGAIN = "run relu-nmt-preprocess again"


def subword_file_name(name: str, language: str | None) -> str:
    """Return the name of a subword model's file in a data folder.

    Args:
        name: ``subword-nmt`` or ``sentencepiece``.
        language: whose model it is; None for one of both languages.
    """
    stem, ending = FILE_NAMES[name]
    return f"{stem}.{ending}" if language is None else f"{stem}.{language}.{ending}"


def load_subword(name: str, path: str | os.PathLike[str] | None) -> SubwordModel:
    """Return a subword model from its file.

    Args:
        name: ``none``, ``subword-nmt`` or ``sentencepiece``.
        path: a codes file of subword-nmt or a model file of SentencePiece; None for ``none``.

    Raises:
        DataError: the file is missing or no such model.
    """
    if path is None:
        return SUBWORDS.get("none")({})
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot read the subword model: {error.strerror}") from error
    try:
        if name == "sentencepiece":
            return SUBWORDS.get(name)({"model": base64.b64encode(content).decode("ascii")})
        return SUBWORDS.get(name)({"codes": content.decode("utf-8")})
    except (DataError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a model of {name}: {error}") from error


def load_pipeline(
    folder: str | os.PathLike[str], manifest: Mapping[str, Any], language: str
) -> TextPipeline:
    """Return the pipeline of one language of a data folder.

    Args:
        folder: the data folder.
        manifest: its manifest.
        language: as in the file names ("de").

    Raises:
        DataError: the manifest does not describe it, or the model's file is damaged.
    """
    description = manifest["text"].get(language)
    if not isinstance(description, dict):
        known = ", ".join(manifest["text"])
        raise DataError(f"{folder}: the data is in {known}, not in '{language}'")
    try:
        tokenizer, lowercase = str(description["tokenizer"]), bool(description["lowercase"])
        name, file_name = str(description["subword"]), description["subword_file"]
        record = None if file_name is None else manifest["files"][file_name]
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{folder}: the manifest's entry of '{language}' lacks {error}; {AGAIN}"
        ) from (error)
    if (name == "none") != (file_name is None) or (name != "none" and name not in FILE_NAMES):
        raise DataError(
            f"{folder}: the manifest's subword model of '{language}' is damaged ('{name}' in "
            f"{file_name!r}); {AGAIN}"
        )
    path = None if file_name is None else Path(folder) / file_name
    if path is not None and file_record(path)["sha256"] != record.get("sha256"):
        raise DataError(f"{path}: changed since it was made; {AGAIN}")
    return TextPipeline(language, tokenizer, lowercase, load_subword(name, path))
