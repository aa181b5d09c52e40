"""The text of benchmarks/run.py: tokens, subwords, and documents of given lengths."""

import argparse
import io
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
    asked = (arguments.text, arguments.pairs, arguments.sentences, arguments.documents)
    wanted = repr((*map(str, asked), arguments.merges, sorted(arguments.lengths)))
    stamp = text / "made-with"
    if stamp.is_file() and stamp.read_text("utf-8") == wanted:
        return
    text.mkdir(parents=True, exist_ok=True)
    for old in text.iterdir():
        old.unlink()
    raw = arguments.text or _fetched(folder / "corpus")
    limits = {"train": arguments.pairs, "valid": arguments.sentences, "test": arguments.sentences}
    pairs = {split: _read(raw, split, most) for split, most in limits.items()}
    codes = io.StringIO()
    words = "\n".join(line for pair in pairs["train"] for line in pair)
    learn_bpe(io.StringIO(words), codes, arguments.merges)
    codes.seek(0)
    split_words = BPE(codes)
    for split, found in pairs.items():
        lines = [tuple(split_words.process_line(line) for line in pair) for pair in found]
        _write(text / split, lines)
        if split == "test":
            for length in arguments.lengths:
                documents = _documents(lines, length, arguments.documents)
                _write(text / document_split(length), documents)
    stamp.write_text(wanted, "utf-8")


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


def _read(raw: Path, split: str, most: int) -> list[tuple[str, ...]]:
    """Return pairs of lower-cased lines with spaces between words."""
    for name in NAMES[split]:
        if (raw / f"{name}.de").is_file():
            break
    else:
        raise FailedCommand(f"{raw}: no {' or '.join(NAMES[split])} with .de and .en")
    sides = []
    for language in LANGUAGES:
        sides.append(read_lines(raw / f"{name}.{language}"))
    tokenizers = [MosesTokenizer(language) for language in LANGUAGES]
    pairs: list[tuple[str, ...]] = []
    for pair in zip(*sides, strict=True):
        if len(pairs) < most and all(line.strip() for line in pair):  # skip the ends of documents
            sides_of_pair = zip(tokenizers, pair, strict=True)
            pairs.append(tuple(t.tokenize(x.lower(), return_str=True) for t, x in sides_of_pair))
    return pairs


def _documents(pairs: list[tuple[str, ...]], length: int, count: int) -> list[tuple[str, ...]]:
    """Return pairs with ``length`` tokens on each side, made from consecutive sentences."""
    found = []
    for number in range(count):
        sides = []
        for side in range(len(LANGUAGES)):
            tokens = [token for pair in pairs for token in pair[side].split()]
            start = number * length % len(tokens)
            while len(tokens) < start + length:
                tokens += tokens
            sides.append(" ".join(tokens[start : start + length]))
        found.append(tuple(sides))
    return found


def _write(prefix: Path, pairs: list[tuple[str, ...]]) -> None:
    for language, lines in zip(LANGUAGES, zip(*pairs, strict=True), strict=True):
        write_lines(f"{prefix}.{language}", lines)
