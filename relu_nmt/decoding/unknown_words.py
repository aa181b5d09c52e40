"""Replacing unknown words by what they attend to (``--replace-unk``)."""

import os
from collections.abc import Mapping, Sequence

import numpy as np

from relu_nmt.errors import DataError


def replace_unknown_words(
    tokens: Sequence[str],
    source_tokens: Sequence[str],
    alignment: np.ndarray,
    unk: str,
    translations: Mapping[str, str],
) -> list[str]:
    """Return ``tokens`` with every ``unk`` replaced by its source token or that one's translation.

    Args:
        tokens: output tokens without the end symbol.
        source_tokens: source tokens as they were before unknown ones became one symbol.
        alignment: source position of each output token, [T].
        unk: the unknown word.
        translations: source token to target token, for those that are not to be copied.

    Reference: Luong et al. 2015, "Addressing the rare word problem", section 3 (with attention
    instead of alignments learnt beforehand).
    """
    replaced = []
    for token, position in zip(tokens, alignment, strict=False):
        if token == unk and position < len(source_tokens):
            source = source_tokens[position]
            token = translations.get(source, source)
        replaced.append(token)
    return replaced


def load_translations(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read a dictionary for :func:`replace_unknown_words`: lines ``source target``.

    Raises:
        DataError: the file cannot be read, or a line does not have two words.
    """
    translations = {}
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                words = line.split()
                if len(words) != 2:
                    raise DataError(
                        f"{path}:{number}: expected 'source target', found {line.strip()[:60]!r}"
                    )
                translations[words[0]] = words[1]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--replace-unk {path}: cannot read the file: {error}") from error
    return translations
