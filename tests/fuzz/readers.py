"""Every reader of files that come from elsewhere: whole files for it, and a call of it.

A reader may accept a damaged file whose damage cannot be seen. Otherwise it raises a ReluNmtError
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
from relu_nmt.applications.sweep.report import write_report
from relu_nmt.applications.sweep.settings import read_published
from relu_nmt.applications.sweep.steps import SWEEP_FILE, read_description
from relu_nmt.config.classes import merged
from relu_nmt.config.command_line import read_settings_file
from relu_nmt.data.data_folder import JOURNAL_NAME, Journal
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.documents import read_documents
from relu_nmt.data.indexed_dataset import IndexedDataset, indexed_writer
from relu_nmt.data.pair_files import read_pairs
from relu_nmt.data.split import Split
from relu_nmt.errors import ReluNmtError
from relu_nmt.evaluation.contrasts import read_contrasts
from relu_nmt.io.text_lines import read_lines
from relu_nmt.jobs.analyze.curves import read_curves
from relu_nmt.jobs.comparison import change_note, refuse_other_model, refuse_other_optimizer
from relu_nmt.jobs.convert.job import check_replaceable, require_same_model
from relu_nmt.jobs.train.settings import TranslationTrainingSettings
from relu_nmt.jobs.vision_train.settings import ImageTrainingSettings
from relu_nmt.tokenization.base import load_subword
from relu_nmt.tokenization.subwords import SentencePiece
from relu_nmt.training.checkpoint import average_checkpoints, load_checkpoint, read_metadata
from relu_nmt.training.state import TrainingState
from relu_nmt.translation.building import load_model, stored_task
from relu_nmt.translation.task import TranslationTask
from relu_nmt.vision.images import open_images
from relu_nmt.vision.loading import ImageClassifier
from tests.fuzz.values import changed, checkpoint_with_changes
from tests.unit.applications.sweep.made_results import make_sweep
from tests.unit.training.toy import Toy

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
    """Description of how one kind of file is read.

    Args:
        file: name that the file has.
        wholes: returns the contents of whole files.
        read: reads the file at a path as far as the package ever does.
        prepare: puts what belongs to the file into its folder.
        build: returns the file's content of the fuzzer's bytes. By default these are it.
    """

    file: str
    wholes: Callable[[], list[bytes]]
    read: Callable[[Path], object]
    prepare: Callable[[Path], object] = lambda folder: None
    build: Callable[[bytes], bytes] = bytes


def read_or_refuse(reader: Reader, path: Path, content: bytes) -> None:
    """Give ``content`` to a reader. A refusal must be one of ours, of one line."""
    path.write_bytes(reader.build(content))
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
    """Read it as training, translation and ``--config`` do. Each refuses in its own words."""
    refused = []
    for read in (
        read_metadata,
        _training_state,
        load_model,
        stored_task,
        ImageClassifier.from_checkpoint,
        lambda path: read_settings_file(TranslationTrainingSettings, path),
        lambda path: _compare_settings(TranslationTrainingSettings, path),
        lambda path: _compare_settings(ImageTrainingSettings, path),
        lambda path: average_checkpoints([path, path], require_same_model),
        lambda path: check_replaceable(str(path), None),
    ):
        try:
            read(path)
        except ReluNmtError as error:
            refused.append(error)
            assert "\n" not in str(error), error
    if refused:
        raise refused[0]


def _compare_settings(settings_class: type, path: Path) -> None:
    """Compare its settings with new ones, as a training that goes on does."""
    settings = settings_class.of(data="data-bin")
    metadata = read_metadata(path)
    model, args = (metadata.get(name, {}) for name in ("model_config", "args"))
    change_note(args, settings, goes_on=True)
    refuse_other_optimizer(path, args, settings.trainer, "start anew")
    refuse_other_model(path, model, settings.model, "start anew")


def _go_on(path: Path) -> None:
    schedule = {"lr_scheduler": "reduce_lr_on_plateau"}
    Toy(path.parent, run={"max_update": 8}, schedule=schedule).trainer().train()


@functools.cache
def _toy_training() -> Path:
    folder = Path(tempfile.mkdtemp())
    schedule = {"lr_scheduler": "reduce_lr_on_plateau"}
    Toy(folder, run={"max_update": 7}, schedule=schedule).trainer().train()
    return folder


def _copy_toy_training(folder: Path) -> None:
    shutil.copytree(_toy_training(), folder, dirs_exist_ok=True)


@functools.cache
def _sweep() -> Path:
    folder = Path(tempfile.mkdtemp())
    make_sweep(folder, lengths=(128,), seeds=(1,), trouble=False)
    return folder


def _read_sweep(path: Path) -> None:
    """Read a sweep as its report does. The file stands in place of one of the sweep's."""
    folder = path.parent
    if path.name != SWEEP_FILE:
        shutil.copy(path, next((folder / "models").glob("softmax*")) / path.name)
    description = read_description(folder)
    assert description is not None
    write_report(folder, description)


def _copy_sweep(folder: Path) -> None:
    shutil.copytree(_sweep(), folder, dirs_exist_ok=True)


def _step_file(name: str) -> Path:
    return next((_sweep() / "models").glob("softmax*")) / name


@functools.cache
def _journal() -> Path:
    folder = Path(tempfile.mkdtemp())
    journal = Journal(folder, "key")
    (folder / "file").write_text("text")
    journal.finish(lambda: {"sentences": 5}, [folder / "file"])
    return folder / JOURNAL_NAME


def _read_journal(path: Path) -> None:
    journal = Journal(path.parent, "key")
    files = {"a": [path.parent / "file"], "b": [path.parent / "other"]}

    def work(names: list[str]) -> list[dict[str, int]]:
        for name in names:
            files[name][0].touch()
        return [{}] * len(names)

    journal.finish_all(files, work, {"sentences": int})


def _of_values(
    file: str,
    make_file: Callable[[], Path],
    read: Callable[[Path], object],
    prepare: Callable[[Path], object] = lambda folder: None,
) -> Reader:
    """Return a reader of files with changed values of JSON. ``make_file`` makes it unchanged."""

    def build(seed: bytes) -> bytes:
        path = make_file()
        if path.suffix == ".safetensors":
            return checkpoint_with_changes(path, seed)
        return changed(json.loads(path.read_bytes()), seed).encode("utf-8", "surrogatepass")

    return Reader(file, lambda: [make_file().read_bytes()], read, prepare, build)


def _training_state(path: Path) -> None:
    checkpoint = load_checkpoint(path, with_training_state=True)
    if "training_state" in checkpoint.metadata:
        TrainingState.from_dict(checkpoint.metadata["training_state"], str(path))


def _read_settings(path: Path) -> None:
    settings = read_settings_file(TranslationTrainingSettings, path)
    merged(TranslationTrainingSettings, {"data": "data-bin"}, settings)


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
    "course": Reader("course.log", lambda: [json.dumps(RESULTS).encode(), LOG], read_curves),
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
for _name in CHECKPOINTS:
    READERS[f"values of a checkpoint: {_name}"] = _of_values(
        "checkpoint_last.safetensors",
        lambda name=_name: OLD_FILES / f"checkpoints/{name}.safetensors",
        _read_checkpoint,
    )
for _name in ("checkpoint_last.safetensors", "results.json"):
    READERS[f"values of a training: {_name}"] = _of_values(
        _name, lambda name=_name: _toy_training() / name, _go_on, _copy_toy_training
    )
for _name in ("config.json", "vocab.json", "tokenizer_config.json"):
    READERS[f"values of Marian: {_name}"] = _of_values(
        _name, lambda name=_name: MARIAN_FILES / name, _read_marian_model, _copy_marian_model
    )
READERS |= {
    "values of a manifest": _of_values(
        "manifest.json",
        lambda: OLD_FILES / "data-joined/manifest.json",
        _read_data_folder,
        _copy_data_folder,
    ),
    "values of a journal": _of_values("journal.json", _journal, _read_journal),
    "values of a sweep": _of_values(
        SWEEP_FILE, lambda: _sweep() / SWEEP_FILE, _read_sweep, _copy_sweep
    ),
}
for _name in ("train.json", "evaluate-128.json", "evaluate-128.results.json"):
    READERS[f"values of a sweep: {_name}"] = _of_values(
        _name, lambda name=_name: _step_file(name), _read_sweep, _copy_sweep
    )
