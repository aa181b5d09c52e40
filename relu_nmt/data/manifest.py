"""``manifest.json``: what a data folder holds, how it was made, and checksums of its files."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from relu_nmt.data.data_folder import MANIFEST_NAME
from relu_nmt.errors import DataError
from relu_nmt.io.safe_write import write_text

FORMAT_NAME = "relu_nmt data folder"
FORMAT_VERSION = 1
REQUIRED = {"source_lang": str, "text": dict, "splits": dict, "files": dict}


def file_record(path: str | os.PathLike[str], checksum: str | None = None) -> dict[str, Any]:
    """Return size in bytes and SHA-256 of a file, as the manifest lists them.

    Args:
        path: the file.
        checksum: its SHA-256 if it is known already.
    """
    if checksum is None:
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        checksum = digest.hexdigest()
    return {"bytes": os.stat(path).st_size, "sha256": checksum}


def write_manifest(folder: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Write the manifest, whole or not at all; format name and version are added."""
    content = {"format": FORMAT_NAME, "version": FORMAT_VERSION, **content}
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_text(Path(folder) / MANIFEST_NAME, text)


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return the manifest of a data folder, or None if it has none (fairseq made it).

    Raises:
        DataError: the manifest is damaged, or a file it lists is missing or of another size.
    """
    path = Path(folder) / MANIFEST_NAME
    if not path.exists():
        return None
    again = "run relu-nmt-preprocess again"
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: damaged manifest ({error}); {again}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT_NAME:
        raise DataError(f"{path}: not the manifest of a data folder; {again}")
    if content.get("version") != FORMAT_VERSION:
        raise DataError(
            f"{path}: version {content.get('version')!r}, but this program reads "
            f"{FORMAT_VERSION}; {again}"
        )
    for key, kind in REQUIRED.items():
        if not isinstance(content.get(key), kind):
            raise DataError(f"{path}: '{key}' is missing or damaged; {again}")
    for name, record in content["files"].items():
        size = record.get("bytes") if isinstance(record, dict) else None
        if not isinstance(size, int) or os.path.basename(name) != name:
            raise DataError(f"{path}: the entry of '{name}' is damaged; {again}")
        file = Path(folder) / name
        if not file.is_file():
            raise DataError(f"{file}: missing, but {MANIFEST_NAME} lists it; {again}")
        if file.stat().st_size != size:
            raise DataError(
                f"{file}: {file.stat().st_size:,} bytes, but {MANIFEST_NAME} says {size:,}; {again}"
            )
    return content


def verify_checksums(folder: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Read every file that the manifest lists and compare its SHA-256.

    Raises:
        DataError: a file was changed.
    """
    for name, record in content["files"].items():
        if file_record(Path(folder) / name)["sha256"] != record.get("sha256"):
            raise DataError(
                f"{Path(folder) / name}: changed since it was made (its checksum differs from "
                f"{MANIFEST_NAME}); run relu-nmt-preprocess again"
            )
