"""The text of benchmarks/run.py: tokens, subwords, and documents of given lengths."""

import argparse
import io
import itertools
import sys
from pathlib import Path

from measuring import FailedCommand, run
from programs import ROOT
from sacremoses import MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from relu_nmt.io.text_lines import read_lines, write_lines

LANGUAGES = ("de", "en")
NAMES = {"train": ("train",), "valid": ("valid", "val"), "test": ("test", "test_2016_flickr")}


def document_split(length: int) -> str:
    """Return the name of the documents of ``length`` tokens. They sort by length."""
    return f"test{length:06}"


def prepare(arguments: argparse.Namespace, folder: Path, text: Path) -> None:
    """Write the prepared text, with spaces between tokens, unless the files exist.

    Args:
        arguments: arguments of the command line.
        folder: folder of the benchmark.
        text: folder for ``train.de`` and so on.

    Raises:
        FailedCommand: no text was found.
    """
    sizes = (arguments.text, arguments.pairs, arguments.sentences, arguments.documents)
    settings = repr((*map(str, sizes), arguments.merges, sorted(arguments.lengths)))
    stamp = text / "made-with"
    if stamp.is_file() and stamp.read_text("utf-8") == settings:
        return
    text.mkdir(parents=True, exist_ok=True)
    for file in text.iterdir():
        file.unlink()
    raw = arguments.text or _fetched(folder / "corpus")
    limits = {"train": arguments.pairs, "valid": arguments.sentences, "test": arguments.sentences}
    pairs_of = {}
    for split, limit in limits.items():
        pairs_of[split] = _tokenized(raw_pairs(raw, split, limit))
    codes = io.StringIO()
    words = "\n".join(itertools.chain.from_iterable(pairs_of["train"]))
    learn_bpe(io.StringIO(words), codes, arguments.merges)
    codes.seek(0)
    split_words = BPE(codes)
    for split, pairs in pairs_of.items():
        subwords = [tuple(map(split_words.process_line, pair)) for pair in pairs]
        _write(text / split, subwords)
        if split == "test":
            for length in arguments.lengths:
                documents = _documents(subwords, length, arguments.documents)
                _write(text / document_split(length), documents)
    stamp.write_text(settings, "utf-8")


def _fetched(folder: Path) -> Path:
    """Fetch the help of LibreOffice, or else generate text from the examples' grammar."""
    if not (folder / "corpus.json").is_file():
        scripts = ROOT / "data_prep"
        out = ["--out", str(folder)]
        help_text = [str(scripts / "libreoffice_help.py"), "--lang", "de"]
        help_text += ["--scratch", str(folder.with_name("packages"))]
        try:
            run([sys.executable, *help_text, *out])
        except FailedCommand:
            run([sys.executable, str(scripts / "grammar_corpus.py"), *out])
    return folder


def raw_pairs(folder: Path, split: str, limit: int) -> list[tuple[str, ...]]:
    """Return at most ``limit`` pairs of lines as they are, without the ends of documents."""
    for name in NAMES[split]:
        if (folder / f"{name}.de").is_file():
            break
    else:
        raise FailedCommand(f"{folder}: no {' or '.join(NAMES[split])} with .de and .en")
    sides = [read_lines(folder / f"{name}.{language}") for language in LANGUAGES]
    pairs = [pair for pair in zip(*sides, strict=True) if all(map(str.strip, pair))]
    return pairs[:limit]


def _tokenized(pairs: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return pairs of lower-cased lines with spaces between words."""
    tokenizers = [MosesTokenizer(language) for language in LANGUAGES]
    tokenized_pairs: list[tuple[str, ...]] = []
    for pair in pairs:
        tokenized = []
        for tokenizer, line in zip(tokenizers, pair, strict=True):
            tokenized.append(tokenizer.tokenize(line.lower(), return_str=True))
        tokenized_pairs.append(tuple(tokenized))
    return tokenized_pairs


def _documents(pairs: list[tuple[str, ...]], length: int, count: int) -> list[tuple[str, ...]]:
    """Return pairs with ``length`` tokens on each side, made from consecutive sentences."""
    sides = []
    for lines in zip(*pairs, strict=True):
        tokens = " ".join(lines).split()
        documents = []
        for number in range(count):
            start = number * length % len(tokens)
            repeated = itertools.cycle(tokens)
            documents.append(" ".join(itertools.islice(repeated, start, start + length)))
        sides.append(documents)
    return list(zip(*sides, strict=True))


def _write(prefix: Path, pairs: list[tuple[str, ...]]) -> None:
    for language, lines in zip(LANGUAGES, zip(*pairs, strict=True), strict=True):
        write_lines(f"{prefix}.{language}", lines)
