"""Checks of requests before the application reads them, and counts of all answers."""

import asyncio
import json
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]+))(?::\d+)?")
"""An IPv6 address in brackets or any other name, and the port."""
PORTS = {"http": ":80", "https": ":443"}
"""Those that go without saying."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """What the server counts; Prometheus reads it as text."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        shared: dict[str, Any] = {"namespace": "relu_nmt", "registry": self.registry}
        self.answers = Counter(
            "requests", "Answers by path and status.", ["path", "status"], **shared
        )
        self.seconds = Histogram(
            "request_seconds", "Time from request to answer.", ["path"], buckets=SECONDS, **shared
        )
        self.waiting = Gauge("requests_waiting", "Requests that are not answered yet.", **shared)
        self.batch_sentences = Histogram(
            "batch_sentences", "Sentences translated at once.", buckets=SIZES, **shared
        )
        self.batch_seconds = Histogram(
            "batch_seconds", "Time of a batch.", buckets=SECONDS, **shared
        )
        self.source_tokens = Counter("source_tokens", "Source tokens translated.", **shared)

    def count_batch(self, sentences: int, tokens: int, seconds: float) -> None:
        """Take in a batch."""
        self.batch_sentences.observe(sentences)
        self.batch_seconds.observe(seconds)
        self.source_tokens.inc(tokens)


@dataclass(frozen=True)
class CountAnswers:
    """Counts answers and their time.

    Args:
        app: what answers.
        metrics: where to count.
        paths: those that are told apart; all others are one.
    """

    app: App
    metrics: Metrics
    paths: frozenset[str]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self.paths else "other"
        start, status = time.perf_counter(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, sending)
        finally:
            self.metrics.answers.labels(path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - start)


@dataclass(frozen=True)
class CheckHeaders:
    """Refuses requests that a page of another origin could make a browser send.

    Args:
        app: what answers the others.
        names: hosts by which the server may be called, without port; an IPv6 address without
            brackets. Without names it may be called by any.
    """

    app: App
    names: Sequence[str]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and (problem := self._problem(scope)) is not None:
            await answer(send, *problem)
            return
        await self.app(scope, receive, send)

    def _problem(self, scope: Message) -> tuple[int, str] | None:
        """Return status and message for a request that is refused."""
        headers: dict[str, list[str]] = defaultdict(list)
        for name, value in scope["headers"]:
            headers[name.decode("latin-1").lower()].append(value.decode("latin-1").lower())
        if self.names and not self._is_name(headers["host"]):
            text = "the Host header is not a name of this server; --allowed-hosts says what is"
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

    def _is_name(self, hosts: Sequence[str]) -> bool:
        found = _HOST.fullmatch(hosts[-1] if hosts else "")
        return found is not None and (found[1] or found[2]) in {own.lower() for own in self.names}


def _is_own_page(headers: Mapping[str, list[str]]) -> bool:
    """Return whether a browser sends a request for a page of this server.

    Pages can set neither of the headers that are read here. A proxy may have changed the host;
    then the browser's own word counts, or the name that the proxy passes on.
    """
    if headers["sec-fetch-site"] == ["same-origin"]:
        return True
    scheme, _, place = headers["origin"][-1].partition("://")
    if scheme not in PORTS or len(headers["origin"]) > 1:
        return False
    called = [*headers["host"], *(h.partition(",")[0] for h in headers["x-forwarded-host"])]
    port = PORTS[scheme]
    return place.removesuffix(port) in {own.strip().removesuffix(port) for own in called}


@dataclass(frozen=True)
class LimitBody:
    """Refuses bodies that are too large or too slow, before anything else reads them.

    Args:
        app: what answers the others.
        max_bytes: longest body.
        seconds: most time until all of it has come.
    """

    app: App
    max_bytes: int
    seconds: float

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            body = await asyncio.wait_for(self._read(receive), self.seconds)
        except asyncio.TimeoutError:
            await answer(send, 408, f"the request did not come within {self.seconds:g} seconds")
            return
        except ConnectionAbortedError:
            return
        if body is None:
            text = f"more than {self.max_bytes:,} bytes; send less text at a time"
            await answer(send, 413, text)
            return
        first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        await self.app(scope, lambda: _replayed(first, receive), send)

    async def _read(self, receive: Receive) -> bytes | None:
        """Return the body; None if it is too long.

        Raises:
            ConnectionAbortedError: the client has left.
        """
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionAbortedError
            part = message.get("body", b"")
            parts.append(part)
            size += len(part)
            if size > self.max_bytes:
                return None
            if not message.get("more_body"):
                return b"".join(parts)


async def _replayed(first: list[Message], receive: Receive) -> Message:
    return first.pop() if first else await receive()


async def answer(send: Send, status: int, text: str) -> None:
    """Send an error as JSON, and close the connection."""
    body = json.dumps({"error": text}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
