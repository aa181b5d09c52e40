"""LibreTranslate's interface, which other programs speak, and the translation of files.

Its requests are JSON or forms. Text of both kinds, plain and HTML, is translated as a file.
"""

import html
import json
import secrets
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any, Literal
from urllib.parse import parse_qsl, quote

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relu_nmt.applications.files import ENDINGS, FileOptions, format_name, translated
from relu_nmt.applications.files.sentences import SegmentTranslator
from relu_nmt.applications.serving import ServerOptions
from relu_nmt.applications.serving.queues import QueuedRequest, RequestQueue
from relu_nmt.applications.serving.service import TranslationService, services_of
from relu_nmt.io.text_lines import read_lines

TEXT_PATH = "/libretranslate/translate"
"""The route of texts, since ``/translate`` is also that of lines."""
PATHS = ("/languages", "/detect", "/translate_file", TEXT_PATH, "/frontend/settings")
MOST_FILES = 32
"""Most translated files that wait for their download. The oldest go first."""


class TextBody(BaseModel):
    """A text to translate, or several."""

    q: str | list[str]
    source: str = "auto"
    target: str
    format: Literal["text", "html"] = "text"
    alternatives: int = 0
    api_key: str = ""


class DetectBody(BaseModel):
    """A text whose language is asked for."""

    q: str
    api_key: str = ""


def reading_forms(app: ASGIApp) -> ASGIApp:
    """Return an application that reads forms as JSON, and texts of ``/translate`` by their route.

    The guard in front passes a body on as one message.
    """

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in ("/translate", "/detect"):
            await app(scope, receive, send)
            return
        message = await receive()
        body = message.get("body", b"")
        headers = dict(scope["headers"])
        if headers.get(b"content-type", b"").startswith(b"application/x-www-form-urlencoded"):
            fields = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
            if "q" not in fields:
                refusal = JSONResponse({"error": "expected Content-Type: application/json"}, 415)
                await refusal(scope, receive, send)
                return
            body = json.dumps(fields).encode()
            headers |= {b"content-type": b"application/json", b"content-length": b"%d" % len(body)}
        if scope["path"] == "/translate" and _has_text(body):
            scope = {**scope, "path": TEXT_PATH, "raw_path": TEXT_PATH.encode()}
        first: list[Message] = [{**message, "body": body}]

        async def replayed() -> Message:
            return first.pop() if first else await receive()

        await app({**scope, "headers": list(headers.items())}, replayed, send)

    return serve


def _has_text(body: bytes) -> bool:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "q" in content and "lines" not in content


def add_routes(
    app: FastAPI,
    queue: RequestQueue,
    services: Sequence[TranslationService],
    limits: ServerOptions,
) -> None:
    """Add the routes of the interface."""
    # Keep the order of the models. The first one's languages are the defaults.
    sources = list(dict.fromkeys(service.languages[0] for service in services))
    targets = list(dict.fromkeys(service.languages[1] for service in services))
    source, target = services[0].languages
    keys = None if limits.api_keys is None else frozenset(read_lines(limits.api_keys))
    files: dict[str, tuple[str, bytes]] = {}

    def check_key(api_key: str) -> None:
        if keys is not None and api_key not in keys:
            raise HTTPException(403, "Invalid API key")

    def chosen(source_lang: str, target_lang: str) -> TranslationService:
        for language, known in ((source_lang, ("auto", *sources)), (target_lang, targets)):
            if language not in known:
                raise HTTPException(400, f"{language} is not supported")
        asked = None if source_lang == "auto" else source_lang
        fitting = services_of(services, asked, target_lang)
        if not fitting:
            missing = f"{target_lang} is not available as a target language from {source_lang}"
            raise HTTPException(400, missing)
        if len(fitting) > 1:
            several = ", ".join(service.languages[0] for service in fitting)
            raise HTTPException(400, f"auto is not certain here; give the source: {several}")
        return fitting[0]

    async def answer(request: Request, work: Callable[[QueuedRequest], bytes]) -> Response:
        return Response(await queue.answer(request.receive, work), media_type="application/json")

    @app.get("/languages", include_in_schema=False)
    async def tell_languages() -> list[dict[str, Any]]:
        described = []
        for code in dict.fromkeys([*sources, *targets]):
            reached = [service.languages[1] for service in services_of(services, code, None)]
            described.append({"code": code, "name": code, "targets": reached})
        return described

    @app.get("/frontend/settings", include_in_schema=False)
    async def tell_settings() -> dict[str, Any]:
        languages = {"source": {"code": source, "name": source}}
        languages["target"] = {"code": target, "name": target}
        endings = sorted(ENDINGS)
        return {
            "apiKeys": keys is not None,
            "keyRequired": keys is not None,
            "charLimit": limits.max_request_bytes,
            "filesTranslation": True,
            "supportedFilesFormat": endings,
            "language": languages,
            "suggestions": False,
        }

    @app.post("/detect", include_in_schema=False)
    async def detect(content: DetectBody) -> list[dict[str, Any]]:
        check_key(content.api_key)
        confidence = 100 // len(sources)
        return [{"language": code, "confidence": confidence} for code in sources]

    @app.post(TEXT_PATH, include_in_schema=False)
    async def translate(content: TextBody, request: Request) -> Response:
        check_key(content.api_key)
        service = chosen(content.source, content.target)
        texts = [content.q] if isinstance(content.q, str) else content.q

        def work(queued: QueuedRequest) -> bytes:
            written = [_translated(service, queued, text, content.format) for text in texts]
            result: Any = written[0] if isinstance(content.q, str) else written
            values: dict[str, Any] = {"translatedText": result}
            if content.alternatives:  # the server finds the best translation alone
                values["alternatives"] = [] if isinstance(content.q, str) else [[] for _ in texts]
            if content.source == "auto":
                detected = {"language": service.languages[0], "confidence": 100}
                is_text = isinstance(content.q, str)
                values["detectedLanguage"] = detected if is_text else [detected] * len(texts)
            return json.dumps(values, ensure_ascii=False).encode()

        return await answer(request, work)

    @app.post("/translate_file", include_in_schema=False)
    async def translate_file(request: Request) -> Response:
        fields, name, content = parsed_form(
            request.headers.get("content-type", ""), await request.body()
        )
        check_key(fields.get("api_key", ""))
        target_lang = fields.get("target", target)
        service = chosen(fields.get("source", "auto"), target_lang)

        def work(queued: QueuedRequest) -> bytes:
            segments = service.segment_translator(queued)
            written = translated(content, format_name(name), segments, FileOptions())
            while len(files) >= MOST_FILES:
                files.pop(next(iter(files)))
            key = secrets.token_urlsafe(16)
            path = PurePath(name)
            files[key] = f"{path.stem}.{target_lang}{path.suffix}", written
            url = request.url_for("download", key=key)
            return json.dumps({"translatedFileUrl": str(url)}).encode()

        return await answer(request, work)

    @app.get("/download_file/{key}", include_in_schema=False)
    async def download(key: str) -> Response:
        if key not in files:
            raise HTTPException(404, "no such file; files are kept for a short time only")
        name, content = files[key]
        disposition = f"attachment; filename*=UTF-8''{quote(name)}"
        headers = {"Content-Disposition": disposition, "X-Content-Type-Options": "nosniff"}
        return Response(content, headers=headers, media_type="application/octet-stream")


def _translated(
    service: TranslationService, request: QueuedRequest, text: str, text_format: str
) -> str:
    segments: SegmentTranslator = service.segment_translator(request)
    # The byte order mark tells that a page with another declared encoding is UTF-8 here.
    content = text.encode("utf-8-sig")
    return translated(content, text_format, segments, FileOptions()).decode("utf-8-sig")


def parsed_form(content_type: str, body: bytes) -> tuple[dict[str, str], str, bytes]:
    """Return the fields of a form with a file, and the file's name and content.

    Raises:
        HTTPException: the form has no file.
    """
    _, _, parameters = content_type.partition("boundary=")
    boundary, _, _ = parameters.partition(";")
    fields = {}
    name, content = "", None
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary.strip(' "').encode())[1:-1]:
        head, _, value = part.partition(b"\r\n\r\n")
        described = head.decode("utf-8", "replace")
        field = _parameter(described, "name")
        if "filename=" in described:
            name, content = _parameter(described, "filename"), value
        else:
            fields[field] = value.decode("utf-8", "replace")
    if content is None or not name:
        raise HTTPException(400, "Invalid request: missing file parameter")
    return fields, name, content


def _parameter(head: str, name: str) -> str:
    """Return a parameter of a part's head, "" without it."""
    _, _, behind = head.partition(f'; {name}="')
    return html.unescape(behind.partition('"')[0])
