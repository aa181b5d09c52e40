import hashlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import decode_lines, read_chunk, read_lines, scan_text

ODD_TEXT = st.text(st.sampled_from("ab ä日\n\n\r\t\x0b\x0c\x1c\x85\xa0\u2028\ufeff"), max_size=60)


def universal_lines(text):
    """Lines as Python's text files have them."""
    return [line.removesuffix("\n") for line in io.StringIO(text, newline=None).readlines()]


@given(ODD_TEXT)
def test_lines_are_those_of_text_files(text):
    assert decode_lines(text.encode(), "x") == universal_lines(text)


@given(ODD_TEXT, st.integers(1, 30))
def test_chunks_make_up_the_file(tmp_path_factory, text, chunk_bytes):
    path = str(tmp_path_factory.mktemp("text") / "x")
    with open(path, "wb") as file:
        file.write(text.encode())
    scanned = scan_text(path, chunk_bytes)
    lines = []
    for chunk in scanned.chunks:
        assert chunk.first_line == len(lines) + 1
        lines += read_chunk(chunk)
    assert lines == universal_lines(text) == read_lines(path)
    assert scanned.num_lines == len(lines)
    assert scanned.num_bytes == len(text.encode())
    assert scanned.sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_chunks_are_small(tmp_path):
    path = tmp_path / "x"
    path.write_text("some words\n" * 1000)
    scanned = scan_text(str(path), 256)
    assert all(chunk.end - chunk.start <= 512 for chunk in scanned.chunks)
    assert len(scanned.chunks) > 20


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_bad_byte_gives_its_line(tmp_path, ends):
    path = tmp_path / "x"
    path.write_bytes(ends.join(["fine"] * 6).encode() + b" \xfc" + ends.encode() + b"rest")
    for reader in (lambda p: scan_text(p, 8), scan_text, read_lines):
        with pytest.raises(DataError, match=r"x:6: not UTF-8 \(byte 0xfc\)"):
            reader(str(path))


def test_cut_character_at_the_end(tmp_path):
    (tmp_path / "x").write_bytes(b"a\nb\xc3")
    with pytest.raises(DataError, match=r"x:2: not UTF-8 \(byte 0xc3\)"):
        scan_text(str(tmp_path / "x"))


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match="cannot read the text: No such file"):
        scan_text(str(tmp_path / "x"))
    with pytest.raises(DataError, match="cannot read the text: Is a directory"):
        read_lines(tmp_path)


def test_file_shrinks_meanwhile(tmp_path):
    path = tmp_path / "x"
    path.write_text("one\ntwo\n")
    scanned = scan_text(str(path))
    path.write_text("one\n")
    with pytest.raises(DataError, match="was changed while it was read"):
        read_chunk(scanned.chunks[0])
