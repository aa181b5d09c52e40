"""Clients of a server in the tests' process, and requests of exactly these bytes."""

import asyncio
import json

from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from relu_nmt.applications.serving import ServerOptions
from relu_nmt.applications.serving.app import make_app
from relu_nmt.translation.search.config import GenerationConfig
from tests.unit.applications.serving.served_models import make_translator

LINES = ["ein Haus", "", "das Haus ist gross . klein", "Garten", "ein Xaver . 🙂"]
SEARCH = {"beam": 2, "max_len_b": 6}
HOST = (b"host", b"127.0.0.1:8000")
JSON = (b"content-type", b"application/json")


def client_of(translator=None, search=SEARCH, other_models=(), **limits):
    config = GenerationConfig(**search)
    further_models = [(model, None) for model in other_models]
    app = make_app(
        translator or make_translator(),
        config,
        limits=ServerOptions(**limits),
        further_models=further_models,
    )
    return TestClient(app)


def metric(client, name, **labels):
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    return 0


def post_scope(path, headers=(HOST, JSON)):
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode()}
    scope |= {"query_string": b"", "root_path": "", "scheme": "http", "http_version": "1.1"}
    scope |= {"server": ("127.0.0.1", 8000), "client": ("127.0.0.1", 9), "headers": list(headers)}
    return {**scope, "asgi": {"version": "3.0"}}


def status_of(app, headers, path="/translate", method="POST", body=b'{"lines": ["ein Haus"]}'):
    """Return the status for a request with exactly these headers."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    asyncio.run(app({**post_scope(path, headers), "method": method}, receive, send))
    assert "error" in json.loads(sent[1]["body"]) or sent[0]["status"] < 400
    return sent[0]["status"]
