"""relu-nmt-serve as a process: its page in a browser, its load, its end."""

import json
import re
import select
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

from relu_nmt.config import to_dict
from relu_nmt.training.checkpoint import Checkpoint, save_checkpoint
from tests.chromium import PROGRAM, Chromium
from tests.commands import assert_refused, run_here
from tests.outputs import column
from tests.tiny import save_tiny_model, tiny_task
from tests.unit.applications.serving.served_models import make_translator

SEARCH = ("--beam", "1", "--max-len-a", "0", "--max-len-b", "6")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save(path, make_translator(cross_attention="softmax"))
    return path


def save(path, translator):
    [model] = translator.models
    metadata = {"model_config": to_dict(model.config), "task": translator.task.to_state()}
    metadata["args"] = {"documents": {"max_doc_tokens": 60}}
    save_checkpoint(path, Checkpoint(model.state_dict(), metadata))


class Server:
    """The command, listening at a free port."""

    def __init__(self, python, checkpoint, *flags):
        command = [python, "-m", "relu_nmt.cli.serve", str(checkpoint), "--port", "0"]
        self.process = subprocess.Popen(
            [*command, *SEARCH, *flags], stderr=subprocess.PIPE, text=True
        )
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            if match := re.search(r"http://\S+/", line):
                self.url = match[0]
                break
        else:
            raise AssertionError("".join(self.lines))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def connect(self, receive_buffer=None):
        """Return an open connection."""
        connection = socket.socket()
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(300)
        host, port = re.search(r"//(.+):(\d+)/", self.url).groups()
        connection.connect((host, int(port)))
        return connection

    def has_closed(self, connection):
        """Return True if the server has closed its side, also if data is still to be read."""
        number = connection.getsockname()[1]
        for line in Path("/proc/net/tcp").read_text().splitlines():
            if f":{number:04X}" in line.split()[2]:
                return line.split()[3] != "01"  # established
        return True

    def ask(self, path, body=None):
        """Return status and JSON (or text) of an answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                text, status = answer.read().decode(), answer.status
        except urllib.error.HTTPError as error:
            text, status = error.read().decode(), error.code
        return status, text if path == "metrics" else json.loads(text)


@pytest.fixture(scope="module")
def serve(quick_python, checkpoint):
    """Return a function of flags, which starts the command."""
    return partial(Server, quick_python, checkpoint)


@pytest.fixture(scope="module")
def server(serve):
    with serve() as server:
        yield server


def test_several_models_are_served(serve, tmp_path):
    other = tmp_path / "reverse.safetensors"
    save(other, make_translator(languages=("en", "de")))
    with serve("--further-models", str(other)) as server:
        assert "de-en, en-de at http" in server.lines[-1]
        for source, target in (("de", "en"), ("en", "de")):
            body = {"q": "ein Haus", "source": source, "target": target}
            assert server.ask("translate", body)[0] == 200
            assert server.ask(f"model?source={source}")[1]["target_lang"] == target


def raw_request(path, body):
    """Return the bytes of a request."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + data


def weights_of(words, tokens, weights):
    """Return the weight of each word: the sum of its tokens, divided where a token has several."""
    totals = [0.0] * len(words)
    for token, weight in zip(tokens, weights, strict=True):
        numbers = []
        for number, (line, begin, end) in enumerate(words):
            if line == token["line"] and begin < token["end"] and end > token["begin"]:
                numbers.append(number)
        for number in numbers:
            totals[number] += weight / len(numbers)
        if token["begin"] == token["end"]:  # the end symbol and separators stand for themselves
            totals.append(weight)
    return totals


def see_the_attention_of_haus(browser, server):
    """Point at a word, which shows its attention by layer and head. Choose a slot and a head."""
    word = "[...document.querySelectorAll('.source .word')].find(own => own.textContent === 'Haus')"
    shaded = "[...document.querySelectorAll('.word')].filter(own => own.style.backgroundColor)"
    x, y = browser.run(f"(at => [at.x + 4, at.y + 4])(({word}).getBoundingClientRect())")
    browser.point(x, y)
    browser.until("!document.getElementById('found').hidden")
    assert browser.run("document.getElementById('word').textContent") == "Haus"
    assert browser.run("document.querySelectorAll('#heads canvas').length") == 4
    browser.point(x, y, click=True)
    browser.run("document.querySelector('[data-slot=self]').click()")
    browser.until(f"{shaded}.length && {shaded}.every(own => own.closest('.source'))")
    browser.run("document.querySelectorAll('#heads button')[3].click()")
    browser.until("document.getElementById('where').textContent.endsWith('layer 2, head 2')")
    request, line = browser.run("[current.row.shared, current.row.number]")
    _, answer = server.ask("attention", {**request, "slot": "encoder", "line": line})
    query = column(answer["queries"], "text").index("Haus")
    row = answer["weights"][1][1][query]
    words = browser.run(
        "rows.filter(row => row.shared === current.row.shared).flatMap("
        "row => row.sides.source.map(own => [own.line, own.begin, own.end]))"
    )
    weight = browser.run("document.querySelector('#top dd').textContent")
    assert float(weight) == pytest.approx(max(weights_of(words, answer["keys"], row)), abs=2e-3)
    browser.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")
    assert browser.run(f"{shaded}.length") == 0


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")
def test_a_person_translates_a_document_and_sees_the_attention(server, tmp_path):
    with Chromium(tmp_path / "profile") as browser:
        browser.open(server.url)
        browser.until("model !== null")
        assert browser.run("document.title") == "German → English"
        facts = browser.run("document.getElementById('facts').textContent")
        assert facts.startswith(
            "reluformer (encoder, decoder), softmax (cross) · 2 layers of 2 heads"
        )
        browser.run("document.getElementById('text').focus()")
        browser.type("Das ist gross. Ein Haus, z. B. das 🙂 Haus.\n\nEin Garten <b>.")
        browser.until("rows.length === 3 && rows.every(row => row.shared)")
        pairs = browser.run(
            "rows.map(row => [row.element.querySelector('.source').textContent, row.target])"
        )
        sources = ["Das ist gross.", "Ein Haus, z. B. das 🙂 Haus.", "Ein Garten <b>."]
        targets = server.ask("translate", {"lines": sources})[1]["lines"]
        assert list(map(tuple, pairs)) == list(zip(sources, targets, strict=True))
        see_the_attention_of_haus(browser, server)
        # A dropped file, on a phone: nothing is wider than it.
        browser.resize(390, 844, touch=True)
        browser.run("open(new File(['klein\\rund\\r\\nEin Garten.\\n'], 'text.txt'))")
        browser.until("rows.length === 2 && rows.every(row => row.shared)")
        assert browser.run("result()").count("\n") == 1
        assert browser.run("document.documentElement.scrollWidth") <= 390
        # Only a whole translation can be saved, and the bytes of a document are no text.
        assert not browser.run("get('save').disabled")
        browser.run("get('text').value = 'Ein Haus.'")  # which is new, and has to be asked for
        assert browser.run("void translate() || get('save').disabled")
        for content in ("'%PDF-1.4'", "new Uint8Array([80, 75, 3, 4, 255])", "'a\\0b'"):
            browser.run("tell('')")
            browser.run(f"open(new File([{content}], 'talk.docx'))")
            browser.until("get('status').textContent.startsWith('talk.docx is not plain text')")
        # A file of another kind is translated as a whole.
        browser.until("!get('whole').hidden && get('upload').accept.includes('.docx')")
        browser.run("told = []; tellNow = tell; tell = text => { told.push(text); tellNow(text); }")
        browser.run("void translateFile(new File(['<b>ein</b> Haus'], 'page.html'))")
        # The text of before may be translated meanwhile, and tells its end in the same place.
        browser.until("told.includes('page.html is translated and saved')")
        steps = browser.run("told.filter(text => text.includes('page.html'))")
        assert steps[0] == "sending page.html: 0 %"
        assert "translating page.html …" in steps
        assert steps[-1] == "page.html is translated and saved"
        # The page asks how far a long translation is.
        browser.run("sendNow = send; send = (...form) => wait(900).then(() => sendNow(...form))")
        browser.run(
            "askNow = ask; ask = (path, ...others) => path.startsWith('file_progress/')"
            " ? Promise.resolve({done: 3, sentences: 1234}) : askNow(path, ...others)"
        )
        browser.run("void translateFile(new File(['ein Haus'], 'long.html'))")
        browser.until("told.includes('translating long.html: 3 of 1,234 sentences')")
        browser.until("told.includes('long.html is translated and saved')")
        assert browser.complaints() == []


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")
def test_a_person_translates_a_file_with_a_key(serve, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    flags = "--api-keys", str(keys), "--max-file-bytes", "2000"
    with serve(*flags) as server, Chromium(tmp_path / "profile") as browser:
        browser.open(server.url)
        browser.until("!get('whole').hidden && !get('key').hidden")
        label = browser.run("get('whole').textContent")
        assert label == "Translate a file, up to 0.002 MB"

        def see(size, text):
            browser.run(f"void translateFile(new File(['x'.repeat({size})], 'a.html'))")
            browser.until(f"get('status').textContent === '{text}'")

        see(2001, "a.html is larger than 0.002 MB; divide it")
        see(8, "type your key first")
        assert browser.run("document.activeElement.id") == "key"
        browser.type("wrong")
        see(8, "Invalid API key")
        browser.run("get('key').value = 'secret'; get('key').dispatchEvent(new Event('change'))")
        see(8, "a.html is translated and saved")
        browser.open(server.url)
        browser.until("get('key').value === 'secret'")
        assert "secret" not in browser.run("location.href")


@pytest.mark.slow
def test_every_client_is_answered_under_load(serve):
    lines = [["ein Haus ist klein ."] * 4, ["das Haus ist gross ."] * 20, ["klein"]]
    with serve("--max-waiting", "6") as server, ThreadPoolExecutor(24) as pool:
        alone = [server.ask("translate", {"lines": texts})[1]["lines"] for texts in lines]

        def ask(number):
            for _ in range(200):
                status, answer = server.ask("translate", {"lines": lines[number % 3]})
                statuses[status] += 1
                if status == 200:
                    return answer["lines"] == alone[number % 3]
                assert status == 429, answer
                time.sleep(0.05)

        statuses = Counter()
        assert all(pool.map(ask, range(72)))
        assert statuses[200] == 72
        _, metrics = server.ask("metrics")
        counted = re.search(r'path="/translate",status="429"} (\S+)', metrics)
        # 24 at a time are more than 6, if the machine is not too busy to send them.
        assert float(counted[1] if counted else 0) == statuses[429]
        batches = float(re.search(r"batch_sentences_count (\S+)", metrics)[1])
        assert batches < 72 + 4
        assert server.ask("health")[1] == {"status": "ok", "waiting": 0}


@pytest.mark.slow
def test_a_client_that_disconnects_frees_its_place(server):
    is_waiting = False
    while not is_waiting:
        with server.connect() as connection:
            connection.sendall(raw_request("/translate", {"lines": ["ein Haus ist klein ."] * 250}))
            # On a busy machine the answer may be there before the first look.
            while not is_waiting and not select.select([connection], [], [], 0.01)[0]:
                is_waiting = bool(server.ask("health")[1]["waiting"])
    while server.ask("health")[1]["waiting"]:
        time.sleep(0.05)


def test_a_head_that_does_not_arrive_ends_the_connection(serve):
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serve("--request-seconds", "1") as server, ExitStack() as connections:
        # All wait at once, as each lasts a second.
        waiting = []
        for begun in (b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: "):
            for before in (b"", request):
                connection = connections.enter_context(server.connect())
                connection.sendall(before)
                connection.sendall(begun)
                waiting.append((connection, bool(before)))
        for connection, is_answered in waiting:
            assert read_to_the_end(connection).count(b"200 OK") == is_answered


HEAD = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SIZE = 10_000_000


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (HEAD + f"Content-Length: {SIZE}\r\n\r\n".encode(), 413),
        (HEAD + f"Transfer-Encoding: chunked\r\n\r\n{SIZE:x}\r\n".encode(), 413),
        (HEAD + f"Content-Length: {SIZE}\r\nContent-Encoding: br\r\n\r\n".encode(), 415),
        (HEAD + b"X: ", 400),
        (b"\x16\x03\x01 no HTTP at all\r\n\r\n", 400),
    ],
)
def test_a_client_that_sends_all_before_it_reads_gets_the_refusal(server, head, status):
    with server.connect() as connection:
        connection.sendall(head + b"x" * SIZE)
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(2**16), b""))
    assert answer.startswith(f"HTTP/1.1 {status}".encode())
    assert b"connection: close" in answer.lower()
    assert server.ask("health")[0] == 200


def test_the_drain_of_a_refused_request_has_an_end(serve):
    with serve("--request-seconds", "1") as server, server.connect() as connection:
        connection.sendall(HEAD + f"Content-Length: {SIZE}\r\n\r\n".encode() + b"x" * 200_000)
        assert read_to_the_end(connection).startswith(b"HTTP/1.1 413")
        # The server has ended the connection a second later. What comes then is an error.
        with pytest.raises(ConnectionError):
            for _ in range(1000):
                connection.sendall(b"x")
                time.sleep(0.1)


def test_a_request_behind_one_of_two_lengths_is_not_answered(server):
    with server.connect() as connection:
        lengths = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        connection.sendall(HEAD + lengths + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = read_to_the_end(connection)
    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1 ") == 1


def test_head_over_a_connection_has_the_length_and_no_body(server):
    with server.connect() as connection:
        request = b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n"
        connection.sendall(request + b"\r\n" + request + b"Connection: close\r\n\r\n")
        *heads, body = read_to_the_end(connection).split(b"\r\n\r\n")
    assert len(heads) == 2 and body == b""
    for head in heads:
        assert head.startswith(b"HTTP/1.1 200")
        assert re.search(rb"content-length: [1-9]", head)


@pytest.mark.slow
def test_clients_that_do_not_read_do_not_block_others(serve):
    request = raw_request("/attention", {"lines": ["ein " * 400], "translation": ["the " * 400]})
    limits = ("--max-waiting", "2", "--request-seconds", "3")
    with serve(*limits) as server, ExitStack() as connections:
        unread = []
        while len(unread) < 5:  # Other clients have no answer in time, on a busy machine.
            connection = connections.enter_context(server.connect(receive_buffer=2048))
            connection.sendall(request)
            if connection.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 200":
                unread.append(connection)
            assert server.ask("health")[0] == 200
        while not all(map(server.has_closed, unread)):
            time.sleep(0.1)
        assert server.ask("translate", {"lines": ["ein Haus"]})[0] == 200
        for connection in unread:
            answer = read_to_the_end(connection)
            [length] = re.findall(rb"content-length: (\d+)", answer)
            assert len(answer) < int(length)  # the rest is not sent any more


def read_to_the_end(connection):
    """Return all bytes until the server ends the connection, also after a reset."""
    parts = []
    with suppress(ConnectionError):
        parts.extend(iter(lambda: connection.recv(2**16), b""))
    return b"".join(parts)


def test_silent_connections_do_not_block_others(serve):
    with serve("--max-waiting", "4") as server, ExitStack() as connections:
        silent = [connections.enter_context(server.connect()) for _ in range(300)]
        assert server.ask("health")[0] == 200
        assert server.ask("translate", {"lines": ["ein Haus"]})[0] == 200
        assert read_to_the_end(silent[0]) == b""  # the oldest give way: 260 may be open
        silent[-1].sendall(raw_request("/translate", {"lines": ["ein Haus"]}))
        assert silent[-1].recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 200"


@pytest.mark.slow
def test_after_a_signal_the_server_finishes_its_requests(serve):
    with serve() as server:
        body = {"lines": ["ein Haus ist klein ."] * 100}
        answers = []
        asking = threading.Thread(target=lambda: answers.append(server.ask("translate", body)))
        asking.start()
        while not server.ask("health")[1]["waiting"] and asking.is_alive():
            time.sleep(0.005)
        server.process.send_signal(signal.SIGTERM)
        asking.join(120)
        assert server.process.wait(120) == -signal.SIGTERM
        assert answers[0][0] == 200 and len(answers[0][1]["lines"]) == 100
        assert "Traceback" not in server.process.stderr.read()


def test_names_of_a_checkpoint_command_no_terminal(quick_python, tmp_path):
    name = "de\x1b[2J\u202e\nERROR"
    task = tiny_task(["1", "2", "3"], (name, "en"))
    save_tiny_model(tmp_path / "model.safetensors", task)
    with Server(quick_python, tmp_path / "model.safetensors", "--cpu") as server:
        assert server.lines[-1].startswith(r"de\x1b[2J\u202e ERROR-en at http://")
        assert server.ask("model")[1]["source_lang"] == name
    done = run_here("score", tmp_path, "--path", tmp_path / "model.safetensors", check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert not {"\x1b", "\u202e"} & set(done.stderr)


def test_errors_at_the_start_are_one_line(checkpoint, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        done = run_here("serve", checkpoint, "--port", port, check=False)
    assert_refused(done, f"--port {port}: cannot listen there: Address already in use")
    for flags, expected in (
        ([tmp_path / "none.safetensors"], "no such checkpoint"),
        ([checkpoint, "--sampling"], "--sampling: the server gives one translation"),
        ([checkpoint, "--sampling-topk", "5"], "--sampling-topk: the server gives one translation"),
        ([checkpoint, "--seed", "5"], "--seed: the server gives one translation"),
        ([checkpoint, "--nbest", "2"], "--nbest: the server gives one translation"),
        ([checkpoint, "--truncate-source"], "--truncate-source: the server gives"),
        ([checkpoint, "--score-reference"], "needs references"),
        ([checkpoint, "--max-waiting", "0"], "--max-waiting 0: expected 1 to 1024"),
        ([checkpoint, "--host", "no such host"], "cannot listen there"),
        ([checkpoint, "--window-overlap", "1", "--max-doc-tokens", "1"], "--window-overlap 1"),
        ([], "CKPT is missing"),
    ):
        done = run_here("serve", flags, (["--port", "0"] if flags else []), check=False)
        assert_refused(done, expected)
