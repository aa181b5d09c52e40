"""Byte-pair encoding of subword-nmt: ``Haus@@ boot``."""

import contextlib
import io
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from relu_nmt.data.dictionary import SPECIAL_SYMBOLS
from relu_nmt.errors import ConfigError, DataError, needing
from relu_nmt.io.work import bars_are_drawn
from relu_nmt.tokenization.base import LearningText, SubwordModel, subword_models

with needing("subword-nmt segmentation needs the package subword-nmt: pip install subword-nmt"):
    from subword_nmt import apply_bpe, learn_bpe

SEPARATOR = "@@"
VERSION_MARK = "#version:"
CACHED_WORDS = 500_000


@subword_models.register("subword-nmt")
class SubwordNmt(SubwordModel):
    r"""Subword splitting by a list of merges, the codes file of subword-nmt.

    Raises:
        DataError: the codes are damaged.

    Example:
        >>> model = SubwordNmt(b"#version: 0.2\nH a\nHa u\nHau s</w>\n")
        >>> model.split(["Haus", "Hau"])
        ['Haus', 'Ha@@', 'u']
        >>> model.join(['Haus', 'Ha@@', 'u'])
        ['Haus', 'Hau']
    """

    file_name = "subword.codes"
    package = "subword-nmt"

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        try:
            self._codes = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(str(error)) from error
        lines = self._codes.rstrip("\n").split("\n")
        # Check the lines here, since subword-nmt ends the program at a mistake.
        for number, line in enumerate(lines, 1):
            if len(line.strip("\r\n ").split(" ")) != 2:
                raise DataError(f"line {number}: expected two symbols, found {line[:40]!r}")
        if len(lines) == 1 and lines[0].startswith(VERSION_MARK):
            raise DataError("no merges in it")
        try:
            self._bpe = apply_bpe.BPE(io.StringIO(self._codes), separator=SEPARATOR)
        except ValueError as error:
            raise DataError(f"line 1: no version number in {lines[0][:40]!r}") from error
        self._pieces_of: dict[str, list[str]] = {}
        self._dropping: apply_bpe.BPE | None = None

    def split(self, words: Sequence[str]) -> list[str]:
        """Return the pieces of ``words``; all but the last of a word end in ``@@``."""
        known = self._pieces_of
        pieces: list[str] = []
        for word in words:
            found = known.get(word)
            if found is None:
                # Empty both caches when full, which bounds the memory.
                if len(known) >= CACHED_WORDS:
                    known.clear()
                    self._bpe.cache.clear()
                found = known[word] = _recoverable(self._bpe.segment_tokens([word]))
            pieces += found
        return pieces

    def sample(self, words: Sequence[str], strength: float, draws: random.Random) -> list[str]:
        """Drop each merge with probability ``strength``.

        Reference: Provilkov et al. 2020, "BPE-dropout: simple and effective subword
        regularization", section 3.
        """
        if self._dropping is None:  # a second object, since the first caches its splits
            self._dropping = apply_bpe.BPE(io.StringIO(self._codes), separator=SEPARATOR)
        before = random.getstate()  # subword-nmt draws from the module's generator
        random.seed(draws.getrandbits(64))
        try:
            drawn = (self._dropping.segment_tokens([word], dropout=strength) for word in words)
            return [piece for pieces in drawn for piece in _recoverable(pieces)]
        finally:
            random.setstate(before)

    def join(self, pieces: Sequence[str]) -> list[str]:
        """Return the words."""
        return (" ".join(pieces) + " ").replace(f"{SEPARATOR} ", "").split()

    def letters(self, pieces: Sequence[str]) -> list[str | None]:
        """Return the pieces without ``@@`` at the end."""
        return [piece.removesuffix(SEPARATOR) or piece for piece in pieces]

    @classmethod
    def learn(cls, text: LearningText, size: int, seed: int) -> bytes:
        """Learn ``size`` merges, fewer if no pair of symbols occurs twice; nothing is random."""
        counts = text.word_counts()
        codes = io.StringIO()
        # Learn only if a word has two letters to merge.
        if any(len(word) > 1 for word in counts):
            # Sort the words, so that ties between merges do not depend on the order of the text.
            entries = (f"{word} {count}\n" for word, count in sorted(counts.items()))
            progress = sys.stderr if bars_are_drawn() else io.StringIO()
            with contextlib.redirect_stderr(progress):
                learn_bpe.learn_bpe(entries, codes, size, is_dict=True)
        # Refuse a model without merges, with the version line alone.
        if codes.getvalue().count("\n") < 2:
            raise ConfigError(
                "--subword subword-nmt: in the training text no two letters occur together twice"
            )
        return codes.getvalue().encode("utf-8")

    def to_state(self) -> dict[str, Any]:
        """Return the name of the model and its codes as text."""
        return {"name": "subword-nmt", "codes": self._codes}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "SubwordNmt":
        """Return the model of :meth:`to_state`."""
        return cls(state["codes"].encode("utf-8"))


def _recoverable(pieces: list[str]) -> list[str]:
    """Cut the last letter off a last piece that looks like a mark or symbol, for :meth:`join`."""
    if pieces and (pieces[-1].endswith(SEPARATOR) or pieces[-1] in SPECIAL_SYMBOLS):
        return [*pieces[:-1], pieces[-1][:-1] + SEPARATOR, pieces[-1][-1]]
    return pieces
