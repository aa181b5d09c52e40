"""Every reader of files that come from elsewhere: whole files for it, and a call of it.

A reader may accept a damaged file whose damage cannot be seen; otherwise it raises a ReluNmtError
of one line. Nothing else may come out of it. ``test_readers.py`` gives each a few damaged files,
``make fuzz`` a million (``run.py``).
"""

import bz2
import functools
import gzip
import io
import json
import lzma
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from relu_nmt.applications.conversion.hugging_face import read_hub_model
from relu_nmt.applications.sweep.settings import read_published
from relu_nmt.cli.train import TranslationTrainingSettings
from relu_nmt.config.classes import merged
from relu_nmt.config.command_line import read_settings_file
from relu_nmt.data.binarize import IndexedDataset, indexed_writer
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.documents import read_documents
from relu_nmt.data.pair_files import read_pairs
from relu_nmt.data.split import Split
from relu_nmt.errors import ReluNmtError
from relu_nmt.io.text_lines import read_lines
from relu_nmt.recipes.score import read_contrasts
from relu_nmt.tokenization.base import load_subword
from relu_nmt.tokenization.subwords import SentencePiece
from relu_nmt.training.checkpoint import load_checkpoint, read_metadata
from relu_nmt.training.log import read_curves
from relu_nmt.training.state import TrainingState
from relu_nmt.translation.encoder_decoder import load_model
from relu_nmt.translation.task import TranslationTask
from relu_nmt.vision.images import open_images

ROOT = Path(__file__).parents[2]
OLD_FILES = ROOT / "tests/compat/files"
MARIAN_FILES = ROOT / "tests/compat/marian_files"
CONTRAST = {
    "source_language": "en",
    "source": "It is red.",
    "reference": "Er ist weiß.",
    "contrasts": ["Es ist weiß."],
    "source_context": ["Here is a hat."],
    "reference_context": ["Hier ist ein Hut."],
    "phenomenon": "thing pronoun",
    "distance": 1,
}
SETTINGS = b"max_tokens: 4000\nattention: 'reluformer:gamma=2'\ntrainer:\n  run: {max_update: 9}\n"
PUBLISHED = b"title: T\nsource: a paper\ncolumns: {d_bleu@512: BLEU}\nrows: {softmax: [34.2]}\n"
RESULTS = {"settings": {"max_tokens": 4000}, "train": [{"loss": 4.5, "num_updates": 2}]}
LOG = b"2026-01-01 | INFO | train_inner | epoch 001:      2 / 9 loss=4.5, num_updates=2\n"
VOCABULARY = 10


@dataclass(frozen=True)
class Reader:
    """How one kind of file is read.

    Args:
        file: name that the file has.
        wholes: returns the contents of whole files.
        read: reads the file at a path as far as the package ever does.
        prepare: puts what belongs to the file into its folder.
    """

    file: str
    wholes: Callable[[], list[bytes]]
    read: Callable[[Path], object]
    prepare: Callable[[Path], object] = lambda folder: None


def read_or_refuse(reader: Reader, path: Path, content: bytes) -> None:
    """Give ``content`` to a reader; a refusal must be one of ours, of one line."""
    path.write_bytes(content)
    try:
        reader.read(path)
    except ReluNmtError as error:
        message = str(error)
        assert message
        assert "\n" not in message, message


def _old(name: str) -> Callable[[], list[bytes]]:
    return lambda: [(OLD_FILES / name).read_bytes()]


def _write_index(folder: Path) -> None:
    with indexed_writer(folder / "x", np.uint16) as add:
        add(np.array([4, 5, 2, 6, 2, 2]), np.array([3, 2, 1]))


def _indexed(ending: str) -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        _write_index(Path(folder))
        return [(Path(folder) / f"x{ending}").read_bytes()]


def _read_index(path: Path) -> None:
    pairs = Split(IndexedDataset(path.with_suffix("")), None, VOCABULARY)
    for index in range(len(pairs)):
        ids, _ = pairs.pair(index)
        assert 0 <= ids.min() <= ids.max() < VOCABULARY


def _copy_data_folder(folder: Path) -> None:
    shutil.copytree(OLD_FILES / "data-joined", folder, dirs_exist_ok=True)


def _read_data_folder(path: Path) -> None:
    task = TranslationTask.from_data_folder(path.parent)
    pairs = task.load_split("valid")
    for index in range(len(pairs)):
        task.decode_target(pairs.pair(index)[1])
    assert pairs.documents is None or pairs.documents.sum() == len(pairs)
    task.references(pairs)
    task.encode_source("zwölf , drei")


def _copy_marian_model(folder: Path) -> None:
    names = ("config.json", "vocab.json", "tokenizer_config.json", "model.safetensors")
    for name in (*names, "source.spm", "target.spm"):
        shutil.copy(MARIAN_FILES / name, folder)


def _read_marian_model(path: Path) -> None:
    read_hub_model(path.parent)


def _subword(name: str) -> Callable[[Path], object]:
    def read(path: Path) -> None:
        model = load_subword(name, path)
        model.join(model.split(["Hausboot", "zwölf", "\u2581", ""]))

    return read


@functools.cache
def _piece_model() -> bytes:
    class Text:
        def sentences(self) -> list[str]:
            return [f"ein Hausboot Nummer {number} ." for number in range(50)]

    return SentencePiece.learn(Text(), 30, 1)


def _read_checkpoint(path: Path) -> None:
    """Read it as training, translation and ``--config`` do; each refuses in its own words."""
    refused = []
    for read in (
        read_metadata,
        lambda path: _training_state(path),
        load_model,
        lambda path: read_settings_file(TranslationTrainingSettings, path),
    ):
        try:
            read(path)
        except ReluNmtError as error:
            refused.append(error)
            assert "\n" not in str(error), error
    if refused:
        raise refused[0]


def _training_state(path: Path) -> None:
    checkpoint = load_checkpoint(path, with_training_state=True)
    if "training_state" in checkpoint.metadata:
        TrainingState.from_dict(checkpoint.metadata["training_state"], str(path))


def _read_settings(path: Path) -> None:
    found = read_settings_file(TranslationTrainingSettings, path)
    merged(TranslationTrainingSettings, {"data": "data-bin"}, found)


def _read_images(path: Path) -> None:
    for images in open_images(path).values():
        for index in range(len(images)):
            images.read(index)


def _arrays() -> list[bytes]:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3, 3, 3), dtype=np.uint8)
    np.savez_compressed(file, images=pixels, labels=np.arange(6))
    return [file.getvalue()]


def _table() -> list[bytes]:
    import pyarrow
    from PIL import Image
    from pyarrow import parquet

    picture, file = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (3, 3), (9, 8, 7)).save(picture, "PNG")
    columns = {"image": [{"bytes": picture.getvalue()}] * 4, "label": list("abab")}
    parquet.write_table(pyarrow.table(columns), file)
    return [file.getvalue()]


def _zstd(text: bytes) -> bytes:
    import zstandard

    return zstandard.compress(text)


def _read_pairs(path: Path) -> None:
    list(read_pairs(path, ("de", "en"), Counter()))


MEMORY = """<?xml version="1.0" encoding="{}"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="de-DE"/><body><tu><prop type="x-document">a.docx</prop>
<tuv xml:lang="de-DE"><seg>Größe <bpt i="1">&lt;b&gt;</bpt>M&nbsp;<ept i="1"/></seg></tuv>
<tuv lang="EN_US"><seg>size<ph type="lb"/> M &#8364; <![CDATA[<b>]]></seg></tuv></tu>
</body></tmx>"""
TABLE = 'document\tsegment\tde\ten\na\t1\t"Größe\tsize\n\nb\t1\tBoot\tboat\n'
TEXT = b"ein Boot\r\nzwei\rdrei\n"
COMPRESSED = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": _zstd}
CHECKPOINTS = ("averaged", "documents", "ema", "vit-class")

READERS = {
    "dictionary": Reader("dict.de.txt", _old("data-joined/dict.de.txt"), Dictionary.load),
    "index": Reader("x.idx", lambda: _indexed(".idx"), _read_index, _write_index),
    "tokens": Reader("x.bin", lambda: _indexed(".bin"), _read_index, _write_index),
    "documents": Reader("x.documents", lambda: [b"3\n2\n"], lambda path: read_documents(path, 5)),
    "BPE codes": Reader(
        "subword.codes", _old("data-joined/subword.codes"), _subword("subword-nmt")
    ),
    "SentencePiece model": Reader(
        "sentencepiece.model", lambda: [_piece_model()], _subword("sentencepiece")
    ),
    "checkpoint": Reader(
        "checkpoint_last.safetensors",
        lambda: [(OLD_FILES / f"checkpoints/{n}.safetensors").read_bytes() for n in CHECKPOINTS],
        _read_checkpoint,
    ),
    "YAML settings": Reader("settings.yaml", lambda: [SETTINGS], _read_settings),
    "YAML of published figures": Reader(
        "published.yaml", lambda: [PUBLISHED], lambda path: read_published(str(path))
    ),
    "results": Reader("results.json", lambda: [json.dumps(RESULTS).encode()], _read_settings),
    "course": Reader(
        "course.log",
        lambda: [json.dumps(RESULTS).encode(), LOG],
        read_curves,
    ),
    "contrasts": Reader(
        "contrasts.jsonl", lambda: [json.dumps(CONTRAST).encode() + b"\n"], read_contrasts
    ),
    "TMX": Reader(
        "memory.tmx", lambda: [MEMORY.format(c).encode(c) for c in ("utf-8", "utf-16")], _read_pairs
    ),
    "table of pairs": Reader("table.tsv", lambda: [TABLE.encode()], _read_pairs),
    "image zip": Reader("images.zip", _old("images.zip"), _read_images),
    "image arrays": Reader("images.npz", _arrays, _read_images),
    "image table": Reader("images.parquet", _table, _read_images),
} | {
    f"text {ending}": Reader(f"text{ending}", lambda make=make: [make(TEXT)], read_lines)
    for ending, make in COMPRESSED.items()
}
for _name in (
    *("manifest.json", "dict.en.txt", "subword.codes", "valid.de-en.de.idx"),
    *("valid.de-en.en.bin", "valid.de-en.en.raw", "valid.de-en.documents"),
):
    READERS[f"data folder: {_name}"] = Reader(
        _name, _old(f"data-joined/{_name}"), _read_data_folder, _copy_data_folder
    )
for _name in ("config.json", "vocab.json", "tokenizer_config.json", "model.safetensors"):
    READERS[f"Marian: {_name}"] = Reader(
        _name,
        lambda name=_name: [(MARIAN_FILES / name).read_bytes()],
        _read_marian_model,
        _copy_marian_model,
    )
