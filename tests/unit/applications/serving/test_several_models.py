"""A server of several models, whose requests choose by languages."""

import math

import pytest

from tests.outputs import values

pytest.importorskip("fastapi")

from relu_nmt.applications.serving.detection import SourceLikelihood, confidences
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.errors import ConfigError
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.task import TranslationTask
from tests.unit.applications.serving.clients import client_of
from tests.unit.applications.serving.served_models import make_translator

TEXT = "ein Haus a house"


def make_reverse():
    return make_translator(languages=("en", "de"), attention="softmax")


@pytest.fixture(scope="module")
def client():
    with client_of(other_models=[make_reverse()]) as client:
        yield client


@pytest.fixture(scope="module")
def alone():
    """Return the answer of each model on a separate server, by its source language."""
    answers = {}
    for source, translator in (("de", make_translator()), ("en", make_reverse())):
        with client_of(translator) as client:
            answers[source] = client.post("/translate", json={"lines": [TEXT]}).json()
    assert answers["de"]["lines"] != answers["en"]["lines"]
    return answers


@pytest.mark.parametrize(("source", "target"), [("de", "en"), ("en", "de")])
def test_the_languages_choose_the_model(client, alone, source, target):
    body = {"q": TEXT, "source": source, "target": target}
    [line] = alone[source]["lines"]
    assert client.post("/translate", json=body).json() == {"translatedText": line}
    detected = {"language": source, "confidence": 100}
    answer = client.post("/translate", json={**body, "source": "auto"}).json()
    assert answer == {"translatedText": line, "detectedLanguage": detected}
    form = {"source": source, "target": target}
    upload = client.post("/translate_file", data=form, files={"file": ("a.txt", TEXT.encode())})
    url = upload.json()["translatedFileUrl"]
    download = client.get(url[url.index("/download_file") :])
    assert download.text == line
    assert f"a.{target}.txt" in download.headers["content-disposition"]


def test_lines_take_the_first_model_unless_the_request_says_languages(client, alone):
    body = {"lines": [TEXT]}
    assert client.post("/translate", json=body).json() == alone["de"]
    assert client.post("/translate", json={**body, "source": "en"}).json() == alone["en"]
    assert client.post("/translate", json={**body, "target": "de"}).json() == alone["en"]
    assert client.get("/model").json()["source_lang"] == "de"
    assert client.get("/model?source=en").json()["source_lang"] == "en"
    pair = {"lines": [TEXT], "translation": alone["en"]["lines"]}
    weights = client.post("/attention", json={**pair, "source": "en"}).json()["weights"]
    assert weights != client.post("/attention", json=pair).json()["weights"]
    for path, request in (("/translate", body), ("/attention", pair)):
        refused = client.post(path, json={**request, "source": "en", "target": "en"})
        assert refused.status_code == 404


def test_a_pair_without_model_is_an_error(client):
    answer = client.post("/translate", json=asked_pair("de", "de"))
    assert answer.status_code == 400
    assert answer.json() == {"error": "de is not available as a target language from de"}
    answer = client.post("/translate", json=asked_pair("fr", "de"))
    assert answer.json() == {"error": "fr is not supported"}
    refused = client.post("/translate", json={"lines": [TEXT], "source": "fr"})
    assert refused.status_code == 404
    assert refused.json()["error"].startswith("no model has these languages")


def asked_pair(source, target):
    return {"q": TEXT, "source": source, "target": target}


def test_languages_list_the_targets_of_each_source():
    other_models = [make_reverse(), make_translator(languages=("fr", "en"))]
    with client_of(other_models=other_models) as client:
        languages = client.get("/languages").json()
        targets = dict(zip(values(languages, "code"), values(languages, "targets"), strict=True))
        assert targets == {"de": ["en"], "en": ["de"], "fr": ["en"]}
        detected = client.post("/detect", json={"q": TEXT}).json()
        assert values(detected, "language") == ["de", "en", "fr"]
        # Two models translate into English, one into German.
        refused = client.post("/translate", json=asked_pair("auto", "en"))
        assert refused.status_code == 400
        assert "give the source: de, fr" in refused.json()["error"]
        assert client.post("/translate", json=asked_pair("auto", "de")).status_code == 200


def test_the_words_of_a_text_tell_its_language():
    french = "une la maison est grande . jardin petite the house is big garden small"
    other_models = [make_translator(languages=("fr", "en"), words=french)]
    texts = {"de": "das Haus ist gross", "fr": "la maison est grande"}
    with client_of(other_models=other_models) as client:
        for code, text in texts.items():
            best, other = client.post("/detect", json={"q": text}).json()
            assert best["language"] == code and best["confidence"] > 80
            assert best["confidence"] + other["confidence"] == 100
            body = {"q": text, "target": "en"}
            answer = client.post("/translate", json={**body, "source": "auto"}).json()
            named = client.post("/translate", json={**body, "source": code}).json()
            assert answer == {**named, "detectedLanguage": best}
        # Both have these words, or none.
        for text in ("big garden", "", "1"):
            [first, second] = client.post("/detect", json={"q": text}).json()
            assert first["confidence"] - second["confidence"] < 5
            request = {"q": text, "source": "auto", "target": "en"}
            assert client.post("/translate", json=request).status_code == 400


def test_a_frequent_symbol_makes_a_language_likelier():
    likelihoods = {}
    for language, count in (("de", 9), ("nl", 1)):
        words = Dictionary(["in", "die"], [count, 10])
        text = TextPipeline(language)
        likelihoods[language] = SourceLikelihood(TranslationTask(text, text, words, words))("in")
    # Special symbols count once, and each symbol half more.
    assert likelihoods["de"] == pytest.approx(math.log(9.5 / (4 * 1.5 + 20)))
    assert likelihoods["nl"] == pytest.approx(math.log(1.5 / (4 * 1.5 + 12)))
    assert list(confidences(likelihoods)) == ["de", "nl"]
    expected = (9.5 / 26) ** 0.5 / ((9.5 / 26) ** 0.5 + (1.5 / 18) ** 0.5)
    assert confidences(likelihoods)["de"] == pytest.approx(expected)


def test_two_models_of_one_pair_are_refused():
    with pytest.raises(ConfigError, match="two models translate de-en"):
        client_of(other_models=[make_translator()])
