"""Every reader of a data folder, on files with bytes changed, cut off or added.

A reader may accept a damaged file whose damage cannot be seen; otherwise it raises a
ReluNmtError of one line. Nothing else may come out of it.
"""

import json
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relu_nmt.corpus.preprocess_config import PreprocessConfig
from relu_nmt.corpus.translation import TranslationTask
from relu_nmt.data.data_folder import read_manifest
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.groups import read_documents, write_documents
from relu_nmt.data.indexed_dataset import IndexedDataset, IndexedDatasetWriter
from relu_nmt.data.split import Split
from relu_nmt.errors import ReluNmtError
from relu_nmt.recipes import preprocess
from relu_nmt.vision.images import open_images
from tests.unit.vision.made_images import make_squares, zip_folder
from tests.unit.vision.test_image_tables import files_of, write_table

MANY = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@st.composite
def damages(draw):
    """A change of a file's bytes: overwritten, cut off, or with bytes put in."""
    place = draw(st.floats(0, 1))
    junk = draw(st.binary(min_size=1, max_size=9) | st.sampled_from([b"\0" * 8, b"\xff" * 8]))
    kind = draw(st.sampled_from(["overwrite", "cut", "insert", "replace all"]))

    def damage(content):
        at = int(place * len(content))
        if kind == "overwrite":
            return content[:at] + junk + content[at + len(junk) :]
        if kind == "cut":
            return content[:at]
        return junk if kind == "replace all" else content[:at] + junk + content[at:]

    return damage


def read_or_refuse(read):
    """Call ``read``; a refusal must be one of ours and one line."""
    try:
        read()
    except ReluNmtError as error:
        message = str(error)
        assert message
        assert "\n" not in message


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small folder made from raw text, with documents and a subword model."""
    text = tmp_path_factory.mktemp("text")
    for split in ("train", "valid"):
        for language in ("de", "en"):
            lines = [f"ein Hausboot Nummer {i} ."[: 5 + i] for i in range(1, 25)]
            lines[10] = ""
            (text / f"{split}.{language}").write_text("\n".join(lines) + "\n")
    config = PreprocessConfig(
        source_lang="de",
        target_lang="en",
        trainpref=str(text / "train"),
        validpref=str(text / "valid"),
        destdir=str(text / "data"),
        tokenizer="moses",
        subword="sentencepiece",
        subword_size=30,
        joined_dictionary=True,
        document_separator="blank",
        workers=1,
    )
    preprocess.run(config, progress=False)
    return text / "data"


def read_whole_folder(path):
    task = TranslationTask.from_data_folder(path)
    pairs = task.load_split("valid")
    for i in range(len(pairs)):
        task.decode_target(pairs.pair(i)[1])
    task.references(pairs)
    assert pairs.documents is None or pairs.documents.sum() == len(pairs)
    task.encode_source("ein Boot")


def test_the_undamaged_folder_is_fine(folder):
    read_whole_folder(folder)


@MANY
@given(damages())
@pytest.mark.parametrize(
    "name",
    [
        "manifest.json",
        "dict.de.txt",
        "sentencepiece.model",
        "valid.de-en.de.idx",
        "valid.de-en.en.bin",
        "valid.de-en.en.raw",
        "valid.de-en.documents",
    ],
)
def test_folder_with_one_damaged_file(folder, tmp_path, name, damage):
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    content = damage((copy / name).read_bytes())
    (copy / name).write_bytes(content)
    read_or_refuse(lambda: read_whole_folder(copy))
    if name != "manifest.json":
        # The size check of the manifest stops most of it: look behind that check too.
        manifest = json.loads((copy / "manifest.json").read_bytes())
        manifest["files"][name]["bytes"] = len(content)
        (copy / "manifest.json").write_text(json.dumps(manifest))
        read_or_refuse(lambda: read_whole_folder(copy))


@MANY
@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_as_an_index(tmp_path, content, with_header):
    prefix = tmp_path / "x"
    header = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little")
    prefix.with_suffix(".idx").write_bytes(header * with_header + content)
    prefix.with_suffix(".bin").write_bytes(content)

    def read():
        pairs = Split(IndexedDataset(prefix), None, 10)
        for i in range(len(pairs)):
            pairs.pair(i)

    read_or_refuse(read)


@MANY
@given(damages(), st.sampled_from([".bin", ".idx"]), st.sampled_from([np.uint16, np.int64]))
def test_binarised_files(tmp_path, damage, ending, dtype):
    prefix = tmp_path / "x"
    with IndexedDatasetWriter(prefix, dtype) as writer:
        writer.add(np.array([4, 5, 2, 6, 2, 2]), np.array([3, 2, 1]))
    path = prefix.with_suffix(ending)
    path.write_bytes(damage(path.read_bytes()))

    def read():
        pairs = Split(IndexedDataset(prefix), None, 10)
        for i in range(len(pairs)):
            source, _ = pairs.pair(i)
            assert source.min() >= 0
            assert source.max() < 10

    read_or_refuse(read)


@MANY
@given(st.text(max_size=60))
def test_any_text_as_a_dictionary(text):
    read_or_refuse(lambda: Dictionary.from_text(text, "dict.txt"))


@MANY
@given(st.binary(max_size=40))
def test_any_bytes_as_document_boundaries(tmp_path, content):
    write_documents(tmp_path / "x", [1])
    (tmp_path / "x").write_bytes(content)
    read_or_refuse(lambda: read_documents(tmp_path / "x", 5))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)


@MANY
@given(
    JSON,
    st.sampled_from(
        [
            ("format",),
            ("version",),
            ("text",),
            ("text", "de"),
            ("text", "de", "tokenizer"),
            ("text", "de", "subword"),
            ("text", "de", "subword_file"),
            ("text", "de", "lowercase"),
            ("files",),
            ("files", "dict.de.txt"),
            ("files", "dict.de.txt", "bytes"),
            ("files", "sentencepiece.model", "sha256"),
            ("splits",),
        ]
    ),
)
def test_manifest_with_any_value(folder, tmp_path, value, where):
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    content = json.loads((copy / "manifest.json").read_bytes())
    inner = content
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    (copy / "manifest.json").write_text(json.dumps(content))
    read_or_refuse(lambda: read_manifest(copy))
    read_or_refuse(lambda: read_whole_folder(copy))


@MANY
@given(damage=damages())
@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".zip"])
def test_files_of_images(tmp_path, suffix, damage):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3, 3, 3), dtype=np.uint8)
    file = tmp_path / f"whole{suffix}"
    if not file.exists():
        if suffix == ".npz":
            np.savez_compressed(file, images=pixels, labels=np.arange(6))
        elif suffix == ".zip":
            zip_folder(make_squares(tmp_path / "squares", 2), file)
        else:
            write_table(file, {"image": files_of(pixels, True), "label": list("abcabc")})
    damaged = tmp_path / f"damaged{suffix}"
    damaged.write_bytes(damage(file.read_bytes()))

    def read():
        for images in open_images(damaged).values():
            for index in range(len(images)):
                images.read(index)

    read_or_refuse(read)
