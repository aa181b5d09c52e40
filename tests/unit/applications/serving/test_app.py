import asyncio
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from schemathesis import GenerationMode

from relu_nmt.applications.serving import ServerOptions, service
from relu_nmt.applications.serving import app as app_module
from relu_nmt.applications.serving.app import make_app
from relu_nmt.applications.serving.limits import Guard, Metrics
from relu_nmt.applications.serving.service import weights_json
from relu_nmt.data.documents import WindowConfig
from relu_nmt.errors import ConfigError, OutOfMemoryError
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.search.config import GenerationConfig
from tests.unit.applications.serving.served_models import make_translator

LINES = ["ein Haus", "", "das Haus ist gross . klein", "Garten", "ein Xaver . 🙂"]
SEARCH = {"beam": 2, "max_len_b": 6}
HOST, JSON = (b"host", b"127.0.0.1:8000"), (b"content-type", b"application/json")


def client_of(translator=None, search=SEARCH, **limits):
    config = GenerationConfig(**search)
    app = make_app(translator or make_translator(), config, limits=ServerOptions(**limits))
    return TestClient(app)


@pytest.fixture(scope="module")
def client():
    with client_of(max_request_tokens=200, max_request_bytes=20_000) as client:
        yield client


def metric(client, name, **labels):
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    return 0


@pytest.mark.parametrize("max_doc_tokens", [None, 1, 8])
def test_the_server_translates_a_document_like_python(client, max_doc_tokens):
    given = {} if max_doc_tokens is None else {"max_doc_tokens": max_doc_tokens}
    answer = client.post("/translate", json={"lines": LINES, **given})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    alone = make_translator().translate_documents([LINES], **given, **SEARCH)
    assert found["lines"] == alone[0]
    assert len(found["lines"]) == len(LINES)
    assert found["lines"][1] == ""
    assert [group["first"] for group in found["groups"]] == [w.window.first for w in alone.windows]
    assert [line for group in found["groups"] for line in group["lines"]] == found["lines"]
    assert found["source_tokens"] > len(LINES)


FORCED = {"prefixes": ["the", "", "a big", "", ""], "forced": [["big"], [], [], ["a", "a"], []]}


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("max_doc_tokens", [1, 8, 60])
def test_translations_contain_the_terms_of_their_request(client, max_doc_tokens, ordered):
    asked = {"max_doc_tokens": max_doc_tokens, **FORCED, "ordered": ordered, "banned": ["is"]}
    answer = client.post("/translate", json={"lines": LINES, **asked})
    assert answer.status_code == 200, answer.text
    lines = answer.json()["lines"]
    alone = make_translator().translate_documents(
        [LINES], **{**asked, **{name: [own] for name, own in FORCED.items()}}, **SEARCH
    )
    assert lines == alone[0]
    assert lines[0].startswith("the") and "big" in lines[0] and lines[2].startswith("a big")
    assert lines[3].split().count("a") >= 2 and lines[1] == ""
    assert not any("is" in line.split() for line in lines)


def test_terms_of_a_request_do_not_affect_other_requests():
    words, forced = {"lines": LINES}, [["big", "the a"], [], [], [], []]
    with client_of(batch_wait=0.2) as client, ThreadPoolExecutor(4) as pool:
        free = client.post("/translate", json=words).json()["lines"]
        never = " ".join(free).split()[0]
        asked = [{}, {"banned": [never]}, {"forced": forced}, {"banned": ["Garten", never]}]
        found = list(pool.map(lambda own: client.post("/translate", json={**words, **own}), asked))
        alone = [client.post("/translate", json={**words, **own}) for own in asked]
    assert [own.json()["lines"] for own in found] == [own.json()["lines"] for own in alone]
    lines = [own.json()["lines"] for own in found]
    assert lines[0] == free and "the a" in lines[2][0]
    assert not any(never in line.split() for line in lines[1] + lines[3])


@pytest.mark.parametrize(
    ("asked", "status", "expected"),
    [
        ({"prefixes": ["a"]}, 422, "1 prefixes, but 2 lines; give one for each"),
        ({"forced": [["a"]] * 3}, 422, "3 lists of forced terms, but 2 lines; give one"),
        ({"forced": [["Xaver"], []]}, 422, "line 1: the term 'Xaver' cannot be forced"),
        ({"forced": [[], ["a"]]}, 422, "line 2: the term 'a' cannot be forced: the line is blank"),
        ({"forced": ["a", []]}, 422, "forced.0: "),
        ({"forced": [["a"] * 17, []]}, 422, "forced.0: List should have at most 16"),
        ({"banned": ["a"] * 201}, 422, "banned: List should have at most 200"),
        ({"banned": ["x" * 201]}, 422, "banned.0: String should have at most 200"),
        ({"ordered": 1}, 422, "ordered: "),
        ({"prefixes": ["a " * 300, ""]}, 413, "more than 200 tokens, at line 1 of 2"),
        ({"forced": [["a " * 40] * 10, []]}, 413, "more than 200 tokens, at line 1 of 2"),
    ],
)
def test_wrong_prefixes_and_terms_are_errors_with_a_reason(client, asked, status, expected):
    answer = client.post("/translate", json={"lines": ["ein Haus", ""], **asked})
    assert answer.status_code == status and answer.json()["error"].startswith(expected)


def test_a_model_without_separators_forces_line_by_line_only():
    asked = {"lines": ["ein Haus", "das"], "forced": [["big"], ["a"]]}
    with client_of(make_translator(separated=False)) as plain:
        assert "big" in plain.post("/translate", json=asked).json()["lines"][0]
        answer = plain.post("/translate", json={**asked, "max_doc_tokens": 50})
        assert answer.status_code == 422 and "line by line" in answer.json()["error"]


def test_a_search_that_cannot_force_terms_is_an_error():
    asked = {"lines": ["ein Haus", "das"], "max_doc_tokens": 50}
    with client_of(search={**SEARCH, "beam_threshold": 2.0}) as client:
        for forced in ({"forced": [["big"], []]}, {"prefixes": ["", "a"]}):
            answer = client.post("/translate", json={**asked, **forced})
            assert answer.status_code == 422
            assert answer.json()["error"].startswith("this server runs with --beam-threshold")
        assert client.post("/translate", json={**asked, "prefixes": ["a", ""]}).status_code == 200


def test_simultaneous_requests_get_the_same_answers_as_alone():
    texts = [[f"ein {'gross ' * i}Haus", "das ist klein ."] for i in range(8)]
    with client_of(batch_wait=0.2) as client, ThreadPoolExecutor(len(texts)) as pool:
        before = metric(client, "relu_nmt_batch_sentences_count")
        together = list(pool.map(lambda t: client.post("/translate", json={"lines": t}), texts))
        batches = metric(client, "relu_nmt_batch_sentences_count") - before
        alone = [client.post("/translate", json={"lines": text}) for text in texts]
    assert [a.json()["lines"] for a in together] == [a.json()["lines"] for a in alone]
    assert batches < len(texts)


def test_one_thread_at_a_time_uses_the_tokenizers(monkeypatch):
    used, most = [], []

    def alone(function):
        def call(*arguments):
            used.append(1)
            most.append(len(used))
            time.sleep(0.002)
            used.pop()
            return function(*arguments)

        return call

    for name in ("encode", "decode", "letters"):
        monkeypatch.setattr(TextPipeline, name, alone(getattr(TextPipeline, name)))
    asked = {"lines": LINES, "banned": ["big"]}
    shown = {"lines": LINES, "translation": ["the house"]}
    with client_of() as client, ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(client.post, "/translate", json=asked) for _ in range(6)]
        answers += [pool.submit(client.post, "/attention", json=shown) for _ in range(6)]
        assert {answer.result().status_code for answer in answers} == {200}
    assert len(most) > 60 and max(most) == 1


def test_a_model_of_sentences_gives_a_group_for_each(client):
    with client_of(make_translator(separated=False)) as plain:
        assert plain.get("/model").json()["keeps_sentences"] is False
        asked = {"lines": ["ein Haus", "das Haus"]}
        assert len(plain.post("/translate", json=asked).json()["groups"]) == 2
        joined = plain.post("/translate", json={**asked, "max_doc_tokens": 50}).json()
        assert [(g["count"], len(g["lines"])) for g in joined["groups"]] == [(2, 1)]
        shown = {"lines": asked["lines"], "translation": joined["lines"]}
        assert plain.post("/attention", json=shown).status_code == 200


@pytest.mark.parametrize("slot", ["cross", "encoder", "decoder"])
def test_the_server_gives_the_attention_of_the_translator(client, slot):
    translator = make_translator()
    asked = {"lines": ["das Haus"], "translation": ["the  big house"], "slot": slot}
    found = client.post("/attention", json=asked).json()
    for layer in range(2):
        expected = translator.attention("das Haus", "the big house", slot, layer)
        np.testing.assert_allclose(found["weights"][layer], expected.weights, atol=6e-5)
        assert [token["text"] for token in found["queries"]] == expected.queries
        assert [token["text"] for token in found["keys"]] == expected.keys
    sides = {"lines": "das Haus", "translation": "the  big house"}
    text = sides["lines" if slot == "encoder" else "translation"]
    words = [text[token["begin"] : token["end"]] for token in found["queries"]]
    assert words == [*text.split(), "", ""]
    assert [token["line"] for token in found["queries"]][-2:] == [0, None]


@pytest.mark.parametrize("document_attention", ["full", "aligned"])
def test_attention_of_a_line_within_its_document(document_attention):
    more = {} if document_attention == "full" else {"global_layers": 1}
    translator = make_translator(document_attention=document_attention, **more)
    asked = {"lines": ["das Haus", "klein"], "translation": ["the house", "small ."]}
    with client_of(translator) as client:
        whole = client.post("/attention", json=asked).json()
        part = client.post("/attention", json={**asked, "line": 1}).json()
        wrong = client.post("/attention", json={**asked, "line": 2})
        # Any text may be looked at, also one with other sentences than its source.
        odd = {**asked, "translation": ["a <sep> </s> <pad> b", "", "x <sep>"]}
        assert client.post("/attention", json=odd).status_code == 200
    rows = [i for i, token in enumerate(whole["queries"]) if token["line"] == 1]
    assert [whole["queries"][i] for i in rows] == part["queries"]
    assert np.array(whole["weights"])[:, :, rows].tolist() == part["weights"]
    assert wrong.status_code == 422 and "lines count from 0" in wrong.json()["error"]


def test_attention_without_weights_is_an_error_with_a_reason():
    asked = {"lines": ["das"], "translation": ["the"]}
    for translator in (
        make_translator(encoder_attention="xca"),
        make_translator(num_models=2),
    ):
        with client_of(translator) as client:
            slots = client.get("/model").json()["attention"]
            answer = client.post("/attention", json={**asked, "slot": "encoder"})
            assert not slots["encoder"]["has_weights"]
            assert answer.status_code == 422, answer.text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, "lines: Field required"),
        ({"lines": []}, "lines: "),
        ({"lines": "ein Haus"}, "lines: "),
        ({"lines": ["ein", 3]}, "lines.1: "),
        ({"lines": ["x" * 4001]}, "lines.0: "),
        ({"lines": ["a"], "max_doc_tokens": 0}, "max_doc_tokens: "),
        ({"lines": ["a"], "max_doc_tokens": "9"}, "max_doc_tokens: "),
        ({"lines": ["a"], "replace_unk": "/etc/passwd"}, "replace_unk: Extra inputs"),
        ({"lines": ["\ud800"]}, "lines.0: "),
        ([], "expected an object"),
        (b"[" * 9000, ""),
        (b'{"lines": ["a"', "the body is no JSON"),
        (b'{"lines": ["\xff"]}', ""),
        (b'{"lines": ["a"], "max_doc_tokens": ' + b"9" * 5000 + b"}", ""),
        (b"", ""),
    ],
)
def test_a_wrong_request_gets_an_error_of_one_line(client, body, expected):
    headers = {"Content-Type": "application/json"}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    for path in ("/translate", "/attention"):
        answer = client.post(path, content=data, headers=headers)
        assert answer.status_code == 422, answer.text
        assert list(answer.json()) == ["error"] and "\n" not in answer.json()["error"]
    answer = client.post("/translate", content=data, headers=headers)
    assert answer.json()["error"].startswith(expected)


def test_a_whole_number_may_be_a_float(client):
    answer = client.post("/translate", json={"lines": ["ein Haus"], "max_doc_tokens": 9.0})
    assert answer.status_code == 200


def post_scope(path, *headers):
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode()}
    scope |= {"query_string": b"", "root_path": "", "scheme": "http", "http_version": "1.1"}
    scope |= {"server": ("127.0.0.1", 8000), "client": ("127.0.0.1", 9), "headers": list(headers)}
    return {**scope, "asgi": {"version": "3.0"}}


def status_of(app, *headers, path="/translate", method="POST", body=b'{"lines": ["ein Haus"]}'):
    """Return the status for a request with exactly these headers."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    asyncio.run(app({**post_scope(path, *headers), "method": method}, receive, send))
    assert "error" in json.loads(sent[1]["body"]) or sent[0]["status"] < 400
    return sent[0]["status"]


@pytest.mark.parametrize("path", ["/translate", "/attention"])
@pytest.mark.parametrize(
    "types",
    [
        [],
        [b""],
        [b"text/plain"],
        [b"text/plain; application/json"],
        [b"application/x-www-form-urlencoded"],
        [b"multipart/form-data; boundary=x"],
        [b"application/geo+json"],
        [b"application/jsonx"],
        [b"text/plain", b"application/json"],
        [b"application/json", b"text/plain"],
        [b"application/json, text/plain"],
    ],
)
def test_a_content_type_other_than_json_is_refused(client, types, path):
    headers = [(b"content-type", value) for value in types]
    assert status_of(client.app, HOST, *headers, path=path) == 415


@pytest.mark.parametrize("kind", [b"application/json", b"Application/JSON ; charset=utf-8"])
def test_the_content_type_may_have_parameters(kind):
    with client_of() as client:
        answer = client.post(
            "/translate", content=b'{"lines": ["a"]}', headers={"Content-Type": kind}
        )
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        b"http://elsewhere.example",
        b"https://127.0.0.1.elsewhere.example:8000",
        b"http://127.0.0.1",
        b"http://127.0.0.1:8001",
        b"http://localhost:8000",
        b"null",
        b"",
        b"file://",
        b"127.0.0.1:8000",
        b"chrome-extension://127.0.0.1:8000",
    ],
)
def test_a_page_of_another_origin_is_refused(client, origin):
    for method, path in (
        ("POST", "/translate"),
        ("POST", "/x"),
        ("GET", "/model"),
        ("OPTIONS", "/"),
    ):
        headers = HOST, JSON, (b"origin", origin)
        assert status_of(client.app, *headers, path=path, method=method) == 403
        cross = (b"sec-fetch-site", b"cross-site")
        assert status_of(client.app, *headers, cross, path=path, method=method) == 403


def test_two_origins_are_refused(client):
    origins = (b"origin", b"http://elsewhere.example"), (b"origin", b"http://127.0.0.1:8000")
    assert status_of(client.app, HOST, JSON, *origins) == 403


@pytest.mark.parametrize(
    ("host", "headers"),
    [
        ("127.0.0.1:8000", {}),
        ("127.0.0.1:8000", {"Sec-Fetch-Site": "cross-site"}),  # a link that is followed
        ("127.0.0.1:8000", {"Origin": "http://127.0.0.1:8000"}),
        ("[::1]:8000", {"Origin": "http://[::1]:8000"}),
        ("LocalHost:80", {"Origin": "http://localhost"}),
        ("translate.example", {"Origin": "https://translate.example"}),
        ("translate.example:443", {"Origin": "https://translate.example"}),
        # Behind a proxy that calls the server by another name.
        ("127.0.0.1:8000", {"Origin": "https://t.example", "Sec-Fetch-Site": "same-origin"}),
        ("127.0.0.1:8000", {"Origin": "https://t.example", "X-Forwarded-Host": "t.example"}),
    ],
)
def test_the_servers_own_page_and_programs_are_answered(client, host, headers):
    answer = client.post("/translate", json={"lines": ["a"]}, headers={"Host": host, **headers})
    assert answer.status_code == 200
    assert client.get("/", headers={"Host": host, **headers}).status_code == 200


def test_large_requests_are_refused_before_they_are_read(client):
    answer = client.post("/translate", json={"lines": ["x" * 3000] * 9})
    assert answer.status_code == 413 and "20,000 bytes" in answer.json()["error"]

    answer = client.post("/translate", json={"lines": ["ein Haus"] * 100})
    assert answer.status_code == 413
    assert "more than 200 tokens, at line 51 of 100" in answer.json()["error"]


@pytest.mark.parametrize(
    ("word", "texts"),
    [
        ("T-Shirt ", {"T": "T", "@-@": "-", "Shirt": "Shirt"}),
        ("x'", {"x": "x", "&apos;": "'"}),
        ("&", {"&amp;": "&"}),
        ("İ", {"İ" * 3992: "İ" * 3992}),
    ],
)
def test_attention_of_a_long_line_is_fast(word, texts):
    line = (word * 4000)[:3992]
    with client_of(
        make_translator(tokenizer="moses-aggressive"), max_request_tokens=10_000
    ) as client:
        begin = time.perf_counter()
        answer = client.post("/attention", json={"lines": [line], "translation": ["house"]})
        assert time.perf_counter() - begin < 20  # it took minutes
    assert answer.status_code == 200, answer.text
    *tokens, separator, end = answer.json()["keys"]
    assert [separator["text"], end["text"]] == ["<sep>", "</s>"]
    found = [(token["text"], line[token["begin"] : token["end"]]) for token in tokens]
    # Marks of unusual spaces, as in @&amp;, are no part of the text.
    unmarked = {(text.strip("@_") if len(text) > 3 else text, part) for text, part in found}
    assert unmarked == set(texts.items())
    assert "".join(part for _, part in found) == line.replace(" ", "")


def test_the_size_of_an_answer_is_checked_before_the_model_runs(monkeypatch, client):
    asked = {"lines": ["ein Haus " * 60], "translation": ["the house " * 60]}
    monkeypatch.setattr(service, "attention_weights", lambda *_: pytest.fail("the model computes"))
    monkeypatch.setattr(service, "token_spans", pytest.fail, raising=False)
    for name, more in (("MOST_WEIGHTS", {"line": 0}), ("MOST_NUMBERS", {})):
        with monkeypatch.context() as patch:
            patch.setattr(service, name, 10_000)
            answer = client.post("/attention", json={**asked, **more})
            assert answer.status_code == 413
            assert "ask for" in answer.json()["error"]


def test_large_answers_run_one_at_a_time_and_leave_places_to_others(monkeypatch):
    running, most, go = [], [], threading.Event()

    def slow_json(weights, ticket):
        if weights.ndim < 4:  # a part of an answer
            return weights_json(weights, ticket)
        running.append(1)
        most.append(len(running))
        assert go.wait(60)
        running.pop()
        return weights_json(weights, ticket)

    monkeypatch.setattr(service, "LARGE_NUMBERS", 100)
    monkeypatch.setattr(service, "weights_json", slow_json)
    asked = {"lines": ["ein Haus " * 9], "translation": ["the house " * 9]}
    with client_of(max_waiting=4) as client, ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(client.post, "/attention", json=asked) for _ in range(3)]
        while client.get("/health").json()["waiting"] < 3:
            time.sleep(0.01)
        time.sleep(0.1)
        refused = client.post("/attention", json=asked)
        assert refused.status_code == 429 and refused.headers["Retry-After"] == "1"
        assert client.post("/translate", json={"lines": ["ein Haus"]}).status_code == 200
        go.set()
        assert {answer.result().status_code for answer in waiting} == {200}
    assert most == [1, 1, 1]


@pytest.mark.parametrize("num_held", [1, 2, 3])
def test_the_oldest_unread_answer_is_cancelled(monkeypatch, num_held):
    asked = {"lines": ["ein Haus " * 30], "translation": ["the house " * 30]}
    begun, ended = [], []

    async def ask(app, number):
        """Ask and never take more than the head of the answer."""
        body = json.dumps(asked).encode()
        scope = post_scope("/attention", HOST, JSON)

        async def receive():
            if scope.pop("begun", True):
                scope["begun"] = False
                return {"type": "http.request", "body": body}
            await asyncio.sleep(60)

        async def send(message):
            if message["type"] == "http.response.body":
                begun.append(number)
                await asyncio.sleep(60)

        await app(scope, receive, send)
        ended.append(number)

    async def ask_all(app):
        tasks = []
        for number in range(4):
            tasks.append(asyncio.ensure_future(ask(app, number)))
            while number not in begun:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        for task in tasks:
            task.cancel()

    with client_of() as client:
        size = len(client.post("/attention", json=asked).content)
        monkeypatch.setattr(app_module, "MOST_UNREAD_BYTES", num_held * size + size // 2)
        asyncio.run(asyncio.wait_for(ask_all(client.app), 50))
    assert ended == list(range(4 - num_held))


@pytest.mark.parametrize(("pause", "status"), [(0, 413), (9, 408)])
def test_a_body_without_end_or_too_slow_is_refused(client, pause, status):
    sent = []

    async def receive():
        await asyncio.sleep(pause)
        return {"type": "http.request", "body": b" " * 1000, "more_body": True}

    async def send(message):
        sent.append(message)

    limits = ServerOptions(max_request_bytes=20_000, request_seconds=0.5)
    guard = Guard(client.app, limits, Metrics(), frozenset())
    asyncio.run(guard({"type": "http", "path": "/translate"}, receive, send))
    assert sent[0]["status"] == status and "error" in json.loads(sent[1]["body"])


def test_a_line_too_long_for_the_model_is_an_error(client):
    translator = make_translator(encoder_positions="learned", max_source_positions=5)
    with client_of(translator) as short:
        answer = short.post("/translate", json={"lines": ["ein", "ein das Haus ist gross"]})
        assert answer.status_code == 422
        assert answer.json()["error"] == "line 2 has 7 tokens, but the model reads 5"
        fits = {"lines": ["ein Haus", "das Haus"]}
        assert short.post("/translate", json={**fits, "max_doc_tokens": 5}).status_code == 200
        assert short.post("/translate", json={**fits, "max_doc_tokens": 9}).status_code == 422


class Slow:
    """Lets a translator wait, before each search, until it may go on."""

    def __init__(self, translator):
        self.go = threading.Event()
        self.number = 0
        searcher = translator.searcher

        def slow_searcher(config):
            self._search = searcher(config)
            return self

        translator.searcher = slow_searcher

    def __call__(self, sources):
        self.number += 1
        assert self.go.wait(60)
        return self._search(sources)


@pytest.fixture
def slow():
    """Return a function that makes a client and the brake of its translator."""
    held = []

    def make(**limits):
        translator = make_translator()
        held.append(Slow(translator))
        held[-1].go.set()
        client = client_of(translator, **limits)
        held[-1].go.clear()
        return client, held[-1]

    yield make
    for own in held:
        own.go.set()


def test_a_request_to_a_full_server_gets_status_429(slow):
    client, held = slow(max_waiting=3)
    asked = {"lines": ["ein Haus"]}
    with client, ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(client.post, "/translate", json=asked) for _ in range(3)]
        while client.get("/health").json()["waiting"] < 3:
            time.sleep(0.01)
        refused = client.post("/translate", json=asked)
        assert refused.status_code == 429 and refused.headers["Retry-After"] == "1"
        assert metric(client, "relu_nmt_requests_waiting") == 3
        held.go.set()
        assert {answer.result().status_code for answer in waiting} == {200}
        while client.get("/health").json()["waiting"]:
            time.sleep(0.01)
        assert client.post("/translate", json=asked).status_code == 200
        labels = {"path": "/translate", "status": "429"}
        assert metric(client, "relu_nmt_requests_total", **labels) == 1


def test_a_request_that_takes_too_long_ends_and_others_go_on(slow):
    client, held = slow(request_seconds=3, max_waiting=2)
    with client, ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(client.post, "/translate", json={"lines": ["das"]}) for _ in range(2)]
        assert {answer.result().status_code for answer in asked} == {504}
        while client.get("/health").json()["waiting"]:  # places are free again
            time.sleep(0.01)
        number = held.number
        held.go.set()
        assert client.post("/translate", json={"lines": ["ein Haus"]}).status_code == 200
        assert held.number <= number + 2


def test_a_stopped_server_leaves_no_thread(monkeypatch):
    monkeypatch.setattr(service, "LARGE_NUMBERS", 1)
    before = set(threading.enumerate())
    with client_of() as client:
        asked = {"lines": ["ein Haus"], "translation": ["a house"]}
        assert client.post("/attention", json=asked).status_code == 200
        names = {thread.name.rpartition("_")[0] for thread in threading.enumerate()}
        assert {"turn", "request"} <= names
    assert not [own.name for own in set(threading.enumerate()) - before if "turn" in own.name]


def test_a_stopping_server_answers_503(slow):
    client, _ = slow()
    with client:
        pass
    health = client.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "stopping")
    answer = client.post("/translate", json={"lines": ["ein"]})
    assert answer.status_code == 503 and "Retry-After" in answer.headers


@pytest.mark.parametrize(
    "error",
    [MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), OutOfMemoryError("too long")],
)
def test_the_server_goes_on_after_it_ran_out_of_memory(error, slow):
    client, held = slow()
    search, held._search = held._search, lambda *_: (_ for _ in ()).throw(error)
    held.go.set()
    with client:
        answer = client.post("/translate", json={"lines": ["ein"]})
        assert answer.status_code == 503 and "memory" in answer.json()["error"]
        held._search = search
        assert client.post("/translate", json={"lines": ["ein"]}).status_code == 200


def test_an_unexpected_error_reveals_nothing_of_the_server(slow):
    client, held = slow()
    held._search = lambda *_: 1 // 0
    held.go.set()
    with TestClient(client.app, raise_server_exceptions=False) as quiet:
        answer = quiet.post("/translate", json={"lines": ["ein"]})
    assert (answer.status_code, list(answer.json())) == (500, ["error"])
    assert "division" not in answer.text


def test_a_foreign_host_name_is_refused():
    with client_of(allowed_hosts=("localhost", "127.0.0.1", "::1")) as client:
        for host in ("localhost:8000", "LocalHost", "127.0.0.1:1", "[::1]", "[::1]:8000"):
            assert client.get("/health", headers={"Host": host}).status_code == 200, host
        strange = (
            "elsewhere.example",
            "localhost.example",
            "",
            "a b",
            "::1",
            "[::2]",
            "localhost:x",
        )
        for host in (*strange, "127.0.0.1, elsewhere", "www.localhost", "localhost@elsewhere"):
            answer = client.get("/health", headers={"Host": host})
            assert answer.status_code == 400, host
            assert "--allowed-hosts" in answer.json()["error"]


def test_unknown_paths_are_errors_and_share_one_counter(client):
    for path in ("/x", "/translate/../../etc/passwd", "/%2e%2e/setup.py", "/static/x"):
        answer = client.get(path)
        assert answer.status_code == 404 and list(answer.json()) == ["error"]
    assert client.get("/translate").status_code == 405
    assert metric(client, "relu_nmt_requests_total", path="other", status="404") >= 4


def test_settings_that_do_not_fit_the_model_are_an_error_at_the_start():
    with pytest.raises(ConfigError, match="--sentence-separator"):
        windows = WindowConfig(20, window_overlap=1, repair=True)
        make_app(make_translator(separated=False), windows=windows)
    assert not [t for t in threading.enumerate() if t.name == "model" and not t.daemon]


def test_the_page_loads_nothing_from_other_servers(client):
    answer = client.get("/")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    rules = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in rules and rules.count("sha256-") == 2
    links = re.findall(r"""(?:src|href|action)\s*=\s*["']([^"']*)""", answer.text)
    assert [link[:5] for link in links] == ["data:"]
    assert not re.findall(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(", answer.text)
    template = Path(make_app.__code__.co_filename).parent / "templates" / "translate.html"
    assert answer.text == template.read_text("utf-8")


@pytest.mark.slow
@given(
    st.lists(st.text(max_size=30), min_size=1, max_size=3),
    st.lists(st.text(max_size=30), min_size=1, max_size=3),
)
@hypothesis_settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_translated_and_shown(client, lines, translation):
    answer = client.post("/translate", json={"lines": lines})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["lines"]) == len(lines)
    asked = {"lines": lines, "translation": translation}
    answer = client.post("/attention", json=asked)
    assert answer.status_code in (200, 413), answer.text


@pytest.fixture(scope="module")
def api():
    with client_of(max_request_bytes=10_000_000) as client:
        yield client, schemathesis.openapi.from_dict(client.get("/openapi.json").json())


def call_and_validate(client, case):
    asked = case.as_transport_kwargs(base_url=str(client.base_url))
    case.validate_response(client.request(**asked))


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("path", ["/translate", "/attention"])
def test_answers_to_posts_match_the_api_description(api, path, mode):
    client, description = api

    @given(description[path]["POST"].as_strategy(generation_mode=mode))
    @hypothesis_settings(max_examples=25, suppress_health_check=list(HealthCheck))
    def call(case):
        if mode == GenerationMode.POSITIVE:
            # The description does not limit these by the number of lines.
            for name in ("line", "prefixes", "forced"):
                case.body.pop(name, None)
        call_and_validate(client, case)

    call()


@pytest.mark.parametrize("path", ["/model", "/health", "/metrics"])
def test_answers_to_gets_match_the_api_description(api, path):
    client, description = api
    call_and_validate(client, description[path]["GET"].Case())
