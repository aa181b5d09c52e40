"""The steps from text to tokens: words (tokenizers) and pieces (subword models).

A tokenizer turns a raw sentence into words and back, a subword model turns words into pieces and
back. Settings give their names. A new one is a class in another module, listed here or registered
by a file of the user (``--user-module``).
"""

import base64
import os
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from relu_nmt.config.registry import Registry
from relu_nmt.config.stored import checked
from relu_nmt.data.binarize import count_words
from relu_nmt.errors import ConfigError, DataError, reporting
from relu_nmt.io.progress import progress_bar
from relu_nmt.io.safe_write import plain_file
from relu_nmt.io.text_lines import TextFile, read_chunk

# Symbols whose pieces are joined without spaces, and the mark that then becomes a space.
WORD_MARKS = {"sentencepiece": "\u2581", "wordpiece": "_", "letter": "|", "_EOW": "_EOW"}
SUBWORD_NMT_NAMES = ("subword_nmt", "@@ ", "@@")
POST_PROCESS_NAMES = ("none", *SUBWORD_NMT_NAMES, *WORD_MARKS)
JOINED = "joined"  # the name, in stored states, of text that arrives in pieces
_BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")
SURROGATE = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """Splits raw sentences into words and joins words. This class splits at white space.

    A new one overrides :meth:`split` and :meth:`join`. ``@tokenizers.register("name")`` registers
    it.
    """

    package: ClassVar[str | None] = None  # the pip package whose version decides the result
    # The classes of this name in earlier releases that gave other words, oldest first. Data folders
    # and checkpoints store the version, so that they keep their words.
    earlier: ClassVar[tuple[type["Tokenizer"], ...]] = ()
    # Further arguments of the constructor, by name, of a class that has several names.
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __init__(self, language: str) -> None:
        self.language = language

    @classmethod
    def version(cls) -> int:
        """Return the number of the version, from 1."""
        return len(cls.earlier) + 1

    def split(self, text: str) -> list[str]:
        """Return the words of ``text``."""
        return text.split()

    def join(self, words: Sequence[str]) -> str:
        """Return the raw sentence of ``words``, the inverse of :meth:`split`."""
        return " ".join(words)

    def without_marks(self, words: Sequence[str]) -> list[str]:
        """Return words of :meth:`split` without marks of unusual spaces."""
        return list(words)

    def characters(self, text: str) -> list[str]:
        """Return each character of a raw sentence in the form it has in words."""
        return list(text)


@dataclass(frozen=True)
class LearningText:
    """The tokenized training text, of one language or of all, for learning a subword model."""

    texts: Sequence[TextFile]
    workers: int

    def sentences(self) -> Iterator[str]:
        """Yield the sentences that are not blank, words between spaces."""
        for text in self.texts:
            for chunk in text.readable_chunks():
                yield from filter(str.strip, read_chunk(chunk))

    def word_counts(self) -> Mapping[str, int]:
        """Return the number of occurrences of each word."""
        total = sum(text.num_bytes for text in self.texts)
        with progress_bar("count words", total) as advance:
            return count_words(self.texts, self.workers, advance)


class SubwordModel(ABC):
    """Splits words into pieces, and joins the pieces.

    A new model overrides :meth:`learn`, :meth:`load`, :meth:`split`, :meth:`join` and
    ``file_name``. ``@subword_models.register("name")`` registers it. ``content`` are the bytes of
    the model's file, None for a model without a file.
    """

    # Name of the model's file in a data folder, "subword.codes". None for no file. If each language
    # has a model, the language stands before the ending.
    file_name: ClassVar[str | None] = None
    package: ClassVar[str | None] = None  # the pip package whose version decides the result

    def __init__(self, content: bytes | None = None) -> None:
        self.content = content

    @classmethod
    def learn(cls, text: LearningText, size: int, seed: int) -> bytes:
        """Learn a model. Return the bytes of its file (ConfigError: it needs more text)."""
        raise TypeError(f"{cls.__name__} must define learn")

    @classmethod
    def load(cls, content: bytes) -> "SubwordModel":
        """Return the model of a file's bytes (DataError: the bytes are no such model)."""
        return cls(content)

    @property
    def num_learned(self) -> int | None:
        """The number of learned subwords, as ``--subword-size`` counts them. None: unknown."""
        return None

    @abstractmethod
    def split(self, words: Sequence[str]) -> list[str]:
        """Return the pieces of ``words``."""

    def sample(self, words: Sequence[str], strength: float, draws: random.Random) -> list[str]:
        """Return the pieces of a random split. The class says what ``strength`` means."""
        raise ConfigError(f"--subword-sampling: {type(self).__name__} splits in one way only")

    @abstractmethod
    def join(self, pieces: Sequence[str]) -> list[str]:
        """Return the words of ``pieces``, the inverse of :meth:`split`."""

    def characters(self, pieces: Sequence[str]) -> list[str | None]:
        """Return each piece's characters without marks. None for later bytes of a character."""
        return list(pieces)

    def text_of(self, piece: str) -> str:
        """Return the text that a piece adds, with a space where it begins or ends a word.

        Here ``@@`` at the end marks a piece that does not end its word. A byte of a character
        becomes a surrogate.
        """
        return f"{piece} ".replace("@@ ", "")

    def to_state(self) -> dict[str, Any]:
        """Return the model with its name as JSON values, for checkpoints."""
        state: dict[str, Any] = {"name": subword_models.name_of(type(self))}
        if self.content is not None:
            state["model"] = base64.b64encode(self.content).decode("ascii")
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "SubwordModel":
        """Return the model of :meth:`to_state` (DataError: the state is damaged)."""
        if cls.file_name is None:
            return cls()
        try:
            content = base64.b64decode(state["model"], validate=True)
        except ValueError as error:
            raise DataError("the stored subword model is damaged") from error
        return cls.load(content)


BASE = "relu_nmt.tokenization.base"
MOSES = "relu_nmt.tokenization.moses"
SUBWORDS = "relu_nmt.tokenization.subwords"
tokenizers: Registry[type[Tokenizer]] = Registry(
    "tokenizer", {"none": BASE, "moses": MOSES, "moses-aggressive": MOSES}
)
tokenizers.register("none")(Tokenizer)
subword_models: Registry[type[SubwordModel]] = Registry(
    "subword model", {"none": BASE, "subword-nmt": SUBWORDS, "sentencepiece": SUBWORDS}
)


def make_tokenizer(name: str, language: str, version: int) -> Tokenizer:
    """Return a tokenizer of a version (DataError: the version is of a later release)."""
    kind = tokenizers.get(name)
    if not 1 <= version <= kind.version():
        raise DataError(
            f"version {version} of the tokenizer {name} is not known here; use the release that "
            "made it"
        )
    make: Callable[..., Tokenizer] = (*kind.earlier, kind)[version - 1]
    return make(language, **kind.options.get(name, {}))


@subword_models.register("none")
class WholeWords(SubwordModel):
    """Splits no words."""

    def split(self, words: Sequence[str]) -> list[str]:
        return list(words)

    def join(self, pieces: Sequence[str]) -> list[str]:
        return list(pieces)


class JoinedPieces(WholeWords):
    """Splits no words, and joins the pieces in which text arrives.

    The symbol that marks them is ``@@ `` (or ``subword_nmt``), ``sentencepiece``, ``wordpiece``,
    ``letter``, ``_EOW``, or ``none``, which leaves the pieces as they are.

    Reference: fairseq 0.12, ``fairseq.data.data_utils.post_process``.

    Example:
        >>> JoinedPieces("@@ ").join(["Haus@@", "boot"])
        ['Hausboot']
    """

    def __init__(self, symbol: str) -> None:
        super().__init__()
        self.symbol = symbol
        if symbol not in POST_PROCESS_NAMES:
            names = ", ".join(map(repr, POST_PROCESS_NAMES))
            raise ConfigError(f"--remove-bpe {symbol!r}: expected one of {names}")

    def join(self, pieces: Sequence[str]) -> list[str]:
        if self.symbol in WORD_MARKS:
            text = "".join(pieces)
            if self.symbol == "sentencepiece":
                # A character may span several bytes. Wrong ones stay surrogates, and become U+FFFD.
                content = "".join(map(with_bytes, pieces)).encode("utf-8", "surrogateescape")
                text = SURROGATE.sub("\ufffd", content.decode("utf-8", "surrogateescape"))
            return text.replace(WORD_MARKS[self.symbol], " ").split()
        if self.symbol in SUBWORD_NMT_NAMES:
            # Add a space, so that a mark on the last piece is removed too.
            return (" ".join(pieces) + " ").replace("@@ ", "").split()
        return list(pieces)

    def text_of(self, piece: str) -> str:
        """Return the text that a piece adds, with a space where it begins or ends a word."""
        if self.symbol not in WORD_MARKS:
            return super().text_of(piece)
        if self.symbol == "sentencepiece":
            piece = with_bytes(piece)
        return piece.replace(WORD_MARKS[self.symbol], " ")

    def to_state(self) -> dict[str, Any]:
        """Return the symbol, under a name that no registered model has."""
        return {"name": JOINED, "symbol": self.symbol}


def with_bytes(piece: str) -> str:
    """Return a piece. A piece for a byte becomes this byte: above 127, a surrogate."""
    if not _BYTE_PIECE.fullmatch(piece):
        return piece
    return bytes([int(piece[3:5], 16)]).decode("utf-8", "surrogateescape")


def subword_of_state(state: Mapping[str, Any]) -> SubwordModel:
    """Return the model of :meth:`SubwordModel.to_state` (DataError: the state is damaged)."""
    name = checked(str, state["name"], "name of the subword model")
    if name == JOINED:
        return JoinedPieces(checked(str, state["symbol"], "symbol of the pieces"))
    return subword_models.get(name).from_state(state)


def subword_file_name(name: str, language: str | None) -> str:
    """Return the name of a subword model's file. ``language`` is None for a joint model."""
    stem, ending = os.path.splitext(str(subword_models.get(name).file_name))
    if language is not None:
        stem = f"{stem}.{language}"
    return stem + ending


def load_subword(name: str, path: str | os.PathLike[str] | None) -> SubwordModel:
    """Return the subword model of a file (DataError: it is none). Without a file, whole words."""
    if path is None:
        return WholeWords()
    with reporting(f"{path}: cannot read the subword model"):
        content = plain_file(path).read_bytes()
    with reporting(f"{path}: not a model of {name}", caught=DataError):
        return subword_models.get(name).load(content)
