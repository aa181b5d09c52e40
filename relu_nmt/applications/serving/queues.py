"""The ways of requests through the server: its desk, turns, and common batches for one model.

A request that is refused ends in Starlette's ``HTTPException``, also in the request's thread.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from starlette.exceptions import HTTPException

from relu_nmt.translation.search.translations import SourceSentence, Translation

ResultT = TypeVar("ResultT")
Search = Callable[[Sequence[SourceSentence]], list[list[Translation]]]
STOPPING = "the server is stopping"
GIVEN_UP = "the request was given up"
TOO_MANY = "too many requests for large answers; come back later, or ask for a line"


class Ticket:
    """One request, which another thread can give up. It then uses the model no more."""

    def __init__(self) -> None:
        self._gone: Future[None] = Future()

    @property
    def is_gone(self) -> bool:
        """True if the request was given up."""
        return self._gone.done()

    def give_up(self) -> None:
        """End the waits of the request's threads, and refuse its later calls."""
        with suppress(futures.InvalidStateError):
            self._gone.set_result(None)

    def check(self) -> None:
        """Refuse a request that was given up."""
        if self.is_gone:
            raise HTTPException(504, GIVEN_UP)

    def wait(self, future: "Future[ResultT]") -> ResultT:
        """Return the result. Refuse if the request is given up, or the server stops."""
        # Take callbacks: futures.wait does not wake up when a future is cancelled.
        is_over = threading.Event()
        for own in (future, self._gone):
            own.add_done_callback(lambda _: is_over.set())
        is_over.wait()
        if not future.done():
            future.cancel()
            raise HTTPException(504, GIVEN_UP)
        try:
            return future.result()
        except futures.CancelledError:
            raise HTTPException(503, STOPPING) from None


class Desk:
    """Gives each request a thread, refuses requests if too many wait, and ends slow ones."""

    def __init__(self, batcher: "Batcher", max_waiting: int, seconds: float) -> None:
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
        """True if the server accepts requests."""
        return not self._batcher.is_closed

    async def answer(
        self, receive: Callable[[], Awaitable[Any]], work: Callable[[Ticket], bytes]
    ) -> bytes:
        """Call ``work`` with a ticket in a thread, and return its result.

        ``receive`` waits for the next message of the client, which says that it left.

        Raises:
            HTTPException: the server stops, too many requests wait, or no time is left.
        """
        if not self.is_open:
            raise HTTPException(503, STOPPING)
        if self.num_waiting >= self._max_waiting:
            raise HTTPException(429, f"{self.num_waiting} requests are waiting; come back later")
        # Start the work, and watch the connection.
        ticket = Ticket()
        try:
            done = asyncio.get_running_loop().run_in_executor(self._pool, work, ticket)
        except RuntimeError:  # no thread can be started, and another one may find the work later
            ticket.give_up()
            raise
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
        raise HTTPException(504, f"not done within {self._seconds:g} seconds")

    def close(self) -> None:
        """Refuse further requests, and wait for the end of those in progress."""
        self._batcher.close()
        self._pool.shutdown()


def take_turn(
    pool: ThreadPoolExecutor,
    places: threading.Semaphore,
    call: Callable[[], ResultT],
    ticket: Ticket,
) -> ResultT:
    """Return the result of a call in the pool, of which only so many may run or wait."""
    if not places.acquire(blocking=False):
        raise HTTPException(429, TOO_MANY)
    try:
        future = pool.submit(call)
    except RuntimeError:  # no thread can be started
        places.release()
        raise
    # Free the place as soon as the call has ended or the request is given up.
    future.add_done_callback(lambda _: places.release())
    return ticket.wait(future)


class Batcher:
    """Joins the sentences of many requests into batches for one model, in a thread that owns it.

    The requests take turns in every batch, a sentence each. So a single sentence need not wait for
    the end of a long document. If a batch fails, the batcher repeats it request by request, so
    that no request fails because of another.

    Args:
        search: translates sentences. Only the batcher's thread calls it.
        max_tokens: most source tokens of a batch. A longer sentence is a batch of its own.
        wait: seconds that a batch waits for more sentences if it is not full.
        on_batch: called with the number of sentences, their source tokens and the seconds of each
            batch.

    Attributes:
        is_closed: requests are refused.
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
        # The sentences of each request that are in no batch yet, with futures of the results.
        self._orders: deque[tuple[Ticket, deque[tuple[SourceSentence, Future[Any]]]]] = deque()
        self._changed = threading.Condition()
        self._pool = ThreadPoolExecutor(1, "model")
        self.is_closed = False

    def search(self, sources: Sequence[SourceSentence], ticket: Ticket) -> list[list[Translation]]:
        """Wait for the translations of the sentences, and return them."""
        order = deque((source, Future[Any]()) for source in sources)
        results = [future for _, future in order]
        if order:
            with self._changed:
                if self.is_closed:
                    raise HTTPException(503, STOPPING)
                # One call looks after all requests, so that functions wait for one batch only.
                if not self._orders:
                    self._submit(self._next_batch)
                self._orders.append((ticket, order))
                self._changed.notify_all()
        return [ticket.wait(future) for future in results]

    def run(self, call: Callable[[], ResultT], ticket: Ticket) -> ResultT:
        """Call a function that needs the model in the model's thread, and return its result."""
        return ticket.wait(self._submit(call))

    def close(self) -> None:
        """Finish the current batch, and refuse all other sentences."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()
        self._pool.shutdown(cancel_futures=True)
        for _, order in self._orders:
            for _, future in order:
                future.cancel()

    def _submit(self, call: Callable[[], ResultT]) -> "Future[ResultT]":
        with self._changed:
            if self.is_closed:
                raise HTTPException(503, STOPPING)
            return self._pool.submit(call)

    def _next_batch(self) -> None:
        """Translate a batch, and come back if sentences are left."""
        batch = []
        with self._changed:
            # Wait a little for more sentences.
            if self._orders:
                self._changed.wait_for(self._is_full, self._wait)
                batch = self._taken()
        try:
            if batch:
                self._serve(batch)
        finally:
            with suppress(HTTPException), self._changed:
                if self._orders:
                    self._submit(self._next_batch)

    def _is_full(self) -> bool:
        tokens = sum(len(source.ids) for _, order in self._orders for source, _ in order)
        return self.is_closed or tokens >= self._max_tokens

    def _taken(self) -> list[tuple[Ticket, SourceSentence, "Future[Any]"]]:
        """Take a batch from the queue: a sentence of each request in turn."""
        batch: list[tuple[Ticket, SourceSentence, Future[Any]]] = []
        tokens = 0
        while self._orders and not self.is_closed:
            ticket, order = self._orders[0]
            tokens += 0 if ticket.is_gone else len(order[0][0].ids)
            if batch and tokens > self._max_tokens:
                break
            # Put the request behind the others, unless it has no more sentences or was given up.
            self._orders.popleft()
            if not ticket.is_gone:
                batch.append((ticket, *order.popleft()))
                if order:
                    self._orders.append((ticket, order))
        return batch

    def _serve(self, batch: list[tuple[Ticket, SourceSentence, "Future[Any]"]]) -> None:
        """Translate a batch. After an error, repeat it request by request."""
        sources = [source for _, source, _ in batch]
        start = time.perf_counter()
        results: list[Any] = []
        problem = None
        try:
            results = [found for _, found in zip(batch, self._search(sources), strict=True)]
            seconds = time.perf_counter() - start
            self._on_batch(len(sources), sum(len(source.ids) for source in sources), seconds)
        except Exception as error:
            # The error belongs to one request only: find it by running each alone.
            tickets = dict.fromkeys(ticket for ticket, *_ in batch)
            if len(tickets) > 1:
                for ticket in tickets:
                    self._serve([own for own in batch if own[0] is ticket])
                return
            problem = error
        for number, (*_, future) in enumerate(batch):
            # A request that was given up meanwhile has cancelled its future.
            with suppress(futures.InvalidStateError):
                if problem is None:
                    future.set_result(results[number])
                else:
                    future.set_exception(problem)
