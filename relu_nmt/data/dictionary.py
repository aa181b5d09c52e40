"""The dictionary: symbols and their ids, in fairseq's order and file format."""

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np

from relu_nmt.errors import DataError, reporting
from relu_nmt.io.safe_write import plain_file
from relu_nmt.io.text_lines import split_lines, write_lines

BOS, PAD, EOS, UNK = SPECIAL_SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>")
FILLER = "madeupword"
SENTENCE_SEPARATOR = "<sep>"  # ends each sentence of a group of sentences, if separators are wanted
MAX_COUNT_DIGITS = 18
OVERWRITE_FLAG = "#fairseq:overwrite"


class Dictionary:
    """Symbols with ids from 0, beginning with ``<s> <pad> </s> <unk>``.

    ``counts`` are the occurrences of each further symbol in the training text, 0 if unknown. A
    repeated symbol is a DataError.

    Example:
        >>> dictionary = Dictionary(["the", "cat"], [2, 1])
        >>> dictionary.encode(["the", "dog"]).tolist()
        [4, 3, 2]
        >>> dictionary.symbols_of([4, 5, 2])
        ['the', 'cat']
    """

    bos_index, pad_index, eos_index, unk_index = range(len(SPECIAL_SYMBOLS))

    def __init__(self, symbols: Sequence[str] = (), counts: Sequence[int] | None = None) -> None:
        self._symbols = [*SPECIAL_SYMBOLS]
        self._counts = [1] * len(SPECIAL_SYMBOLS)
        self._indices = {symbol: i for i, symbol in enumerate(self._symbols)}
        for symbol, count in zip(symbols, counts or [0] * len(symbols), strict=True):
            if symbol in self._indices:
                raise DataError(f"dictionary: the symbol '{symbol}' occurs twice; keep it once")
            self._append(symbol, count)

    def _append(self, symbol: str, count: int) -> None:
        self._indices[symbol] = len(self._symbols)
        self._symbols.append(symbol)
        self._counts.append(count)

    def __len__(self) -> int:
        return len(self._symbols)

    def __getitem__(self, index: int) -> str:
        return self._symbols[index]

    def __contains__(self, symbol: str) -> bool:
        return symbol in self._indices

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Dictionary):
            return False
        return self._symbols == other._symbols and self._indices == other._indices

    __hash__ = None  # type: ignore[assignment]  # mutable only while it is built, but large

    @property
    def num_words(self) -> int:
        """Number of symbols that are neither special nor fillers."""
        words = self._symbols[len(SPECIAL_SYMBOLS) :]
        return sum(not word.startswith(FILLER) for word in words)

    @property
    def counts(self) -> list[int]:
        """Occurrences of each symbol in the training text by id. 1 for the special symbols."""
        return list(self._counts)

    @property
    def fillers(self) -> list[int]:
        """Ids of the unused symbols that pad the dictionary to a round size."""
        words = enumerate(zip(self._symbols, self._counts, strict=True))
        return [i for i, (word, count) in words if count == 0 and word.startswith(FILLER)]

    def index(self, symbol: str) -> int:
        """Return the id of ``symbol``, or the id of ``<unk>``."""
        return self._indices.get(symbol, self.unk_index)

    def indices(self) -> dict[str, int]:
        """Return a copy of the table from symbol to id."""
        return dict(self._indices)

    def with_symbol(self, symbol: str, index: int | None = None) -> "Dictionary":
        """Return a dictionary with one more symbol. All other symbols keep their ids.

        ``index`` is the id of the symbol: the id of a ``madeupword`` to replace, or the size of the
        dictionary. By default, and if ``index`` is taken, the symbol replaces the first
        ``madeupword``. Without a ``madeupword`` it comes last.
        """
        if symbol in self:
            raise DataError(f"dictionary: the symbol '{symbol}' is in it already")
        free = [*self.fillers, len(self)]
        if index not in free:
            index = free[0]
        return self._with(symbol, index)

    def _with(self, symbol: str, index: int) -> "Dictionary":
        """Return a dictionary with a symbol in place of another one, or at the end."""
        copy = Dictionary()
        copy._symbols = list(self._symbols)
        copy._counts = list(self._counts)
        copy._indices = dict(self._indices)
        if index == len(self):
            copy._append(symbol, 0)
        else:
            del copy._indices[self[index]]
            copy._symbols[index] = symbol
            copy._counts[index] = 0
            copy._indices[symbol] = index
        return copy

    def without_symbol(self, symbol: str) -> "Dictionary":
        """Return a dictionary with an unused ``madeupword`` in place of a symbol."""
        number = 0
        while f"{FILLER}{number:04d}" in self:
            number += 1
        return self._with(f"{FILLER}{number:04d}", self._indices[symbol])

    def encode(self, tokens: Sequence[str], append_eos: bool = True) -> np.ndarray:
        """Return the ids of ``tokens``, int64 [n], by default with ``</s>`` at the end."""
        ids = [self._indices.get(token, self.unk_index) for token in tokens]
        if append_eos:
            ids.append(self.eos_index)
        return np.array(ids, dtype=np.int64)

    def symbols_of(self, ids: Iterable[int], unk: str = UNK) -> list[str]:
        """Return the symbols of ``ids``, leaving out ``<s>``, ``<pad>`` and ``</s>``."""
        dropped = (self.bos_index, self.pad_index, self.eos_index)
        symbols = []
        for i in map(int, ids):
            if i not in dropped:
                symbols.append(unk if i == self.unk_index else self._symbols[i])
        return symbols

    @classmethod
    def from_counts(
        cls,
        counts: Mapping[str, int],
        threshold: int = 0,
        nwords: int = -1,
        padding_factor: int = 8,
    ) -> "Dictionary":
        """Build the dictionary of a text as fairseq does, from the occurrences of each word.

        Symbols are sorted by falling count, and by code point if counts are equal. Special symbols
        and words below the threshold are left out. ``nwords`` bounds the size if it is above 0.
        ``madeupword0000``... fill the size up to a multiple of ``padding_factor``.

        Reference: fairseq 0.12, ``Dictionary.finalize`` and ``pad_to_multiple_``.
        """
        words = sorted(counts.keys() - SPECIAL_SYMBOLS, key=lambda word: (-counts[word], word))
        # Cut rare words, leaving room for the special symbols.
        if nwords > 0:
            words = words[: max(0, nwords - len(SPECIAL_SYMBOLS))]
        dictionary = cls()
        for word in words:
            if counts[word] >= threshold:
                dictionary._append(word, counts[word])
        # Pad to a multiple, skipping fillers that the text has as words.
        filler = 0
        while padding_factor > 1 and len(dictionary) % padding_factor:
            symbol = f"{FILLER}{filler:04d}"
            if symbol not in dictionary:
                dictionary._append(symbol, 0)
            filler += 1
        return dictionary

    def to_text(self) -> str:
        """Return the contents of fairseq's ``dict.xx.txt``: a symbol and its count per line.

        A symbol that occurs twice keeps its flag ``#fairseq:overwrite``, without which fairseq 0.12
        cannot read the file.
        """
        lines = []
        before = set(SPECIAL_SYMBOLS)
        words = zip(self._symbols, self._counts, strict=True)
        for symbol, count in islice(words, len(SPECIAL_SYMBOLS), None):
            flag = f" {OVERWRITE_FLAG}" if symbol in before else ""
            lines.append(f"{symbol} {count}{flag}\n")
            before.add(symbol)
        return "".join(lines)

    @classmethod
    def from_text(cls, text: str, origin: str = "dictionary") -> "Dictionary":
        """Read the contents of a ``dict.xx.txt``. A wrong line is a DataError."""
        dictionary = cls()
        for number, line in enumerate(split_lines(text), 1):
            # A symbol may contain spaces, so that its count is the last field.
            symbol, separator, field = line.rstrip().rpartition(" ")
            overwrite = field == OVERWRITE_FLAG
            if overwrite:
                symbol, separator, field = symbol.rpartition(" ")
            digits = field.removeprefix("-")
            if not separator or not digits.isdecimal() or len(digits) > MAX_COUNT_DIGITS:
                raise DataError(
                    f"{origin}:{number}: expected '<symbol> <count>', found {line[:60]!r}; "
                    "is this a fairseq dictionary?"
                )
            if symbol in dictionary and not overwrite:
                raise DataError(
                    f"{origin}:{number}: the symbol '{symbol}' stands twice; remove one line, or "
                    f"write '{OVERWRITE_FLAG}' after the count of the second"
                )
            dictionary._append(symbol, int(field))
        return dictionary

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Dictionary":
        """Read a ``dict.xx.txt`` (DataError: it is missing, not UTF-8 or not a dictionary)."""
        try:
            with reporting(f"{path}: cannot read the dictionary"):
                text = plain_file(path).read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}: not a UTF-8 dictionary (byte {error.start}); make it again with "
                "relu-nmt-preprocess"
            ) from error
        return cls.from_text(text, str(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a ``dict.xx.txt`` atomically."""
        write_lines(path, split_lines(self.to_text()))
