"""Small archives like the original ones, filled with made text, and the reading of a corpus."""

import io
import json
import tarfile

from prep_tools.cleaning import read_pairs

WORDS = ("blau", "rot", "alt", "neu", "lang", "kurz", "warm", "kalt", "hell", "tief")


def words(number: int, language: str) -> str:
    """A sentence of four words and a full stop that no other number has."""
    digits = f"{number:04d}"
    return " ".join(WORDS[int(digit)] + language for digit in digits) + "."


def many_words(numbers, language: str) -> list[str]:
    """Sentences of these numbers."""
    return [words(number, language) for number in numbers]


def made_pairs(numbers, source: str, target: str) -> list[tuple[str, str]]:
    """Pairs of sentences of these numbers."""
    return list(zip(many_words(numbers, source), many_words(numbers, target), strict=True))


def side_of(pairs, side: int) -> list[str]:
    """One side of pairs of sentences."""
    return [pair[side] for pair in pairs]


def make_tar(path, files):
    """Write a compressed tar archive of name -> text."""
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            data = text.encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def segments(sentences) -> str:
    """The text of a test set with one segment per sentence."""
    lines = [f'<seg id="{number}"> {text} </seg>' for number, text in enumerate(sentences, 1)]
    return "\n".join(["<?xml version='1.0'?>", "<mteval>", "<doc>", *lines, "</doc>", "</mteval>"])


def word(number):
    """A number in letters, since digits do not distinguish words."""
    return str(number).translate(str.maketrans("0123456789", "abcdefghij"))


def lines(folder, name):
    """The lines of a file of the corpus in ``out``."""
    return (folder / "out" / name).read_text("utf-8").splitlines()


def read_report(folder):
    """The report of the corpus in ``out``."""
    return json.loads((folder / "out/corpus.json").read_text("utf-8"))


def counts(folder):
    """The numbers of documents and pairs in each set of the corpus in ``out``."""
    report = read_report(folder)
    return {split: tuple(report[split].values()) for split in ("train", "valid", "test")}


def corpus_pairs(folder):
    """The German and English lines of all sets of a corpus, without the ends of documents."""
    pairs = []
    for split in ("train", "valid", "test"):
        pairs += read_pairs(folder / f"{split}.de", folder / f"{split}.en")
    return list(filter(any, pairs))
