import bz2
import gzip
import hashlib
import itertools
import lzma
import re
import sys
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.errors import DataError, MissingExtraError
from relu_nmt.io.text_lines import (
    decode_lines,
    encode_lines,
    find_text,
    iterate_lines,
    open_text,
    read_chunk,
    read_lines,
    reading,
    scan_text,
    split_lines,
    write_lines,
)

ODD_TEXT = st.text(st.sampled_from("ab ä日\n\n\r\t\x0b\x0c\x1c\x85\xa0\u2028\ufeff"), max_size=60)


def lines_of(text):
    """Lines by a pattern, without a byte-order mark at the beginning."""
    lines = re.split("\r?\n" if "\n" in text else "\r", text.removeprefix("\ufeff"))
    return lines if lines[-1] else lines[:-1]


@given(ODD_TEXT)
def test_only_line_feeds_end_lines(text):
    assert decode_lines(text.encode(), "x") == lines_of(text)
    if "\n" in text:
        assert split_lines(text.removeprefix("\ufeff")) == lines_of(text)


# Python's own line ends are the most likely to be wrong, so they are drawn often.
LINES = st.lists(
    st.one_of(
        st.text(st.characters(codec="utf-8", exclude_characters="\n\0")),
        st.text(st.sampled_from("a \r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\ufeff"), max_size=4),
    )
)


@given(LINES)
def test_lines_that_are_written_are_read_back(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("text") / "x"
    write_lines(path, lines)
    assert read_lines(path) == list(iterate_lines(path)) == lines
    assert path.read_bytes().count(b"\n") == len(lines)
    scanned = scan_text(str(path), 7)
    assert list(itertools.chain(*map(read_chunk, scanned.chunks))) == lines


@given(LINES, st.integers(0, 5))
def test_lines_that_are_written_in_parts_are_read_back(lines, cut):
    data = encode_lines(lines[:cut]) + encode_lines(lines[cut:], len(lines[:cut]) + 1)
    assert decode_lines(data, "x") == lines


@pytest.mark.parametrize(
    ("lines", "data"),
    [
        ([], b""),
        (["", ""], b"\n\n"),
        (["a\r", "b\rc"], b"a\r\r\nb\rc\n"),
        (["a\r\r"], b"a\r\r\r\n"),
        (["a\nb", "c"], b"a b\nc\n"),
        (["a\r\nb\n"], b"a\r b \n"),
    ],
)
def test_each_line_is_written_as_one(lines, data):
    assert encode_lines(lines) == data


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
    assert lines == lines_of(text) == read_lines(path)
    assert scanned.num_lines == len(lines)
    assert scanned.num_bytes == len(text.encode())
    assert scanned.sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_chunks_of_a_text_are_about_the_given_size(tmp_path):
    path = tmp_path / "x"
    path.write_text("some words\n" * 1000)
    scanned = scan_text(str(path), 256)
    assert all(chunk.end - chunk.start <= 512 for chunk in scanned.chunks)
    assert len(scanned.chunks) > 20


@pytest.mark.parametrize(("ends", "number"), [("\n", 6), ("\r\n", 6), ("\r", 6), ("\u2028", 1)])
def test_bad_byte_gives_its_line(tmp_path, ends, number):
    path = tmp_path / "x"
    path.write_bytes(ends.join(["fine"] * 6).encode() + b" \xfc" + ends.encode() + b"rest")
    for reader in (lambda p: scan_text(p, 8), scan_text, read_lines):
        with pytest.raises(DataError, match=rf"x:{number}: not UTF-8 \(byte 0xfc\)"):
            reader(str(path))


def test_a_long_line_is_read_in_linear_time(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"word " * 4_000_000)
    started = time.process_time()
    assert scan_text(str(path), 1024).num_lines == 1
    assert time.process_time() - started < 5  # minutes, if each piece copied those before


def test_a_cut_character_at_the_end_is_an_error_with_its_line(tmp_path):
    (tmp_path / "x").write_bytes(b"a\nb\xc3")
    with pytest.raises(DataError, match=r"x:2: not UTF-8 \(byte 0xc3\)"):
        scan_text(str(tmp_path / "x"))


def test_a_missing_file_or_a_folder_is_an_error(tmp_path):
    with pytest.raises(DataError, match="cannot read the text: No such file"):
        scan_text(str(tmp_path / "x"))
    with pytest.raises(DataError, match="cannot read the text: Is a directory"):
        read_lines(tmp_path)


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path):
    path = tmp_path / "x"
    path.write_text("one\ntwo\n")
    scanned = scan_text(str(path))
    path.write_text("one\n")
    with pytest.raises(DataError, match="was changed while it was read"):
        read_chunk(scanned.chunks[0])


def zst(data):
    return pytest.importorskip("zstandard").ZstdCompressor().compress(data)


def xz(data):
    return lzma.compress(data, preset=0)  # whose window is small


COMPRESSORS = {".gz": gzip.compress, ".xz": xz, ".bz2": bz2.compress, ".zst": zst}
compressed = pytest.mark.parametrize("ending", COMPRESSORS)


@compressed
@given(text=ODD_TEXT, chunk_bytes=st.integers(1, 30), cut=st.integers(0, 60))
def test_compressed_text_is_read_as_it_is(tmp_path_factory, ending, text, chunk_bytes, cut):
    data = text.encode()
    # Files that were appended to each other, with padding, stand for the texts one after another.
    parts = COMPRESSORS[ending](data[:cut]) + b"\0" * 4 + COMPRESSORS[ending](data[cut:])
    path = tmp_path_factory.mktemp("text") / f"x{ending}"
    path.write_bytes(parts)
    scanned = scan_text(str(path), chunk_bytes)
    lines = list(itertools.chain(*map(read_chunk, scanned.readable_chunks())))
    assert lines == lines_of(text) == read_lines(path)
    assert scanned.num_lines == len(lines)
    assert scanned.num_bytes == len(data)
    assert scanned.sha256 == hashlib.sha256(data).hexdigest()


@compressed
def test_a_compressed_file_that_is_cut_short_or_damaged(tmp_path, ending):
    archive = COMPRESSORS[ending]("\n".join(f"Zeile {n * n}" for n in range(20_000)).encode())
    path = tmp_path / f"x{ending}"
    for damaged in (archive[:-3], archive[: len(archive) // 2], b"no such format" * 9):
        path.write_bytes(damaged)
        for reader in (scan_text, read_lines):
            with pytest.raises(DataError, match=rf"x\{ending}: cannot read the text: .*") as caught:
                reader(str(path))
            assert "\n" not in str(caught.value)


@compressed
def test_an_empty_compressed_file_has_no_lines(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    path.write_bytes(COMPRESSORS[ending](b""))
    assert read_lines(path) == []


@compressed
def test_a_compressed_file_is_never_whole_in_memory(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    data = "".join(f"Satz {n} mit {n * n % 9973} Woertern\n" for n in range(200_000)).encode()
    size = len(data)
    path.write_bytes(COMPRESSORS[ending](data))
    del data
    tracemalloc.start()
    try:
        scanned = scan_text(str(path), 16 * 1024)
        for chunk in scanned.readable_chunks():
            read_chunk(chunk)
        assert tracemalloc.get_traced_memory()[1] < size / 2
    finally:
        tracemalloc.stop()


def test_compressed_text_is_found_where_the_plain_file_is_missing(tmp_path):
    path = str(tmp_path / "train.de")
    assert find_text(path) == path
    (tmp_path / "train.de.zst").touch()
    (tmp_path / "train.de.gz").touch()
    assert find_text(path) == f"{path}.gz"
    (tmp_path / "train.de").touch()
    assert find_text(path) == path


def test_zstandard_is_an_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "x.zst").touch()
    with pytest.raises(MissingExtraError, match=r"pip install 'relu-nmt\[zstd\]'"):
        read_lines(tmp_path / "x.zst")


def test_a_missing_file_is_an_error_compressed_or_not(tmp_path):
    for name in ("x", "x.gz"):
        with pytest.raises(DataError, match=rf"{name}: cannot read the text: No such file"):
            read_lines(tmp_path / name)


def test_a_line_is_there_as_soon_as_its_bytes_are(tmp_path):
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"eins\n") + gzip.compress(b"zwei\n"))
    with reading("x"), open_text(tmp_path / "x.gz") as file:
        assert file.read1(100) in (b"eins\n", b"eins\nzwei\n")
