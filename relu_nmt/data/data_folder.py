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
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from relu_nmt.config import option
from relu_nmt.config.files import Files
from relu_nmt.data.indexed_dataset import idx_path
from relu_nmt.errors import DataError
from relu_nmt.io.safe_write import write_text

MANIFEST_NAME = "manifest.json"
JOURNAL_NAME = "journal.json"
FORMAT_NAME = "relu_nmt data folder"
FORMAT_VERSION = 1
AGAIN = "run relu-nmt-preprocess again"
REQUIRED = {"source_lang": str, "text": dict, "splits": dict, "files": dict}
OTHER_FOLDERS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("a folder of checkpoints, and ", lambda name: name.endswith((".safetensors", ".pt"))),
    ("a folder of images, and ", lambda name: name.endswith((".jpg", ".jpeg", ".png", ".zip"))),
    ("a folder of text, and ", lambda name: bool(re.search(r"\.[a-z]{2}(\.gz)?$|\.txt$", name))),
)
"""Folders that users give by mistake, each with a test for the name of one of its files."""
NO_LANGUAGE = str(None)
"""The target language in the names of source-only data, as in fairseq."""
FILE_NAMES = (
    r"dict\.[^.]+\.txt|[^.]+\.[^.-]+-[^.-]+\.(documents|[^.]+\.(bin|idx|raw))"
    r"|[^.]+\.align\.[^.-]+-[^.-]+\.(bin|idx)|manifest\.json"
    r"|subword(\.[^.]+)?\.codes|sentencepiece(\.[^.]+)?\.model"
)
"""Regular expression of the names of a data folder's files; a manifest may list further ones."""
_INDEX_NAME = re.compile(r"(?P<split>[^.]+)\.(?P<src>[^.-]+)-(?P<tgt>[^.-]+)\.(?P<lang>[^.]+)\.idx")


def data_folders(text: str) -> list[str]:
    """Return the folders of ``data-bin/shard0:data-bin/shard1``; a single one may hold a colon.

    Example:
        >>> data_folders("data-bin/a:data-bin/b")
        ['data-bin/a', 'data-bin/b']
    """
    return [text] if Path(text).exists() else text.split(":")


def dictionary_path(folder: str | os.PathLike[str], language: str) -> Path:
    """Return the path of a language's dictionary."""
    return Path(folder) / f"dict.{language}.txt"


def pair_name(source_lang: str, target_lang: str | None) -> str:
    """Return the middle of the file names: ``de-en``; ``de-None`` for source-only data."""
    return f"{source_lang}-{target_lang}"


def split_path(folder: str | os.PathLike[str], split: str, pair: str, ending: str) -> Path:
    """Return the path of a file of a split: ``folder/train.de-en.documents``.

    The ending is ``documents``, ``de.raw``, or ``de`` for the binarised text without ``.bin`` and
    ``.idx``.
    """
    return Path(folder) / f"{split}.{pair}.{ending}"


def alignment_path(folder: str | os.PathLike[str], split: str, pair: str) -> Path:
    """Return the path of a split's word alignments without ``.bin`` and ``.idx``, as in fairseq."""
    return Path(folder) / f"{split}.align.{pair}"


def names_in(folder: Path) -> str:
    """Return a regular expression of all file names that a data folder may have."""
    try:
        found = json.loads((folder / MANIFEST_NAME).read_bytes())["files"]
        listed = [re.escape(name) for name in found]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        listed = []
    return "|".join((FILE_NAMES, *listed))


DATA_FILES = Files(names=names_in, separator=":")
data_option = partial(option, metavar="DATA", positional=True, files=DATA_FILES)
"""Declare the data folder of a command, its first word."""


def infer_languages(folder: str | os.PathLike[str]) -> tuple[str, str]:
    """Return source and target language, read from the names of the binarised files.

    Source-only data has the target language :data:`NO_LANGUAGE`.

    Raises:
        DataError: the folder is missing, or holds no binarised files or several language pairs.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise DataError(
            f"{folder}: cannot read the data folder: {error.strerror}; make it with "
            "relu-nmt-preprocess"
        ) from error
    # Collect the pairs in the names of index files: train.de-en.de.idx.
    matches = [match for name in names if (match := _INDEX_NAME.fullmatch(name))]
    pairs = {(match["src"], match["tgt"]) for match in matches}
    if not pairs:
        found = next((kind for kind, ends in OTHER_FOLDERS if any(map(ends, names))), "")
        raise DataError(
            f"{folder}: {found}no binarised corpus (no file like train.de-en.de.idx); make it with "
            "relu-nmt-preprocess"
        )
    # Prefer pairs with both sides to source-only data.
    pairs = {pair for pair in pairs if pair[1] != NO_LANGUAGE} or pairs
    if len(pairs) > 1:
        found = ", ".join("-".join(pair) for pair in sorted(pairs))
        raise DataError(
            f"{folder}: several language pairs ({found}); give --source-lang and --target-lang"
        )
    return pairs.pop()


def find_pair(
    folder: str | os.PathLike[str], split: str, source_lang: str, target_lang: str
) -> str:
    """Return the middle of the split's file names, in either direction or of source-only data.

    Raises:
        DataError: the folder does not hold the split; the message lists its splits.
    """
    directions = [
        pair_name(source_lang, target_lang),
        pair_name(target_lang, source_lang),
        pair_name(source_lang, None),
    ]
    for pair in directions:
        if idx_path(split_path(folder, split, pair, source_lang)).exists():
            return pair
    wanted = idx_path(split_path(folder, split, directions[0], source_lang))
    names = os.listdir(folder) if os.path.isdir(folder) else []
    splits = {match["split"] for name in names if (match := _INDEX_NAME.fullmatch(name))}
    known = f"; the folder holds: {', '.join(sorted(splits))}" if splits else ""
    raise DataError(f"{wanted}: no such file; there is no split '{split}'{known}")


def file_record(path: str | os.PathLike[str], checksum: str | None = None) -> dict[str, Any]:
    """Return size in bytes and SHA-256 of a file; ``checksum`` is the SHA-256 if known."""
    if checksum is None:
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        checksum = digest.hexdigest()
    return {"bytes": os.stat(path).st_size, "sha256": checksum}


def write_manifest(folder: str | os.PathLike[str], content: dict[str, Any]) -> dict[str, Any]:
    """Write the manifest atomically; return it, with format name and version."""
    content = {"format": FORMAT_NAME, "version": FORMAT_VERSION, **content}
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_text(Path(folder) / MANIFEST_NAME, text)
    return content


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return the manifest of a data folder, or None if it has none (fairseq made it).

    Raises:
        DataError: the manifest is damaged, or a file it lists is missing or of another size.
    """
    content = manifest_content(folder)
    # Compare the files by size alone, which needs no reading.
    for name, record in ({} if content is None else content["files"]).items():
        file, size = Path(folder) / name, record["bytes"]
        if not file.is_file():
            raise DataError(f"{file}: missing, but {MANIFEST_NAME} lists it; {AGAIN}")
        if file.stat().st_size != size:
            raise DataError(
                f"{file}: {file.stat().st_size:,} bytes, but {MANIFEST_NAME} says {size:,}; {AGAIN}"
            )
    return content


def manifest_content(folder: str | os.PathLike[str], advice: str = AGAIN) -> dict[str, Any] | None:
    """Return the manifest of a data folder without checking its files; None without a manifest.

    Raises:
        DataError: the file is damaged, or no manifest of a data folder.
    """
    path = Path(folder) / MANIFEST_NAME
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: damaged manifest ({error}); {advice}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT_NAME:
        raise DataError(f"{path}: not the manifest of a data folder; {advice}")
    if content.get("version") != FORMAT_VERSION:
        raise DataError(
            f"{path}: version {content.get('version')!r}, but this program reads "
            f"{FORMAT_VERSION}; {advice}"
        )
    # Check the entries that reading a folder needs.
    for key, kind in REQUIRED.items():
        if not isinstance(content.get(key), kind):
            raise DataError(f"{path}: '{key}' is missing or damaged; {advice}")
    for name, record in content["files"].items():
        size = record.get("bytes") if isinstance(record, dict) else None
        # Refuse names with folders, which would lead out of this one.
        if not isinstance(size, int) or os.path.basename(name) != name:
            raise DataError(f"{path}: the entry of '{name}' is damaged; {advice}")
    return content


def verify_checksums(folder: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Compare the SHA-256 of every file with the manifest (DataError: a file was changed)."""
    for name, record in content["files"].items():
        if file_record(Path(folder) / name)["sha256"] != record.get("sha256"):
            raise DataError(
                f"{Path(folder) / name}: changed since it was made (its checksum differs from "
                f"{MANIFEST_NAME}); {AGAIN}"
            )


class Journal:
    """A working folder with the list of the finished steps of one job.

    A step counts as finished if the job had the same key, a hash of all its settings and inputs,
    and all files of the step still have the same contents. A job with another key empties the
    folder.
    """

    def __init__(self, folder: str | os.PathLike[str], key: str) -> None:
        self.folder = Path(folder)
        self._content: dict[str, Any] = {"key": key, "steps": {}}
        known = self.read(folder)
        if known is not None and known["key"] == key:
            self._content = known
        elif self.folder.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._save()

    @staticmethod
    def read(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
        """Return the journal of a working folder; None if it is missing or damaged."""
        try:
            content = json.loads((Path(folder) / JOURNAL_NAME).read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(content, dict) or not isinstance(content.get("steps"), dict):
            return None
        return content if isinstance(content.get("key"), str) else None

    def _save(self) -> None:
        write_text(self.folder / JOURNAL_NAME, json.dumps(self._content))

    def result(self, step: str) -> Any:
        """Return the result of a finished step; None if its files have changed since."""
        entry = self._content["steps"].get(step)
        if not isinstance(entry, dict) or not isinstance(entry.get("files"), dict):
            return None
        for path, record in entry["files"].items():
            if not os.path.isfile(path) or file_record(path) != record:
                return None
        return entry.get("result")

    def note(self, step: str, result: Any, files: Mapping[Path, str | None]) -> None:
        """Add a finished step, its JSON result (not None), and its files, with SHA-256 or None."""
        records = {str(path): file_record(path, checksum) for path, checksum in files.items()}
        self._content["steps"][step] = {"result": result, "files": records}
        self._save()

    def finish(self, step: str, make: Callable[[], Any], files: tuple[Path, ...]) -> Any:
        """Return the result of a step; call ``make`` to do it unless it is finished."""
        result = self.result(step)
        if result is None:
            result = make()
            self.note(step, result, dict.fromkeys(files))
        return result

    def close(self) -> None:
        """Remove the working folder when the job is done."""
        shutil.rmtree(self.folder)
