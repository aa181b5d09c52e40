"""A data folder to make, and its inputs, which are read through before any work begins."""

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

from relu_nmt.data.data_folder import NEW_FILES, WORK_FOLDER, split_path
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.pair_files import pair_format, scan_pairs
from relu_nmt.errors import DataError
from relu_nmt.io.process import available_cores
from relu_nmt.io.progress import progress_bar
from relu_nmt.io.text_lines import TextFile, find_text, scan_text
from relu_nmt.io.workers import ordered_map
from relu_nmt.jobs.preprocess.settings import PreprocessSettings as Settings
from relu_nmt.tokenization.pipeline import TextPipeline

SideKey = tuple[str, str]  # split and language: ("train", "de")


@dataclass(frozen=True)
class NewFolder:
    """A data folder to make."""

    config: Settings  # with the languages and the text steps of the model of --like
    say: Callable[[str], None]  # prints a line
    endings: Mapping[str, str]  # the ending of the files of each language
    # Text steps and dictionary of the model of --like by language, empty without a model.
    model_pipelines: Mapping[str, TextPipeline] = field(default_factory=dict)
    model_dictionaries: Mapping[str, Dictionary] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Its absolute path."""
        return Path(self.config.destdir).absolute()

    @property
    def work(self) -> Path:
        """The folder of the journal and of text that the data folder will not have."""
        return self.path / WORK_FOLDER

    @property
    def new_files(self) -> Path:
        """The folder of the data folder's files until all are complete."""
        return self.work / NEW_FILES

    @property
    def workers(self) -> int:
        """Number of processes."""
        return self.config.workers or available_cores()

    def file(self, split: str, ending: str) -> Path:
        """Return the path of a new file of a split, see :func:`split_path`."""
        return split_path(self.new_files, split, self.config.pair, ending)


@dataclass(frozen=True)
class Inputs:
    """Size and checksum of each input."""

    texts: dict[SideKey, TextFile]  # each side of each split, in the order of the settings
    alignments: dict[str, TextFile]  # the word alignments of each split that has some


def scan_inputs(folder: NewFolder, open_files: ExitStack) -> Inputs:
    """Read through the text and the alignments of a folder. Refuse what does not fit together.

    The sides of files of pairs are written to files without a name, which are ``open_files``.
    """
    texts = _scan_texts(folder, open_files)
    _check_lines(folder, texts)
    return Inputs(texts, _scan_alignments(folder, texts))


def _scan_texts(folder: NewFolder, open_files: ExitStack) -> dict[SideKey, TextFile]:
    """Return the text of each side of each split as it is given."""
    pair_files, paths = _find_texts(folder)
    # Read a file once, even if several splits or sides name it.
    distinct = list(dict.fromkeys(paths.values()))
    scanned: dict[str, TextFile] = {}
    sides_of_pairs: dict[SideKey, TextFile] = {}
    reports = []
    new_file = partial(_new_file, folder.path, open_files)
    # Read through text files in parallel, and files of pairs one by one.
    total = sum(os.path.getsize(path) for path in (*distinct, *pair_files.values()))
    with progress_bar("scan", total) as advance:
        for path, text in ordered_map(scan_text, distinct, folder.workers):
            scanned[path] = text
            advance(os.path.getsize(path))
        for split, path in pair_files.items():
            endings = [*folder.endings.values()]
            sides, report = scan_pairs(path, endings, folder.config.document_separator, new_file)
            for language, side in zip(folder.endings, sides, strict=True):
                sides_of_pairs[split, language] = side
            reports.append(report)
            advance(os.path.getsize(path))
    for report in reports:
        folder.say(report)
    texts: dict[SideKey, TextFile] = {}
    for split in folder.config.splits():
        for language in folder.config.languages:
            key = (split, language)
            texts[key] = scanned[paths[key]] if key in paths else sides_of_pairs[key]
    return texts


def _find_texts(folder: NewFolder) -> tuple[dict[str, str], dict[SideKey, str]]:
    """Return the files of pairs by split, and the text files of all other splits."""
    endings = folder.endings
    pair_files: dict[str, str] = {}
    paths: dict[SideKey, str] = {}
    for split, prefix in folder.config.splits().items():
        # Text files with the language as ending come before a file of pairs.
        files = {lang: find_text(str(Path(f"{prefix}.{endings[lang]}"))) for lang in endings}
        if not any(map(os.path.isfile, files.values())) and pair_format(prefix):
            if not os.path.isfile(prefix):
                raise DataError(f"{prefix}: no such file")
            pair_files[split] = prefix
            continue
        for language, path in files.items():
            if not os.path.isfile(path):
                flag = f"--{split.rstrip('0123456789')}pref"
                raise DataError(
                    f"{path}: no such file; its name is that of {flag} with the language "
                    f"'{endings[language]}' after a dot (and .gz, .xz, .bz2 or .zst if it is "
                    "compressed)"
                )
            paths[split, language] = path
    return pair_files, paths


def _new_file(folder: Path, open_files: ExitStack) -> BinaryIO:
    """Open a file without a name, on the disk of the data folder, which need not exist yet."""
    disk = next(path for path in (folder, *folder.parents) if path.is_dir())
    try:
        return open_files.enter_context(tempfile.TemporaryFile(dir=disk))
    except OSError:  # the disk of a finished folder may be read-only
        return open_files.enter_context(tempfile.TemporaryFile())


def _check_lines(folder: NewFolder, texts: Mapping[SideKey, TextFile]) -> None:
    """Refuse empty files, and without separators also sides with different numbers of lines."""
    for text in texts.values():
        if text.num_lines == 0:
            raise DataError(f"{text.path}: the file is empty; give text, or leave the split out")
    if folder.config.document_separator != "none":
        return
    for split in folder.config.splits():
        sides = [texts[split, language] for language in folder.config.languages]
        check_parallel({side.path: side.num_lines for side in sides}, "lines")
        # Warn of blank lines, which may be boundaries of documents.
        num_blank = min(side.num_blank for side in sides)
        if num_blank:
            folder.say(
                f"NOTE: {sides[0].path}: {num_blank:,} blank lines become sentences without "
                "words; if they stand between documents, give --document-separator blank"
            )


def _scan_alignments(folder: NewFolder, texts: Mapping[SideKey, TextFile]) -> dict[str, TextFile]:
    """Return the word alignments of each split that has some, as the training text must."""
    suffix = folder.config.align_suffix
    if suffix is None:
        return {}
    existing: dict[str, str] = {}
    missing: dict[str, str] = {}
    for split, prefix in folder.config.splits().items():
        path = find_text(str(Path(f"{prefix}.{suffix}")))
        if os.path.isfile(path):
            existing[split] = path
        else:
            missing[split] = path
    # Only the training text, or else the first split, must have alignments.
    if "train" in missing or not existing:
        raise DataError(
            f"{next(iter(missing.values()))}: no such file; it is to hold the word alignments "
            f"(--align-suffix {suffix}), a line for each line of the text"
        )
    for split, path in missing.items():
        folder.say(f"[alignments] {path}: no such file, so that {split} has none")
    scanned = ordered_map(scan_text, list(existing.values()), folder.workers)
    alignments: dict[str, TextFile] = {}
    for split, (_, text) in zip(existing, scanned, strict=True):
        alignments[split] = text
        source = texts[split, folder.config.languages[0]]
        check_parallel({file.path: file.num_lines for file in (source, text)}, "lines")
    return alignments


def check_parallel(counts: Mapping[str, int], unit: str) -> None:
    """Refuse files with different numbers of lines or sentences (the ``unit``)."""
    (path, count), *other_counts = counts.items()
    for other, other_count in other_counts:
        if other_count != count:
            raise DataError(
                f"{path}: {count:,} {unit}, but {other} has {other_count:,}; both sides must be "
                "parallel, line by line"
            )
