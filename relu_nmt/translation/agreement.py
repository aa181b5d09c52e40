"""Comparison of what two models, or a model and data, must have in common to share text."""

import json
import os
import zlib
from collections.abc import Mapping
from typing import Any

from relu_nmt.errors import CheckpointError, ReluNmtError
from relu_nmt.tokenization.base import tokenizers
from relu_nmt.tokenization.pipeline import JoinedPieces, TextPipeline

NONE = "none"
WAY_BACK = ("detokeniser", "joining of pieces")
"""Steps of the text that change what comes out, and no token id."""


def describe_text(pipeline: TextPipeline) -> dict[str, str]:
    """Return each step of one language's text in words, by name."""
    subword, joined = pipeline.subword.to_state(), NONE
    if isinstance(pipeline.subword, JoinedPieces):  # which splits nothing
        subword, joined = {"name": NONE}, repr(pipeline.subword.symbol)
    model = subword.pop("name")
    tokenizer, version = pipeline.tokenizer, pipeline.tokenizer_version
    if version != tokenizers.get(tokenizer).version():
        tokenizer = f"{tokenizer} of version {version}"
    return {
        "tokeniser": tokenizer,
        "lower-casing": "on" if pipeline.lowercase else "off",
        "subword model": f"{model} {fingerprint(subword)}" if subword else model,
        "sentence separator": pipeline.sentence_separator or NONE,
        "first symbol": pipeline.first_symbol or NONE,
        **dict(zip(WAY_BACK, (pipeline.detokenizer, joined), strict=True)),
    }


def fingerprint(value: Any) -> str:
    """Return eight digits that tell values of JSON apart."""
    return f"{zlib.crc32(json.dumps(value, sort_keys=True).encode()):08x}"


def require_same(
    own: Mapping[str, str],
    own_place: str | os.PathLike[str],
    other: Mapping[str, str],
    other_place: str | os.PathLike[str],
    advice: str,
    error: type[ReluNmtError] = CheckpointError,
) -> None:
    """Compare two descriptions; a name that one of them lacks is not compared.

    Args:
        own: values in words, by name.
        own_place: the file or folder that they are from.
        other: the same of another one.
        other_place: the file or folder that these are from.
        advice: the end of the message, which tells what to do.
        error: class of the error.

    Raises:
        ReluNmtError: they differ; the message gives the first difference.
    """
    for name, value in own.items():
        if other.get(name, value) != value:
            raise error(
                f"{other_place}: the {name} is {other[name]}, but in {own_place} it is {value}; "
                f"{advice}"
            )
