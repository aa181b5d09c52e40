"""The ways of requests through the server: its desk, common batches for one model, and turns."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from relu_nmt.translation.search.translations import SourceSentence, Translation

ResultT = TypeVar("ResultT")
Search = Callable[[Sequence[SourceSentence]], list[list[Translation]]]
STOPPING = "the server is stopping"
GIVEN_UP = "the request was given up"
TOO_MANY = "too many requests for large answers; come back later, or ask for a line"


class Refused(Exception):
    """The server does not answer a request; with 429 and 503 the client may come back later."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Ticket:
    """One request, which another thread can give up; it then uses the model no more.

    Several threads of the request may wait at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Future[Any]] = []
        self.is_gone = False

    def give_up(self) -> None:
        """End the waits of the request's threads, and refuse its later calls."""
        with self._lock:
            self.is_gone = True
            for future in self._waiting:
                future.cancel()

    def check(self) -> None:
        """Check that the request was not given up."""
        if self.is_gone:
            raise Refused(504, GIVEN_UP)

    def wait(self, future: "Future[ResultT]") -> ResultT:
        """Return the result (Refused: the request was given up, now or before)."""
        with self._lock:
            # A large answer waits for its turn in one thread, and for the model in another.
            self._waiting = [own for own in self._waiting if not own.done()] + [future]
            if self.is_gone:
                future.cancel()
        try:
            return future.result()
        except CancelledError:
            raise Refused(504, GIVEN_UP) from None


class Turns:
    """Calls one function at a time, in order of arrival; at most ``most`` run or wait."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, "turn")
        self._futures: list[Future[Any]] = []

    def run(self, call: Callable[[], ResultT], ticket: Ticket) -> ResultT:
        """Wait for the request's turn, and return the function's result."""
        with self._lock:
            # Requests that were given up do not count.
            self._futures = [own for own in self._futures if not own.done()]
            if len(self._futures) >= self._most:
                raise Refused(429, TOO_MANY)
            future = self._pool.submit(call)
            self._futures.append(future)
        return ticket.wait(future)

    def close(self) -> None:
        """Wait for the function that runs, and refuse further ones."""
        self._pool.shutdown(cancel_futures=True)


@dataclass(eq=False)
class _Order:
    """Sentences to translate for one call, or a function to call."""

    ticket: Ticket
    sources: Sequence[SourceSentence] = ()
    call: Callable[[], Any] | None = None
    num_taken: int = 0
    results: dict[int, list[Translation]] = field(default_factory=dict)
    future: "Future[Any]" = field(default_factory=Future)


class Batcher:
    """Joins the sentences of many requests into batches for one model, in a thread that owns it.

    The requests take turns in every batch, a sentence each. So a single sentence need not wait for
    the end of a long document. If a batch fails, the batcher repeats it request by request, so
    that no request fails because of another.

    Args:
        search: translates sentences; only the batcher's thread calls it.
        max_tokens: most source tokens of a batch; a longer sentence is a batch of its own.
        wait: seconds that a batch waits for more sentences if it is not full.
        on_batch: called with the number of sentences, their source tokens and the seconds of each
            batch.
    """

    def __init__(
        self,
        search: Search,
        max_tokens: int,
        wait: float = 0.0,
        on_batch: Callable[[int, int, float], object] = lambda *_: None,
    ) -> None:
        self._search = search
        self._max_tokens = max_tokens
        self._wait = wait
        self._on_batch = on_batch
        self._orders: deque[_Order] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    @property
    def works(self) -> bool:
        """Return whether the batcher accepts requests and its thread is alive."""
        return not self._closed and self._thread.is_alive()

    def search(self, sources: Sequence[SourceSentence], ticket: Ticket) -> list[list[Translation]]:
        """Wait for the translations of the sentences, and return them."""
        return self._wait_for(_Order(ticket, sources)) if sources else []

    def run(self, call: Callable[[], ResultT], ticket: Ticket) -> ResultT:
        """Call a function that needs the model in the model's thread, and return its result."""
        return self._wait_for(_Order(ticket, call=call))

    def close(self) -> None:
        """Finish the current batch, and refuse all other sentences."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _wait_for(self, order: _Order) -> Any:
        with self._changed:
            if self._closed:
                raise Refused(503, STOPPING)
            self._orders.append(order)
            self._changed.notify_all()
        return order.ticket.wait(order.future)

    def _work(self) -> None:
        try:
            while batch := self._next_batch():
                self._serve(batch)
        finally:  # end all waits, also after an error
            with self._changed:
                self._closed = True
                for order in self._orders:
                    _finish(order.future, None, Refused(503, STOPPING))

    def _next_batch(self) -> list[tuple[_Order, int]]:
        """Wait for the next batch, pairs of order and sentence index; empty when closed."""
        batch: list[tuple[_Order, int]] = []
        with self._changed:
            while not batch:
                # Wait for the first order, and then a little for more.
                self._changed.wait_for(lambda: self._orders or self._closed)
                self._changed.wait_for(self._is_full, self._wait)
                if self._closed:
                    return []
                batch = self._taken()
        return batch

    def _is_full(self) -> bool:
        # Count the tokens that are not taken yet; a function fills a batch alone.
        tokens = 0
        for order in self._orders:
            tokens += sum(len(source.ids) for source in order.sources[order.num_taken :])
            if order.call is not None or tokens >= self._max_tokens:
                return True
        return self._closed

    def _taken(self) -> list[tuple[_Order, int]]:
        """Take a batch from the queue: a sentence of each order in turn, or a single function."""
        batch: list[tuple[_Order, int]] = []
        tokens = 0
        while self._orders:
            order = self._orders[0]
            # Drop orders that were answered or given up.
            if order.ticket.is_gone or order.future.done():
                self._orders.popleft()
                continue
            if order.call is not None:
                # A function runs alone: before it, finish the sentences of this batch.
                if not batch:
                    self._orders.popleft()
                    batch.append((order, 0))
                break
            # Take the order's next sentence if it fits, and put the order behind the others.
            tokens += len(order.sources[order.num_taken].ids)
            if batch and tokens > self._max_tokens:
                break
            self._orders.popleft()
            batch.append((order, order.num_taken))
            order.num_taken += 1
            if order.num_taken < len(order.sources):
                self._orders.append(order)
        return batch

    def _serve(self, batch: list[tuple[_Order, int]]) -> None:
        """Run a batch and answer its orders; after an error, run each order by itself."""
        [first, *others] = dict.fromkeys(order for order, _ in batch)
        try:
            # Call a function that needs the model, alone in its batch.
            if first.call is not None:
                _finish(first.future, first.call())
                return
            sources = [order.sources[index] for order, index in batch]
            start = time.perf_counter()
            found = self._search(sources)
            seconds = time.perf_counter() - start
        except Exception as error:
            # The error belongs to one order only: find it by running each alone.
            if not others:
                _finish(first.future, None, error)
                return
            for order in (first, *others):
                self._serve([own for own in batch if own[0] is order])
            return
        # Give each order its translations; an order is answered when it has all of them.
        self._on_batch(len(sources), sum(len(source.ids) for source in sources), seconds)
        for (order, index), translations in zip(batch, found, strict=True):
            order.results[index] = translations
            if len(order.results) == len(order.sources):
                _finish(order.future, [order.results[i] for i in range(len(order.sources))])


class Desk:
    """Gives each request a thread, refuses requests if too many wait, and ends slow ones."""

    def __init__(self, batcher: Batcher, max_waiting: int, seconds: float) -> None:
        self._batcher = batcher
        self._max_waiting = max_waiting
        self._seconds = seconds
        self._pool = ThreadPoolExecutor(max_waiting, "request")
        self._works: set[asyncio.Future[bytes]] = set()

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait for their answer."""
        return len(self._works)

    @property
    def is_open(self) -> bool:
        """Return whether the server accepts requests."""
        return self._batcher.works

    async def answer(
        self, receive: Callable[[], Awaitable[Any]], work: Callable[[Ticket], bytes]
    ) -> bytes:
        """Call ``work`` with a ticket in a thread, and return its result.

        ``receive`` waits for the next message of the client, which says that it left.

        Raises:
            Refused: the server stops, too many requests wait, or no time is left.
        """
        if not self.is_open:
            raise Refused(503, STOPPING)
        if self.num_waiting >= self._max_waiting:
            text = f"{self.num_waiting} requests are waiting; come back later"
            raise Refused(429, text)
        # Start the work, and watch the connection.
        ticket = Ticket()
        done = asyncio.get_running_loop().run_in_executor(self._pool, work, ticket)
        self._works.add(done)
        done.add_done_callback(self._works.discard)
        left = asyncio.ensure_future(receive())
        # Wait for the first event: the answer, the client's departure, or the time limit.
        waits: set[asyncio.Future[Any]] = {done, left}
        try:
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait(waits, timeout=self._seconds, return_when=first)
            if done.done():
                return done.result()
        finally:
            ticket.give_up()
            left.cancel()
        done.add_done_callback(lambda own: own.exception())  # ignore a later error
        raise Refused(504, f"not done within {self._seconds:g} seconds")

    def close(self) -> None:
        """Refuse further requests, and wait for the end of those in progress."""
        self._batcher.close()
        self._pool.shutdown()


def _finish(future: "Future[Any]", result: Any, error: Exception | None = None) -> None:
    """Set the result or error, unless the request was given up."""
    with suppress(InvalidStateError):
        future.set_result(result) if error is None else future.set_exception(error)
