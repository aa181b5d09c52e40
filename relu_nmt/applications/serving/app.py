"""The web application: the JSON of requests and answers, routes, and errors as JSON.

FastAPI derives the OpenAPI description from the classes of the JSON.
"""

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

import relu_nmt
from relu_nmt.applications.serving import ServerOptions, libretranslate
from relu_nmt.applications.serving.limits import NO_MEMORY, RETRY, Metrics, guarded
from relu_nmt.applications.serving.queues import QueuedRequest, RequestQueue
from relu_nmt.applications.serving.service import TranslationService, services_of
from relu_nmt.data.documents import WindowConfig
from relu_nmt.errors import ConfigError, OutOfMemoryError, ReluNmtError
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translator import Translator

PAGE = files("relu_nmt.applications.serving") / "templates" / "translate.html"
PATHS = ("/", "/translate", "/attention", "/model", "/health", "/metrics", "/openapi.json")
WRITTEN_BYTES = 65_536
"""Longest part of an answer to hand to the connection at once."""
MOST_UNREAD_BYTES = 2**25
"""Most bytes of all answers that clients have not read yet."""
REASONS = {
    403: "A page of another origin asks.",
    404: "No model of this server has these languages.",
    413: "Too many bytes, tokens or weights.",
    415: "The Content-Type is not application/json, or the body is compressed.",
    422: "The request does not fit the description, or the model cannot do it.",
    429: "The queue is full; Retry-After says when to come back.",
    503: "The server is stopping, or memory or threads do not suffice for this text.",
    504: "No answer within the time limit.",
}
ERRORS: dict[type[Exception], tuple[int, str | None]] = {
    ReluNmtError: (422, None),
    OutOfMemoryError: (503, NO_MEMORY),
    Exception: (500, "an error of the server; see its log"),
}
"""Status and text for each error. None: the error's text."""
LINE_CHARACTERS = 4000
"""Longest line: for a longer one without spaces subword-nmt would take seconds."""
MOST_LINES = 2000
TERM_CHARACTERS = 200
MOST_FORCED = 16
"""Most forced terms of a line."""
MOST_BANNED = 200


def _whole(value: object) -> object:
    """Return 3.0 as 3, which is the same number in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


MaxDocTokens = Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(_whole)]
LineNumber = Annotated[int, Field(ge=0, le=MOST_LINES), BeforeValidator(_whole)]
Line = Annotated[str, Field(max_length=LINE_CHARACTERS)]
Lines = Annotated[list[Line], Field(min_length=1, max_length=MOST_LINES)]
Term = Annotated[str, Field(max_length=TERM_CHARACTERS)]
LineTerms = Annotated[list[Term], Field(max_length=MOST_FORCED)]


STRICT = ConfigDict(extra="forbid", strict=True)
"""In a request, unknown fields are errors, and no value is converted."""


class ModelChoice(BaseModel):
    """The languages that choose a model of the server."""

    model_config = STRICT
    source: str | None = Field(
        None, description="Source language, by default that of the first model that fits."
    )
    target: str | None = Field(
        None, description="Target language, by default that of the first model that fits."
    )


class TranslationBody(ModelChoice):
    """A document to translate."""

    lines: Lines = Field(description="Its sentences in order; a blank one gives an empty one.")
    max_doc_tokens: MaxDocTokens | None = Field(
        None,
        description="Translate consecutive lines together, up to this many source tokens; 1: each "
        "on its own. By default as the model was trained.",
    )
    prefixes: Lines | None = Field(
        None,
        description="Beginning of the translation of each line, in whole words; an empty text for "
        "none. As many as lines.",
    )
    forced: Annotated[list[LineTerms], Field(max_length=MOST_LINES)] | None = Field(
        None,
        description="Terms that the translation of each line must contain, at places that do not "
        "overlap; an empty list for none. As many lists as lines.",
    )
    ordered: bool = Field(True, description="The forced terms of a line come in this order.")
    banned: list[Term] = Field(
        [],
        max_length=MOST_BANNED,
        description="Terms that no translation may contain outside forced text, in any case.",
    )
    match_case: bool = Field(False, description="Banned terms may come in other capitals.")
    inside_words: bool = Field(
        False,
        description="Forced terms may be parts of words, and banned terms are banned there too.",
    )


class Group(BaseModel):
    """Lines that were translated at once."""

    first: int = Field(description="Number of the first line, from 0.")
    count: int = Field(description="Number of lines.")
    lines: list[str] = Field(
        description="Their translations: one each, or a single one for all of them if the model "
        "does not tell sentences apart."
    )
    score: float = Field(description="Log-probability over length penalty, nats.")
    reached_limit: bool = Field(description="The translation may be cut off.")


class TranslationAnswer(BaseModel):
    """The translation of a document."""

    lines: list[str]
    groups: list[Group]
    source_tokens: int
    target_tokens: int


class AttentionBody(ModelChoice):
    """Lines that are translated at once, and a translation of them."""

    lines: Lines
    translation: Lines = Field(description="Line by line, or one line for all.")
    slot: Literal["cross", "encoder", "decoder"] = "cross"
    line: LineNumber | None = Field(
        None, description="Only the rows of the tokens of this line, from 0."
    )


class Token(BaseModel):
    """A token and its place in the text."""

    text: str
    line: int | None = Field(description="Number of its line, from 0; null for the end symbol.")
    begin: int = Field(description="Its first character in this line.")
    end: int = Field(description="The character behind its last.")


class AttentionAnswer(BaseModel):
    """The weights of every layer and head, as the mechanism defines them."""

    queries: list[Token] = Field(
        description="Tokens of the rows; in the decoder, the predicted tokens."
    )
    keys: list[Token] = Field(description="Tokens of the columns.")
    weights: list[list[list[list[float]]]] = Field(description="[layer][head][query][key]")


class SlotDescription(BaseModel):
    """The attention of a slot."""

    mechanism: str
    layers: int
    heads: int
    has_weights: bool


class Limits(BaseModel):
    """The largest request."""

    bytes: int
    tokens: int
    seconds: float
    lines: int = MOST_LINES
    line_characters: int = LINE_CHARACTERS
    line_terms: int = MOST_FORCED
    banned_terms: int = MOST_BANNED
    term_characters: int = TERM_CHARACTERS


class ModelDescription(BaseModel):
    """Description of the model and the server's limits."""

    source_lang: str
    target_lang: str
    parameters: int
    max_doc_tokens: int = Field(description="Default of tokens to translate at once.")
    keeps_sentences: bool = Field(description="Each line has its own translation in any group.")
    beam: int
    attention: dict[str, SlotDescription]
    limits: Limits


class Health(BaseModel):
    """State of the server."""

    status: Literal["ok", "stopping"]
    waiting: int = Field(description="Requests that are not answered yet.")


Problem = create_model(
    "Problem", __doc__="Error message of a request without answer.", error=(str, ...)
)
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text} for status, text in REASONS.items()
}


class _Answer(StreamingResponse):
    """JSON that is sent in parts, each when the client has read the previous one.

    If clients leave too many bytes of all answers in ``unread`` (sizes, oldest first), the oldest
    answers are cancelled.
    """

    def __init__(self, body: bytes, unread: dict[asyncio.Future[None], int]) -> None:
        async def parts() -> AsyncIterator[bytes]:
            for begin in range(0, len(body), WRITTEN_BYTES):
                yield body[begin : begin + WRITTEN_BYTES]

        size = {"Content-Length": str(len(body))}
        super().__init__(parts(), headers=size, media_type="application/json")
        self._size, self._unread = len(body), unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        unread = self._unread
        sending = asyncio.ensure_future(self.stream_response(send))
        unread[sending] = self._size
        # Cancel the oldest answers until the rest fits.
        for oldest in list(unread)[:-1]:
            if sum(unread.values()) <= MOST_UNREAD_BYTES:
                break
            oldest.cancel()
            del unread[oldest]
        try:
            await asyncio.wait({sending})
        finally:
            sending.cancel()
            unread.pop(sending, None)


def make_app(
    translator: Translator,
    config: GenerationConfig | None = None,
    windows: WindowConfig | None = None,
    limits: ServerOptions | None = None,
    further_models: Sequence[tuple[Translator, WindowConfig | None]] = (),
) -> FastAPI:
    """Return an ASGI application that translates. Nothing else may use the translators meanwhile.

    Documents are divided into ``windows`` by default. None: as long as in training. Requests choose
    between the translator and ``further_models``, which have windows of their own, by languages.

    Raises:
        ReluNmtError: the settings do not fit the model.
    """
    config = (config or GenerationConfig()).resolved(documents=True)
    limits = limits or ServerOptions()
    # Start the models' threads, and the queue before them.
    metrics = Metrics()
    services: list[TranslationService] = []
    for model, model_windows in ((translator, windows), *further_models):
        pair = model.task.source_lang, model.task.target_lang
        if services_of(services, *pair):
            raise ConfigError(f"two models translate {'-'.join(pair)}; give one for each pair")
        model_windows = model_windows or WindowConfig(model.max_doc_tokens, repair=True)
        service = TranslationService(model, config, model_windows, limits, metrics.count_batch)
        services.append(service)
    batchers = [service.batcher for service in services]
    queue = RequestQueue(batchers, limits.max_waiting, limits.request_seconds)
    metrics.waiting.set_function(lambda: queue.num_waiting)

    def close() -> None:
        queue.close()
        for service in services:
            service.close()

    try:  # report settings that do not fit now, and not in the first answer
        for service in services:
            service.translate(QueuedRequest(), ["."])
    except BaseException:
        close()
        raise

    # Close in a thread, as this waits for requests in progress. Start it while there is memory.
    closer = ThreadPoolExecutor(1, "closer")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        closer.submit(int)
        yield
        await asyncio.get_running_loop().run_in_executor(closer, close)
        closer.shutdown(wait=False)

    app = FastAPI(
        title="relu_nmt",
        description="Translation of documents, and the model's attention weights.",
        version=relu_nmt.__version__,
        docs_url=None,  # FastAPI's pages would load scripts from other servers
        redoc_url=None,
        lifespan=lifespan,
    )
    _add_routes(app, queue, services, limits, metrics)
    libretranslate.add_routes(app, queue, services, limits)
    _add_errors(app)
    app.add_middleware(libretranslate.reading_forms)
    app.add_middleware(
        guarded, limits=limits, metrics=metrics, paths=frozenset(PATHS + libretranslate.PATHS)
    )
    return app


def _add_routes(
    app: FastAPI,
    queue: RequestQueue,
    services: Sequence[TranslationService],
    limits: ServerOptions,
    metrics: Metrics,
) -> None:
    # Prepare answers that never change: the page and the models' descriptions.
    page, headers = _page()
    sizes = {"bytes": limits.max_request_bytes, "tokens": limits.max_request_tokens}
    own_limits = Limits(**sizes, seconds=limits.request_seconds)
    descriptions = {}
    for service in services:
        values = service.describe()
        descriptions[service] = ModelDescription(**values, limits=own_limits)

    unread: dict[asyncio.Future[None], int] = {}

    async def answer(request: Request, work: Callable[[QueuedRequest], bytes]) -> Response:
        return _Answer(await queue.answer(request.receive, work), unread)

    # Serve the page for people, outside the description of the interface.
    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page, headers=headers)

    def chosen(source: str | None, target: str | None) -> TranslationService:
        fitting = services_of(services, source, target)
        if not fitting:
            raise HTTPException(404, "no model has these languages; /languages lists the pairs")
        return fitting[0]

    @app.get("/model", responses={404: PROBLEMS[404], 422: PROBLEMS[422]})
    async def describe_model(
        source: str | None = None, target: str | None = None
    ) -> ModelDescription:
        """Describe the model's languages, attention and limits."""
        return descriptions[chosen(source, target)]

    @app.post("/translate", response_model=TranslationAnswer, responses=PROBLEMS)
    async def translate(content: TranslationBody, request: Request) -> Response:
        """Translate a document, a translation for each of its lines."""
        service = chosen(content.source, content.target)
        arguments = content.model_dump(exclude={"source", "target"})

        # Translate, and write the JSON, in a thread of the queue.
        def work(queued: QueuedRequest) -> bytes:
            translation = service.translate(queued, **arguments)
            return json.dumps(translation, ensure_ascii=False, allow_nan=False).encode()

        return await answer(request, work)

    @app.post("/attention", response_model=AttentionAnswer, responses=PROBLEMS)
    async def show_attention(content: AttentionBody, request: Request) -> Response:
        """Return the attention weights of each token, in every layer and head of a slot."""
        # Pass on the service's bytes: it writes large JSON in parts.
        service = chosen(content.source, content.target)
        arguments = content.model_dump(exclude={"source", "target"})
        return await answer(request, lambda queued: service.attention(queued, **arguments))

    @app.get("/health", response_model=Health, responses={503: {"model": Health}})
    async def tell_health() -> JSONResponse:
        """Report whether the server accepts requests."""
        # Answer 503 while stopping, so that health checks fail.
        status, code = ("ok", 200) if queue.is_open else ("stopping", 503)
        return JSONResponse({"status": status, "waiting": queue.num_waiting}, code)

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
        field = ".".join(str(part) for part in first["loc"] if part != "body")
        return _problem(422, f"{field}: {first['msg']}" if field else "expected an object")

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        # FastAPI answers 400 if it cannot read the JSON at all, and tells the cause.
        if error.status_code == 400 and error.__cause__ is not None:
            return _problem(422, f"the body is no JSON: {error.__cause__}")
        headers = RETRY if error.status_code in (429, 503) else error.headers
        return _problem(error.status_code, str(error.detail), headers)

    # Answer an error of the table with its fixed text, or the error's own.
    async def handle(status: int, text: str | None, _: Request, error: Exception) -> JSONResponse:
        return _problem(status, text or str(error))

    # Starlette chooses the handler of the nearest base class.
    for kind, (status, text) in ERRORS.items():
        app.add_exception_handler(kind, partial(handle, status, text))


def _problem(status: int, text: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"error": text}, status, headers)
