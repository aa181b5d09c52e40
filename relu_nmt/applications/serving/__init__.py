"""The HTTP server of translations, and its options."""

from relu_nmt.config import READ, option, settings
from relu_nmt.config.shared import split_sentences_option

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@settings
class ServerOptions:
    """Address and limits of the server."""

    host: str = option(LOOPBACK[0], "address to listen at (the default serves this machine only)")
    port: int = option(
        8000, "port to listen at (0: any that is free)", least=0, most=65535, metavar="PORT"
    )
    allowed_hosts: tuple[str, ...] = option(
        (), "host names that browsers may use (default: the names of this machine)", metavar="NAMES"
    )
    max_request_bytes: int = option(
        131_072,
        "longest request, in bytes (status 413 above it)",
        least=1,
        most=2**30,
        metavar="BYTES",
    )
    max_file_bytes: int = option(
        10_000_000,
        "longest upload of a file, in bytes (status 413 above it)",
        least=1,
        most=2**26,
        metavar="BYTES",
    )
    # The limit leaves room for the sentence that the server translates when it starts.
    max_request_tokens: int = option(
        4096,
        "most tokens of a request, source and forced (status 413 above it)",
        least=16,
        most=10**7,
    )
    max_waiting: int = option(
        64, "most requests that wait (status 429 above it)", least=1, most=1024
    )
    request_seconds: float = option(
        60.0, "time limit of a request, in seconds (then status 504)", above=0, metavar="SECONDS"
    )
    split_sentences: bool | None = split_sentences_option()
    api_keys: str | None = option(
        None, "file with keys, one a line: every translation then needs one of them", files=READ
    )
    batch_wait: float = option(
        0.005,
        "seconds that a batch below --max-tokens waits for more requests",
        least=0,
        most=1,
        metavar="SECONDS",
    )
