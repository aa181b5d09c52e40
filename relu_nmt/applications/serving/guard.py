"""The guard before the application, which refuses some requests and counts all answers."""

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relu_nmt.applications.serving import LOOPBACK, ServerOptions
from relu_nmt.errors import is_out_of_memory
from relu_nmt.io.text_lines import read_lines

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]+))(?::\d+)?")
"""An IPv6 address in brackets or any other name, and the port."""
PORTS = {"http": ":80", "https": ":443"}
"""Default ports, which an origin may leave out."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
UPLOADS = "/translate_file"
FORM_PATHS = ("/translate", "/detect", UPLOADS)
"""Paths of LibreTranslate's interface, which reads forms beside JSON."""
MOST_UPLOADS = 16
"""Most files that the server holds at once, since each takes memory. Further ones wait."""
NO_MEMORY = "not enough memory for this text; send fewer lines at a time"
RETRY = {"Retry-After": "1"}


class ApiKeys:
    """The keys that a server accepts: those in a file, or any without a file."""

    def __init__(self, path: str | None) -> None:
        self.required = path is not None
        keys = [] if path is None else map(str.strip, read_lines(path))
        self._keys = frozenset(filter(None, keys))

    def check(self, api_key: str | None) -> None:
        """Refuse a request without one of the keys (HTTPException)."""
        if self.required and api_key not in self._keys:
            raise HTTPException(403, "Invalid API key")


class Metrics:
    """Counters and timers of the server, for Prometheus."""

    def __init__(self) -> None:
        # Keep these metrics apart from the global registry of the process.
        self.registry = CollectorRegistry()
        shared: dict[str, Any] = {"namespace": "relu_nmt", "registry": self.registry}
        # Measure requests: answers, seconds and the number of waiting requests.
        self.answers = Counter(
            "requests", "Answers by path and status.", ["path", "status"], **shared
        )
        self.seconds = Histogram(
            "request_seconds", "Time from request to answer.", ["path"], buckets=SECONDS, **shared
        )
        self.waiting = Gauge("requests_waiting", "Requests that are not answered yet.", **shared)
        # Measure the batches of the model.
        self.batch_sentences = Histogram(
            "batch_sentences", "Sentences translated at once.", buckets=SIZES, **shared
        )
        self.batch_seconds = Histogram(
            "batch_seconds", "Time of a batch.", buckets=SECONDS, **shared
        )
        self.source_tokens = Counter("source_tokens", "Source tokens translated.", **shared)

    def count_batch(self, sentences: int, tokens: int, seconds: float) -> None:
        """Count a batch."""
        self.batch_sentences.observe(sentences)
        self.batch_seconds.observe(seconds)
        self.source_tokens.inc(tokens)


def guarded(app: ASGIApp, limits: ServerOptions, metrics: Metrics, paths: Sequence[str]) -> ASGIApp:
    """Return the application behind a guard, which counts answers and refuses some requests.

    The guard refuses bodies that are too large or too slow, and requests that a page of another
    origin makes a browser send. It counts answers by path for ``paths``, and all others together.
    """
    uploads = asyncio.Semaphore(MOST_UPLOADS)

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        # Pass on messages that are no requests, such as the start of the server.
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        # Join all unknown paths, so that clients cannot fill the memory with counters.
        path = scope["path"] if scope["path"] in paths else "other"
        start = time.perf_counter()
        status = 0

        # Read the status from the messages of the application.
        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        # Count the answer even after an error. Without a status it counts as 500.
        try:
            async with uploads if scope["path"] == UPLOADS else nullcontext():
                await _pass_on(app, limits, scope, receive, sending)
        except (RuntimeError, MemoryError) as error:
            # Refuse a request without a trace if there is not enough memory or no thread for it.
            if status or not is_out_of_memory(error):
                raise
            await refusal(503, NO_MEMORY, RETRY)(scope, receive, sending)
        finally:
            metrics.answers.labels(path, str(status or 500)).inc()
            metrics.seconds.labels(path).observe(time.perf_counter() - start)

    return serve


async def _pass_on(
    app: ASGIApp, limits: ServerOptions, scope: Scope, receive: Receive, send: Send
) -> None:
    try:
        body = await _body(scope, receive, limits)
    except ClientDisconnect:
        return
    except HTTPException as error:
        answer = refusal(error.status_code, error.detail, {"connection": "close"})
        await answer(scope, receive, send)
        return
    # Answer HEAD like GET. The server leaves the body out.
    method = "GET" if scope["method"] == "HEAD" else scope["method"]
    message = {"type": "http.request", "body": body, "more_body": False}
    await app({**scope, "method": method}, replayed(message, receive), _naming_head(send))


def _naming_head(send: Send) -> Send:
    """Return ``send`` with HEAD added to the allowed methods wherever GET is allowed."""

    async def named(message: Message) -> None:
        if message.get("status") == HTTPStatus.METHOD_NOT_ALLOWED:
            headers = MutableHeaders(scope=message)
            methods = headers.get("Allow", "")
            if "GET" in methods and "HEAD" not in methods:
                headers["Allow"] = f"{methods}, HEAD"
        await send(message)

    return named


def refusal(status: int, text: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an error as the answer to a request."""
    return JSONResponse({"error": text}, status, headers)


def replayed(message: Message, receive: Receive) -> Receive:
    """Return a ``receive`` that first returns a message, then the client's further messages."""
    messages = [message]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


async def _body(scope: Scope, receive: Receive, limits: ServerOptions) -> bytes:
    """Return the body of a request. Refuse a wrong head, and a body that is large or slow."""
    _check_head(scope, limits.allowed_hosts)
    is_file = scope["path"] == UPLOADS
    max_bytes = limits.max_file_bytes if is_file else limits.max_request_bytes
    reading = _read(Request(scope, receive), max_bytes)
    try:
        return await asyncio.wait_for(reading, limits.request_seconds)
    except asyncio.TimeoutError:
        text = f"the request did not come within {limits.request_seconds:g} seconds"
        raise HTTPException(408, text) from None


async def _read(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise HTTPException(413, f"more than {max_bytes:,} bytes; send less at a time")
    return bytes(body)


def _check_head(scope: Scope, allowed_hosts: Sequence[str]) -> None:
    """Refuse some requests by their headers: length of the body, host, origin, type of the body."""
    # Header names and values in lower case. A header may occur several times.
    headers: dict[str, list[str]] = defaultdict(list)
    for name, value in scope["headers"]:
        headers[name.decode("latin-1").lower()].append(value.decode("latin-1").lower())
    if headers["transfer-encoding"] and (
        headers["content-length"] or scope["http_version"] == "1.0"
    ):
        raise HTTPException(
            400,
            "Transfer-Encoding beside Content-Length, or in HTTP/1.0: the length of the body is "
            "not certain; send Content-Length alone",
        )
    # Allow names of this machine, which health checks use. Pages elsewhere cannot have them.
    names = {name.lower() for name in (*allowed_hosts, *LOOPBACK)}
    host = _HOST.fullmatch("".join(headers["host"][-1:]))
    if allowed_hosts and (host is None or (host[1] or host[2]) not in names):
        raise HTTPException(
            400, "the Host header is not a name of this server; --allowed-hosts lists its names"
        )
    if headers["origin"] and not _is_own_page(headers):
        raise HTTPException(
            403,
            "the Origin header is not this server's: a page of another origin may not call it; "
            "a proxy passes the Host header on",
        )
    if scope["method"] != "POST":
        return
    types = [value.partition(";")[0].strip() for value in headers["content-type"]]
    forms = FORMS if scope["path"] in FORM_PATHS else ()
    if len(types) != 1 or types[0] not in ("application/json", *forms):
        raise HTTPException(415, "expected Content-Type: application/json")
    encoding = ", ".join(headers["content-encoding"])
    if encoding not in ("", "identity"):
        raise HTTPException(
            415, f"Content-Encoding: {encoding} is not read; send the JSON without compression"
        )


def _is_own_page(headers: Mapping[str, list[str]]) -> bool:
    """Return whether a page of this server asks, by headers that a page cannot change."""
    if headers["sec-fetch-site"] == ["same-origin"]:
        return True
    # Compare the origin's host and port with the names by which the client called the server.
    scheme, _, origin = headers["origin"][-1].partition("://")
    if scheme not in PORTS or len(headers["origin"]) > 1:
        return False
    hosts = [*headers["host"], *(h.partition(",")[0] for h in headers["x-forwarded-host"])]
    port = PORTS[scheme]
    return origin.removesuffix(port) in {host.strip().removesuffix(port) for host in hosts}
