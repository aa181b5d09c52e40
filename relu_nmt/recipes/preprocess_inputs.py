"""The input files of relu-nmt-preprocess: found, read through once and compared."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from relu_nmt.cli.preprocess import PreprocessSettings
from relu_nmt.data.documents import SEPARATOR_TESTS, check_parallel
from relu_nmt.data.pair_files import describe, pair_format, scan_pairs
from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import TextFile, find_text, read_chunk, scan_text
from relu_nmt.io.work import ordered_map, progress_bar
from relu_nmt.tokenization.pipeline import TextPipeline

SideKey = tuple[str, str]
"""Split and language: ("train", "de")."""
SAMPLED_LINES, SAMPLED_CHUNKS = 1000, 20
SAMPLED_CHARACTERS = 1_000_000
SMALL_SHARE = 0.01
"""Share of changed lines that is too small for advice."""


def scan_inputs(
    config: PreprocessSettings, workers: int, say: Callable[[str], None]
) -> dict[SideKey, TextFile]:
    """Read through the text of each side of each split.

    Raises:
        DataError: a file is missing or empty, not UTF-8, or not parallel to its counterpart.
    """
    pair_files, paths = _find_texts(config)
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
            sides = scan_pairs(path, config.languages, config.document_separator)
            found |= {(split, side.language): side for side in sides}
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


def _find_texts(config: PreprocessSettings) -> tuple[dict[str, str], dict[SideKey, str]]:
    """Return the file of pairs of each split that has one, and the text files of the others."""
    pair_files: dict[str, str] = {}
    paths: dict[SideKey, str] = {}
    for split, prefix in config.splits().items():
        # Text files with the language as ending come before a file of pairs.
        files = {la: find_text(str(Path(f"{prefix}.{la}"))) for la in config.languages}
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
                f"'{language}' after a dot (and .gz, .xz, .bz2 or .zst if it is compressed)"
            )
    return pair_files, paths


def scan_alignments(
    config: PreprocessSettings,
    inputs: Mapping[SideKey, TextFile],
    workers: int,
    say: Callable[[str], None],
) -> dict[str, TextFile]:
    """Read through the word alignments of each split that has some.

    Raises:
        DataError: the training text has none, or a file is not parallel to its text.
    """
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


def describe_round_trip(pipeline: TextPipeline, text: TextFile, separator: str) -> str:
    """Report in one line how many sampled lines survive encoding and decoding.

    White space does not count, nor does case if the text is lower-cased.
    """
    total = kept = length = 0
    for line in _sample(text, separator):
        # Remove differences that tokens cannot keep: white space and case.
        expected = " ".join(line.split())
        if pipeline.lowercase:
            expected = expected.lower()
        total, length = total + 1, length + len(line)
        kept += pipeline.decode(pipeline.encode(line)) == expected
        if length > SAMPLED_CHARACTERS:
            break
    share = f"{kept / max(1, total):.1%}"
    report = f"{kept:,} of {total:,} sampled lines ({share}) come back from their tokens unchanged"
    # Advise subwords that lose nothing, if many lines change.
    if total - kept > SMALL_SHARE * total and pipeline.tokenizer != "none":
        report += "; --subword sentencepiece without --tokenizer changes none"
    return report


def _sample(text: TextFile, separator: str) -> Iterator[str]:
    """Yield lines of chunks that are spread evenly over the text."""
    separates = SEPARATOR_TESTS[separator]
    every = max(1, len(text.chunks) // SAMPLED_CHUNKS)
    share = SAMPLED_LINES // min(len(text.chunks), SAMPLED_CHUNKS)
    for number, chunk in enumerate(text.readable_chunks()):
        if number % every == 0 and number < every * SAMPLED_CHUNKS:
            lines = [line for line in read_chunk(chunk) if line.strip() and not separates(line)]
            yield from lines[:: max(1, len(lines) // share)][:share]
