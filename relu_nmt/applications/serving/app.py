"""The web application: its routes, the page for people, and errors as JSON."""

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

import relu_nmt
from relu_nmt.applications.serving import ServerOptions, libretranslate, messages
from relu_nmt.applications.serving.guard import NO_MEMORY, RETRY, ApiKeys, Metrics, guarded, refusal
from relu_nmt.applications.serving.queues import QueuedRequest, RequestQueue
from relu_nmt.applications.serving.service import TranslationService, services_of
from relu_nmt.data.document_settings import WindowConfig
from relu_nmt.errors import ConfigError, OutOfMemoryError, ReluNmtError
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translator import Translator

PAGE = files("relu_nmt.applications.serving") / "templates" / "translate.html"
PATHS = ("/", "/translate", "/attention", "/model", "/health", "/metrics", "/openapi.json")
WRITTEN_BYTES = 65_536
"""Most bytes of an answer that the connection gets at once."""
MOST_UNREAD_BYTES = 2**25
"""Most bytes of all answers that clients have not read yet."""


def make_app(
    translator: Translator,
    config: GenerationConfig | None = None,
    windows: WindowConfig | None = None,
    limits: ServerOptions | None = None,
    further_models: Sequence[tuple[Translator, WindowConfig | None]] = (),
) -> FastAPI:
    """Return an ASGI application that translates. Nothing else may use the translators meanwhile.

    Documents are divided into ``windows`` by default. None: as long as in training. The languages
    of a request choose the translator or one of ``further_models``, each with its windows.

    Raises:
        ReluNmtError: the settings do not fit the model.
    """
    config = (config or GenerationConfig()).resolved(documents=True)
    limits = limits or ServerOptions()
    metrics = Metrics()
    services: list[TranslationService] = []
    for model, model_windows in ((translator, windows), *further_models):
        source, target = model.task.source_lang, model.task.target_lang
        if services_of(services, source, target):
            raise ConfigError(f"two models translate {source}-{target}; give one for each pair")
        model_windows = model_windows or WindowConfig(model.max_doc_tokens, repair=True)
        service = TranslationService(model, config, model_windows, limits, metrics.count_batch)
        services.append(service)
    queue = RequestQueue([service.batcher for service in services], limits)

    def close() -> None:
        queue.close()
        for service in services:
            service.close()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        close()  # no request needs the event loop any more; threads may still end

    try:  # report settings that do not fit now, and not in the first answer
        for service in services:
            service.translate(QueuedRequest(), ["."])
    except BaseException:
        close()
        raise
    app = FastAPI(
        title="relu_nmt",
        description="Translation of documents, and the model's attention weights.",
        version=relu_nmt.__version__,
        docs_url=None,  # FastAPI's pages would load scripts from other servers
        redoc_url=None,
        lifespan=lifespan,
    )
    _add_page(app)
    keys = ApiKeys(limits.api_keys)
    _add_model_routes(app, queue, services, limits, keys)
    _add_state_routes(app, queue, metrics)
    libretranslate.Interface(queue, services, limits, keys).add_routes(app)
    _add_errors(app)
    app.add_middleware(guarded, limits=limits, metrics=metrics, paths=PATHS + libretranslate.PATHS)
    return app


# ------------------------------------------------------------------- routes


def _add_page(app: FastAPI) -> None:
    """Add the page for people, which may use only its own script and calls of this server."""
    page = PAGE.read_text("utf-8")
    # Forbid everything at first, then allow calls of this server.
    rules = ["default-src 'none'", "connect-src 'self'", "img-src data:", "base-uri 'none'"]
    rules += ["form-action 'none'", "frame-ancestors 'none'"]
    # Allow the inline script and style by their hashes.
    for kind in ("script", "style"):
        [inner] = re.findall(f"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        rules.append(f"{kind}-src 'sha256-{digest}'")
    headers = {
        "Content-Security-Policy": "; ".join(rules),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page, headers=headers)


def _add_model_routes(
    app: FastAPI,
    queue: RequestQueue,
    services: Sequence[TranslationService],
    limits: ServerOptions,
    keys: ApiKeys,
) -> None:
    largest_request = messages.Limits(
        bytes=limits.max_request_bytes,
        file_bytes=limits.max_file_bytes,
        tokens=limits.max_request_tokens,
        seconds=limits.request_seconds,
    )
    descriptions = {}
    for service in services:
        values = service.describe()
        descriptions[service] = messages.ModelDescription(**values, limits=largest_request)
    unread: dict[asyncio.Future[None], int] = {}

    def fitting(source: str | None, target: str | None) -> TranslationService:
        candidates = services_of(services, source, target)
        if not candidates:
            raise HTTPException(404, "no model has these languages; /languages lists the pairs")
        return candidates[0]

    def chosen(choice: messages.ModelChoice) -> TranslationService:
        keys.check(choice.api_key)
        return fitting(choice.source, choice.target)

    async def in_queue(request: Request, work: Callable[[QueuedRequest], bytes]) -> Response:
        return _SlowlyReadResponse(await queue.run(request.receive, work), unread)

    @app.get("/model", responses={404: messages.PROBLEMS[404], 422: messages.PROBLEMS[422]})
    async def describe_model(
        source: str | None = None, target: str | None = None
    ) -> messages.ModelDescription:
        """Describe the model's languages, attention and limits."""
        return descriptions[fitting(source, target)]

    @app.post("/translate", response_model=messages.TranslationAnswer, responses=messages.PROBLEMS)
    async def translate(content: messages.TranslationBody, request: Request) -> Response:
        """Translate a document. The answer has a translation for each line."""
        service = chosen(content)
        arguments = content.model_dump(exclude=set(messages.ModelChoice.model_fields))

        # Translate, and write the JSON, in a thread of the queue.
        def work(queued: QueuedRequest) -> bytes:
            translation = service.translate(queued, **arguments)
            return json.dumps(translation, ensure_ascii=False, allow_nan=False).encode()

        return await in_queue(request, work)

    @app.post("/attention", response_model=messages.AttentionAnswer, responses=messages.PROBLEMS)
    async def show_attention(content: messages.AttentionBody, request: Request) -> Response:
        """Return the attention weights of each token, in every layer and head of a slot."""
        # Pass on the service's bytes, since the service writes large JSON in parts.
        service = chosen(content)
        arguments = content.model_dump(exclude=set(messages.ModelChoice.model_fields))
        return await in_queue(request, lambda queued: service.attention(queued, **arguments))


def _add_state_routes(app: FastAPI, queue: RequestQueue, metrics: Metrics) -> None:
    metrics.waiting.set_function(lambda: queue.num_waiting)

    @app.get("/health", response_model=messages.Health, responses={503: {"model": messages.Health}})
    async def tell_health() -> JSONResponse:
        """Report whether the server accepts requests."""
        health = {"status": "ok", "waiting": queue.num_waiting}
        if queue.is_open:
            return JSONResponse(health)
        return JSONResponse({**health, "status": "stopping"}, 503)  # so that health checks fail

    @app.get("/metrics", response_class=PlainTextResponse)
    async def tell_metrics() -> Response:
        """Return counts and times in Prometheus' format."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)


class _SlowlyReadResponse(StreamingResponse):
    """JSON that is sent in parts. A part is sent when the client has read the previous part.

    ``unread`` has the sizes of all answers that clients have not read, oldest first. If their sum
    is too large, the oldest answers are cancelled.
    """

    def __init__(self, body: bytes, unread: dict[asyncio.Future[None], int]) -> None:
        async def parts() -> AsyncIterator[bytes]:
            for begin in range(0, len(body), WRITTEN_BYTES):
                yield body[begin : begin + WRITTEN_BYTES]

        size = {"Content-Length": str(len(body))}
        super().__init__(parts(), headers=size, media_type="application/json")
        self._size = len(body)
        self._unread = unread

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


# ------------------------------------------------------------------- errors


def _add_errors(app: FastAPI) -> None:
    """Turn every error into an answer with one line of JSON."""

    @app.exception_handler(RequestValidationError)
    async def wrong_request(request: Request, error: RequestValidationError) -> JSONResponse:
        # Report only the first problem, in one line.
        problem = error.errors()[0]
        path = [str(part) for part in problem["loc"] if part != "body"]
        text = f"{'.'.join(path)}: {problem['msg']}"
        if problem["type"] == "json_invalid":
            text = f"the body is no JSON: {problem['ctx']['error']}"
        elif not path:
            text = "expected an object"
        elif request.url.path in libretranslate.PATHS:
            is_missing = problem["type"] == "missing"
            text = f"missing {path[0]} parameter" if is_missing else f"{path[0]}: {problem['msg']}"
        return invalid(request, text)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        # FastAPI answers 400, with the cause, if it cannot read the JSON at all.
        if error.status_code == 400 and error.__cause__ is not None:
            return invalid(request, f"the body is no JSON: {error.__cause__}")
        headers = RETRY if error.status_code in (429, 503) else error.headers
        return refusal(error.status_code, str(error.detail), headers)

    @app.exception_handler(OutOfMemoryError)
    async def out_of_memory(_: Request, error: OutOfMemoryError) -> JSONResponse:
        return refusal(503, NO_MEMORY)

    @app.exception_handler(ReluNmtError)
    async def impossible(request: Request, error: ReluNmtError) -> JSONResponse:
        status = 400 if request.url.path in libretranslate.PATHS else 422
        return refusal(status, str(error))

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        return refusal(500, "an error of the server; see its log")


def invalid(request: Request, text: str) -> JSONResponse:
    """Return the error of a request that is not as described, in the form of its interface."""
    if request.url.path in libretranslate.PATHS:
        return refusal(400, f"Invalid request: {text}")
    return refusal(422, text)
