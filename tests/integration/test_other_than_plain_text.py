"""Documents and text with markup are refused by everything that translates."""

import gzip
import subprocess

import pytest

from relu_nmt.errors import DataError
from relu_nmt.translator import Translator
from tests.commands import assert_refused, run_here
from tests.tiny import as_text, save_tiny_model, tiny_task
from tests.unit.applications.serving.clients import client_of
from tests.unit.io.test_plain_text import BINARY, MARKUP

KINDS = [(kind, lines[0]) for kind, lines in MARKUP.items()]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_tiny_model(path, tiny_task(["ein", "Haus", "rot", ".", "1", "{", "}"]))
    return path


def refused(done, *parts):
    assert done.stdout == ""
    assert_refused(done, parts)


@pytest.mark.parametrize(("kind", "lines"), KINDS)
def test_commands_refuse_text_with_markup(model, tmp_path, kind, lines):
    flags = ["--path", model, "--cpu"]
    text = as_text(lines)
    for path in (tmp_path / "text", tmp_path / "text.gz"):
        data = text.encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        refused(run_here("interactive", flags, "--input", path, check=False), str(path), kind)
        refused(run_here("translate_document", path, flags, check=False), str(path), kind)
    refused(run_here("interactive", flags, stdin=text, check=False), "standard input", kind)
    refused(run_here("translate_document", "-", flags, stdin=text, check=False), kind)
    # Line by line, the first lines may be plain.
    flags += ["--buffer-size", 1, "--beam", 1, "--max-len-b", 1]
    done = run_here("interactive", flags, stdin=text, check=False)
    assert done.returncode == 2 and kind in done.stderr


@pytest.mark.parametrize("expected", ["a PDF", "compressed by gzip", "UTF-16LE"])
def test_commands_refuse_binary_files(model, tmp_path, expected, quick_python):
    data = next(data for name, data in BINARY.items() if expected in name)
    (tmp_path / "text.de").write_bytes(data)
    (tmp_path / "text.en").write_bytes(data)
    path = tmp_path / "text.de"
    flags = ["--path", model, "--cpu"]
    refused(run_here("interactive", flags, "--input", path, check=False), str(path), expected)
    refused(run_here("translate_document", path, flags, check=False), str(path), expected)
    refused(run_here("score", "--sys", path, "--ref", path, check=False), str(path), expected)
    words = ["-s", "de", "-t", "en", "--trainpref", tmp_path / "text", "--destdir", tmp_path / "x"]
    refused(run_here("preprocess", words, check=False), str(path), expected)
    words = [quick_python, "-m", "relu_nmt.cli.interactive", *map(str, flags)]
    done = subprocess.run(words, input=data, capture_output=True, check=False)
    assert done.returncode == 2
    assert expected in done.stderr.decode() and b"standard input: " in done.stderr


@pytest.mark.parametrize(("kind", "lines"), KINDS)
def test_python_and_the_server_refuse_text_with_markup(model, kind, lines):
    translator = Translator.from_checkpoint(model, "cpu")
    with pytest.raises(DataError, match=kind):
        translator.translate(iter(lines))
    with pytest.raises(DataError, match=kind):
        translator.translate_nbest(lines)
    with pytest.raises(DataError, match=kind):
        translator.translate_document(lines)
    with client_of(translator) as client:
        answer = client.post("/translate", json={"lines": lines})
    assert answer.status_code == 422 and kind in answer.json()["error"]


def test_python_and_the_server_refuse_text_of_utf_16(model):
    line = "ein Haus".encode("utf-16-le").decode("utf-8")
    translator = Translator.from_checkpoint(model, "cpu")
    with pytest.raises(DataError, match="the text: it looks like UTF-16LE"):
        translator.translate([line, line])
    with client_of(translator) as client:
        answer = client.post("/translate", json={"lines": [line]})
    assert answer.status_code == 422 and "UTF-16LE" in answer.json()["error"]


def test_a_text_that_mentions_markup_later_is_translated(model):
    flags = ["--path", model, "--cpu", "--beam", 1, "--max-len-b", 2, "--max-len-a", 0]
    lines = ["{ ein } Haus", "ein <b>rot</b>", '{"a": 1}', "WEBVTT"]
    assert run_here("interactive", flags, stdin=as_text(lines)).stdout.count("\n") == 4
