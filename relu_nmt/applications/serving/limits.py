"""The guard before the application: limits of connections and requests, and counts of answers."""

import asyncio
import re
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from relu_nmt.applications.serving import ServerOptions

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]+))(?::\d+)?")
"""An IPv6 address in brackets or any other name, and the port."""
PORTS = {"http": ":80", "https": ":443"}
"""Default ports, which an origin may leave out."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
SPARE_CONNECTIONS = 256
"""Connections for silent clients and for metrics, beside those of waiting requests."""


class Metrics:
    """Counters and timers of the server, for Prometheus."""

    def __init__(self) -> None:
        # Keep a registry of its own, apart from the global one of the process.
        self.registry = CollectorRegistry()
        shared: dict[str, Any] = {"namespace": "relu_nmt", "registry": self.registry}
        # Measure requests: answers, seconds and the number that wait.
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


def run_server(app: ASGIApp, listener: socket.socket, limits: ServerOptions) -> None:
    """Serve an application on an open port until a signal; finish the requests in progress."""
    attributes = {
        "seconds": limits.request_seconds,
        "most_connections": limits.max_waiting + SPARE_CONNECTIONS,
    }
    config = uvicorn.Config(
        app,
        http=type("Protocol", (ImpatientProtocol,), attributes),
        ws="none",
        log_level="warning",
        access_log=False,  # keep the users' requests private
        server_header=False,
        timeout_graceful_shutdown=round(2 * limits.request_seconds) + 1,
    )
    uvicorn.Server(config).run(sockets=[listener])


class ImpatientProtocol(H11Protocol):
    """uvicorn's protocol with time limits for sending a request and for reading an answer.

    Without limits, a few clients that send or read almost nothing could occupy all connections. A
    new connection is always accepted: if there are too many, the server closes the one that has
    been silent for the longest time.
    """

    # Most time for the head of a request, from the opening of a connection or the first byte of a
    # further request; and again for a client to read an answer.
    seconds = 60.0
    most_connections = 320  # number of open connections above which silent ones are closed
    _silent_since = 0.0

    @property
    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _is_silent(self) -> bool:
        """True if the server waits for a request of the client, or for its reading."""
        return not self._has_request or self.cycle.more_body or "answer" in self._timers

    def connection_made(self, transport: Any) -> None:
        """Start the timer of the first request, and close a silent connection if needed."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # call pause_writing for every unread answer
        self._silent_since = self.loop.time()
        # Close the connection that has been silent for the longest time.
        if len(self.connections) > self.most_connections:
            others = [own for own in self.connections if own is not self]
            silent = [o for o in others if isinstance(o, ImpatientProtocol) and o._is_silent]
            if silent:
                min(silent, key=lambda own: own._silent_since).transport.abort()
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Receive bytes."""
        super().data_received(data)
        self._watch_head()

    def pause_writing(self) -> None:
        """Start the timer of the client's reading."""
        super().pause_writing()
        self._start("answer", self.transport.abort)

    def resume_writing(self) -> None:
        """Go on with the answer; stop its timer if no answer is being sent."""
        super().resume_writing()
        if not (self._has_request and self.cycle.response_started):
            self._stop("answer")

    def on_response_complete(self) -> None:
        """Wait for the next request; stop the timer of an answer that is read."""
        self._silent_since = self.loop.time()
        if not self.flow.write_paused:
            self._stop("answer")
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self._stop("head")
        self._stop("answer")
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        """Start the timer of the next head, or stop it while a request is in progress."""
        if self._has_request:
            self._stop("head")
        else:
            self._start("head", self.transport.close)

    def _start(self, name: str, end: Callable[[], object]) -> None:
        if name not in self._timers:
            self._timers[name] = self.loop.call_later(self.seconds, end)

    def _stop(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()


def guarded(
    app: ASGIApp, limits: ServerOptions, metrics: Metrics, paths: frozenset[str]
) -> ASGIApp:
    """Return the application behind a guard, which counts answers and refuses some requests.

    A body may be too large or too slow. A page of another origin could make a browser send a
    request. Answers of ``paths`` are counted separately, and all others as those of one path.
    """

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        # Pass on messages that are no requests, such as the start of the server.
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        # Join all unknown paths, so that clients cannot fill the memory with counters.
        path = scope["path"] if scope["path"] in paths else "other"
        start, status = time.perf_counter(), 500

        # Read the status from the messages of the application.
        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        # Count the answer even after an error; without a status it counts as 500.
        try:
            await _answer(app, limits, scope, receive, sending)
        finally:
            metrics.answers.labels(path, str(status)).inc()
            metrics.seconds.labels(path).observe(time.perf_counter() - start)

    return serve


async def _answer(
    app: ASGIApp, limits: ServerOptions, scope: Scope, receive: Receive, send: Send
) -> None:
    """Answer one request by the application, or refuse it."""
    # Read the body; send nothing to a client that left.
    body = None
    try:
        reading = _read(Request(scope, receive), limits.max_request_bytes)
        body = await asyncio.wait_for(reading, limits.request_seconds)
        too_long = f"more than {limits.max_request_bytes:,} bytes; send less text at a time"
        problem = (413, too_long) if body is None else _problem(scope, limits.allowed_hosts)
    except asyncio.TimeoutError:
        problem = 408, f"the request did not come within {limits.request_seconds:g} seconds"
    except ClientDisconnect:
        return
    if problem is not None:
        status, text = problem
        refusal = JSONResponse({"error": text}, status, {"connection": "close"})
        await refusal(scope, receive, send)
        return
    # Pass the body on as a single message, and then the client's further messages.
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return first.pop() if first else await receive()

    await app(scope, replayed, send)


async def _read(request: Request, most: int) -> bytes | None:
    """Return the body; None if it has more than ``most`` bytes."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            return None
    return bytes(body)


def _problem(scope: Scope, allowed_hosts: Sequence[str]) -> tuple[int, str] | None:
    """Return status and message for a request whose headers are refused."""
    # Header names and values in lower case; a header may occur several times.
    headers: dict[str, list[str]] = defaultdict(list)
    for name, value in scope["headers"]:
        headers[name.decode("latin-1").lower()].append(value.decode("latin-1").lower())
    # Check the host, the origin and the type of the body, in this order.
    names = {own.lower() for own in allowed_hosts}
    host = _HOST.fullmatch(headers["host"][-1] if headers["host"] else "")
    if names and (host is None or (host[1] or host[2]) not in names):
        text = "the Host header is not a name of this server; --allowed-hosts lists its names"
        return 400, text
    if headers["origin"] and not _is_own_page(headers):
        return 403, (
            "the Origin header is not this server's: a page of another origin may not call it; "
            "a proxy passes the Host header on"
        )
    types = [value.partition(";")[0].strip() for value in headers["content-type"]]
    if scope["method"] == "POST" and types != ["application/json"]:
        return 415, "expected Content-Type: application/json"
    return None


def _is_own_page(headers: Mapping[str, list[str]]) -> bool:
    """Return whether a browser asks for a page of this server, by headers that pages cannot set."""
    if headers["sec-fetch-site"] == ["same-origin"]:
        return True
    # Compare the origin's host and port with the names by which the client called the server.
    scheme, _, place = headers["origin"][-1].partition("://")
    if scheme not in PORTS or len(headers["origin"]) > 1:
        return False
    called = [*headers["host"], *(h.partition(",")[0] for h in headers["x-forwarded-host"])]
    port = PORTS[scheme]
    return place.removesuffix(port) in {own.strip().removesuffix(port) for own in called}
