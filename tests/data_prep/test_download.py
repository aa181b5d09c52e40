import hashlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from prep_tools import download
from prep_tools.command import PrepError

CONTENT = bytes(range(256)) * 40


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT with ranges, as the server's switches say."""

    def do_GET(self):
        server = self.server
        server.requests.append(self.headers.get("Range"))
        if self.path.endswith("/missing"):
            self.send_error(404)
            return
        body, status = server.content, 200
        byte_range = self.headers.get("Range")
        if byte_range and server.ranges and self.headers.get("If-Range") == server.tag:
            begin = int(byte_range.removeprefix("bytes=").rstrip("-"))
            if begin >= len(body):
                self.send_error(416)
                return
            body, status = body[begin:], 206
        self.send_response(status)
        self.send_header("ETag", server.tag)
        self.send_header("Content-Length", str(len(body)))
        if status == 206:
            end = len(server.content)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{end}")
        self.end_headers()
        cut = server.cuts.pop(0) if server.cuts else len(body)
        self.wfile.write(body[:cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(download.time, "sleep", lambda seconds: None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.content = CONTENT
    server.tag = '"1"'
    server.ranges = True
    server.requests = []
    server.cuts = []
    server.url = f"http://127.0.0.1:{server.server_port}/data.tgz"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_file_is_fetched_once(server, tmp_path):
    for _ in range(2):
        path = download.fetch([server.url], tmp_path / "new/data.tgz")
    assert path.read_bytes() == CONTENT
    assert server.requests == [None]
    assert os.listdir(path.parent) == ["data.tgz"]


def test_a_connection_that_ends_early_is_continued(server, tmp_path):
    server.cuts = [1000, 3000]
    path = download.fetch([server.url], tmp_path / "data.tgz")
    assert path.read_bytes() == CONTENT
    assert server.requests == [None, "bytes=1000-", "bytes=4000-"]


def test_a_later_run_continues_an_incomplete_download(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    server.cuts = [1000]
    with pytest.raises(PrepError, match=r"1,000 bytes are kept"):
        download.fetch([server.url], tmp_path / "data.tgz")
    assert download.fetch([server.url], tmp_path / "data.tgz").read_bytes() == CONTENT
    assert server.requests == [None, "bytes=1000-"]


def test_parts_of_two_versions_are_never_joined(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    server.cuts = [1000]
    with pytest.raises(PrepError):
        download.fetch([server.url], tmp_path / "data.tgz")
    server.content = CONTENT[::-1]
    server.tag = '"2"'
    assert download.fetch([server.url], tmp_path / "data.tgz").read_bytes() == CONTENT[::-1]


def test_a_server_without_ranges_sends_the_whole_file_again(server, tmp_path):
    server.cuts = [1000]
    server.ranges = False
    assert download.fetch([server.url], tmp_path / "data.tgz").read_bytes() == CONTENT


def test_a_part_longer_than_the_file_is_discarded(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    server.cuts = [1000]
    with pytest.raises(PrepError):
        download.fetch([server.url], tmp_path / "data.tgz")
    monkeypatch.setattr(download, "ATTEMPTS", 2)
    (tmp_path / "data.tgz.part").write_bytes(b"x" * (len(CONTENT) + 5))
    assert download.fetch([server.url], tmp_path / "data.tgz").read_bytes() == CONTENT


def test_the_second_address_is_used_when_the_first_has_nothing(server, tmp_path):
    urls = [server.url.replace("data.tgz", "missing"), server.url]
    assert download.fetch(urls, tmp_path / "data.tgz").read_bytes() == CONTENT


def test_an_error_names_all_addresses_that_fail(server, tmp_path):
    url = server.url.replace("data.tgz", "missing")
    with pytest.raises(PrepError, match=r"404.*--archive"):
        download.fetch([url], tmp_path / "data.tgz")


def test_a_wrong_checksum_is_an_error(server, tmp_path):
    right = hashlib.sha256(CONTENT).hexdigest()
    download.fetch([server.url], tmp_path / "data.tgz", right.upper())
    (tmp_path / "data.tgz").write_bytes(b"damaged")
    with pytest.raises(PrepError, match=f"expected {right}"):
        download.fetch([server.url], tmp_path / "data.tgz", right)
