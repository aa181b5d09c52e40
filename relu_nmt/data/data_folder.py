"""The files of a data folder: names as in fairseq-preprocess, a manifest, and a journal.

======================================  ==========================================================
``dict.de.txt``                         dictionary of one language
``train.de-en.de.bin``, ``.idx``        token ids and sentence lengths of one side
``valid.de-en.en.raw``                  the raw sentences of a validation or test set
``train.de-en.documents``               sentences of each document (if boundaries are known)
``train.align.de-en.bin``, ``.idx``     aligned tokens of each pair of sentences (if known)
``manifest.json``                       sizes, checksums, settings (not in fairseq's folders)
======================================  ==========================================================
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from relu_nmt.config import Files, option
from relu_nmt.config.stored import checked, parse_json
from relu_nmt.errors import IN_BRACKETS, DataError, reporting
from relu_nmt.io.safe_write import plain_file, write_text

MANIFEST_NAME = "manifest.json"
JOURNAL_NAME = "journal.json"
WORK_FOLDER = "preprocess.unfinished"  # has the journal of a run that has not ended
NEW_FILES = "files"  # folder in it with the files that are complete
COMPLETE_FOLDER = "preprocess.complete"  # has the files of a complete run until they are moved
FORMAT_NAME = "relu_nmt data folder"
FORMAT_VERSION = 1
AGAIN = "run relu-nmt-preprocess again"
# The forms of the entries that readers of a manifest and of a journal use, see :func:`checked`.
TEXT_FORM = {
    "tokenizer": str,
    "tokenizer_version?": int,
    "lowercase": bool,
    "first_symbol?": str | None,
    "subword": str,
    "subword_file": str | None,
}
MANIFEST_FORM = {
    "source_lang": str,
    "text": {"*": TEXT_FORM},
    "splits": dict[str, Any],
    "files": {"*": {"bytes": int, "sha256?": str}},
}
JOURNAL_FORM = {"key": str, "steps": {"*": {"result": Any, "files": Any}}}
# Folders that users give by mistake, each with the endings of its files.
OTHER_FOLDERS = {
    "a folder of checkpoints, and ": r"\.(safetensors|pt)$",
    "a folder of images, and ": r"\.(jpg|jpeg|png|zip)$",
    "a folder of text, and ": r"\.[a-z]{2}(\.gz)?$|\.txt$",
}
NO_LANGUAGE = str(None)  # the target language in the names of source-only data, as in fairseq
# Regular expression of the names of a data folder's files. A manifest may list further ones.
FILE_NAMES = (
    r"dict\.[^.]+\.txt|[^.]+\.[^.-]+-[^.-]+\.(documents|[^.]+\.(bin|idx|raw))"
    r"|[^.]+\.align\.[^.-]+-[^.-]+\.(bin|idx)|manifest\.json"
    r"|subword(\.[^.]+)?\.codes|sentencepiece(\.[^.]+)?\.model"
)
_INDEX_NAME = re.compile(r"(?P<split>[^.]+)\.(?P<src>[^.-]+)-(?P<tgt>[^.-]+)\.(?P<lang>[^.]+)\.idx")


def dictionary_path(folder: str | os.PathLike[str], language: str) -> Path:
    """Return the path of a language's dictionary."""
    return Path(folder) / f"dict.{language}.txt"


def pair_name(source_lang: str, target_lang: str | None) -> str:
    """Return the middle of the file names: ``de-en``. ``de-None`` for source-only data."""
    return f"{source_lang}-{target_lang}"


def split_path(folder: str | os.PathLike[str], split: str, pair: str, ending: str) -> Path:
    """Return the path ``folder/train.de-en.ENDING``: ``documents``, ``de.raw``, ``de``."""
    return Path(folder) / f"{split}.{pair}.{ending}"


def paths_of(prefix: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Return the paths of the two files of binarized text, ``prefix.idx`` and ``prefix.bin``."""
    return Path(f"{os.fspath(prefix)}.idx"), Path(f"{os.fspath(prefix)}.bin")


def alignment_path(folder: str | os.PathLike[str], split: str, pair: str) -> Path:
    """Return the path of a split's word alignments without ``.bin`` and ``.idx``, as in fairseq."""
    return Path(folder) / f"{split}.align.{pair}"


def names_in(folder: Path) -> str:
    """Return a regular expression of all file names that a data folder may have."""
    try:
        content = parse_json(plain_file(folder / MANIFEST_NAME).read_bytes())
        names = checked({"files": dict[str, Any]}, content)["files"]
    except (OSError, ValueError):
        names = {}
    return "|".join((FILE_NAMES, *map(re.escape, names)))


DATA_FILES = Files(names=names_in, separator=":")
data_option = partial(option, metavar="DATA", positional=True, files=DATA_FILES)
"""Declare the data folder of a command, its first word."""


def infer_languages(folder: str | os.PathLike[str]) -> tuple[str, str]:
    """Return source and target language by the file names. The target may be NO_LANGUAGE."""
    made = "make it with relu-nmt-preprocess"
    with reporting(f"{folder}: cannot read the data folder", advice=made):
        names = sorted(os.listdir(folder))
    pairs = {(match["src"], match["tgt"]) for match in _index_names(names)}
    if not pairs:
        description = ""
        for kind, ending in OTHER_FOLDERS.items():
            if any(re.search(ending, name) for name in names):
                description = kind
                break
        raise DataError(
            f"{folder}: {description}no binarized corpus (no file like train.de-en.de.idx); {made}"
        )
    # Prefer pairs with both sides to source-only data.
    pairs = {pair for pair in pairs if pair[1] != NO_LANGUAGE} or pairs
    if len(pairs) > 1:
        names_of_pairs = ", ".join(map("-".join, sorted(pairs)))
        raise DataError(
            f"{folder}: several language pairs ({names_of_pairs}); give --source-lang and "
            "--target-lang"
        )
    return pairs.pop()


def _index_names(names: Iterable[str]) -> Iterator[re.Match[str]]:
    """Yield the matches of the names of index files: train.de-en.de.idx."""
    return filter(None, map(_INDEX_NAME.fullmatch, names))


def find_pair(
    folder: str | os.PathLike[str], split: str, source_lang: str, target_lang: str
) -> str:
    """Return the middle of a split's file names, of either direction or of source-only data."""
    pair = pair_name(source_lang, target_lang)
    for name in (pair, pair_name(target_lang, source_lang), pair_name(source_lang, None)):
        if paths_of(split_path(folder, split, name, source_lang))[0].exists():
            return name
    available = ""
    if os.path.isdir(folder):
        splits = {match["split"] for match in _index_names(os.listdir(folder))}
        available = f"; the folder holds: {', '.join(sorted(splits))}" if splits else ""
    path, _ = paths_of(split_path(folder, split, pair, source_lang))
    raise DataError(f"{path}: no such file; there is no split '{split}'{available}")


def file_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return size in bytes and SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}


def write_manifest(folder: str | os.PathLike[str], content: dict[str, Any]) -> dict[str, Any]:
    """Write the manifest atomically. Return it, with format name and version."""
    content = {"format": FORMAT_NAME, "version": FORMAT_VERSION, **content}
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_text(Path(folder) / MANIFEST_NAME, text)
    return content


def read_manifest(
    folder: str | os.PathLike[str], with_checksums: bool = False
) -> dict[str, Any] | None:
    """Return the manifest of a folder, None without one. Refuse files that do not fit it."""
    content = manifest_content(folder)
    if content is None and (Path(folder) / WORK_FOLDER).exists():
        raise DataError(
            f"{folder}: relu-nmt-preprocess has not finished it; start that command again, which "
            "continues where it stopped"
        )
    if content is None:
        return None
    # Compare the sizes, which needs no reading, and the checksums if they are wanted.
    for name, record in content["files"].items():
        file = Path(folder) / name
        size = record["bytes"]
        if not os.path.isfile(file):
            raise DataError(f"{file}: missing, but {MANIFEST_NAME} lists it; {AGAIN}")
        if file.stat().st_size != size:
            raise DataError(
                f"{file}: {file.stat().st_size:,} bytes, but {MANIFEST_NAME} says {size:,}; {AGAIN}"
            )
        if with_checksums and file_record(file)["sha256"] != record.get("sha256"):
            raise DataError(
                f"{file}: changed since it was made (its checksum differs from {MANIFEST_NAME}); "
                f"{AGAIN}"
            )
    return content


def manifest_content(folder: str | os.PathLike[str], advice: str = AGAIN) -> dict[str, Any] | None:
    """Return the manifest of a data folder, its files unchecked. None without a manifest."""
    path = Path(folder) / MANIFEST_NAME
    if not path.exists():
        return None
    try:
        content = parse_json(plain_file(path).read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: damaged manifest ({error}); {advice}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT_NAME:
        raise DataError(f"{path}: not the manifest of a data folder; {advice}")
    if content.get("version") != FORMAT_VERSION:
        raise DataError(
            f"{path}: version {content.get('version')!r}, but this program reads "
            f"{FORMAT_VERSION}; {advice}"
        )
    with reporting(f"{path}: damaged", caught=ValueError, form=IN_BRACKETS, advice=advice):
        manifest = checked(MANIFEST_FORM, content, "manifest")
    for name in manifest["files"]:
        # Refuse names with folders, which would lead out of this one.
        if os.path.basename(name) != name:
            raise DataError(f"{path}: the entry of {name!r} is damaged; {advice}")
    return manifest


class Journal:
    """The finished steps of a job: their results, and records of their files.

    A step has the name of its first file. It is finished if its job had the same key and its files
    are unchanged. A working folder of another key is emptied.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._path = folder / JOURNAL_NAME
        stored = None
        with suppress(OSError, ValueError):
            stored = checked(JOURNAL_FORM, parse_json(plain_file(self._path).read_bytes()))
        if stored is None or stored["key"] != key:
            if folder.exists():
                shutil.rmtree(folder)
            stored = {"key": key, "steps": {}}
        self._content = stored
        (folder / NEW_FILES).mkdir(parents=True, exist_ok=True)

    def finish_all(
        self,
        steps: Mapping[Any, Sequence[Path]],
        work: Callable[[list[Any]], Iterable[Any]],
        form: Any = Any,
    ) -> dict[Any, Any]:
        """Return the results of steps, given their files. ``work`` computes the missing ones."""
        todo = [step for step, files in steps.items() if not self._is_finished(files, form)]
        for step, result in zip(todo, work(todo) if todo else (), strict=True):
            self._note(steps[step], result)
        finished = self._content["steps"]
        return {step: finished[files[0].name]["result"] for step, files in steps.items()}

    def finish(self, make: Callable[[], Any], files: Sequence[Path], form: Any = Any) -> Any:
        """Return the result of a step. Call ``make`` to do it unless it is finished."""
        if not self._is_finished(files, form):
            self._note(files, make())
        return self._content["steps"][files[0].name]["result"]

    def _note(self, files: Sequence[Path], result: Any) -> None:
        """Write down a finished step at once, so that an interrupted run keeps it."""
        records = list(map(file_record, files))
        self._content["steps"][files[0].name] = {"result": result, "files": records}
        write_text(self._path, json.dumps(self._content))

    def _is_finished(self, files: Sequence[Path], form: Any) -> bool:
        with suppress(KeyError, OSError, ValueError):
            step = self._content["steps"][files[0].name]
            checked(form, step["result"])
            return step["files"] == list(map(file_record, files))
        return False


def move_complete_files(folder: Path) -> None:
    """Move the files of a complete run into their data folder, or go on with that."""
    complete = folder / COMPLETE_FOLDER
    if complete.exists():
        # Move the manifest last, since it marks the data folder as complete.
        for path in sorted(complete.iterdir(), key=lambda path: path.name == MANIFEST_NAME):
            path.replace(folder / path.name)
        shutil.rmtree(folder / WORK_FOLDER, ignore_errors=True)
        complete.rmdir()
