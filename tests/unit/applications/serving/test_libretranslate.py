import io
import json
import socket
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.error import HTTPError

import pytest

from tests.outputs import values

pytest.importorskip("fastapi")

from relu_nmt.applications.files import formats
from relu_nmt.applications.serving import ServerOptions, libretranslate, service
from relu_nmt.applications.serving.app import make_app
from relu_nmt.applications.serving.libretranslate import parsed_form
from relu_nmt.applications.serving.queues import FILES_AT_ONCE, Batcher
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translator.sources import SourceEncoder
from tests.unit.applications.serving.clients import SEARCH, client_of
from tests.unit.applications.serving.served_models import make_translator


def test_texts_are_translated_in_the_form_of_the_interface(client):
    body = {"q": "ein Haus", "source": "de", "target": "en", "format": "text", "api_key": "x"}
    answer = client.post("/translate", json=body)
    assert answer.status_code == 200
    assert isinstance(answer.json()["translatedText"], str)
    several = client.post("/translate", json={**body, "q": ["ein Haus", ""], "source": "auto"})
    assert several.json()["translatedText"] == [answer.json()["translatedText"], ""]
    assert several.json()["detectedLanguage"] == [{"language": "de", "confidence": 100}] * 2
    assert client.post("/translate", data=body).json() == answer.json()
    page = client.post("/translate", json={**body, "q": "<b>ein</b> Haus", "format": "html"})
    assert page.json()["translatedText"].count("<b>") >= 1


def test_alternatives_are_the_other_hypotheses_of_the_beam():
    translator = make_translator(separated=False)
    source = "das Haus ist gross"
    search = {**SEARCH, "beam": 4, "max_len_a": 0}

    def hypotheses(count):
        [beam] = translator.translate_nbest([source], **search, nbest=count)
        return [hypothesis.text for hypothesis in beam]

    best, *alternatives = hypotheses(4)
    assert len({best, *alternatives}) == 4
    with client_of(translator, search) as client:
        body = {"q": source, "source": "de", "target": "en"}
        assert client.post("/translate", json=body).json() == {"translatedText": best}
        for count in (1, 2, 3):
            answer = client.post("/translate", json={**body, "alternatives": count}).json()
            assert answer == {"translatedText": best, "alternatives": hypotheses(1 + count)[1:]}
        # The beam has no more.
        answer = client.post("/translate", json={**body, "alternatives": 50}).json()
        assert answer["alternatives"] == alternatives
        texts = {**body, "q": [source, "", f"{source}\n\n{source}"], "alternatives": 3}
        answer = client.post("/translate", json=texts).json()
        assert answer["translatedText"] == [best, "", f"{best}\n\n{best}"]
        assert answer["alternatives"] == [
            alternatives,
            [],
            [f"{text}\n\n{text}" for text in alternatives],
        ]
        assert client.post("/translate", json={**body, "alternatives": -1}).status_code == 400


def test_lines_are_still_translated_by_the_same_path(client):
    assert "groups" in client.post("/translate", json={"lines": ["ein Haus"]}).json()


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"q": "a", "source": "fr", "target": "en"}, 400, "fr is not supported"),
        ({"q": "a", "source": "de", "target": "fr"}, 400, "fr is not supported"),
        ({"q": "ein Haus . " * 100, "target": "en"}, 413, "tokens"),
    ],
)
def test_errors_have_one_line(client, body, status, message):
    answer = client.post("/translate", json=body)
    assert answer.status_code == status
    assert message in answer.json()["error"]


BODY = {"q": "ein Haus", "source": "de", "target": "en"}
OWN_ROUTES = {
    "/translate": {"lines": ["ein Haus"]},
    "/attention": {"lines": ["ein Haus"], "translation": ["a house"]},
}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/translate", {"source": "de", "target": "en"}, "missing q parameter"),
        ("/translate", {"format": "text"}, "missing q parameter"),
        ("/translate", {"q": "a", "source": "de"}, "missing target parameter"),
        ("/translate", {**BODY, "q": 3}, "q: Input should be a valid string"),
        ("/translate", {**BODY, "target": ["en"]}, "target: Input should be a valid string"),
        ("/translate", {**BODY, "format": "pdf"}, "format: Input should be 'text' or 'html'"),
        ("/detect", {}, "missing q parameter"),
        ("/detect", {"q": ["a"]}, "q: Input should be a valid string"),
        ("/detect", [], "expected an object"),
        ("/detect", b"{", "the body is no JSON: "),
        ("/detect", b"\xff", "the body is no JSON: "),
        ("/translate_file", {"source": "de", "target": "en"}, "missing file parameter"),
    ],
)
def test_wrong_requests_have_errors_in_the_form_of_the_interface(client, path, body, message):
    content = body if isinstance(body, bytes) else json.dumps(body)
    headers = {"Content-Type": "application/json"}
    answers = [client.post(path, content=content, headers=headers)]
    if message.startswith("missing") and body:
        answers.append(client.post(path, data=body))
        parts = {name: (None, value) for name, value in body.items()}
        answers.append(client.post(path, files={"x": (None, "y"), **parts}))
    for answer in answers:
        assert answer.status_code == 400
        assert list(answer.json()) == ["error"]
        assert answer.json()["error"].startswith(f"Invalid request: {message}")


def test_forms_of_both_types_are_read(client):
    text = {**BODY, "q": "ein Haus & Hof; Übung"}
    parts = {name: (None, value) for name, value in text.items()}
    for path in ("/translate", "/detect"):
        expected = client.post(path, json=text).json()
        assert client.post(path, data=text).json() == expected
        assert client.post(path, files=parts).json() == expected


def test_keys_are_checked_if_the_server_has_some(tmp_path):
    path = tmp_path / "keys"
    path.write_text("secret \n\n")
    files = {"file": ("a.txt", b"ein Haus")}
    with client_of(api_keys=str(path)) as client:
        for key in ({}, {"api_key": ""}, {"api_key": None}, {"api_key": "secret "}):
            assert client.post("/translate", json={**BODY, **key}).status_code == 403
            assert client.post("/detect", json={"q": "ein", **key}).status_code == 403
            assert client.post("/translate_file", data=key, files=files).status_code == 403
            for route, content in OWN_ROUTES.items():
                answer = client.post(route, json={**content, **key})
                assert answer.status_code == 403 and answer.json() == {"error": "Invalid API key"}
        in_address = client.post("/translate_file?api_key=secret", files=files)
        assert in_address.status_code == 403
        key = {"api_key": "secret"}
        assert client.post("/translate", json={**BODY, **key}).status_code == 200
        assert client.post("/translate_file", data=key, files=files).status_code == 200
        for route, content in OWN_ROUTES.items():
            assert client.post(route, json={**content, **key}).status_code == 200
        assert client.get("/frontend/settings").json()["keyRequired"] is True


def test_the_settings_list_the_formats_of_a_user(client, monkeypatch):
    before = client.get("/frontend/settings").json()["supportedFilesFormat"]
    assert ".docx" in before and ".xliff" in before and ".table" not in before
    monkeypatch.setitem(formats._entries, "whisper", None)
    assert client.get("/frontend/settings").json()["supportedFilesFormat"] == sorted(
        [*before, ".whisper"]
    )


def test_a_file_is_uploaded_translated_and_downloaded(client):
    form = {"source": "de", "target": "en"}
    content = b"<p>ein <b>Haus</b></p>\r\n<!----x-->"
    answer = client.post("/translate_file", data=form, files={"file": ("ä b.html", content)})
    url = answer.json()["translatedFileUrl"]
    download = client.get(url[url.index("/download_file") :])
    assert download.status_code == 200
    assert "b.en.html" in download.headers["content-disposition"]
    assert download.content.startswith(b"<p>") and download.content.endswith(b"\r\n<!----x-->")
    assert client.get("/download_file/none").status_code == 404


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("a\x1b\u202eb.txt", "ab.en.txt"),
        ("..\\..\\C:\\a.html", "a.en.html"),
        ("../../a 1: b'c;d.txt", "a%201%3A%20b%27c%3Bd.en.txt"),
        ("x" * 3000, "x" * 3000 + ".en"),
    ],
)
def test_the_name_of_a_download_is_no_path_and_visible(client, name, written):
    url = client.post("/translate_file", files={"file": (name, b"ein")}).json()["translatedFileUrl"]
    download = client.get(url[url.index("/download_file") :])
    expected = f"attachment; filename*=UTF-8''{written}"
    assert download.headers["content-disposition"] == expected


def test_a_text_is_unicode_whatever_encoding_it_declares(client):
    page = '<meta charset="ascii"><code>Übung</code><p>ein Haus</p>'
    body = {"q": page, "source": "de", "target": "en", "format": "html"}
    answer = client.post("/translate", json=body)
    assert "<code>Übung</code>" in answer.json()["translatedText"]


PART = b'--x\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n\r\nja\r\n'
FORM = PART % b"a.txt" + b"--x--"


@pytest.mark.parametrize(
    ("parameters", "body", "name"),
    [
        ("boundary=x; charset=utf-8", FORM, "a.txt"),
        ('charset=punycode; boundary="x"', FORM, "a.txt"),
        ("boundary=x", PART % b'../a\\"b\x1b.txt' + b"--x--", '../a"b\x1b.txt'),
        ("boundary=x", PART % "ä;Ü.txt".encode() + b"--x--", "ä;Ü.txt"),
        ("boundary=x", PART % b"a" * 99 + b"--x--", "a"),
        ("boundary=x", PART % b"a" * 100 + b"--x--", ""),
        ("boundary=x", FORM.replace(b"\r\n\r\n", b"\r\n" + b"A: b\r\n" * 99 + b"\r\n"), ""),
        ("boundary=x", FORM.replace(b"name=", b"n="), ""),
        ("boundary=x", b"--x\r\nja", ""),
        ("boundary=x", b"", ""),
        ("boundary=x", FORM.removesuffix(b"--x--") + b"--y", ""),
        ("boundary=y", FORM, ""),
        ("boundary=" + "x" * 300, FORM, ""),
        ("boundary=", FORM, ""),
        ("", FORM, ""),
    ],
)
def test_a_damaged_form_has_no_files(capfd, parameters, body, name):
    written = parsed_form(f"multipart/form-data; {parameters}", body)
    assert written == ({}, name, b"ja" if name else b"")
    assert capfd.readouterr() == ("", "")


def packed(parts):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return target.getvalue()


def bomb():
    return packed({"word/document.xml": b" " * 15_000_000})


def lying_bomb():
    """Return a zip file whose directory tells a small size."""
    content = bytearray(bomb())
    size = content.rindex(b"PK\x01\x02") + 24
    content[size : size + 4] = b"\x64\0\0\0"
    return bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "status"),
    [
        ("a.docx", b"PK", 400),
        ("a.docx", bomb(), 400),
        ("a.xlf", b'<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>', 400),
        ("a.pdf", b"%PDF", 400),
        ("", b"ein Haus", 400),
        ("C:", b"ein Haus", 400),
        ("../../a.html", b"<p>" + b"ein Haus . " * 4000, 413),
    ],
)
def test_attacks_on_the_upload_are_refused(client, name, content, status):
    answer = client.post("/translate_file", files={"file": (name, content)})
    assert answer.status_code == status
    assert answer.json()["error"]


@pytest.mark.parametrize("field", ["q", "source", "target"])
@pytest.mark.parametrize("path", ["/translate", "/detect"])
def test_half_of_a_surrogate_pair_is_no_text(client, path, field):
    body = {"q": "ein Haus", "source": "de", "target": "en", field: "\ud800"}
    headers = {"Content-Type": "application/json"}
    answer = client.post(path, content=json.dumps(body), headers=headers)
    assert answer.status_code == (200 if path == "/detect" and field != "q" else 400)


PARAMETER_ENTITY = b'<!DOCTYPE a [<!ENTITY % p SYSTEM "file:///etc/passwd"> %p;]><a/>'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.docx", lying_bomb(), "damaged"),
        ("a.docx", packed(dict.fromkeys(map(str, range(20_000)), b"")), "much larger"),
        ("a.epub", packed({"META-INF/container.xml": PARAMETER_ENTITY}), "entity p"),
        ("a.odt", packed({"content.xml": b'<!DOCTYPE a SYSTEM "http://a/b"><a/>'}), "outside"),
        ("a.html", b"<p>" + b"wort " * 1_000_000, "a paragraph has more than 100,000 characters"),
        ("a.docx", packed({"word/document.xml": b"<a>" * 10**5 + b"</a>" * 10**5}), "200 deep"),
        ("a.html", b"<b>" * 10**5 + b"x", "2,000 tags"),
        ("a.xlf", b'<?xml version="1.0" encoding="ascii"?><x>\xfc</x>', "encoding ascii"),
        ("a.xlf", b'<?xml version="1.0" encoding="utf-7"?><x>+ADw-</x>', "utf-7 would change"),
        ("a.html", b'<meta charset="idna"><p>x', "encoding idna"),
        ("a.html", b'<meta charset="utf-8"><p>\xff', "not in the encoding utf-8"),
        ("a.html", b'<meta charset="rot13"><p>x', "not in the encoding rot13"),
        ("a.html", b'<meta charset="Punycode-"><p>-' + b"a" * 10**6, "names of domains"),
        ("a.html", b'<meta charset="zlib"><p>x', "not in the encoding zlib"),
        ("a.po", b'msgid ""\nmsgstr "charset=hex\\n"\n', "not in the encoding hex"),
    ],
)
def test_large_attacks_have_one_line_and_leave_nothing(
    tmp_path, monkeypatch, name, content, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with client_of() as client:
        answer = client.post("/translate_file", files={"file": (name, content)})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(f"{name}: ")
    assert message in answer.json()["error"]
    assert "\n" not in answer.json()["error"]
    assert not any(tmp_path.iterdir())


def test_names_in_an_archive_are_no_paths(tmp_path, client, monkeypatch):
    body = '<w:document xmlns:w="w"><w:p><w:r><w:t>ein Haus</w:t></w:r></w:p></w:document>'
    outside = {"../evil": b"x", f"{tmp_path}/evil": b"y"}
    content = packed({"word/document.xml": body, **outside})
    monkeypatch.chdir(tmp_path)
    answer = client.post("/translate_file", files={"file": ("../../a.docx", content)})
    url = answer.json()["translatedFileUrl"]
    download = client.get(url[url.index("/download_file") :])
    assert download.headers["content-disposition"].endswith("''a.en.docx")
    with zipfile.ZipFile(io.BytesIO(download.content)) as archive:
        assert {part: archive.read(part) for part in archive.namelist()[1:]} == outside
    assert not any(tmp_path.iterdir())


def test_the_limits_of_texts_are_none_of_files(monkeypatch):
    monkeypatch.setattr(service, "BATCH_TOKENS", 40)
    asked = []
    search = Batcher.run

    def run(batcher, call, request):
        asked.append(sum(len(source.ids) for source in call.args[0]))
        return search(batcher, call, request)

    monkeypatch.setattr(Batcher, "run", run)
    page = b"<p>ein Haus . Das ist klein .</p>" * 20
    with client_of(max_request_bytes=100, max_request_tokens=20) as client:
        answer = client.post("/translate_file", files={"file": ("a.html", page)})
        assert answer.status_code == 200
        url = answer.json()["translatedFileUrl"]
        assert client.get(url[url.index("/download_file") :]).content.count(b"<p>") == 20
    assert len(asked) > 2 and max(asked) <= 40


def test_only_one_part_of_one_file_at_a_time_waits_for_the_model(monkeypatch):
    waiting = []
    num_waiting = []
    go = threading.Event()
    search = Batcher.run

    def run(batcher, call, request):
        waiting.append(1)
        num_waiting.append(len(waiting))
        assert go.wait(60)
        result = search(batcher, call, request)
        waiting.pop()
        return result

    monkeypatch.setattr(Batcher, "run", run)
    files = {"file": ("a.html", b"<p>ein Haus . Das ist klein .</p>" * 20)}
    with client_of() as client, ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        uploads = [
            pool.submit(client.post, "/translate_file", files=files) for _ in range(FILES_AT_ONCE)
        ]
        while client.get("/health").json()["waiting"] < FILES_AT_ONCE:
            time.sleep(0.01)
        refused = client.post("/translate_file", files=files)
        assert refused.status_code == 429 and refused.headers["Retry-After"] == "1"
        # Lines still have their places.
        assert client.post("/translate", json={"lines": ["ein Haus"]}).status_code == 200
        go.set()
        assert {upload.result().status_code for upload in uploads} == {200}
    assert max(num_waiting) == 1


def test_a_file_that_is_given_up_is_encoded_no_further(monkeypatch):
    encoded = []

    def sentence(encoder, *arguments):
        encoded.append(arguments)
        time.sleep(0.1)
        return encode(encoder, *arguments)

    encode = SourceEncoder.sentence
    files = {"file": ("a.txt", b"ein Haus .\n" * 100)}
    with client_of(request_seconds=1) as client:
        monkeypatch.setattr(SourceEncoder, "sentence", sentence)
        assert client.post("/translate_file", files=files).status_code == 504
        while client.get("/health").json()["waiting"]:
            time.sleep(0.01)
    assert 0 < len(encoded) < 50


def test_the_oldest_files_give_way(monkeypatch):
    monkeypatch.setattr(libretranslate, "MOST_FILES_BYTES", 100)
    urls = []
    with client_of() as client:
        for _ in range(3):
            files = {"file": ("a.html", b"<!----x-->" * 4)}
            url = client.post("/translate_file", files=files).json()["translatedFileUrl"]
            urls.append(url[url.index("/download_file") :])
        statuses = [client.get(url).status_code for url in urls]
    assert statuses == [404, 200, 200]


@contextmanager
def served(app):
    """Serve an application at a free port, and yield its address."""
    uvicorn = pytest.importorskip("uvicorn")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.05)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


def test_a_client_of_libretranslate_speaks_to_a_real_server(tmp_path):
    libretranslatepy = pytest.importorskip("libretranslatepy")
    import httpx

    path = tmp_path / "keys"
    path.write_text("secret\n")
    limits = ServerOptions(api_keys=str(path))
    with served(make_app(make_translator(), GenerationConfig(**SEARCH), limits=limits)) as url:
        stranger = libretranslatepy.LibreTranslateAPI(url)
        with pytest.raises(HTTPError) as error:
            stranger.translate("ein Haus", "de", "en")
        with error.value as answer:
            assert (answer.code, json.load(answer)) == (403, {"error": "Invalid API key"})
        api = libretranslatepy.LibreTranslateAPI(url, api_key="secret")
        with pytest.raises(HTTPError) as error:
            api.translate("ein Haus", "de", "fr")
        with error.value as answer:
            assert (answer.code, json.load(answer)) == (400, {"error": "fr is not supported"})
        assert isinstance(api.translate("ein Haus & Hof", "de", "en"), str)
        assert api.detect("ein Haus")[0]["language"] == "de"
        assert values(api.languages(), "code") == ["de", "en"]
        # The client uploads no files.
        files = {"file": ("a.srt", b"1\n00:00:01,000 --> 00:00:02,000\nein Haus\n")}
        form = {"source": "de", "target": "en", "api_key": "secret"}
        answer = httpx.post(f"{url}translate_file", data=form, files=files, timeout=60)
        translation = httpx.get(answer.json()["translatedFileUrl"])
        assert translation.text.startswith("1\n00:00:01,000 --> 00:00:02,000\n")


@pytest.mark.parametrize("separated", [True, False])
def test_a_real_server_tells_how_many_sentences_of_a_file_are_done(monkeypatch, separated):
    import httpx

    has_begun = threading.Event()
    has_asked = threading.Event()
    run = Batcher.run

    # Wait behind the second window until the client has asked.
    def waiting_run(batcher, call, request):
        result = run(batcher, call, request)
        if has_begun.is_set():
            has_asked.wait(60)
        has_begun.set()
        return result

    monkeypatch.setattr(Batcher, "run", waiting_run)
    monkeypatch.setattr(service, "BATCH_TOKENS", 1)
    app = make_app(make_translator(separated), GenerationConfig(**SEARCH))
    page = "<p>ein Haus . Das ist klein .</p>" * 20
    form = {"target": "en", "progress": "a-1"}
    with served(app) as url, ThreadPoolExecutor(1) as pool:
        files = {"file": ("a.html", page.encode())}
        upload = pool.submit(httpx.post, f"{url}translate_file", data=form, files=files, timeout=60)
        assert has_begun.wait(60)
        time.sleep(0.2)
        progress = httpx.get(f"{url}file_progress/a-1").json()
        has_asked.set()
        assert upload.result().status_code == 200
        assert 0 < progress["done"] < progress["sentences"] == 40
        assert httpx.get(f"{url}file_progress/a-1").json() == {"done": 0, "sentences": 0}
