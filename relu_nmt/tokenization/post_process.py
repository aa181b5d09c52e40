"""Undoing a segmentation that was made elsewhere: fairseq's ``--remove-bpe``."""

from collections.abc import Sequence
from typing import Any

from relu_nmt.errors import ConfigError
from relu_nmt.tokenization.base import WholeWords

# Symbols whose joining is: drop all spaces, then this mark becomes the space between words.
WORD_MARKS = {"sentencepiece": "\u2581", "wordpiece": "_", "letter": "|", "_EOW": "_EOW"}
SUBWORD_NMT_NAMES = ("subword_nmt", "@@ ", "@@")
POST_PROCESS_NAMES = ("none", *SUBWORD_NMT_NAMES, *WORD_MARKS)


def join_pieces(text: str, symbol: str | None) -> str:
    """Join the pieces of words in ``text``, whose pieces stand between single spaces.

    Args:
        text: the segmented sentence.
        symbol: ``@@ `` (or ``subword_nmt``), ``sentencepiece``, ``wordpiece``, ``letter`` or
            ``_EOW``; None or ``none`` leaves the text as it is; any other symbol is removed
            as it stands.

    Reference: fairseq 0.12, ``fairseq.data.data_utils.post_process``.

    Example:
        >>> join_pieces("ein Haus@@ boot", "@@ ")
        'ein Hausboot'
    """
    if symbol is None or symbol == "none":
        return text
    if symbol in WORD_MARKS:
        return text.replace(" ", "").replace(WORD_MARKS[symbol], " ").strip()
    if symbol in SUBWORD_NMT_NAMES:
        symbol = "@@ "
    # With a space at the end, a mark on the last piece goes too.
    return (text + " ").replace(symbol, "").rstrip()


class JoinedPieces(WholeWords):
    """For text that arrives segmented: pieces pass through, and are joined on the way back.

    Args:
        symbol: as in :func:`join_pieces`.

    Raises:
        ConfigError: no such symbol.

    Example:
        >>> JoinedPieces("@@ ").join(["Haus@@", "boot"])
        ['Hausboot']
    """

    name = "joined"

    def __init__(self, symbol: str) -> None:
        super().__init__()
        self.symbol = symbol
        if symbol not in POST_PROCESS_NAMES:
            names = ", ".join(repr(name) for name in POST_PROCESS_NAMES)
            raise ConfigError(f"--remove-bpe {symbol!r}: expected one of {names}")

    def join(self, pieces: Sequence[str]) -> list[str]:
        """Return the words."""
        return join_pieces(" ".join(pieces), self.symbol).split()

    def to_state(self) -> dict[str, Any]:
        """Return the model's description."""
        return {"name": self.name, "symbol": self.symbol}
