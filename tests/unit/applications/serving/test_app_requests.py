"""Requests of any form, and the ones that the server refuses."""

import gzip
import json

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
from schemathesis import GenerationMode

from tests.unit.applications.serving.clients import HOST, JSON, client_of, metric, status_of


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


@pytest.mark.parametrize("path", ["/translate", "/attention"])
@pytest.mark.parametrize(
    "types",
    [
        [],
        [b""],
        [b"text/plain"],
        [b"text/plain; application/json"],
        [b"application/geo+json"],
        [b"application/jsonx"],
        [b"text/plain", b"application/json"],
        [b"application/json", b"text/plain"],
        [b"application/json, text/plain"],
    ],
)
def test_a_content_type_other_than_json_is_refused(client, types, path):
    headers = [(b"content-type", value) for value in types]
    assert status_of(client.app, [HOST, *headers], path) == 415


@pytest.mark.parametrize("kind", [b"application/x-www-form-urlencoded", b"multipart/form-data"])
def test_lines_are_no_form(client, kind):
    headers = [HOST, (b"content-type", kind + b"; boundary=x")]
    assert status_of(client.app, headers, "/attention") == 415
    assert status_of(client.app, headers, "/translate") == 400


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
        assert status_of(client.app, headers, path, method) == 403
        cross = (b"sec-fetch-site", b"cross-site")
        assert status_of(client.app, [*headers, cross], path, method) == 403


def test_two_origins_are_refused(client):
    origins = (b"origin", b"http://elsewhere.example"), (b"origin", b"http://127.0.0.1:8000")
    assert status_of(client.app, [HOST, JSON, *origins]) == 403


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


@pytest.mark.parametrize("own", ["localhost", "translate.example.org"])
def test_a_foreign_host_name_is_refused(own):
    with client_of(allowed_hosts=(own,)) as client:
        assert client.get("/health", headers={"Host": f"{own}:80"}).status_code == 200
        # A health check runs on the machine itself.
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


@pytest.mark.parametrize("path", ["/", "/health", "/model", "/metrics", "/openapi.json"])
def test_head_is_answered_like_get_without_a_body(client, path):
    head = client.head(path)
    get = client.get(path)
    assert head.status_code == get.status_code == 200 and head.content == b""
    assert head.headers["Content-Type"] == get.headers["Content-Type"]


@pytest.mark.parametrize("path", ["/translate", "/attention"])
def test_head_of_a_path_for_posts_is_refused(client, path):
    answer = client.head(path)
    assert answer.status_code == 405 and answer.headers["Allow"] == "POST"


@pytest.mark.parametrize("path", ["/health", "/model"])
def test_a_refused_method_names_head_beside_get(client, path):
    answer = client.post(path, json={})
    assert answer.status_code == 405 and answer.headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "x-gzip", "GZIP, identity"])
def test_a_compressed_body_is_refused_by_its_encoding(client, encoding):
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
    for path in ("/translate", "/attention"):
        answer = client.post(path, content=gzip.compress(b'{"lines": ["a"]}'), headers=headers)
        assert answer.status_code == 415
        assert f"Content-Encoding: {encoding.lower()} is not read" in answer.json()["error"]


def test_a_body_that_is_not_compressed_may_say_so(client):
    headers = {"Content-Encoding": "identity"}
    assert client.post("/translate", json={"lines": ["a"]}, headers=headers).status_code == 200


def test_a_compressed_body_without_its_header_is_no_json(client):
    headers = {"Content-Type": "application/json"}
    answer = client.post("/translate", content=gzip.compress(b"{}"), headers=headers)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("the body is no JSON: 'utf-8' codec can't decode")


LENGTH = (b"content-length", b"26")
CHUNKED = (b"transfer-encoding", b"chunked")


@pytest.mark.parametrize("order", [(LENGTH, CHUNKED), (CHUNKED, LENGTH)])
@pytest.mark.parametrize(("method", "path"), [("POST", "/translate"), ("GET", "/health")])
def test_two_lengths_of_a_body_are_refused(client, order, method, path):
    assert status_of(client.app, [HOST, JSON, *order], path, method) == 400
    assert status_of(client.app, [HOST, JSON, order[0]], path, method) != 400


def test_unknown_paths_are_errors_and_share_one_counter(client):
    for path in ("/x", "/translate/../../etc/passwd", "/%2e%2e/setup.py", "/static/x"):
        answer = client.get(path)
        assert answer.status_code == 404 and list(answer.json()) == ["error"]
    assert client.get("/translate").status_code == 405
    assert metric(client, "relu_nmt_requests_total", path="other", status="404") >= 4


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
    request = {"lines": lines, "translation": translation}
    answer = client.post("/attention", json=request)
    assert answer.status_code in (200, 413), answer.text


@pytest.fixture(scope="module")
def api():
    with client_of(max_request_bytes=10_000_000) as client:
        yield client, schemathesis.openapi.from_dict(client.get("/openapi.json").json())


def call_and_validate(client, case):
    request = case.as_transport_kwargs(base_url=str(client.base_url))
    case.validate_response(client.request(**request))


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
