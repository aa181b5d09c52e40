"""The input of relu-nmt-preprocess: its text files, files of pairs and word alignments."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from relu_nmt.cli.preprocess import PreprocessSettings
from relu_nmt.data.documents import check_parallel
from relu_nmt.data.pair_files import describe, pair_format, scan_pairs
from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import TextFile, find_text, scan_text
from relu_nmt.io.work import ordered_map, progress_bar

SideKey = tuple[str, str]
"""Split and language: ("train", "de")."""


def scan_inputs(
    config: PreprocessSettings,
    endings: Mapping[str, str],
    workers: int,
    say: Callable[[str], None],
) -> dict[SideKey, TextFile]:
    """Read through the text of each side of each split, and compare the sides.

    ``endings`` has the ending of the files of each language.
    """
    pair_files, paths = _find_texts(config, endings)
    # Read a file once, even if several splits or sides name it.
    distinct = list(dict.fromkeys(paths.values()))
    scanned: dict[str, TextFile] = {}
    found: dict[SideKey, TextFile] = {}
    report = []
    # Read through text files in parallel, and files of pairs one by one.
    total = sum(os.path.getsize(path) for path in (*distinct, *pair_files.values()))
    with progress_bar("scan", total) as advance:
        for path, text in ordered_map(scan_text, distinct, workers):
            scanned[path] = text
            advance(os.path.getsize(path))
        for split, path in pair_files.items():
            sides = scan_pairs(path, [*endings.values()], config.document_separator)
            found |= {(split, la): side for la, side in zip(endings, sides, strict=True)}
            report.append(describe(sides[0]))
            advance(os.path.getsize(path))
    # Print the report after the progress bar has ended.
    for line in report:
        say(line)
    found |= {key: scanned[path] for key, path in paths.items()}
    # Put the sides in the order of splits and languages.
    inputs = {
        (split, language): found[split, language]
        for split in config.splits()
        for language in config.languages
    }
    # Compare the sides; with separators, the text steps compare documents and sentences.
    for text in inputs.values():
        if text.num_lines == 0:
            raise DataError(f"{text.path}: the file is empty")
    for split in config.splits() if config.document_separator == "none" else ():
        texts = [inputs[split, language] for language in config.languages]
        check_parallel({text.path: text.num_lines for text in texts}, "lines")
        # Warn of blank lines, which may be boundaries of documents.
        if blank := min(text.num_blank for text in texts):
            say(
                f"NOTE: {texts[0].path}: {blank:,} blank lines become sentences without "
                "words; if they stand between documents, give --document-separator blank"
            )
    return inputs


def _find_texts(
    config: PreprocessSettings, endings: Mapping[str, str]
) -> tuple[dict[str, str], dict[SideKey, str]]:
    """Return the file of pairs of each split that has one, and the text files of the others."""
    pair_files: dict[str, str] = {}
    paths: dict[SideKey, str] = {}
    for split, prefix in config.splits().items():
        # Text files with the language as ending come before a file of pairs.
        files = {la: find_text(str(Path(f"{prefix}.{endings[la]}"))) for la in endings}
        if pair_format(prefix) and not any(map(os.path.isfile, files.values())):
            if not os.path.isfile(prefix):
                raise DataError(f"{prefix}: no such file")
            pair_files[split] = prefix
        else:
            paths |= {(split, language): path for language, path in files.items()}
    for (split, language), path in paths.items():
        if not os.path.isfile(path):
            flag = f"--{split.rstrip('0123456789')}pref"
            raise DataError(
                f"{path}: no such file; its name is that of {flag} with the language "
                f"'{endings[language]}' after a dot (and .gz, .xz, .bz2 or .zst if it is "
                "compressed)"
            )
    return pair_files, paths


def scan_alignments(
    config: PreprocessSettings,
    inputs: Mapping[SideKey, TextFile],
    workers: int,
    say: Callable[[str], None],
) -> dict[str, TextFile]:
    """Read through the word alignments of each split that has some; the training text must."""
    if config.align_suffix is None:
        return {}
    paths = {
        split: find_text(str(Path(f"{prefix}.{config.align_suffix}")))
        for split, prefix in config.splits().items()
    }
    # Only the training text, or the first split, must have alignments.
    existing = {split: path for split, path in paths.items() if os.path.isfile(path)}
    if ("train" if config.trainpref else next(iter(existing), None)) not in existing:
        raise DataError(
            f"{next(iter(paths.values()))}: no such file; it is to hold the word alignments "
            f"(--align-suffix {config.align_suffix}), a line for each line of the text"
        )
    for split in paths.keys() - existing:
        say(f"[alignments] {paths[split]}: no such file, so that {split} has none")
    # Read through the files, and compare them with the source text.
    scanned = ordered_map(scan_text, list(existing.values()), workers)
    found = {split: text for split, (_, text) in zip(existing, scanned, strict=True)}
    for split, text in found.items():
        source = inputs[split, config.languages[0]]
        check_parallel({one.path: one.num_lines for one in (source, text)}, "lines")
    return found
