"""How the server treats connections: one that stays silent, or does not read, is ended."""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class ImpatientProtocol(H11Protocol):
    """uvicorn's protocol with an end to its waiting for requests and for readers of answers.

    Otherwise a few connections that send or read nothing, or a byte now and then, keep everyone
    out. A new connection is always taken in: if there are too many, the one that has been silent
    for the longest time is ended.

    Attributes:
        seconds: most time for the head of a request, from the opening of a connection or the
            first byte of a further request, and again for a client to read an answer.
        most_connections: open connections above which the silent ones are ended.
    """

    seconds = 60.0
    most_connections = 320
    _silent_since = 0.0

    @property
    def is_silent(self) -> bool:
        """Return whether the client is the one who has something to do: send a request, or read."""
        return not self._has_request or self.cycle.more_body or "answer" in self._timers

    @property
    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # so that pause_writing tells of every unread answer
        self._silent_since = self.loop.time()
        if len(self.connections) > self.most_connections:
            others = [own for own in self.connections if own is not self]
            silent = [o for o in others if isinstance(o, ImpatientProtocol) and o.is_silent]
            if silent:
                min(silent, key=lambda own: own._silent_since).transport.abort()
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Take in bytes."""
        super().data_received(data)
        self._watch_head()

    def pause_writing(self) -> None:
        """Begin to wait for the client to read."""
        super().pause_writing()
        self._start("answer", self.transport.abort)

    def resume_writing(self) -> None:
        """Go on with the answer, the time for which goes on too, or wait no more."""
        super().resume_writing()
        if not (self._has_request and self.cycle.response_started):
            self._stop("answer")

    def on_response_complete(self) -> None:
        """Wait for the next request, and until then for the client to read the answer."""
        self._silent_since = self.loop.time()
        if not self.flow.write_paused:
            self._stop("answer")
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop("head")
        self._stop("answer")
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        """Wait for a head, or no more if one has come and its request is not answered yet."""
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
