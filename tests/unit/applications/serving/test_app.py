"""The server's translations and attention, and its page."""

import itertools
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.outputs import column, values

pytest.importorskip("fastapi", reason="fastapi is not installed")
from relu_nmt.applications.serving.app import make_app
from relu_nmt.data.document_settings import WindowConfig
from relu_nmt.errors import ConfigError
from relu_nmt.tokenization.pipeline import TextPipeline
from tests.unit.applications.serving.clients import LINES, SEARCH, client_of, metric
from tests.unit.applications.serving.served_models import make_translator


@pytest.mark.parametrize("max_doc_tokens", [None, 1, 8])
def test_the_server_translates_a_document_like_python(client, max_doc_tokens):
    options = {} if max_doc_tokens is None else {"max_doc_tokens": max_doc_tokens}
    answer = client.post("/translate", json={"lines": LINES, **options})
    assert answer.status_code == 200, answer.text
    result = answer.json()
    alone = make_translator().translate_documents([LINES], **options, **SEARCH)
    assert result["lines"] == alone[0]
    assert len(result["lines"]) == len(LINES)
    assert result["lines"][1] == ""
    assert column(result["groups"], "first") == [w.window.first for w in alone.windows]
    assert list(itertools.chain(*values(result["groups"], "lines"))) == result["lines"]
    assert result["source_tokens"] > len(LINES)


FORCED = {"prefixes": ["the", "", "a big", "", ""], "forced": [["big"], [], [], ["a", "a"], []]}


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("max_doc_tokens", [1, 8, 60])
def test_translations_contain_the_terms_of_their_request(client, max_doc_tokens, ordered):
    request = {"max_doc_tokens": max_doc_tokens, **FORCED, "ordered": ordered, "banned": ["is"]}
    answer = client.post("/translate", json={"lines": LINES, **request})
    assert answer.status_code == 200, answer.text
    lines = answer.json()["lines"]
    alone = make_translator().translate_documents(
        [LINES], **{**request, **{name: [term] for name, term in FORCED.items()}}, **SEARCH
    )
    assert lines == alone[0]
    assert lines[0].startswith("the") and "big" in lines[0] and lines[2].startswith("a big")
    assert lines[3].split().count("a") >= 2 and lines[1] == ""
    assert "is" not in " ".join(lines).split()


def test_banned_terms_hold_in_any_case_unless_the_request_says_otherwise(client):
    free = client.post("/translate", json={"lines": LINES}).json()["lines"]
    word = next(word for word in " ".join(free).split() if word.isalpha())
    request = {"lines": LINES, "banned": [word.upper()]}
    lines = client.post("/translate", json=request).json()["lines"]
    assert word not in " ".join(lines).split()
    assert client.post("/translate", json={**request, "match_case": True}).json()["lines"] == free
    part = {"lines": LINES, "banned": [word[:1]]}
    assert client.post("/translate", json=part).json()["lines"] == free or len(word) == 1
    lines = client.post("/translate", json={**part, "inside_words": True}).json()["lines"]
    assert word[:1] not in "".join(lines)


def translated_lines(client, request):
    return client.post("/translate", json=request).json()["lines"]


def test_terms_of_a_request_do_not_affect_other_requests():
    words = {"lines": LINES}
    forced = [["big", "the a"], [], [], [], []]
    with client_of(batch_wait=0.2) as client, ThreadPoolExecutor(4) as pool:
        free = client.post("/translate", json=words).json()["lines"]
        never = " ".join(free).split()[0]
        bodies = [{}, {"banned": [never]}, {"forced": forced}, {"banned": ["Garten", never]}]
        post = partial(translated_lines, client)
        requests = [{**words, **body} for body in bodies]
        together = list(pool.map(post, requests))
        assert together == list(map(post, requests))
    assert together[0] == free and "the a" in together[2][0]
    assert never not in " ".join(together[1] + together[3]).split()


@pytest.mark.parametrize(
    ("fields", "status", "expected"),
    [
        ({"prefixes": ["a"]}, 422, "1 prefix, but 2 lines; give one for each"),
        ({"forced": [["a"]] * 3}, 422, "3 term lists, but 2 lines; give one"),
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
def test_wrong_prefixes_and_terms_are_errors_with_a_reason(client, fields, status, expected):
    answer = client.post("/translate", json={"lines": ["ein Haus", ""], **fields})
    assert answer.status_code == status and answer.json()["error"].startswith(expected)


def test_a_model_without_separators_forces_line_by_line_only():
    request = {"lines": ["ein Haus", "das"], "forced": [["big"], ["a"]]}
    with client_of(make_translator(separated=False)) as plain:
        assert "big" in plain.post("/translate", json=request).json()["lines"][0]
        answer = plain.post("/translate", json={**request, "max_doc_tokens": 50})
        assert answer.status_code == 422 and "line by line" in answer.json()["error"]


def test_a_search_that_cannot_force_terms_is_an_error():
    request = {"lines": ["ein Haus", "das"], "max_doc_tokens": 50}
    with client_of(search={**SEARCH, "beam_threshold": 2.0}) as client:
        for forced in ({"forced": [["big"], []]}, {"prefixes": ["", "a"]}):
            answer = client.post("/translate", json={**request, **forced})
            assert answer.status_code == 422
            assert answer.json()["error"].startswith("this server runs with --beam-threshold")
        assert client.post("/translate", json={**request, "prefixes": ["a", ""]}).status_code == 200


def test_simultaneous_requests_get_the_same_answers_as_alone():
    requests = [{"lines": [f"ein {'gross ' * i}Haus", "das ist klein ."]} for i in range(8)]
    with client_of(batch_wait=0.2) as client, ThreadPoolExecutor(len(requests)) as pool:
        post = partial(translated_lines, client)
        before = metric(client, "relu_nmt_batch_sentences_count")
        together = list(pool.map(post, requests))
        batches = metric(client, "relu_nmt_batch_sentences_count") - before
        assert together == list(map(post, requests))
    assert batches < len(requests)


def test_one_thread_at_a_time_uses_the_tokenizers(monkeypatch):
    used = []
    in_use = []

    def alone(function):
        def call(*arguments):
            used.append(1)
            in_use.append(len(used))
            time.sleep(0.002)
            used.pop()
            return function(*arguments)

        return call

    for name in ("encode", "decode", "characters_of_text", "characters_of_tokens"):
        monkeypatch.setattr(TextPipeline, name, alone(getattr(TextPipeline, name)))
    request = {"lines": LINES, "banned": ["big"]}
    pair = {"lines": LINES, "translation": ["the house"]}
    with client_of() as client, ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(client.post, "/translate", json=request) for _ in range(6)]
        answers += [pool.submit(client.post, "/attention", json=pair) for _ in range(6)]
        assert {answer.result().status_code for answer in answers} == {200}
    assert len(in_use) > 60 and max(in_use) == 1


def test_a_model_of_sentences_gives_a_group_for_each(client):
    with client_of(make_translator(separated=False)) as plain:
        assert plain.get("/model").json()["keeps_sentences"] is False
        request = {"lines": ["ein Haus", "das Haus"]}
        assert len(plain.post("/translate", json=request).json()["groups"]) == 2
        joined = plain.post("/translate", json={**request, "max_doc_tokens": 50}).json()
        [group] = joined["groups"]
        assert (group["count"], len(group["lines"])) == (2, 1)
        pair = {"lines": request["lines"], "translation": joined["lines"]}
        assert plain.post("/attention", json=pair).status_code == 200


@pytest.mark.parametrize("slot", ["cross", "encoder", "decoder"])
def test_the_server_gives_the_attention_of_the_translator(client, slot):
    translator = make_translator()
    request = {"lines": ["das Haus"], "translation": ["the  big house"], "slot": slot}
    result = client.post("/attention", json=request).json()
    for layer in range(2):
        expected = translator.attention("das Haus", "the big house", slot, layer)
        np.testing.assert_allclose(result["weights"][layer], expected.weights, atol=6e-5)
        assert values(result["queries"], "text") == expected.queries
        assert values(result["keys"], "text") == expected.keys
    sides = {"lines": "das Haus", "translation": "the  big house"}
    text = sides["lines" if slot == "encoder" else "translation"]
    words = [text[token["begin"] : token["end"]] for token in result["queries"]]
    assert words == [*text.split(), "", ""]
    assert values(result["queries"], "line")[-2:] == [0, None]


def test_a_single_sentence_is_shown_without_the_separator_that_the_model_does_not_read():
    translator = make_translator(separates_alone=False)
    request = {"lines": ["", "das Haus"], "translation": ["the house"], "line": 0}
    with client_of(translator) as client:
        result = client.post("/attention", json=request).json()
        two = client.post("/attention", json={**request, "lines": ["das", "Haus"]}).json()
    expected = translator.attention("das Haus", "the house", layer=0)
    assert values(result["queries"], "text") == expected.queries[:-1]
    assert values(result["keys"], "text") == expected.keys
    assert values(result["keys"], "line") == [1, 1, None]
    np.testing.assert_allclose(result["weights"][0], expected.weights[:, :-1], atol=6e-5)
    assert values(two["keys"], "text") == ["das", "<sep>", "Haus", "<sep>", "</s>"]


@pytest.mark.parametrize("document_attention", ["full", "aligned"])
def test_attention_of_a_line_within_its_document(document_attention):
    options = {} if document_attention == "full" else {"global_layers": 1}
    translator = make_translator(document_attention=document_attention, **options)
    request = {"lines": ["das Haus", "klein"], "translation": ["the house", "small ."]}
    with client_of(translator) as client:
        document = client.post("/attention", json=request).json()
        part = client.post("/attention", json={**request, "line": 1}).json()
        wrong = client.post("/attention", json={**request, "line": 2})
        # Any text may be looked at, also one with other sentences than its source.
        odd = {**request, "translation": ["a <sep> </s> <pad> b", "", "x <sep>"]}
        assert client.post("/attention", json=odd).status_code == 200
    rows = [i for i, token in enumerate(document["queries"]) if token["line"] == 1]
    assert [document["queries"][i] for i in rows] == part["queries"]
    assert np.array(document["weights"])[:, :, rows].tolist() == part["weights"]
    assert wrong.status_code == 422 and "lines count from 0" in wrong.json()["error"]


def test_attention_without_weights_is_an_error_with_a_reason():
    request = {"lines": ["das"], "translation": ["the"]}
    for translator in (make_translator(encoder_attention="xca"), make_translator(num_models=2)):
        with client_of(translator) as client:
            slots = client.get("/model").json()["attention"]
            answer = client.post("/attention", json={**request, "slot": "encoder"})
            assert not slots["encoder"]["has_weights"]
            assert answer.status_code == 422, answer.text


def test_a_line_too_long_for_the_model_is_an_error(client):
    translator = make_translator(encoder_positions="learned", max_source_positions=5)
    with client_of(translator) as short:
        answer = short.post("/translate", json={"lines": ["ein", "ein das Haus ist gross"]})
        assert answer.status_code == 422
        assert answer.json()["error"] == "line 2 has 7 tokens, but the model reads 5"
        fits = {"lines": ["ein Haus", "das Haus"]}
        assert short.post("/translate", json={**fits, "max_doc_tokens": 5}).status_code == 200
        assert short.post("/translate", json={**fits, "max_doc_tokens": 9}).status_code == 422


def test_a_line_of_the_longest_length_needs_no_place_for_an_unread_separator():
    learned = {"encoder_positions": "learned", "max_source_positions": 5}
    with client_of(make_translator(separates_alone=False, **learned)) as short:
        fits = {"lines": ["das Haus ist gross"], "max_doc_tokens": 1}
        answer = short.post("/translate", json=fits)
        assert answer.status_code == 200, answer.text


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
