"""The Dockerfile: its files exist and are sent, and the server understands its words."""

import fnmatch
import json
import re
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from relu_nmt.cli.command import make_parser
from relu_nmt.config.command_line import add_settings, read_settings
from relu_nmt.jobs.translate.settings import ServeSettings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")


def words_of(instruction):
    """Return the words of the last instruction of a kind that is a JSON list."""
    lists = re.findall(rf"^{instruction}.*?(\[.*\])$", TEXT, re.MULTILINE)
    return json.loads(lists[-1])


def test_copied_files_exist_and_are_not_ignored():
    patterns = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    sent = {pattern[1:] for pattern in patterns if pattern.startswith("!")}
    copied = set()
    for line in re.findall(r"^COPY (?!--from)(.*)$", TEXT, re.MULTILINE):
        copied.update(line.split()[:-1])
    assert copied == sent
    assert all(map(Path.exists, map(ROOT.joinpath, copied)))


def test_constraints_name_the_torch_that_is_installed():
    constraints = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    [torch] = fnmatch.filter(constraints, "torch==*")
    assert f'ARG TORCH="{torch} ' in TEXT


def test_the_server_understands_its_words():
    program, *flags = words_of("ENTRYPOINT")
    assert program == "relu-nmt-serve"
    parser = make_parser(program, "")
    add_settings(parser, ServeSettings)
    words = [*flags, *words_of("CMD"), "--allowed-hosts", "translate.example.org"]
    settings = read_settings(ServeSettings, parser.parse_args(words))
    assert settings.host == "0.0.0.0"
    assert settings.allowed_hosts == ("translate.example.org",)


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_fails_unless_the_server_is_healthy(status, code):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        _, option, program = words_of("HEALTHCHECK")
        program = program.replace(":8000/", f":{server.server_port}/")
        result = subprocess.run([sys.executable, option, program], capture_output=True, check=False)
        server.shutdown()
    assert result.returncode == code
