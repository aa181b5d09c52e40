"""The web application: routes, limits on waiting requests, and errors as JSON."""

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any

import torch
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException as StarletteHTTPException

import relu_nmt
from relu_nmt.applications.serving import schema
from relu_nmt.applications.serving.batcher import Batcher, Busy, Closed, RequestGone, Ticket
from relu_nmt.applications.serving.limits import (
    CheckHeaders,
    CountAnswers,
    LimitBody,
    Message,
    Metrics,
    Receive,
    Send,
)
from relu_nmt.applications.serving.service import BATCH_TOKENS, TooLarge, TranslationService
from relu_nmt.errors import OutOfMemoryError, ReluNmtError
from relu_nmt.translation.search.config import GenerationConfig, WindowConfig
from relu_nmt.translator import TranslationRequest, Translator

PAGE = files("relu_nmt.applications.serving") / "templates" / "translate.html"
PATHS = ("/", "/translate", "/attention", "/model", "/health", "/metrics", "/openapi.json")
RETRY = {"Retry-After": "1"}
WRITTEN_BYTES = 65_536
"""Longest part of an answer to hand to the connection at once."""
MOST_UNREAD_BYTES = 2**25
"""Most bytes of all answers that clients have not read yet."""
REASONS = {
    403: "A page of another origin asks.",
    413: "Too many bytes, tokens or weights.",
    415: "The Content-Type is not application/json.",
    422: "The request does not fit the description, or the model cannot do it.",
    429: "The queue is full; Retry-After says when to come back.",
    503: "The server is stopping, or its memory does not suffice for this text.",
    504: "No answer within the time limit.",
}
NO_MEMORY = "not enough memory for this text; send fewer lines at a time"
ERRORS: dict[type[Exception], tuple[int, str | None, bool]] = {
    TooLarge: (413, None, False),
    ReluNmtError: (422, None, False),
    RequestGone: (504, "the request was given up", False),
    Busy: (429, "too many requests for large answers; come back later, or ask for a line", True),
    Closed: (503, "the server is stopping", True),
    OutOfMemoryError: (503, NO_MEMORY, False),
    MemoryError: (503, NO_MEMORY, False),
    torch.OutOfMemoryError: (503, NO_MEMORY, False),
    Exception: (500, "an error of the server; see its log", False),
}
"""Status, text (None: that of the error) and whether to come back later, for each error."""
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": schema.Problem, "description": text} for status, text in REASONS.items()
}


@dataclass(frozen=True)
class ServerLimits:
    """Limits of the server's load.

    Args:
        max_bytes: longest body of a request.
        max_tokens: most source tokens of a request.
        max_waiting: most requests that are not answered yet.
        seconds: most time for one request.
        batch_wait: seconds that a batch waits for more requests if it is not full.
        allowed_hosts: host names that clients may use, without port; empty: any name.
    """

    max_bytes: int = 131_072
    max_tokens: int = 4096
    max_waiting: int = 64
    seconds: float = 60.0
    batch_wait: float = 0.005
    allowed_hosts: Sequence[str] = ()


class _UnreadAnswers:
    """Answers that clients have not read yet; the oldest are cancelled if there are too many."""

    def __init__(self) -> None:
        self._sizes: dict[asyncio.Future[None], int] = {}

    async def add(self, sending: asyncio.Future[None], size: int) -> None:
        """Wait until an answer of ``size`` bytes is sent or cancelled."""
        self._sizes[sending] = size
        # Cancel the oldest answers until the rest fits.
        for oldest in list(self._sizes)[:-1]:
            if sum(self._sizes.values()) <= MOST_UNREAD_BYTES:
                break
            oldest.cancel()
            del self._sizes[oldest]
        try:
            await asyncio.wait({sending})
        finally:
            sending.cancel()
            self._sizes.pop(sending, None)


class _Answer(Response):
    """JSON that is sent in parts, each when the client has read the previous one.

    Args:
        body: the JSON.
        unread: counts the answer until the client has read it.
    """

    def __init__(self, body: bytes, unread: _UnreadAnswers) -> None:
        super().__init__(body, media_type="application/json")
        self._unread = unread

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Send the answer."""
        sending = asyncio.ensure_future(self._send(send))
        await self._unread.add(sending, len(self.body))

    async def _send(self, send: Send) -> None:
        # Each send waits until the connection accepts the part.
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        for first in range(0, len(self.body), WRITTEN_BYTES):
            part = self.body[first : first + WRITTEN_BYTES]
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})


class _Desk:
    """Gives each request a thread, refuses requests if too many wait, and ends slow ones."""

    def __init__(self, batcher: Batcher, limits: ServerLimits, metrics: Metrics) -> None:
        self._batcher = batcher
        self._limits = limits
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(limits.max_waiting, "request")
        self._unread = _UnreadAnswers()
        self.num_waiting = 0

    @property
    def is_open(self) -> bool:
        return self._batcher.works

    async def answer(self, request: Request, work: Callable[[Ticket], bytes]) -> Response:
        """Call ``work`` with a ticket in a thread, and return its JSON.

        Raises:
            HTTPException: 503 the server stops, 429 too many requests wait, 504 no time is left.
        """
        if not self.is_open:
            raise HTTPException(503, "the server is stopping", RETRY)
        if self.num_waiting >= self._limits.max_waiting:
            text = f"{self.num_waiting} requests are waiting; come back later"
            raise HTTPException(429, text, RETRY)
        # Start the work, and watch the connection: its next message says that the client left.
        ticket = Ticket()
        self._count(1)
        done = asyncio.get_running_loop().run_in_executor(self._pool, work, ticket)
        done.add_done_callback(lambda _: self._count(-1))
        left = asyncio.ensure_future(request.receive())
        # Wait for the first event: the answer, the client's departure, or the time limit.
        waits: set[asyncio.Future[Any]] = {done, left}
        try:
            await asyncio.wait(
                waits, timeout=self._limits.seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if done.done():
                return _Answer(done.result(), self._unread)
        finally:
            ticket.give_up()
            left.cancel()
        done.add_done_callback(lambda own: own.exception())  # ignore a later error
        raise HTTPException(504, f"not done within {self._limits.seconds:g} seconds")

    def _count(self, change: int) -> None:
        self.num_waiting += change
        self._metrics.waiting.set(self.num_waiting)

    def close(self) -> None:
        self._batcher.close()
        self._pool.shutdown()


def _json(values: Any) -> bytes:
    return json.dumps(values, ensure_ascii=False, allow_nan=False).encode()


def make_app(
    translator: Translator,
    config: GenerationConfig | None = None,
    windows: WindowConfig | None = None,
    limits: ServerLimits | None = None,
) -> FastAPI:
    """Return an ASGI application that translates.

    Args:
        translator: the model; nothing else may use it at the same time.
        config: settings of the search.
        windows: default windows of documents; if None, as long as in training.
        limits: limits of the load.

    Raises:
        ReluNmtError: the settings do not fit the model.
    """
    config = (config or GenerationConfig()).resolved(documents=True)
    limits = limits or ServerLimits()
    windows = windows or WindowConfig(translator.max_doc_tokens, repair=True)
    # Start the model's thread, and the queue before it.
    metrics = Metrics()
    batcher = Batcher(
        translator.searcher(config),
        config.max_tokens or BATCH_TOKENS,
        limits.batch_wait,
        metrics.count_batch,
    )
    desk = _Desk(batcher, limits, metrics)
    # Large answers leave an eighth of the queue to other requests.
    max_large = max(1, limits.max_waiting - max(1, limits.max_waiting // 8))
    service = TranslationService(translator, config, windows, limits.max_tokens, max_large, batcher)
    try:  # report settings that do not fit now, and not in the first answer
        service.translate(TranslationRequest.of_lines(["."]), None, Ticket())
    except BaseException:
        desk.close()
        raise

    # Close the desk in a thread, as it waits for requests in progress.
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(desk.close)

    app = FastAPI(
        title="relu_nmt",
        description="Translation of documents, and the model's attention weights.",
        version=relu_nmt.__version__,
        docs_url=None,  # FastAPI's pages would load scripts from other servers
        redoc_url=None,
        lifespan=lifespan,
    )
    # The middleware that is added last sees a request first.
    _add_routes(app, desk, service, limits, metrics)
    _add_errors(app)
    app.add_middleware(CheckHeaders, names=limits.allowed_hosts)
    app.add_middleware(LimitBody, max_bytes=limits.max_bytes, seconds=limits.seconds)
    app.add_middleware(CountAnswers, metrics=metrics, paths=frozenset(PATHS))
    return app


def _add_routes(
    app: FastAPI,
    desk: _Desk,
    service: TranslationService,
    limits: ServerLimits,
    metrics: Metrics,
) -> None:
    # Prepare answers that never change: the page and the model's description.
    page, headers = _page()
    own_limits = schema.Limits(
        bytes=limits.max_bytes, tokens=limits.max_tokens, seconds=limits.seconds
    )
    description = schema.ModelDescription(**service.describe(), limits=own_limits)

    # Serve the page for people, outside the description of the interface.
    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page, headers=headers)

    @app.get("/model")
    async def describe_model() -> schema.ModelDescription:
        """Describe the model's languages, attention and limits."""
        return description

    @app.post("/translate", response_model=schema.TranslationAnswer, responses=PROBLEMS)
    async def translate(asked: schema.TranslationRequest, request: Request) -> Response:
        """Translate a document, a translation for each of its lines."""
        text = TranslationRequest.of_lines(
            asked.lines, asked.prefixes, asked.forced, asked.ordered, asked.banned
        )
        # Wait for the translation in a thread of the desk.
        return await desk.answer(
            request, lambda ticket: _json(service.translate(text, asked.max_doc_tokens, ticket))
        )

    @app.post("/attention", response_model=schema.AttentionAnswer, responses=PROBLEMS)
    async def show_attention(asked: schema.AttentionRequest, request: Request) -> Response:
        """Return the attention weights of each token, in every layer and head of a slot."""
        # Pass on the service's bytes: it writes large JSON in parts.
        return await desk.answer(
            request,
            lambda ticket: service.attention(
                asked.lines, asked.translation, asked.slot, asked.line, ticket
            ),
        )

    @app.get("/health", response_model=schema.Health, responses={503: {"model": schema.Health}})
    async def tell_health() -> JSONResponse:
        """Report whether the server accepts requests."""
        # Answer 503 while stopping, so that health checks fail.
        status = "ok" if desk.is_open else "stopping"
        values = {"status": status, "waiting": desk.num_waiting}
        return JSONResponse(values, 200 if desk.is_open else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def tell_metrics() -> Response:
        """Return counts and times in Prometheus' format."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _page() -> tuple[str, dict[str, str]]:
    """Return the page, and headers that allow only its own script and calls of this server."""
    text = PAGE.read_text("utf-8")
    # Forbid everything at first, then allow the own server.
    rules = ["default-src 'none'", "connect-src 'self'", "img-src data:", "base-uri 'none'"]
    rules += ["form-action 'none'", "frame-ancestors 'none'"]
    # Allow the inline script and style by their hashes.
    for kind in ("script", "style"):
        [inner] = re.findall(f"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        rules.append(f"{kind}-src 'sha256-{digest}'")
    return text, {
        "Content-Security-Policy": "; ".join(rules),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


def _add_errors(app: FastAPI) -> None:
    """Make every error an answer with one line of JSON."""

    @app.exception_handler(RequestValidationError)
    async def wrong_request(_: Request, error: RequestValidationError) -> JSONResponse:
        # Report only the first problem, in one line.
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return _problem(422, f"the body is no JSON: {first['ctx']['error']}")
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        return _problem(422, f"{place}: {first['msg']}" if place else "expected an object")

    @app.exception_handler(StarletteHTTPException)
    async def refused(_: Request, error: StarletteHTTPException) -> JSONResponse:
        # FastAPI answers 400 if it cannot read the JSON at all.
        status = 422 if error.status_code == 400 else error.status_code
        return _problem(status, str(error.detail), error.headers)

    # Answer an error of the table with its fixed text, or the error's own.
    async def known(
        status: int, text: str | None, retry: bool, _: Request, error: Exception
    ) -> JSONResponse:
        return _problem(status, text or str(error), RETRY if retry else None)

    # Starlette chooses the handler of the nearest base class.
    for kind, answer in ERRORS.items():
        app.add_exception_handler(kind, partial(known, *answer))


def _problem(status: int, text: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"error": text}, status, headers)
