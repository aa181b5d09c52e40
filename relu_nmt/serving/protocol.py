"""How the server reads requests from connections: a head that does not come in time ends one."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class ImpatientProtocol(H11Protocol):
    """uvicorn's protocol, which waits for the head of a request for ever, with an end to that.

    Else a few connections that send nothing, or a byte now and then, keep everyone out.

    Attributes:
        head_seconds: most time from the opening of a connection, or from the first byte of a
            further request, to the end of the head.
    """

    head_seconds = 60.0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take in bytes."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_watching()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Wait for a head, or no more if one has come and its request is not answered yet."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_watching()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._give_up)

    def _stop_watching(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()
