"""Small texts, data folders and models for tests, and a short training."""

import itertools

import numpy as np
import torch

from relu_nmt.config import to_dict
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.indexed_dataset import IndexedDataset, indexed_writer
from relu_nmt.jobs.preprocess import job as preprocess
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.training.checkpoint import Checkpoint, save_checkpoint
from relu_nmt.translation.building import build_model
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.task import TranslationTask
from tests.commands import run_here

PAD = Dictionary.pad_index
EOS = Dictionary.eos_index
LANGUAGES = ("de", "en")
SHAPE = {"layers": 1, "embed_dim": 16, "ffn_embed_dim": 16, "attention_heads": 2}
TRAIN = "--arch transformer_tiny --cpu --log-format json --log-interval 1"


# ------------------------------------------------------------------- texts and data folders


def digits(rng, shortest=1, longest=9):
    """Return a line of random digits."""
    return " ".join(rng.choices("0123456789", k=rng.randint(shortest, longest)))


def digit_lines(rng, count, shortest=1, longest=9):
    """Return lines of random digits."""
    return [digits(rng, shortest, longest) for _ in range(count)]


def digit_documents(rng, count):
    """Return documents of one to six lines of random digits."""
    return [digit_lines(rng, 1 + i % 6) for i in range(count)]


def as_text(lines):
    """Return lines as the text of a file."""
    return "\n".join([*lines, ""])


def numbered_words(count):
    """Return a dictionary of the words w0, w1 and so on."""
    return Dictionary([f"w{i}" for i in range(count)])


def write_lines(folder, split, lines, target=None):
    """Write the lines of a split in German and English. By default both are the same."""
    for language, side_lines in zip(LANGUAGES, (lines, target or lines), strict=True):
        (folder / f"{split}.{language}").write_text(as_text(side_lines), "utf-8")


def write_documents(folder, split, documents, between="\n\n"):
    """Write documents that are the same in German and English."""
    write_lines(folder, split, [between.join(map("\n".join, documents))])


def preprocessed(folder, name="bin", splits=("train", "valid"), **settings):
    """Preprocess the texts of a folder in this process and return the data folder below it.

    The folder has the files ``train.de``, ``train.en`` and so on.
    """
    paths = {f"{split}pref": str(folder / split) for split in splits}
    languages = {"source_lang": LANGUAGES[0], "target_lang": LANGUAGES[1]}
    values = {**languages, **paths, "destdir": str(folder / name), "workers": 1, **settings}
    preprocess.run(preprocess.Settings.of(**values), progress=False)
    return folder / name


def dictionaries_of(data):
    """Return the settings of relu-nmt-preprocess for the dictionaries of a data folder."""
    source, target = (str(data / f"dict.{language}.txt") for language in LANGUAGES)
    return {"srcdict": source, "tgtdict": target}


def write_dataset(prefix, sentences, dtype=np.uint16):
    """Write sentences of ids as binary data and return them."""
    with indexed_writer(prefix, dtype) as add:
        sizes = np.fromiter(map(len, sentences), np.int64)
        add(np.fromiter(itertools.chain.from_iterable(sentences), np.int64), sizes)
    return IndexedDataset(prefix)


def as_lists(arrays):
    """Return arrays or tensors as lists. None stays."""
    return [None if array is None else array.tolist() for array in arrays]


# ------------------------------------------------------------------- models


def tiny_task(symbols, languages=LANGUAGES, **options):
    """Return a task with one dictionary for both sides. ``options`` belong to the pipelines."""
    words = Dictionary(list(symbols))
    source = TextPipeline(languages[0], **options)
    target = TextPipeline(languages[1], **options)
    return TranslationTask(source, target, words, words)


def both_sides(sizes):
    """Return the settings of an encoder and a decoder of these sizes."""
    settings = {f"encoder_{name}": size for name, size in sizes.items()}
    return settings | {f"decoder_{name}": size for name, size in sizes.items()}


def pairs_of_ids(pairs):
    """Return pairs of sentences as arrays of ids, int64."""
    return [(np.array(source), np.array(target)) for source, target in pairs]


def tiny_config(shape=(), **settings):
    """Return settings of a transformer with one small layer on each side.

    ``shape`` has the sizes of both sides that differ from SHAPE: ``{"layers": 2}``.
    """
    return TransformerConfig(**{**both_sides({**SHAPE, **dict(shape)}), **settings})


def tiny_model(task, seed=1, shape=(), **settings):
    """Return an untrained model with the weights of a seed."""
    torch.manual_seed(seed)
    return build_model(tiny_config(shape, **settings), task)


def num_parameters(model):
    """Return the number of weights of a model."""
    return sum(parameter.numel() for parameter in model.parameters())


def gradients(model):
    """Return the gradients of a model by the name of the parameter, None for none."""
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def without_gradient(model):
    """Return the names of the parameters that have no gradient, or one of zeros."""
    return {name for name, grad in gradients(model).items() if grad is None or not grad.any()}


def slots_of(records):
    """Return the slot and the layer of each record of attention."""
    return [(record.slot, record.layer) for record in records]


def loaded_epoch(source, epoch=1):
    """Return all batches of an epoch."""
    return [source.load(index) for index in range(source.begin_epoch(epoch))]


def save_tiny_model(path, task, seed=1, shape=(), metadata=(), **settings):
    """Write the checkpoint of an untrained model. ``metadata`` holds more entries than needed."""
    model = tiny_model(task, seed, shape, **settings)
    fields = {"model_config": to_dict(model.config), "task": task.to_state(), "args": {}}
    path.parent.mkdir(exist_ok=True)
    save_checkpoint(path, Checkpoint(model.state_dict(), {**fields, **dict(metadata)}))


# ------------------------------------------------------------------- trainings


def train(data, folder, *flags, check=True):
    """Run relu-nmt-train with a small model and JSON lines. Later flags win."""
    return run_here("train", data, TRAIN.split(), "--save-dir", folder, flags, check=check)
