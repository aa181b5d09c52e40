"""What a long job has finished, so that it goes on there when it is started again."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from relu_nmt.data.data_folder import file_record
from relu_nmt.io.safe_write import write_text

JOURNAL_NAME = "journal.json"


class Journal:
    """A working folder and the list of the finished steps of one job.

    A step counts as finished if the job had the same key and all files of the step are there
    with the same contents. The folder of a job with another key is emptied.

    Args:
        folder: the working folder; made if need be.
        key: stands for all settings and inputs of the job.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for attempt in range(2):
        ...         journal = Journal(Path(folder) / "work", key="settings")
        ...         print(journal.finish("sum", lambda: print("adding") or 1 + 1, ()))
        adding
        2
        2
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
        """Return the journal of a working folder; None if there is none or it is damaged."""
        try:
            content = json.loads((Path(folder) / JOURNAL_NAME).read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(content, dict) or not isinstance(content.get("steps"), dict):
            return None
        return content if isinstance(content.get("key"), str) else None

    def _save(self) -> None:
        write_text(self.folder / JOURNAL_NAME, json.dumps(self._content))

    def _record(self, step: str) -> dict[str, Any] | None:
        """Return the step's entry if its files are still as they were."""
        entry = self._content["steps"].get(step)
        if not isinstance(entry, dict) or not isinstance(entry.get("files"), dict):
            return None
        if "result" not in entry:
            return None
        for path, record in entry["files"].items():
            if not os.path.isfile(path) or file_record(path) != record:
                return None
        return entry

    def result(self, step: str) -> Any:
        """Return what a finished step returned; None if it is not finished."""
        entry = self._record(step)
        return None if entry is None else entry["result"]

    def note(self, step: str, result: Any, files: Mapping[Path, str | None]) -> None:
        """Write down that a step is finished.

        Args:
            step: its name.
            result: what it returned, as JSON values; not None.
            files: what it wrote: absolute paths and, if known already, their SHA-256.
        """
        records = {str(path): file_record(path, checksum) for path, checksum in files.items()}
        self._content["steps"][step] = {"result": result, "files": records}
        self._save()

    def finish(self, step: str, make: Callable[[], Any], files: tuple[Path, ...]) -> Any:
        """Return the result of a step, doing it with ``make`` unless it is finished.

        Args:
            step: its name.
            make: does it; returns JSON values, not None.
            files: absolute paths of what it writes.
        """
        result = self.result(step)
        if result is None:
            result = make()
            self.note(step, result, dict.fromkeys(files))
        return result

    def close(self) -> None:
        """Remove the working folder: the job is done."""
        shutil.rmtree(self.folder)
