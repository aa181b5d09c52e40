"""The names of the files in a data folder, as fairseq-preprocess gives them.

======================================  ==========================================================
``dict.de.txt``                         dictionary of one language
``train.de-en.de.bin``, ``.idx``        token numbers and sentence lengths of one side
``valid.de-en.en.raw``                  the raw sentences of a validation or test set
``train.de-en.documents``               sentences of each document (if boundaries are known)
``manifest.json``                       sizes, checksums, settings (not in fairseq's folders)
======================================  ==========================================================
"""

import os
import re
from pathlib import Path

from relu_nmt.data.indexed_dataset import idx_path
from relu_nmt.errors import DataError

MANIFEST_NAME = "manifest.json"
_INDEX_NAME = re.compile(r"(?P<split>[^.]+)\.(?P<src>[^.-]+)-(?P<tgt>[^.-]+)\.(?P<lang>[^.]+)\.idx")


def dictionary_path(folder: str | os.PathLike[str], language: str) -> Path:
    """Return the path of a language's dictionary."""
    return Path(folder) / f"dict.{language}.txt"


def pair_name(source_lang: str, target_lang: str | None) -> str:
    """Return the middle of the file names: ``de-en``; ``de-None`` for source-only data."""
    return f"{source_lang}-{target_lang}"


def split_prefix(
    folder: str | os.PathLike[str], split: str, pair: str, language: str | None = None
) -> Path:
    """Return ``folder/train.de-en`` or, with a language, ``folder/train.de-en.de``."""
    return Path(folder) / (f"{split}.{pair}" + (f".{language}" if language else ""))


def raw_path(folder: str | os.PathLike[str], split: str, pair: str, language: str) -> Path:
    """Return the path of the raw sentences of one side of a split."""
    return Path(f"{split_prefix(folder, split, pair, language)}.raw")


def documents_path(folder: str | os.PathLike[str], split: str, pair: str) -> Path:
    """Return the path of the side file with a split's document boundaries."""
    return Path(f"{split_prefix(folder, split, pair)}.documents")


def infer_languages(folder: str | os.PathLike[str]) -> tuple[str, str]:
    """Return source and target language, read from the names of the binarised files.

    Raises:
        DataError: the folder is missing or holds no binarised files, or several pairs.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise DataError(
            f"{folder}: cannot read the data folder: {error.strerror}; make it with "
            "relu-nmt-preprocess"
        ) from error
    matches = [match for name in names if (match := _INDEX_NAME.fullmatch(name))]
    pairs = {(match["src"], match["tgt"]) for match in matches}
    if not pairs:
        raise DataError(
            f"{folder}: no binarised corpus (no file like train.de-en.de.idx); make it with "
            "relu-nmt-preprocess"
        )
    if len(pairs) > 1:
        found = ", ".join("-".join(pair) for pair in sorted(pairs))
        raise DataError(
            f"{folder}: several language pairs ({found}); give --source-lang and --target-lang"
        )
    return pairs.pop()


def find_pair(
    folder: str | os.PathLike[str], split: str, source_lang: str, target_lang: str
) -> str:
    """Return the middle of the split's file names, whichever direction it was binarised in.

    The last that is tried is source-only data.

    Raises:
        DataError: the folder does not hold the split; the message lists those that it holds.
    """
    directions = [
        pair_name(source_lang, target_lang),
        pair_name(target_lang, source_lang),
        pair_name(source_lang, None),
    ]
    for pair in directions:
        if idx_path(split_prefix(folder, split, pair, source_lang)).exists():
            return pair
    wanted = idx_path(split_prefix(folder, split, directions[0], source_lang))
    names = os.listdir(folder) if os.path.isdir(folder) else []
    splits = {match["split"] for name in names if (match := _INDEX_NAME.fullmatch(name))}
    known = f"; the folder holds: {', '.join(sorted(splits))}" if splits else ""
    raise DataError(f"{wanted}: no such file; there is no split '{split}'{known}")
