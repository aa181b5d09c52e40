"""The two steps from text to tokens: a tokeniser (words) and a subword model (pieces of words).

A tokeniser turns a raw sentence into words and back, a subword model words into pieces and back.
Both are found by name; a new one is a class in a module of its own, listed here or registered by
a file of the user's (``--user-module``).
"""

import base64
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

from relu_nmt.config.registry import Registry
from relu_nmt.errors import ConfigError, DataError


class Tokenizer(ABC):
    """Raw sentence to words and back.

    One of one's own is registered with ``@tokenizers.register("name")``.

    Args:
        language: as in the file names ("de").

    Attributes:
        package: the package whose version decides the result, as pip names it.
        earlier: the classes of this name in earlier releases that gave other words, oldest first.
            Data folders and checkpoints store the version, so that they keep their words.
    """

    package: ClassVar[str | None] = None
    earlier: ClassVar[tuple[type["Tokenizer"], ...]] = ()

    def __init__(self, language: str) -> None:
        self.language = language

    @classmethod
    def version(cls) -> int:
        """Return the number of the version, from 1."""
        return len(cls.earlier) + 1

    @classmethod
    def of_version(cls, version: int) -> type["Tokenizer"]:
        """Return the class of a version.

        Raises:
            DataError: a later release has made it.
        """
        if not 1 <= version <= cls.version():
            raise DataError(
                f"version {version} of the tokeniser {tokenizers.name_of(cls)} is not known here; "
                "use the release that made it"
            )
        return (*cls.earlier, cls)[version - 1]

    @abstractmethod
    def split(self, text: str) -> list[str]:
        """Return the words of ``text``."""

    @abstractmethod
    def join(self, words: Sequence[str]) -> str:
        """Return the raw sentence of which :meth:`split` made ``words``."""

    def without_marks(self, words: Sequence[str]) -> list[str]:
        """Return words of :meth:`split` as they stand between usual spaces."""
        return list(words)

    def written(self, text: str) -> list[str]:
        """Return each character of a raw sentence as it stands in its words."""
        return list(text)


class LearningText(Protocol):
    """The training text that a subword model is learnt on, tokenised, as it needs it."""

    def sentences(self) -> Iterable[str]:
        """Return the sentences, words between spaces; read while they are iterated over."""

    def word_counts(self) -> Mapping[str, int]:
        """Return how often each word occurs; counted by all cores."""


class SubwordModel(ABC):
    """Words to pieces of words and back.

    A model of one's own overrides :meth:`learn`, :meth:`load`, :meth:`split`, :meth:`join` and
    ``file_name``, and is registered with ``@subword_models.register("name")``.

    Args:
        content: the bytes of the model's file; None for a model that has none.

    Attributes:
        file_name: name of the model's file in a data folder, such as ``subword.codes``, with the
            language before the ending where each has its own; None if there is no file.
        package: the package whose version decides the result, as pip names it.
    """

    file_name: ClassVar[str | None] = None
    package: ClassVar[str | None] = None

    def __init__(self, content: bytes | None = None) -> None:
        self.content = content

    @classmethod
    def learn(cls, text: LearningText, size: int, seed: int) -> bytes:
        """Learn a model and return the bytes of its file.

        Args:
            text: the training text.
            size: how much to learn: merges, or pieces.
            seed: of whatever is drawn at random.

        Raises:
            ConfigError: the text does not suit ``size``.
        """
        raise TypeError(f"{cls.__name__} must define learn")

    @classmethod
    def load(cls, content: bytes) -> "SubwordModel":
        """Return the model of a file's bytes.

        Raises:
            DataError: they are no such model.
        """
        return cls(content)

    @abstractmethod
    def split(self, words: Sequence[str]) -> list[str]:
        """Return the pieces of ``words``."""

    def sample(self, words: Sequence[str], strength: float, draws: random.Random) -> list[str]:
        """Return the pieces of one of the ways to split ``words``, drawn at random.

        Args:
            words: as for :meth:`split`.
            strength: how far from the usual way; each kind of model has its own scale.
            draws: the random numbers.

        Raises:
            ConfigError: the model knows one way only.
        """
        raise ConfigError(f"--subword-sampling: {type(self).__name__} splits in one way only")

    @abstractmethod
    def join(self, pieces: Sequence[str]) -> list[str]:
        """Return the words of which :meth:`split` made ``pieces``."""

    def letters(self, pieces: Sequence[str]) -> list[str | None]:
        """Return the part of the words that each piece is, without marks.

        A piece without such a part, like the second byte of a character, has None.
        """
        return list(pieces)

    def to_state(self) -> dict[str, Any]:
        """Return the model with its name, as JSON values: what a checkpoint stores."""
        state: dict[str, Any] = {"name": subword_models.name_of(type(self))}
        if self.content is not None:
            state["model"] = base64.b64encode(self.content).decode("ascii")
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "SubwordModel":
        """Return the model that :meth:`to_state` described.

        Raises:
            DataError: it is damaged.
        """
        if cls.file_name is None:
            return cls()
        try:
            content = base64.b64decode(state["model"], validate=True)
        except ValueError as error:
            raise DataError("the stored subword model is damaged") from error
        return cls.load(content)


tokenizers: Registry[type[Tokenizer]] = Registry(
    "tokenizer",
    {
        "none": "relu_nmt.tokenization.base",
        "moses": "relu_nmt.tokenization.moses",
        "moses-aggressive": "relu_nmt.tokenization.moses",
    },
)
subword_models: Registry[type[SubwordModel]] = Registry(
    "subword model",
    {
        "none": "relu_nmt.tokenization.base",
        "subword-nmt": "relu_nmt.tokenization.subword_nmt",
        "sentencepiece": "relu_nmt.tokenization.sentencepiece",
    },
)


@tokenizers.register("none")
class WhitespaceTokenizer(Tokenizer):
    """Splits at white space and joins with single spaces.

    Example:
        >>> WhitespaceTokenizer("de").split("ein  Haus ")
        ['ein', 'Haus']
    """

    def split(self, text: str) -> list[str]:
        """Return what stands between white space (Unicode's, as in fairseq)."""
        return text.split()

    def join(self, words: Sequence[str]) -> str:
        """Return the words with single spaces between them."""
        return " ".join(words)


@subword_models.register("none")
class WholeWords(SubwordModel):
    """Leaves words whole.

    Example:
        >>> WholeWords().split(["ein", "Haus"])
        ['ein', 'Haus']
    """

    def split(self, words: Sequence[str]) -> list[str]:
        """Return the words."""
        return list(words)

    def join(self, pieces: Sequence[str]) -> list[str]:
        """Return the pieces."""
        return list(pieces)


def subword_file_name(name: str, language: str | None) -> str:
    """Return the name of a subword model's file in a data folder.

    Args:
        name: the registered name.
        language: whose model it is; None for one of all languages.
    """
    stem, ending = os.path.splitext(str(subword_models.get(name).file_name))
    return f"{stem}{ending}" if language is None else f"{stem}.{language}{ending}"


def load_subword(name: str, path: str | os.PathLike[str] | None) -> SubwordModel:
    """Return a subword model from its file.

    Args:
        name: the registered name.
        path: its file; None for whole words.

    Raises:
        DataError: the file is missing or no such model.
    """
    if path is None:
        return WholeWords()
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot read the subword model: {error.strerror}") from error
    try:
        return subword_models.get(name).load(content)
    except DataError as error:
        raise DataError(f"{path}: not a model of {name}: {error}") from error
