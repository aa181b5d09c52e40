"""Searches of many requests in common batches, in one thread that has the model to itself."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from relu_nmt.translation.search.translations import SourceSentence, Translation

ResultT = TypeVar("ResultT")
Search = Callable[[Sequence[SourceSentence]], list[list[Translation]]]


class RequestGone(Exception):
    """Nobody waits for the answer any more: the time is over, or the client has left."""


class Closed(Exception):
    """The server is stopping."""


class Busy(Exception):
    """Too many requests wait for the same thing."""


class Ticket:
    """One request; it can be given up from another thread, and then asks the model no more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: Future[Any] | None = None
        self.gone = False

    def give_up(self) -> None:
        """Wake whoever waits with this ticket; what is asked from now on is refused."""
        with self._lock:
            self.gone = True
            _fail(self._waiting, RequestGone())

    def check(self) -> None:
        """See that somebody waits for the answer.

        Raises:
            RequestGone: nobody does.
        """
        if self.gone:
            raise RequestGone

    def wait(self, future: "Future[ResultT]") -> ResultT:
        """Return the result.

        Raises:
            RequestGone: the request is given up, now or before.
        """
        with self._lock:
            self._waiting = future
            if self.gone:
                _fail(future, RequestGone())
        return future.result()


class Turns:
    """Lets one request at a time go on, in the order in which they come.

    Args:
        most: requests that have or await their turn; a further one is refused.

    Example:
        >>> turns = Turns(most=1)
        >>> with turns.turn(Ticket()):
        ...     print("alone")
        alone
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._queue: deque[Future[None]] = deque()
        self._is_taken = False

    @contextmanager
    def turn(self, ticket: Ticket) -> Iterator[None]:
        """Wait until it is the request's turn, and end the turn with the block.

        Raises:
            Busy: too many requests await theirs.
            RequestGone: the request is given up.
        """
        future: Future[None] = Future()
        with self._lock:
            waiting = [own for own in self._queue if not own.done()]
            if len(waiting) + self._is_taken >= self._most:
                raise Busy
            self._queue = deque([*waiting, future])
        self._call_next()
        ticket.wait(future)
        try:
            yield
        finally:
            self._is_taken = False
            self._call_next()

    def _call_next(self) -> None:
        with self._lock:
            while self._queue and not self._is_taken:
                self._is_taken = _finish(self._queue.popleft(), None)


class _Order:
    """What one call asked for: sentences to translate, or a function to call."""

    def __init__(
        self, ticket: Ticket, sources: Sequence[SourceSentence], call: Callable[[], Any] | None
    ) -> None:
        self.ticket = ticket
        self.sources = sources
        self.call = call
        self.num_taken = 0
        self.results: dict[int, list[Translation]] = {}
        self.future: Future[Any] = Future()

    @property
    def is_over(self) -> bool:
        return self.ticket.gone or self.future.done()

    def take_in(self, index: int, found: list[Translation]) -> None:
        self.results[index] = found
        if len(self.results) == len(self.sources):
            _finish(self.future, [self.results[i] for i in range(len(self.sources))])


class Batcher:
    """Joins what many requests ask of one model into batches.

    In every batch the requests take turns, a sentence each, so that a long document does not
    keep a single sentence waiting until all of it is translated. If a batch fails, it is repeated
    request by request: nobody's translation fails because of another one's.

    Args:
        search: translates sentences; called in the batcher's thread alone.
        max_tokens: most source tokens of a batch; a longer sentence is a batch of its own.
        wait: seconds that a batch which is not full waits for more.
        on_batch: called with the number of sentences, their source tokens and the seconds of each
            batch.

    Example:
        >>> with Batcher(lambda sources: [[] for _ in sources], max_tokens=100) as batcher:
        ...     batcher.search([], Ticket()), batcher.run(lambda: "done", Ticket())
        ([], 'done')
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

    def __enter__(self) -> "Batcher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def works(self) -> bool:
        """Return whether it takes requests and its thread is alive."""
        return not self._closed and self._thread.is_alive()

    def search(self, sources: Sequence[SourceSentence], ticket: Ticket) -> list[list[Translation]]:
        """Return the translations of the sentences; waits for them.

        Raises:
            RequestGone: the ticket was given up.
            Closed: the batcher is closed.
        """
        return self._wait_for(_Order(ticket, sources, None)) if sources else []

    def run(self, call: Callable[[], ResultT], ticket: Ticket) -> ResultT:
        """Return what a function returns that needs the model; waits for its turn.

        Raises:
            RequestGone: the ticket was given up.
            Closed: the batcher is closed.
        """
        return self._wait_for(_Order(ticket, (), call))

    def close(self) -> None:
        """Finish the batch that runs, and refuse everything else."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _wait_for(self, order: _Order) -> Any:
        with self._changed:
            if self._closed:
                raise Closed
            self._orders.append(order)
            self._changed.notify_all()
        return order.ticket.wait(order.future)

    def _work(self) -> None:
        try:
            while batch := self._next_batch():
                self._serve(batch)
        finally:  # nobody waits for ever, whatever happened
            with self._changed:
                self._closed = True
                for order in self._orders:
                    _fail(order.future, Closed())

    def _next_batch(self) -> list[tuple[_Order, int]]:
        """Return the sentences of the next batch by order and index; none when closed."""
        batch: list[tuple[_Order, int]] = []
        with self._changed:
            while not batch:
                self._changed.wait_for(lambda: self._orders or self._closed)
                self._changed.wait_for(self._is_full, self._wait)
                if self._closed:
                    return []
                batch = self._taken()
        return batch

    def _is_full(self) -> bool:
        tokens = 0
        for order in self._orders:
            tokens += sum(len(source.ids) for source in order.sources[order.num_taken :])
            if order.call is not None or tokens >= self._max_tokens:
                return True
        return self._closed

    def _taken(self) -> list[tuple[_Order, int]]:
        batch: list[tuple[_Order, int]] = []
        tokens = 0
        while self._orders:
            order = self._orders[0]
            if order.is_over:
                self._orders.popleft()
                continue
            if order.call is not None:
                if not batch:
                    self._orders.popleft()
                    batch.append((order, 0))
                break
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
        [first, *others] = dict.fromkeys(order for order, _ in batch)
        try:
            if first.call is not None:
                _finish(first.future, first.call())
                return
            sources = [order.sources[index] for order, index in batch]
            start = time.perf_counter()
            found = self._search(sources)
            seconds = time.perf_counter() - start
        except Exception as error:
            if not others:
                _fail(first.future, error)
                return
            for order in (first, *others):
                self._serve([own for own in batch if own[0] is order])
            return
        self._on_batch(len(sources), sum(len(source.ids) for source in sources), seconds)
        for (order, index), translations in zip(batch, found, strict=True):
            order.take_in(index, translations)


def _finish(future: "Future[Any]", result: Any) -> bool:
    """Set the result, unless another thread has given the request up; tell whether it is set."""
    with suppress(InvalidStateError):
        future.set_result(result)
        return True
    return False


def _fail(future: "Future[Any] | None", error: BaseException) -> None:
    if future is not None:
        with suppress(InvalidStateError):
            future.set_exception(error)
