"""The path of requests through the server: queue, places of large answers, and shared batches.

A refused request raises Starlette's ``HTTPException``, in the request's own thread as well.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

from starlette.exceptions import HTTPException

from relu_nmt.applications.serving import ServerOptions
from relu_nmt.translation.search.document_search import TranslateWindows
from relu_nmt.translation.search.translations import SourceSentence, Translation

ResultT = TypeVar("ResultT")
ItemT = TypeVar("ItemT")
STOPPING = "the server is stopping"
GIVEN_UP = "the request was given up"
TOO_MANY = "too many requests for large answers; come back later, or ask for a line"
FILES_AT_ONCE = 4
"""Most files that are translated at once. They leave the requests for texts their places."""


class QueuedRequest:
    """One request. After another thread has given it up, it no longer uses the model."""

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

    def checked(self, items: Iterable[ItemT]) -> Iterator[ItemT]:
        """Yield items, and refuse a request that is given up meanwhile."""
        for item in items:
            self.check()
            yield item

    def wait(self, future: "Future[ResultT]") -> ResultT:
        """Return the result of a future. Refuse if the request is given up or the server stops."""
        # Use callbacks, since futures.wait does not wake up when a future is cancelled.
        is_over = threading.Event()
        for event in (future, self._gone):
            event.add_done_callback(lambda _: is_over.set())
        is_over.wait()
        if not future.done():
            future.cancel()
            raise HTTPException(504, GIVEN_UP)
        try:
            return future.result()
        except futures.CancelledError:
            raise HTTPException(503, STOPPING) from None


class RequestQueue:
    """Gives each request a thread, refuses requests if too many wait, and ends slow ones."""

    def __init__(self, batchers: Sequence["Batcher"], limits: ServerOptions) -> None:
        self._batchers = batchers
        self._max_waiting = limits.max_waiting
        self._seconds = limits.request_seconds
        self._pool = ThreadPoolExecutor(limits.max_waiting + FILES_AT_ONCE, "request")
        self._texts: set[asyncio.Future[bytes]] = set()
        self._files: set[asyncio.Future[bytes]] = set()

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait for their answer."""
        return len(self._texts) + len(self._files)

    @property
    def is_open(self) -> bool:
        """True if the server accepts requests."""
        return not any(batcher.is_closed for batcher in self._batchers)

    async def run(
        self,
        receive: Callable[[], Awaitable[Any]],
        work: Callable[[QueuedRequest], bytes],
        is_file: bool = False,
    ) -> bytes:
        """Call ``work`` with a new request in a thread, and return its result.

        ``receive`` waits for the client's next message, which says that the client has left.

        Raises:
            HTTPException: the server stops, too many requests wait, or no time is left.
        """
        if not self.is_open:
            raise HTTPException(503, STOPPING)
        if is_file and len(self._files) >= FILES_AT_ONCE:
            raise HTTPException(429, f"{FILES_AT_ONCE} files are being translated; come back later")
        if len(self._texts) >= self._max_waiting:
            raise HTTPException(429, f"{self.num_waiting} requests are waiting; come back later")
        # Start the work, and watch the connection.
        request = QueuedRequest()
        try:
            done = asyncio.get_running_loop().run_in_executor(self._pool, work, request)
        except RuntimeError:  # no thread can be started. A running one may do the work later.
            request.give_up()
            raise
        works = self._files if is_file else self._texts
        works.add(done)
        done.add_done_callback(works.discard)
        left = asyncio.ensure_future(receive())
        # Wait for the first event: the answer, the client's departure, or the time limit.
        waits: set[asyncio.Future[Any]] = {done, left}
        try:
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait(waits, timeout=self._seconds, return_when=first)
            if done.done():
                return done.result()
        finally:
            request.give_up()
            left.cancel()
        done.add_done_callback(lambda future: future.exception())  # ignore a later error
        raise HTTPException(504, f"not done within {self._seconds:g} seconds")

    def close(self) -> None:
        """Refuse further requests, and wait for the end of requests in progress."""
        for batcher in self._batchers:
            batcher.close()
        self._pool.shutdown()


def run_large_answer(
    pool: ThreadPoolExecutor,
    places: threading.Semaphore,
    call: Callable[[], ResultT],
    request: QueuedRequest,
) -> ResultT:
    """Return the result of a call in the pool. Refuse the request if no place is free."""
    if not places.acquire(blocking=False):
        raise HTTPException(429, TOO_MANY)
    try:
        future = pool.submit(call)
    except RuntimeError:  # no thread can be started
        places.release()
        raise
    # Free the place as soon as the call has ended or the request is given up.
    future.add_done_callback(lambda _: places.release())
    return request.wait(future)


@dataclass(eq=False)
class _QueuedSentence:
    """A sentence of a request. It waits for a batch, and then for the end of the batch."""

    request: QueuedRequest
    source: SourceSentence
    result: Future[list[Translation]] = field(default_factory=Future)


class Batcher:
    """Joins the sentences of many requests into batches for one model, in a thread that owns it.

    A batch takes one sentence of each request, then a second sentence of each, and so on, so that a
    single sentence does not wait for the end of a long document. If a batch fails, the batcher
    repeats it request by request, so that no request fails because of another.

    Args:
        translate_windows: translates sentences. Only the batcher's thread calls it.
        max_tokens: most source tokens of a batch. A longer sentence is a batch alone.
        wait: seconds that a batch waits for more sentences if it is not full.
        on_batch: called with sentences, source tokens and seconds of each batch.
    """

    def __init__(
        self,
        translate_windows: TranslateWindows,
        max_tokens: int,
        wait: float = 0.0,
        on_batch: Callable[[int, int, float], object] = lambda *_: None,
    ) -> None:
        self._translate_windows = translate_windows
        self._num_sentences = 0  # translated so far
        self._max_tokens = max_tokens
        self._wait = wait
        self._on_batch = on_batch
        # The sentences of each request that are in no batch yet.
        self._queued: deque[deque[_QueuedSentence]] = deque()
        self._changed = threading.Condition()
        self._pool = ThreadPoolExecutor(1, "model")
        self.is_closed = False  # once True, requests are refused

    def translate(
        self, sources: Sequence[SourceSentence], request: QueuedRequest
    ) -> list[list[Translation]]:
        """Wait for the translations of the sentences, and return them."""
        sentences = [_QueuedSentence(request, source) for source in sources]
        if sentences:
            with self._changed:
                if self.is_closed:
                    raise HTTPException(503, STOPPING)
                # One call serves all requests, so that a function waits for only one batch.
                if not self._queued:
                    self._submit(self._next_batch)
                self._queued.append(deque(sentences))
                self._changed.notify_all()
        return [request.wait(sentence.result) for sentence in sentences]

    def run(self, call: Callable[[], ResultT], request: QueuedRequest) -> ResultT:
        """Call a function in the thread of the model, and return its result."""
        return request.wait(self._submit(call))

    def close(self) -> None:
        """Finish the current batch, and refuse all other sentences."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()
        self._pool.shutdown(cancel_futures=True)
        for sentence in chain.from_iterable(self._queued):
            sentence.result.cancel()

    def _submit(self, call: Callable[[], ResultT]) -> "Future[ResultT]":
        with self._changed:
            if self.is_closed:
                raise HTTPException(503, STOPPING)
            return self._pool.submit(call)

    def _next_batch(self) -> None:
        """Translate a batch, and submit the next batch if sentences are left."""
        batch: list[_QueuedSentence] = []
        with self._changed:
            # Wait a little for more sentences.
            if self._queued:
                self._changed.wait_for(self._is_full, self._wait)
                batch = self._taken()
        try:
            if batch:
                self._serve(batch)
        finally:
            with suppress(HTTPException), self._changed:
                if self._queued:
                    self._submit(self._next_batch)

    def _is_full(self) -> bool:
        sentences = chain.from_iterable(self._queued)
        return self.is_closed or _num_tokens(sentences) >= self._max_tokens

    def _taken(self) -> list[_QueuedSentence]:
        """Take a batch from the queue: sentences of all requests alternately."""
        batch: list[_QueuedSentence] = []
        num_tokens = 0
        while self._queued and not self.is_closed:
            sentences = self._queued[0]
            if sentences[0].request.is_gone:
                self._queued.popleft()
                continue
            num_tokens += len(sentences[0].source.ids)
            if batch and num_tokens > self._max_tokens:
                break
            # Move the request to the end of the queue, unless it has no more sentences.
            self._queued.popleft()
            batch.append(sentences.popleft())
            if sentences:
                self._queued.append(sentences)
        return batch

    def _serve(self, batch: list[_QueuedSentence]) -> None:
        """Translate a batch. After an error, repeat it request by request."""
        sources = [sentence.source for sentence in batch]
        start = time.perf_counter()
        try:
            results = self._translate_windows(sources, self._num_sentences)
            self._num_sentences += sum(len(source.sentences) for source in sources)
            pairs = list(zip(batch, results, strict=True))
            self._on_batch(len(batch), _num_tokens(batch), time.perf_counter() - start)
        except Exception as error:
            # Only one request may have caused the error. Run each request alone to find it.
            by_request: dict[QueuedRequest, list[_QueuedSentence]] = {}
            for sentence in batch:
                by_request.setdefault(sentence.request, []).append(sentence)
            if len(by_request) > 1:
                for sentences in by_request.values():
                    self._serve(sentences)
                return
            for sentence in batch:
                with suppress(futures.InvalidStateError):
                    sentence.result.set_exception(error)
            return
        for sentence, translations in pairs:
            # A request that was given up meanwhile has cancelled its future.
            with suppress(futures.InvalidStateError):
                sentence.result.set_result(translations)


def _num_tokens(sentences: Iterable[_QueuedSentence]) -> int:
    return sum(len(sentence.source.ids) for sentence in sentences)
