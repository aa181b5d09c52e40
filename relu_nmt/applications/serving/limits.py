"""The guard before the application: limits of connections and requests, and counts of answers."""

import asyncio
import re
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import h11
import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from relu_nmt.applications.serving import ServerOptions
from relu_nmt.errors import is_out_of_memory

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]+))(?::\d+)?")
"""An IPv6 address in brackets or any other name, and the port."""
PORTS = {"http": ":80", "https": ":443"}
"""Default ports, which an origin may leave out."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
SPARE_CONNECTIONS = 256
"""Connections for silent clients and for metrics, beside the connections of waiting requests."""
MOST_DROPPED_BYTES = 2**28
"""Most bytes of a refused request that the server reads, and drops, before it closes."""
NO_MEMORY = "not enough memory for this text; send fewer lines at a time"
RETRY = {"Retry-After": "1"}


class Metrics:
    """Counters and timers of the server, for Prometheus."""

    def __init__(self) -> None:
        # Keep these metrics apart from the global registry of the process.
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
    """Serve an application on an open port until a signal. Finish the requests in progress."""
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


class _LingeringTransport:
    """A transport that calls ``end`` instead of closing, and is otherwise unchanged."""

    def __init__(self, transport: asyncio.Transport, end: Callable[[], None]) -> None:
        self._transport = transport
        self.close = end
        self.is_ending = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Return True if no further answer can be written."""
        return self.is_ending or self._transport.is_closing()


FORMS = {
    "/translate": "application/x-www-form-urlencoded",
    "/detect": "application/x-www-form-urlencoded",
    "/translate_file": "multipart/form-data",
}
"""Types of the bodies that LibreTranslate's interface reads beside JSON."""


class ImpatientProtocol(H11Protocol):
    """uvicorn's protocol with time limits for sending a request and for reading an answer.

    Without limits, a few clients that send or read almost nothing could occupy all connections. A
    new connection is always accepted: if there are too many, the server closes the one that has
    been silent for the longest time.
    """

    # Most time for the head of a request, from the opening of a connection or the first byte of a
    # further request, and again for a client to read an answer.
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
        self._num_dropped = 0
        self._socket = transport
        self._lingering = _LingeringTransport(transport, self._end)
        super().connection_made(cast(asyncio.Transport, self._lingering))
        transport.set_write_buffer_limits(0)  # call pause_writing for every unread answer
        self._silent_since = self.loop.time()
        # Close the connection that has been silent for the longest time.
        if len(self.connections) > self.most_connections:
            silent = []
            for protocol in self.connections - {self}:
                if isinstance(protocol, ImpatientProtocol) and protocol._is_silent:
                    silent.append(protocol)
            if silent:
                min(silent, key=lambda protocol: protocol._silent_since).transport.abort()
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Receive bytes. Drop those behind the answer that ends the connection."""
        if not self.transport.is_closing():
            super().data_received(data)
            self._watch_head()
            return
        self._num_dropped += len(data)
        if self._num_dropped > MOST_DROPPED_BYTES:
            self._socket.close()

    def pause_writing(self) -> None:
        """Start the timer of the client's reading."""
        super().pause_writing()
        self._start("answer", self.transport.abort)

    def resume_writing(self) -> None:
        """Go on with the answer. Stop its timer if no answer is being sent."""
        super().resume_writing()
        if not (self._has_request and self.cycle.response_started):
            self._stop("answer")

    def on_response_complete(self) -> None:
        """Wait for the next request. Stop the timer of an answer that is read."""
        self._silent_since = self.loop.time()
        if not self.flow.write_paused:
            self._stop("answer")
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self._stop("head")
        self._stop("answer")
        self._stop("end")
        super().connection_lost(exc)

    def _end(self) -> None:
        """Close the connection, but let a client that is still sending read the answer before.

        The system would reset a connection with unread bytes, and the client lose the answer.
        """
        is_sending = self.conn.their_state in (h11.SEND_BODY, h11.ERROR)
        if self.transport.is_closing() or not is_sending:
            self._socket.close()
            return
        self._lingering.is_ending = True
        self._socket.write_eof()
        self._socket.resume_reading()
        self._start("end", self._socket.abort)

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
    request. Answers of ``paths`` are counted separately, and all other answers under one name.
    """

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
            await _answer(app, limits, scope, receive, sending)
        except (RuntimeError, MemoryError) as error:
            # Refuse without a trace what memory or threads do not suffice for.
            if status or not is_out_of_memory(error):
                raise
            await refusal(503, NO_MEMORY, RETRY)(scope, receive, sending)
        finally:
            metrics.answers.labels(path, str(status or 500)).inc()
            metrics.seconds.labels(path).observe(time.perf_counter() - start)

    return serve


async def _answer(
    app: ASGIApp, limits: ServerOptions, scope: Scope, receive: Receive, send: Send
) -> None:
    """Answer one request by the application, or refuse it."""
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
    await app({**scope, "method": method}, replayed(message, receive), send)


def refusal(status: int, text: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an error as the answer to a request."""
    return JSONResponse({"error": text}, status, headers)


def replayed(message: Message, receive: Receive) -> Receive:
    """Return a source of messages with the whole body first, and then those of the client."""
    messages = [message]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


async def _body(scope: Scope, receive: Receive, limits: ServerOptions) -> bytes:
    """Return the body of a request, unless the head is refused, or the body is large or slow."""
    _check_head(scope, limits.allowed_hosts)
    reading = _read(Request(scope, receive), limits.max_request_bytes)
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
            raise HTTPException(413, f"more than {max_bytes:,} bytes; send less text at a time")
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
    names = {name.lower() for name in allowed_hosts}
    host = _HOST.fullmatch("".join(headers["host"][-1:]))
    if names and (host is None or (host[1] or host[2]) not in names):
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
    form = FORMS.get(scope["path"], "application/json")
    if types not in (["application/json"], [form]):
        raise HTTPException(415, "expected Content-Type: application/json")
    encoding = ", ".join(headers["content-encoding"])
    if encoding not in ("", "identity"):
        raise HTTPException(
            415, f"Content-Encoding: {encoding} is not read; send the JSON without compression"
        )


def _is_own_page(headers: Mapping[str, list[str]]) -> bool:
    """Return whether a browser asks for a page of this server, by headers that pages cannot set."""
    if headers["sec-fetch-site"] == ["same-origin"]:
        return True
    # Compare the origin's host and port with the names by which the client called the server.
    scheme, _, origin = headers["origin"][-1].partition("://")
    if scheme not in PORTS or len(headers["origin"]) > 1:
        return False
    hosts = [*headers["host"], *(h.partition(",")[0] for h in headers["x-forwarded-host"])]
    port = PORTS[scheme]
    return origin.removesuffix(port) in {host.strip().removesuffix(port) for host in hosts}
