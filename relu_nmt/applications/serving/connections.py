"""Connections of the server: their number, and time limits for silent clients."""

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from relu_nmt.applications.serving import ServerOptions

SPARE_CONNECTIONS = 256
"""Connections for silent clients and metrics, beside the connections of waiting requests."""
SWITCH_SECONDS = 0.0005
"""Time after which one thread of Python gives way to another.

With the usual 5 ms, the model would wait for the reading of a file after each of its steps.
"""
MOST_DROPPED_BYTES = 2**28
"""Most bytes of a refused request that the server reads and drops before it closes."""


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
    sys.setswitchinterval(SWITCH_SECONDS)
    uvicorn.Server(config).run(sockets=[listener])


class ImpatientProtocol(H11Protocol):
    """uvicorn's protocol with time limits for sending a request and for reading an answer.

    Without limits, a few clients that send or read almost nothing could occupy all connections. A
    new connection is always accepted: if there are too many, the server closes the one that has
    been silent for the longest time.
    """

    # Time limit of the head of a request, from the opening of the connection or from the first byte
    # of a further request. The same limit holds for the time in which a client reads an answer.
    seconds = 60.0
    most_connections = 320  # number of open connections above which silent ones are closed
    _silent_since = 0.0

    @property
    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _is_silent(self) -> bool:
        """True if the server waits for the client to send a request or to read an answer."""
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
        """Receive bytes. Drop bytes that come after the answer that ends the connection."""
        if not self.transport.is_closing():
            super().data_received(data)
            self._watch_head()
            return
        self._num_dropped += len(data)
        if self._num_dropped > MOST_DROPPED_BYTES:
            self._socket.close()

    def pause_writing(self) -> None:
        """Start the timer for the client to read the answer."""
        super().pause_writing()
        self._start("answer", self.transport.abort)

    def resume_writing(self) -> None:
        """Go on with the answer. Stop the timer of reading if no answer is being sent."""
        super().resume_writing()
        if not (self._has_request and self.cycle.response_started):
            self._stop("answer")

    def on_response_complete(self) -> None:
        """Wait for the next request. Stop the timer of reading if the answer is read."""
        self._silent_since = self.loop.time()
        if not self.flow.write_paused:
            self._stop("answer")
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        for name in ("head", "answer", "end"):
            self._stop(name)
        super().connection_lost(exc)

    def _end(self) -> None:
        """Close the connection, but first let a client that is still sending read the answer.

        The system resets a connection with unread bytes, so the client would lose the answer.
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
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()


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
