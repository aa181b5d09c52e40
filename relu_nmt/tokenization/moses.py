"""The Moses tokenizer and detokenizer, with Moses' default escaping of special characters.

Moses' own detokenizer writes the usual spaces only. So a word carries a mark if a space beside it
is unusual or unusually missing: ``l @’@ homme`` has no spaces, like ``well @-@ known``.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import ClassVar

from relu_nmt.errors import needing
from relu_nmt.tokenization.base import Tokenizer, tokenizers

with needing("the Moses tokenizer needs the package sacremoses: pip install sacremoses"):
    import sacremoses


@lru_cache(maxsize=4)
def _character_set(characters: str) -> frozenset[str]:
    return frozenset(characters)


class MosesTokenizer(Tokenizer):
    """Moses' rules, as ported to Python by sacremoses, some of whose patterns it replaces.

    Joining gives the usual spaces around punctuation, which may differ from the text:
    ``a ,b``, ``l’homme``, ``10:30`` and ``http://`` change. With ``aggressive`` hyphens between
    letters are split too, like with Moses' ``-a``, which is usual for WMT14.
    """

    package = "sacremoses"

    def __init__(self, language: str, aggressive: bool = False) -> None:
        super().__init__(language)
        self.aggressive = aggressive
        self._tokenizer = sacremoses.MosesTokenizer(language)
        self._detokenizer = sacremoses.MosesDetokenizer(language)
        # Build the sets of letters once, which sacremoses does for each word.
        letters = _character_set(self._tokenizer.IsAlpha)
        self._tokenizer.islower = _character_set(self._tokenizer.IsLower).issuperset
        self._tokenizer.isanyalpha = lambda text: not letters.isdisjoint(text)

    def split(self, text: str) -> list[str]:
        return self._tokenizer.tokenize(text, aggressive_dash_splits=self.aggressive)

    def join(self, words: Sequence[str]) -> str:
        """Return the sentence with the usual spacing."""
        return self._detokenizer.detokenize(list(words)) if words else ""

    def characters(self, text: str) -> list[str]:
        """Return each character, or the escape for it."""
        written = [self._tokenizer.escape_xml(character) for character in text]
        if self.aggressive:
            hyphen, _ = self._tokenizer.AGGRESSIVE_HYPHEN_SPLIT
            # Moses removes control characters before it looks for hyphens between letters.
            indices = []
            plain = ""
            for index, character in enumerate(text):
                if character >= " " or character.isspace():
                    indices.append(index)
                    plain += character
            for match in hyphen.finditer(plain):
                written[indices[match.end() - 1]] = "@-@"
        return written


# Marks at the start or end of a word. Moses splits both off, so that none of its words has them.
NO_SPACE = "@"
SPACE = "_"
_ESCAPES = {NO_SPACE: "&#64;", SPACE: "&#95;"}
_CONTROLS = re.compile("[\0-\x1f]+")
_APOSTROPHE = re.compile(r"(?<=[^\W\d_])’(?=[^\W\d_])")


@lru_cache(maxsize=1)
def _further_characters() -> tuple[str, str]:
    """Return combining and format characters, and letters that sacremoses may not know."""
    combining = letters = ""
    for c in map(chr, range(0x80, 0x10000)):
        kind = unicodedata.category(c)
        if kind[0] == "M" or kind == "Cf":
            combining += c
        elif (kind[0] == "L" or kind == "Nd") and unicodedata.east_asian_width(c) not in "WFH":
            letters += c
    return combining, letters


@tokenizers.register("moses")
@tokenizers.register("moses-aggressive")
class ReversibleMosesTokenizer(MosesTokenizer):
    """Moses' words with marks, from which joining restores the text.

    Unlike Moses' own, words keep combining marks, and ``’`` between letters is an apostrophe.

    Example:
        >>> moses = ReversibleMosesTokenizer("en")
        >>> moses.split("It’s »10:30«.")
        ['It', '’s', '»@', '10', ':@', '30', '@«', '.']
        >>> moses.join(moses.split("It’s »10:30«."))
        'It’s »10:30«.'
    """

    earlier = (MosesTokenizer,)
    options: ClassVar[Mapping[str, Mapping[str, bool]]] = {"moses-aggressive": {"aggressive": True}}

    def __init__(self, language: str, aggressive: bool = False) -> None:
        super().__init__(language, aggressive)
        # Let sacremoses keep combining marks with their letters.
        combining, letters = _further_characters()
        inner = self._tokenizer.IsAlnum + letters + combining
        symbol = rf"([^{inner}\s\.'\`\,\-][{combining}]*)"
        hyphen = rf"([{inner}])\-(?=[{inner}])"
        # Use functions, since the lookup of a template hashes the whole pattern.
        self._tokenizer.PAD_NOT_ISALNUM = re.compile(symbol), lambda match: f" {match[1]} "
        self._tokenizer.AGGRESSIVE_HYPHEN_SPLIT = (
            re.compile(hyphen),
            lambda match: f"{match[1]} @-@ ",
        )

    def split(self, text: str) -> list[str]:
        """Return the words of ``text``, with marks where spaces are unusual."""
        text = " ".join(_CONTROLS.sub("", " ".join(text.split())).split())
        # Take only the lengths of words from sacremoses, not their text.
        words_of_moses = self._tokenizer.tokenize(
            _APOSTROPHE.sub("'", text), aggressive_dash_splits=self.aggressive, escape=False
        )
        lengths = [1 if word == "@-@" else len(word) for word in words_of_moses]
        if sum(lengths) != len(text.replace(" ", "")):  # a placeholder of sacremoses in the text
            lengths = list(map(len, text.split()))
        words, spaces = _cut(text, lengths)
        usual = self._usual_spaces(words)
        begins = [""] * len(words)
        ends = [""] * len(words)
        for i in range(1, len(words)):
            if spaces[i] == usual[i]:
                continue
            mark = SPACE if spaces[i] else NO_SPACE
            # Put the mark on a symbol that precedes a word, else on this word.
            if _has_letters(words[i]) and not _has_letters(words[i - 1]):
                ends[i - 1] = mark
            else:
                begins[i] = mark
        escaped = self._tokenizer.escape_xml(" ".join(words)).split()
        return list(map(_marked, escaped, begins, ends))

    def join(self, words: Sequence[str]) -> str:
        """Return the sentence."""
        parts = [self._unmarked(word) for word in words]
        usual = self._usual_spaces([word for _, word, _ in parts])
        text = ""
        before = ""
        for (mark, word, after), is_usual in zip(parts, usual, strict=True):
            mark = mark or before
            if mark == SPACE or (is_usual and not mark):
                text += " "
            text += word
            before = after
        return text.strip()

    def without_marks(self, words: Sequence[str]) -> list[str]:
        """Return the words with usual spaces around them."""
        escaped = []
        for word in words:
            _, plain, _ = self._unmarked(word)
            escaped.append(_marked(self._tokenizer.escape_xml(plain), "", ""))
        return escaped

    def _usual_spaces(self, words: Sequence[str]) -> list[bool]:
        """Return True for each word before which Moses' detokenizer writes a space."""
        words = [word.replace("’", "'") if len(word) > 1 else word for word in words]
        text = self._detokenizer.detokenize(words, unescape=False)
        # Expect spaces everywhere if the detokenizer has changed the words.
        if text.replace(" ", "") != "".join(words):
            return [True] * len(words)
        return _cut(text, map(len, words))[1]

    def _unmarked(self, word: str) -> tuple[str, str, str]:
        """Return the mark at the start of a word, the word, and the mark at its end."""
        begin = end = ""
        if len(word) > 1 and word[0] in _ESCAPES:
            begin = word[0]
            word = word[1:]
        if len(word) > 1 and word[-1] in _ESCAPES:
            end = word[-1]
            word = word[:-1]
        if "&" in word:
            # Restore escaped marks first, then the escapes of Moses.
            for mark, escape in _ESCAPES.items():
                word = word.replace(escape, mark)
            word = self._detokenizer.unescape_xml(word)
        return begin, word, end


def _cut(text: str, lengths: Iterable[int]) -> tuple[list[str], list[bool]]:
    """Return the words of these lengths, and for each if a space stands before it in the text."""
    words = []
    spaces = []
    end = 0
    for length in lengths:
        spaces.append(text.startswith(" ", end))
        begin = end + spaces[-1]
        end = begin + length
        words.append(text[begin:end])
    return words, spaces


def _has_letters(word: str) -> bool:
    return any(map(str.isalnum, word))


def _marked(word: str, begin: str, end: str) -> str:
    if begin or end or len(word) > 1:
        for mark, escape in _ESCAPES.items():
            word = word.replace(mark, escape)
    return begin + word + end
