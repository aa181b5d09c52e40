"""The text of each target symbol, and the rule where words begin and end.

Forced and banned terms are whole words of a translation. A word ends where a space, punctuation or
the end of the sentence follows a letter. Scripts without spaces have no words here: a term may
stand anywhere in them.
"""

import itertools
import re
import unicodedata
from bisect import bisect
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache

import numpy as np

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.tokenization.pipeline import TextPipeline

# Characters of scripts without spaces between words: Thai and Lao, Burmese, Khmer, kana, Chinese.
WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
_SPACES = re.compile(r"\s+")
_INSIDE_WORDS = "\u00ad\u200c\u200d"  # soft hyphen and joiners
END = "\n"  # end of a symbol's text. The next symbol decides whether a word ends there.


@lru_cache(maxsize=65536)
def is_letter(character: str) -> bool:
    """Return whether a character forms words with its neighbors, as letters and digits do."""
    if WITHOUT_SPACES.match(character):
        return False
    # A single byte of a character stands as a surrogate.
    is_mark = unicodedata.category(character)[0] == "M"
    is_byte = "\udc80" <= character <= "\udcff"
    return character.isalnum() or is_mark or is_byte or character in _INSIDE_WORDS


def compact(text: str) -> str:
    """Return a text with single spaces, and without spaces beside punctuation.

    A detokenizer decides on the spaces beside punctuation.

    Example:
        >>> compact(" don 't  say "), compact(" ( a )")
        (" don't say ", '(a)')
    """
    text = _SPACES.sub(" ", text)

    def space(match: re.Match[str]) -> str:
        begin, end = match.span()
        neighbors = text[max(begin - 1, 0) : begin] + text[end : end + 1]
        return " " if all(map(is_letter, neighbors)) else ""

    return re.sub(" ", space, text) if " " in text else text


def without_case(text: str) -> str:
    """Return a text in lower case. Both small sigmas of Greek are one letter."""
    return text.lower().replace("ς", "σ")


class SearchedTexts:
    """Texts of symbols [V], which are searched as one string.

    Example:
        >>> texts = SearchedTexts([" man", "y", "a mad"])
        >>> list(texts.find("ma"))
        [(0, ' ', 'n'), (2, ' ', 'd')]
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = list(texts)
        self._all = END + "".join(text + END for text in self.texts)
        # The index at which each text begins.
        sizes = [len(text) + 1 for text in self.texts]
        self._begins = [0, *itertools.accumulate(sizes)]

    def find(self, part: str) -> Iterator[tuple[int, str, str]]:
        """Yield each symbol with the part (which may begin with END), and the characters around."""
        begin = self._all.find(part)
        while begin >= 0:
            end = begin + len(part)
            symbol = bisect(self._begins, end - 1) - 1
            yield symbol, self._all[max(begin - 1, 0)], self._all[end]
            begin = self._all.find(part, begin + 1)


class SymbolTexts:
    """The text that each target symbol adds to a translation, in the form of :func:`compact`.

    A space stands where a symbol begins or ends a word. Symbols that end sentences are a space.
    """

    def __init__(self, text: TextPipeline, symbols: Dictionary, separator: int = -1) -> None:
        self.text = text
        self._symbols = symbols
        self._separator = separator

    @cached_property
    def exact(self) -> SearchedTexts:
        """The texts in their own case."""
        symbols = self._symbols
        texts = [self.text.subword.text_of(symbols[i]) for i in range(len(symbols))]
        texts[symbols.bos_index] = texts[symbols.pad_index] = ""
        texts[symbols.eos_index] = " "
        if self._separator >= 0:
            texts[self._separator] = " "
        return SearchedTexts(map(compact, texts))

    @cached_property
    def in_lower_case(self) -> SearchedTexts:
        """The texts in lower case."""
        return SearchedTexts(map(without_case, self.exact.texts))

    @cached_property
    def continues(self) -> np.ndarray:
        """True for symbols that go on with an open word, bool [V]."""
        return np.array([text == "" or is_letter(text[0]) for text in self.exact.texts])

    @cached_property
    def stays_open(self) -> np.ndarray:
        """True for symbols whose last word may go on in the next symbol, bool [V]."""
        return np.array([text != "" and is_letter(text[-1]) for text in self.exact.texts])

    def spellings(self, term: str, match_case: bool) -> set[str]:
        """Return a term's compact texts, as typed and as written by the model (DataError)."""
        self.text.words(term)  # refuses a term that is no text
        cases = [term]
        if not match_case:  # other cases may need other symbols, such as single bytes
            cases += [term.lower(), term.upper()]
        texts = set()
        for case in cases:
            if len(case) != len(term):
                continue
            for marks in (True, False):
                pieces = self.text.encode(case, marks)
                texts.add("".join(map(self.text.subword.text_of, pieces)))
            texts.add(unicodedata.normalize("NFC", case))
            texts.add(unicodedata.normalize("NFD", case))
        if not match_case:
            texts = set(map(without_case, texts))
        return {compact(text).strip() for text in texts} - {""}
