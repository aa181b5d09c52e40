"""LibreTranslate's interface, which other programs speak, and the translation of files.

Its requests are JSON or forms. Plain text and HTML are translated as files.
"""

import json
import logging
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PureWindowsPath
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, quote

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field as FormField
from python_multipart.multipart import File, FormParser, parse_options_header
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from relu_nmt.applications.files import ENDINGS, FileOptions, format_name, formats, translated
from relu_nmt.applications.files.sentences import SegmentTranslator
from relu_nmt.applications.serving import ServerOptions
from relu_nmt.applications.serving.detection import confidences
from relu_nmt.applications.serving.guard import FORMS, UPLOADS, ApiKeys, replayed
from relu_nmt.applications.serving.queues import QueuedRequest, RequestQueue
from relu_nmt.applications.serving.service import TranslationService, services_of
from relu_nmt.errors import DataError, reporting
from relu_nmt.translation.search.translations import SourceSentence, Translation

TEXT_PATH = "/libretranslate/translate"
"""The internal route of texts, since the route ``/translate`` also serves lines."""
PATHS = ("/languages", "/detect", UPLOADS, TEXT_PATH, "/frontend/settings")
LEAST_CONFIDENCE = 0.8
"""Least confidence that chooses a language if the source is ``auto``."""
MOST_FILES = 32
"""Most translated files that wait for their download. For a further file the oldest goes."""
MOST_FILES_BYTES = 2**28
"""Most bytes of all these files."""
MOST_PARTS = 100
"""Most parts of a form."""
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it would log what clients send


Text = Annotated[str, Field(pattern="")]
"""Text of whole characters. Only with a pattern, pydantic refuses halves of surrogate pairs."""


class TextBody(BaseModel):
    """A text to translate, or several."""

    q: Text | list[Text]
    source: Text = "auto"
    target: Text
    format: Literal["text", "html"] = "text"
    alternatives: int = Field(0, ge=0)
    api_key: str | None = None


class DetectBody(BaseModel):
    """A text whose language is asked for."""

    q: Text
    api_key: str | None = None


def reading_forms(app: ASGIApp) -> ASGIApp:
    """Return an application that turns forms into JSON, and moves texts to their own route.

    The guard in front passes the body on as one message.
    """

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in ("/translate", "/detect"):
            await app(scope, receive, send)
            return
        message = await receive()
        body = message.get("body", b"")
        headers = dict(scope["headers"])
        content_type = headers.get(b"content-type", b"").decode("latin-1")
        is_form = content_type.lower().startswith(FORMS)
        if is_form:
            fields, *_ = parsed_form(content_type, body)
            body = json.dumps(fields).encode()
            headers |= {b"content-type": b"application/json", b"content-length": b"%d" % len(body)}
        if scope["path"] == "/translate" and (is_form or _has_text(body)):
            scope = {**scope, "path": TEXT_PATH, "raw_path": TEXT_PATH.encode()}
        receive = replayed({**message, "body": body}, receive)
        await app({**scope, "headers": list(headers.items())}, receive, send)

    return serve


def _has_text(body: bytes) -> bool:
    """Return whether a body is a request of LibreTranslate's interface, and not one for lines."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return False
    if not isinstance(content, dict) or "lines" in content:
        return False
    return not content.keys().isdisjoint(TextBody.model_fields)


class Interface:
    """The routes of the interface, and the translated files that wait for their download."""

    def __init__(
        self,
        queue: RequestQueue,
        services: Sequence[TranslationService],
        limits: ServerOptions,
        keys: ApiKeys,
    ) -> None:
        self._queue = queue
        self._services = services
        self._max_bytes = limits.max_request_bytes
        self._keys = keys
        # Keep the order of the models. The first one's languages are the defaults.
        self._sources = list(dict.fromkeys(service.languages.source for service in services))
        self._targets = list(dict.fromkeys(service.languages.target for service in services))
        self._files: dict[str, tuple[str, bytes]] = {}  # names and contents, oldest first
        self._running: dict[str, SegmentTranslator] = {}  # by the keys of their clients

    def add_routes(self, app: FastAPI) -> None:
        """Add the routes of the interface, and the reading of its forms, to an application."""
        routes: tuple[tuple[str, str, Callable[..., Any]], ...] = (
            ("GET", "/languages", self.languages),
            ("GET", "/frontend/settings", self.settings),
            ("POST", "/detect", self.detect),
            ("POST", TEXT_PATH, self.translate),
            ("POST", UPLOADS, self.translate_file),
            ("GET", "/file_progress/{key}", self.file_progress),
            ("GET", "/download_file/{key}", self.download),
        )
        for method, path, serve in routes:
            app.add_api_route(path, serve, methods=[method], include_in_schema=False)
        app.add_middleware(reading_forms)

    async def languages(self) -> list[dict[str, Any]]:
        """Return all languages, each with the languages into which a model translates it."""
        languages = []
        for code in dict.fromkeys([*self._sources, *self._targets]):
            fitting = services_of(self._services, code, None)
            targets = [service.languages.target for service in fitting]
            languages.append({"code": code, "name": code, "targets": targets})
        return languages

    async def settings(self) -> dict[str, Any]:
        """Return the settings of a page for people."""
        languages = self._services[0].languages
        own_formats = set(formats.names()).difference(ENDINGS.values())
        return {
            "apiKeys": self._keys.required,
            "keyRequired": self._keys.required,
            "charLimit": self._max_bytes,
            "filesTranslation": True,
            "supportedFilesFormat": sorted([*ENDINGS, *(f".{name}" for name in own_formats)]),
            "language": {
                "source": {"code": languages.source, "name": languages.source},
                "target": {"code": languages.target, "name": languages.target},
            },
            "suggestions": False,
        }

    async def detect(self, content: DetectBody) -> list[dict[str, Any]]:
        """Return the source languages, the likeliest first."""
        self._keys.check(content.api_key)
        detected = detected_languages(self._services, content.q).items()
        return [{"language": code, "confidence": round(100 * share)} for code, share in detected]

    async def translate(self, content: TextBody, request: Request) -> Response:
        """Translate a text, or several."""
        self._keys.check(content.api_key)
        texts = [content.q] if isinstance(content.q, str) else content.q
        service, confidence = self._chosen(content.source, content.target, "\n".join(texts))

        def work(queued: QueuedRequest) -> bytes:
            segments = service.segment_translator(queued, 1 + content.alternatives)
            ranked = [ranked_translations(text, content.format, segments) for text in texts]
            values: dict[str, list[Any]] = {"translatedText": [ranks[0] for ranks in ranked]}
            if content.alternatives:
                behind = 1 + content.alternatives
                values["alternatives"] = [ranks[1:behind] for ranks in ranked]
            if content.source == "auto":
                detected = {"language": service.languages.source, "confidence": confidence}
                values["detectedLanguage"] = [detected] * len(texts)
            # A list of texts has lists of values, and a single text single values.
            answer: dict[str, Any] = values
            if isinstance(content.q, str):
                answer = {name: column[0] for name, column in values.items()}
            return json.dumps(answer, ensure_ascii=False).encode()

        answer = await self._queue.run(request.receive, work)
        return Response(answer, media_type="application/json")

    async def translate_file(self, request: Request) -> Response:
        """Translate a file, and return the address of the translation."""
        content_type = request.headers.get("content-type", "")
        fields, name, content = parsed_form(content_type, await request.body())
        self._keys.check(fields.get("api_key"))
        path = PureWindowsPath("".join(filter(str.isprintable, name)))
        if not path.name:
            raise HTTPException(400, "Invalid request: missing file parameter")
        target_lang = fields.get("target", self._targets[0])
        service, _ = self._chosen(fields.get("source", "auto"), target_lang)
        progress_key = fields.get("progress", "")
        file_format = format_name(path.name)

        def work(queued: QueuedRequest) -> bytes:
            segments = service.segment_translator(queued, is_file=True)
            self._running[progress_key] = segments
            try:
                with reporting(path.name, caught=DataError):
                    return translated(
                        content, file_format, segments, FileOptions(), segments.languages
                    )
            finally:
                self._running.pop(progress_key, None)

        translation = await self._queue.run(request.receive, work, is_file=True)
        # Change the files here only, since several threads of the queue work at once.
        key = secrets.token_urlsafe(16)
        self._files[key] = f"{path.stem}.{target_lang}{path.suffix}", translation
        while len(self._files) > MOST_FILES or self._num_bytes > MOST_FILES_BYTES:
            self._files.pop(next(iter(self._files)))
        return JSONResponse({"translatedFileUrl": str(request.url_for("download", key=key))})

    @property
    def _num_bytes(self) -> int:
        return sum(len(content) for _, content in self._files.values())

    async def file_progress(self, key: str) -> dict[str, int]:
        """Return the number of sentences in a file, and how many of them are translated."""
        segments = self._running.get(key)  # which may end at any time
        if segments is None:
            return {"done": 0, "sentences": 0}
        num_done = min(segments.num_done, segments.num_sentences)
        return {"done": num_done, "sentences": segments.num_sentences}

    async def download(self, key: str) -> Response:
        """Return a translated file."""
        if key not in self._files:
            raise HTTPException(404, "no such file; files are kept for a short time only")
        name, content = self._files[key]
        disposition = f"attachment; filename*=UTF-8''{quote(name)}"
        headers = {"Content-Disposition": disposition, "X-Content-Type-Options": "nosniff"}
        return Response(content, headers=headers, media_type="application/octet-stream")

    def _chosen(self, source: str, target: str, text: str = "") -> tuple[TranslationService, int]:
        """Return the service of two languages, and the confidence in the source in percent.

        If ``auto`` leaves several source languages, the text decides if it is clear enough.
        """
        is_auto = source == "auto"
        if not is_auto and source not in self._sources:
            raise HTTPException(400, f"{source} is not supported")
        if target not in self._targets:
            raise HTTPException(400, f"{target} is not supported")
        fitting = services_of(self._services, None if is_auto else source, target)
        if not fitting:
            missing = f"{target} is not available as a target language from {source}"
            raise HTTPException(400, missing)
        language, confidence = next(iter(detected_languages(fitting, text).items()))
        if confidence < LEAST_CONFIDENCE:
            sources = ", ".join(service.languages.source for service in fitting)
            raise HTTPException(400, f"auto is not certain here; give the source: {sources}")
        return services_of(fitting, language, target)[0], round(100 * confidence)


def detected_languages(services: Sequence[TranslationService], text: str) -> dict[str, float]:
    """Return the confidence in each source language of the services, the highest first."""
    languages = {service.languages.source for service in services}
    if len(languages) == 1:
        return dict.fromkeys(languages, 1.0)
    likelihoods: dict[str, float] = {}
    for service in services:
        language = service.languages.source
        likelihood = service.likelihood(text)
        likelihoods[language] = max(likelihood, likelihoods.get(language, likelihood))
    return confidences(likelihoods)


def ranked_translations(text: str, name: str, segments: SegmentTranslator) -> list[str]:
    """Return the different translations of a text, best first, as many as are found.

    In the translation of rank r, from 0, every window has its hypothesis r, or else its last one.

    Args:
        text: the text.
        name: name of its format.
        segments: translates segments of a server. It finds ``config.nbest`` translations of each.
    """
    translate_all = segments.translate_windows
    assert translate_all is not None, "of a server"
    hypotheses: dict[tuple[object, ...], list[Translation]] = {}

    # Translate each window once for all ranks.
    def translate(
        rank: int, sources: Sequence[SourceSentence], first_id: int
    ) -> list[list[Translation]]:
        keys = [
            (source.ids.tobytes(), source.context.tobytes(), *source.tokens) for source in sources
        ]
        windows = dict(zip(keys, sources, strict=True))
        new_windows = {key: window for key, window in windows.items() if key not in hypotheses}
        results = translate_all(list(new_windows.values()), first_id)
        hypotheses.update(zip(new_windows, results, strict=True))
        return [hypotheses[key][rank : rank + 1] or hypotheses[key][-1:] for key in keys]

    translations: list[str] = []
    for rank in range(segments.config.nbest):
        ranked = replace(segments, translate_windows=partial(translate, rank))
        # The byte order mark tells that a page with another declared encoding is UTF-8.
        target = translated(
            text.encode("utf-8-sig"), name, ranked, FileOptions(), segments.languages
        )
        translations.append(target.decode("utf-8-sig"))
    return list(dict.fromkeys(translations))


def parsed_form(content_type: str, body: bytes) -> tuple[dict[str, str], str, bytes]:
    """Return the texts of a form, and the name and the content of its file, "" without one.

    A damaged form is empty.
    """
    kind, parameters = parse_options_header(content_type)
    if kind == b"application/x-www-form-urlencoded":
        return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)), "", b""
    boundary = parameters.get(b"boundary", b"")
    if body.count(b"--" + boundary) > MOST_PARTS:
        return {}, "", b""
    texts: list[FormField] = []
    files: list[File] = []
    entries = texts.append, files.append
    config = {"MAX_MEMORY_FILE_SIZE": math.inf}  # write no file to the disk
    try:
        FormParser("multipart/form-data", *entries, boundary=boundary, config=config).write(body)
    except FormParserError:
        return {}, "", b""
    fields = {_decoded(text.field_name): _decoded(text.value) for text in texts}
    for file in files:
        if file.field_name == b"file":
            file.file_object.seek(0)
            return fields, _decoded(file.file_name), file.file_object.read()
    return fields, "", b""


def _decoded(text: bytes | None) -> str:
    return (text or b"").decode("utf-8", "replace")
