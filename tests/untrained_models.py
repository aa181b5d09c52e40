"""A made corpus, data folders and untrained models for the commands that translate."""

import random

from relu_nmt.translation.task import TranslationTask
from tests.tiny import preprocessed, save_tiny_model, write_lines

NUM_TEST = 12
BLANK = 4  # number of the empty test sentence
SHORT = ["--max-len-b", "8", "--cpu"]


def write_corpus(folder):
    rng = random.Random(0)
    words = ["Haus", "Hund", "ist", "ein", "gross", "Das", ",", "rot", "isst", "Brot"]
    english = {"Haus": "house", "Hund": "dog", "ist": "is", "ein": "a", "Brot": "bread"}
    for split, count in (("train", 200), ("valid", 8), ("test", NUM_TEST)):
        sources = []
        targets = []
        for number in range(count):
            source = [rng.choice(words) for _ in range(rng.randint(2, 9))]
            if split == "test" and number == BLANK:
                source = []
            sources.append(" ".join(source))
            targets.append(" ".join(english.get(word, word) for word in source))
        write_lines(folder, split, sources, targets)


def save_model(path, task, seed, **settings):
    metadata = {"args": {"lr": seed}, "training_state": {"epoch": seed}}
    save_tiny_model(path, task, seed, metadata=metadata, attention="reluformer", **settings)


def write_models(folder):
    """Write a corpus, a data folder made from raw text, one without manifest, and checkpoints."""
    write_corpus(folder)
    splits = ("train", "valid", "test")
    raw = {"tokenizer": "moses", "lowercase": True, "subword": "subword-nmt", "subword_size": 20}
    preprocessed(folder, "raw-bin", splits, joined_dictionary=True, **raw)
    preprocessed(folder, "plain-bin", splits, joined_dictionary=True)
    for path in [*(folder / "plain-bin").glob("*.raw"), folder / "plain-bin/manifest.json"]:
        path.unlink()  # fairseq-preprocess makes the remaining files
    task = TranslationTask.from_data_folder(folder / "raw-bin")
    for seed in (1, 2, 3):
        save_model(folder / f"checkpoint{seed}.safetensors", task, seed)
        save_model(folder / f"checkpoint_1_{100 * seed}.safetensors", task, seed)
    learned = {"encoder_positions": "learned", "max_source_positions": 9}
    save_model(folder / "short.safetensors", task, 1, **learned)
    plain = TranslationTask.from_data_folder(folder / "plain-bin")
    save_model(folder / "plain.safetensors", plain, 1)
