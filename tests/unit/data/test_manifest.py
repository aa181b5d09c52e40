import json

import pytest

from relu_nmt.data.data_folder import file_record, read_manifest, write_manifest
from relu_nmt.errors import DataError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"12345")
    steps = {"tokenizer": "none", "lowercase": False, "subword": "none", "subword_file": None}
    content = {
        "source_lang": "de",
        "text": {"de": steps},
        "splits": {},
        "files": {"a.bin": file_record(tmp_path / "a.bin")},
    }
    write_manifest(tmp_path, content)
    return tmp_path


def change(folder, **changes):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_written_manifest_is_read_back(folder):
    content = read_manifest(folder, with_checksums=True)
    assert content["format"] == "relu_nmt data folder"
    assert content["files"]["a.bin"]["bytes"] == 5


def test_a_folder_without_manifest_has_none(tmp_path):
    assert read_manifest(tmp_path) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "not the manifest of a data folder"),
        ({"version": 9}, "version 9, but this program reads 1"),
        ({"files": []}, "'files': expected a table, found \\[]"),
        ({"text": None}, "'text': expected a table, found None"),
        ({"text": {"de": {}}}, "'text' 'de' lacks 'tokenizer'"),
        ({"files": {"a.bin": 5}}, "'files' 'a.bin': expected a table, found 5"),
        ({"files": {"a.bin": {"bytes": True}}}, "'bytes': expected a whole number, found True"),
        ({"files": {"a.bin": {"bytes": 10**99}}}, "'bytes': expected 0 to 1e"),
        ({"key": json.loads("[" * 40 + "]" * 40)}, "more than 32 tables and lists in each other"),
        ({"files": {"../a.bin": {"bytes": 5}}}, "entry of '../a.bin' is damaged"),
        ({"files": {"b.bin": {"bytes": 5}}}, "b.bin: missing"),
        ({"files": {"a.bin": {"bytes": 6}}}, "a.bin: 5 bytes, but manifest.json says 6"),
    ],
)
def test_damaged_folders_are_errors(folder, changes, message):
    change(folder, **changes)
    with pytest.raises(DataError, match=message):
        read_manifest(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000, b"9" * 5000])
def test_a_manifest_that_is_not_json_is_an_error(folder, content):
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(DataError, match=r"manifest\.json: (damaged manifest|not the manifest)"):
        read_manifest(folder)


def test_changed_contents_are_an_error(folder):
    (folder / "a.bin").write_bytes(b"12346")
    assert read_manifest(folder) is not None
    with pytest.raises(DataError, match="changed since it was made"):
        read_manifest(folder, with_checksums=True)
