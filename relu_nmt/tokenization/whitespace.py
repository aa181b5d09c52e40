"""The steps that leave the text as it is: words are what stands between spaces."""

from collections.abc import Mapping, Sequence
from typing import Any

from relu_nmt.tokenization.base import SUBWORDS, TOKENIZERS


@TOKENIZERS.register("none")
class WhitespaceTokenizer:
    """Splits at white space and joins with single spaces.

    Example:
        >>> WhitespaceTokenizer("de").split("ein  Haus ")
        ['ein', 'Haus']
    """

    def __init__(self, language: str) -> None:
        self.language = language

    def split(self, text: str) -> list[str]:
        """Return what stands between white space (Unicode's, as in fairseq)."""
        return text.split()

    def join(self, words: Sequence[str]) -> str:
        """Return the words with single spaces between them."""
        return " ".join(words)


@SUBWORDS.register("none")
class WholeWords:
    """Leaves words whole.

    Example:
        >>> WholeWords().split(["ein", "Haus"])
        ['ein', 'Haus']
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        pass

    def split(self, words: Sequence[str]) -> list[str]:
        """Return the words."""
        return list(words)

    def join(self, pieces: Sequence[str]) -> list[str]:
        """Return the pieces."""
        return list(pieces)

    def to_state(self) -> dict[str, Any]:
        """Return the model's description."""
        return {"name": "none"}
