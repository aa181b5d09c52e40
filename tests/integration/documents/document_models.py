"""Documents of digits with untrained models of them, and a search that copies."""

import random
from functools import partial

import numpy as np

from relu_nmt.cli import translate_document
from relu_nmt.config import to_dict
from relu_nmt.data.document_settings import DocumentConfig
from relu_nmt.translation.search.translations import Hypothesis, Translation
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator import Translator
from tests.commands import command_line
from tests.tiny import digit_documents, preprocessed, save_tiny_model, write_documents

NUM_DOCUMENTS = 5
AS_JSON = ["--tokenize", "none", "--format", "json"]
SHORT = ["--beam", "2", "--max-len-a", "0.5", "--max-len-b", "4", "--cpu", "--no-progress-bar"]


def save_model(path, task, **settings):
    """Save an untrained model, as if trained with these settings of documents."""
    learned = {name: settings.pop(name) for name in list(settings) if "position" in name}
    learned |= {"encoder_positions": "learned" if learned else None}
    metadata = {"args": {"documents": to_dict(DocumentConfig(**settings))}}
    save_tiny_model(path, task, metadata=metadata, attention="reluformer", **learned)


def make_folder(folder):
    """Documents of one to five lines of digits, one line of 40. Models with and without <sep>."""
    rng = random.Random(0)
    (folder / "flat-text").mkdir()
    documents = digit_documents(rng, NUM_DOCUMENTS)
    documents[2][1] = " ".join("1234567890" * 4)
    for split in ("train", "test"):
        write_documents(folder, split, documents)
        write_documents(folder / "flat-text", split, documents, between="\n")
    splits = ("train", "test")
    separated = {"document_separator": "blank"}
    preprocessed(folder, "data", splits, joined_dictionary=True, **separated)
    preprocessed(folder / "flat-text", "../flat", splits, joined_dictionary=True)
    task = TranslationTask.from_data_folder(folder / "data")
    separated = task.with_sentence_separator()
    mixture = {"doc_mixture": (1, 24, 12), "sentence_separator": True}
    save_model(folder / "sep.safetensors", separated, **mixture)
    save_model(folder / "short.safetensors", separated, max_source_positions=20, **mixture)
    save_model(folder / "joined.safetensors", task, max_doc_tokens=24)
    save_model(folder / "sentences.safetensors", task)
    return folder


def copy_sources(monkeypatch):
    """Replace the search by a copy of the source in which 3 becomes 4."""

    def copy(self, sources, *_, **__):
        dictionary = self.task.target_dictionary
        wrong = {dictionary.index("3"): dictionary.index("4")}
        lists = []
        for source in sources:
            ids = np.array([wrong.get(i, i) for i in source.ids[len(source.context) :].tolist()])
            hypothesis = Hypothesis(ids, -1.0, -np.ones(len(ids), dtype=np.float32))
            tokens = dictionary.symbols_of(ids)
            lists.append([Translation(self.task.target_text.decode(tokens), tokens, hypothesis)])
        return lists

    monkeypatch.setattr(Translator, "window_translator", lambda self, *_: partial(copy, self))


def run(command, *arguments, expect=0):
    assert command.main(command_line(arguments)) == expect


def translate(folder, capsys, text, *flags, model="sep"):
    path = folder / "input.txt"
    path.write_bytes(text.encode("utf-8"))
    run(translate_document, path, "--path", folder / f"{model}.safetensors", SHORT, flags)
    return capsys.readouterr()
