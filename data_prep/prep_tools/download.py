"""Downloads that go on where they stopped, and checksums."""

import dataclasses
import hashlib
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from prep_tools.command import PrepError, say
from relu_nmt.io.safe_write import write_text

CHUNK_BYTES = 1 << 20
ATTEMPTS = 5
TIMEOUT_SECONDS = 60
REPORT_SECONDS = 5
RANGE_NOT_SATISFIABLE = 416
PARTIAL_CONTENT = 206


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def verify(path: Path, sha256: str | None) -> None:
    """Check a file against its SHA-256, if that is known.

    Raises:
        PrepError: the checksums differ.
    """
    if sha256 is None:
        return
    checksum = sha256_of(path)
    if checksum != sha256.lower():
        raise PrepError(
            f"{path}: SHA-256 is {checksum}, expected {sha256.lower()}; the file is damaged or "
            "another version: remove it and fetch it again, or correct --sha256"
        )


@dataclasses.dataclass
class _Part:
    """An incomplete download: ``NAME.part``, and the version that the server gave it."""

    path: Path
    url: str

    @property
    def note(self) -> Path:
        """The file that holds the address and the version of the part."""
        return self.path.with_name(self.path.name + ".json")

    def size(self) -> int:
        """Return the size of the part in bytes."""
        return self.path.stat().st_size if self.path.exists() else 0

    def version(self) -> str | None:
        """Return the version of the part, None if it is unknown or of another address."""
        try:
            note = json.loads(self.note.read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return note.get("version") if note.get("url") == self.url else None

    def begin(self, version: str | None) -> None:
        """Start again with the current version of the server."""
        self.path.unlink(missing_ok=True)
        write_text(self.note, json.dumps({"url": self.url, "version": version}))

    def finish(self, path: Path) -> None:
        """Give the complete file its name."""
        self.path.replace(path)
        self.note.unlink(missing_ok=True)


def _version(headers: http.client.HTTPMessage) -> str | None:
    """Return the version of the file: a strong ETag, or the date of its last change."""
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _copy(response: http.client.HTTPResponse, part: _Part, total: int | None) -> None:
    """Append the response to the part, and report progress now and then.

    Raises:
        ConnectionError: the connection ended before the announced size.
    """
    reported = time.monotonic()
    with open(part.path, "ab") as file:
        while chunk := response.read(CHUNK_BYTES):
            file.write(chunk)
            if time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                of_total = f" of {total / 1e6:,.0f}" if total else ""
                say(f"  {file.tell() / 1e6:,.0f}{of_total} MB")
    if total is not None and part.size() < total:
        raise ConnectionError(f"the connection ended at byte {part.size():,} of {total:,}")


def _total_size(response: http.client.HTTPResponse, begin: int) -> int | None:
    length = response.headers.get("Content-Length")
    return begin + int(length) if length and length.isdigit() else None


def _request(part: _Part) -> None:
    """Fetch the rest of the part.

    Raises:
        OSError: no connection, or it ended early (with HTTPError for an answer of the server).
    """
    begin = part.size()
    version = part.version()
    request = urllib.request.Request(part.url)
    if begin and version:
        request.add_header("Range", f"bytes={begin}-")
        # Another version on the server is sent whole instead.
        request.add_header("If-Range", version)
    else:
        begin = 0
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        continues = response.status == PARTIAL_CONTENT and (
            response.headers.get("Content-Range", "").startswith(f"bytes {begin}-")
        )
        if not continues:
            begin = 0
            part.begin(_version(response.headers))
        _copy(response, part, _total_size(response, begin))


def _fetch_from(url: str, path: Path) -> None:
    """Fetch one address. Try again when the connection fails.

    Raises:
        PrepError: it could not be fetched.
    """
    part = _Part(path.with_name(path.name + ".part"), url)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _request(part)
            part.finish(path)
            return
        except urllib.error.HTTPError as error:
            if error.code == RANGE_NOT_SATISFIABLE:
                part.begin(None)  # the part is longer than the file: it is another one
                continue
            raise PrepError(f"{url}: {error.code} {error.reason}") from error
        except ValueError as error:
            raise PrepError(f"{url}: not an address: {error}") from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if attempt == ATTEMPTS:
                raise PrepError(
                    f"{url}: {reason}; {part.size():,} bytes are kept, the same command goes on"
                ) from error
            say(f"  {reason}; trying again ({attempt + 1} of {ATTEMPTS})")
            time.sleep(min(attempt, 3))


def fetch(urls: Sequence[str], path: Path, sha256: str | None = None) -> Path:
    """Fetch a file from the first address that has it, unless it exists already.

    An interrupted download continues where it stopped.

    Args:
        urls: addresses of the same file, the best first.
        path: the file to write. The folder is made.
        sha256: its checksum, if known.

    Returns:
        ``path``.

    Raises:
        PrepError: no address has the file, or the checksums differ.
    """
    if path.is_file():
        verify(path, sha256)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    reasons = []
    for url in urls:
        say(f"fetching {url}")
        try:
            _fetch_from(url, path)
        except PrepError as error:
            reasons.append(str(error))
            say(f"  {error}")
            continue
        verify(path, sha256)
        return path
    raise PrepError(
        f"{path.name} cannot be fetched ({'; '.join(reasons)}); fetch it in another way and give "
        "it with --archive"
    )
