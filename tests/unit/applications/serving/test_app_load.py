"""The server under load: limits, slow clients, waiting requests, errors of the model."""

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
import torch

pytest.importorskip("fastapi", reason="fastapi is not installed")
from fastapi.testclient import TestClient

from relu_nmt.applications.serving import ServerOptions, guard, service
from relu_nmt.applications.serving import app as app_module
from relu_nmt.applications.serving.guard import Metrics, guarded
from relu_nmt.applications.serving.queues import QueuedRequest, run_large_answer
from relu_nmt.applications.serving.service import weights_json
from relu_nmt.errors import OutOfMemoryError
from relu_nmt.translator.sources import SourceEncoder
from tests.unit.applications.serving.clients import HOST, client_of, metric, post_scope
from tests.unit.applications.serving.served_models import make_translator


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
        begin = time.process_time()
        answer = client.post("/attention", json={"lines": [line], "translation": ["house"]})
        assert time.process_time() - begin < 20  # it took minutes
    assert answer.status_code == 200, answer.text
    *tokens, separator, end = answer.json()["keys"]
    assert [separator["text"], end["text"]] == ["<sep>", "</s>"]
    words = [(token["text"], line[token["begin"] : token["end"]]) for token in tokens]
    # Marks of unusual spaces, as in @&amp;, are no part of the text.
    unmarked = {(text.strip("@_") if len(text) > 3 else text, part) for text, part in words}
    assert unmarked == set(texts.items())
    assert "".join(part for _, part in words) == line.replace(" ", "")


def test_the_size_of_an_answer_is_checked_before_the_model_runs(monkeypatch, client):
    request = {"lines": ["ein Haus " * 60], "translation": ["the house " * 60]}
    monkeypatch.setattr(service, "attention_weights", lambda *_: pytest.fail("the model computes"))
    monkeypatch.setattr(SourceEncoder, "token_spans", pytest.fail)
    for name, options in (("MOST_WEIGHTS", {"line": 0}), ("MOST_NUMBERS", {})):
        with monkeypatch.context() as patch:
            patch.setattr(service, name, 10_000)
            answer = client.post("/attention", json={**request, **options})
            assert answer.status_code == 413
            assert "ask for" in answer.json()["error"]


def test_large_answers_run_one_at_a_time_and_leave_places_to_others(monkeypatch):
    running = []
    num_running = []
    go = threading.Event()

    def slow_json(weights, queued):
        if weights.ndim < 4:  # a part of an answer
            return weights_json(weights, queued)
        running.append(1)
        num_running.append(len(running))
        assert go.wait(60)
        running.pop()
        return weights_json(weights, queued)

    def noting_places(pool, places, call, request):
        places_of_answers.append(places)
        return run_large_answer(pool, places, call, request)

    places_of_answers = []
    monkeypatch.setattr(service, "LARGE_NUMBERS", 100)
    monkeypatch.setattr(service, "weights_json", slow_json)
    monkeypatch.setattr(service, "run_large_answer", noting_places)
    request = {"lines": ["ein Haus " * 9], "translation": ["the house " * 9]}
    with client_of(max_waiting=4) as client, ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(client.post, "/attention", json=request) for _ in range(3)]
        while not places_of_answers or places_of_answers[0]._value:  # a place is free
            time.sleep(0.01)
        assert client.get("/health").json()["waiting"] == 3
        refused = client.post("/attention", json=request)
        assert refused.status_code == 429 and refused.headers["Retry-After"] == "1"
        assert client.post("/translate", json={"lines": ["ein Haus"]}).status_code == 200
        go.set()
        assert {answer.result().status_code for answer in waiting} == {200}
    assert num_running == [1, 1, 1]


@pytest.mark.parametrize("num_held", [1, 2, 3])
def test_the_oldest_unread_answer_is_cancelled(monkeypatch, num_held):
    request = {"lines": ["ein Haus " * 30], "translation": ["the house " * 30]}
    begun = []
    ended = []

    async def ask(app, number):
        """Ask and never take more than the head of the answer."""
        body = json.dumps(request).encode()
        scope = post_scope("/attention")

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
        while len(ended) < 4 - num_held:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # No further one ends.
        for task in tasks:
            task.cancel()

    with client_of() as client:
        size = len(client.post("/attention", json=request).content)
        monkeypatch.setattr(app_module, "MOST_UNREAD_BYTES", num_held * size + size // 2)
        asyncio.run(asyncio.wait_for(ask_all(client.app), 50))
    assert ended == list(range(4 - num_held))


@pytest.mark.parametrize(("pause", "limit", "status"), [(0, 300, 413), (9, 0.5, 408)])
def test_a_body_without_end_or_too_slow_is_refused(client, pause, limit, status):
    sent = []

    async def receive():
        await asyncio.sleep(pause)
        return {"type": "http.request", "body": b" " * 1000, "more_body": True}

    async def send(message):
        sent.append(message)

    limits = ServerOptions(max_request_bytes=20_000, request_seconds=limit)
    app = guarded(client.app, limits, Metrics(), frozenset())
    asyncio.run(app(post_scope("/translate"), receive, send))
    assert sent[0]["status"] == status and "error" in json.loads(sent[1]["body"])


def test_only_some_files_are_received_at_once(client, monkeypatch):
    monkeypatch.setattr(guard, "MOST_UPLOADS", 1)
    app = guarded(client.app, ServerOptions(), Metrics(), frozenset())
    scope = post_scope("/translate_file", (HOST, (b"content-type", b"multipart/form-data")))
    statuses = []
    received = []

    async def send(message):
        statuses.append(message.get("status"))

    async def upload_twice():
        go = asyncio.Event()

        async def receive():
            received.append(1)
            await go.wait()
            return {"type": "http.request", "body": b"", "more_body": False}

        uploads = asyncio.gather(app(scope, receive, send), app(scope, receive, send))
        while not received:
            await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        assert received == [1]
        go.set()
        await uploads

    asyncio.run(upload_twice())
    assert statuses.count(400) == 2


class Slow:
    """Lets a translator wait, before each search, until it may go on."""

    def __init__(self, translator):
        self.go = threading.Event()
        self.number = 0
        window_translator = translator.window_translator

        def slow_translator(config):
            self._translate = window_translator(config)
            return self

        translator.window_translator = slow_translator

    def __call__(self, sources, first_id):
        self.number += 1
        assert self.go.wait(60)
        return self._translate(sources, first_id)


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
    for search in held:
        search.go.set()


def test_a_request_to_a_full_server_gets_status_429(slow):
    client, held = slow(max_waiting=3)
    request = {"lines": ["ein Haus"]}
    with client, ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(client.post, "/translate", json=request) for _ in range(3)]
        while client.get("/health").json()["waiting"] < 3:
            time.sleep(0.01)
        refused = client.post("/translate", json=request)
        assert refused.status_code == 429 and refused.headers["Retry-After"] == "1"
        assert metric(client, "relu_nmt_requests_waiting") == 3
        held.go.set()
        assert {answer.result().status_code for answer in waiting} == {200}
        while client.get("/health").json()["waiting"]:
            time.sleep(0.01)
        assert client.post("/translate", json=request).status_code == 200
        labels = {"path": "/translate", "status": "429"}
        assert metric(client, "relu_nmt_requests_total", **labels) == 1


def test_a_request_that_takes_too_long_ends_and_others_go_on(slow):
    client, held = slow(request_seconds=3, max_waiting=2)
    with client, ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(client.post, "/translate", json={"lines": ["das"]}) for _ in range(2)]
        assert {answer.result().status_code for answer in jobs} == {504}
        while client.get("/health").json()["waiting"]:  # places are free again
            time.sleep(0.01)
        number = held.number
        held.go.set()
        assert client.post("/translate", json={"lines": ["ein Haus"]}).status_code == 200
        assert held.number <= number + 2


def new_threads(before):
    """Return the kinds of the threads that were not there before."""
    return {thread.name.partition("_")[0] for thread in set(threading.enumerate()) - before}


def test_a_stopped_server_leaves_no_thread(monkeypatch):
    monkeypatch.setattr(service, "LARGE_NUMBERS", 1)
    before = set(threading.enumerate())
    with client_of() as client:
        request = {"lines": ["ein Haus"], "translation": ["a house"]}
        assert client.post("/attention", json=request).status_code == 200
        assert new_threads(before) >= {"large answer", "request", "model"}
    assert not new_threads(before) & {"large answer", "request", "model"}


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
    search = held._translate
    held._translate = Mock(side_effect=error)
    held.go.set()
    with client:
        answer = client.post("/translate", json={"lines": ["ein"]})
        assert answer.status_code == 503 and "memory" in answer.json()["error"]
        held._translate = search
        assert client.post("/translate", json={"lines": ["ein"]}).status_code == 200


def test_an_unexpected_error_reveals_nothing_of_the_server(slow):
    client, held = slow()
    held._translate = lambda *_: 1 // 0
    held.go.set()
    with TestClient(client.app, raise_server_exceptions=False) as quiet:
        answer = quiet.post("/translate", json={"lines": ["ein"]})
    assert (answer.status_code, list(answer.json())) == (500, ["error"])
    assert "division" not in answer.text


@pytest.mark.parametrize("missing", [RuntimeError("can't start new thread"), MemoryError()])
def test_a_request_without_a_thread_is_refused_without_a_trace(
    client, monkeypatch, missing, caplog
):
    def submit(*_):
        raise missing

    with monkeypatch.context() as patch:
        patch.setattr(ThreadPoolExecutor, "submit", submit)
        for _ in range(3):
            answer = client.post("/translate", json={"lines": ["ein Haus"]})
            assert answer.status_code == 503 and answer.headers["Retry-After"] == "1"
            assert "not enough memory" in answer.json()["error"]
    assert client.post("/translate", json={"lines": ["ein Haus"]}).status_code == 200
    assert metric(client, "relu_nmt_requests_total", path="/translate", status="503") >= 3
    assert not caplog.records


def test_a_large_answer_without_a_thread_frees_its_place():
    pool = ThreadPoolExecutor(1)
    places = threading.Semaphore(1)
    pool.shutdown()
    with pytest.raises(RuntimeError):
        run_large_answer(pool, places, int, QueuedRequest())
    assert places.acquire(blocking=False)
