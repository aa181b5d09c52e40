"""The two steps from text to tokens: a tokeniser (words) and a subword model (pieces of words).

A tokeniser turns a raw sentence into words and back, a subword model words into pieces and back.
Both are found by name; a new one is a class in a module of its own, listed here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from relu_nmt.registry import Registry


class Tokenizer(Protocol):
    """Raw sentence to words and back."""

    def split(self, text: str) -> list[str]:
        """Return the words of ``text``."""

    def join(self, words: Sequence[str]) -> str:
        """Return the raw sentence of which :meth:`split` made ``words``."""


class SubwordModel(Protocol):
    """Words to pieces of words and back."""

    def split(self, words: Sequence[str]) -> list[str]:
        """Return the pieces of ``words``."""

    def join(self, pieces: Sequence[str]) -> list[str]:
        """Return the words of which :meth:`split` made ``pieces``."""

    def to_state(self) -> dict[str, Any]:
        """Return what :data:`SUBWORDS` needs to make the model again, as JSON values."""


class TokenizerFactory(Protocol):
    """Makes the tokeniser of a language."""

    def __call__(self, language: str) -> Tokenizer:
        """Return the tokeniser for ``language`` ("de")."""


class SubwordFactory(Protocol):
    """Makes a subword model from its description."""

    def __call__(self, state: Mapping[str, Any]) -> SubwordModel:
        """Return the model that ``to_state`` described."""


TOKENIZERS: Registry[TokenizerFactory] = Registry(
    "tokenizer",
    {
        "none": "relu_nmt.tokenization.whitespace",
        "moses": "relu_nmt.tokenization.moses",
        "moses-aggressive": "relu_nmt.tokenization.moses",
    },
)
SUBWORDS: Registry[SubwordFactory] = Registry(
    "subword model",
    {
        "none": "relu_nmt.tokenization.whitespace",
        "joined": "relu_nmt.tokenization.post_process",
        "subword-nmt": "relu_nmt.tokenization.subword_nmt",
        "sentencepiece": "relu_nmt.tokenization.sentencepiece",
    },
)
