"""Sentences of paragraphs: cut by the package sentencex, and joined by the rules of a language."""

import re
from collections.abc import Callable, Iterable

from relu_nmt.errors import MissingExtraError, needing
from relu_nmt.tokenization.base import SURROGATE

INSTALL_SPLITTER = "pip install 'relu-nmt[sentences]'"
_QUOTES = "\"'„“”»«‚‘’("
# Ends of a part after which the sentence goes on: an initial, or a number of up to two digits.
_GOES_ON = re.compile(r"(?:^|[\s(])(?:[^\W\d_]|\d{1,2})\.\s*$")
# An end of a sentence with words on both sides.
_SEVERAL = re.compile(rf"\w[.!?…][{_QUOTES})]*\s+[{_QUOTES}]*\w|[。！？].")

CHINESE = "zh zho chi cmn yue wuu gan hak nan hsn cdo cjy cpx czh czo mnp lzh cn"
JAPANESE = "ja jpn jp"
"""Codes of the languages in ISO 639, of two or three letters, and the common cn and jp."""
_TOKENIZED = re.compile(r"[^\x00-\x7f] [^\x00-\x7f]")


class SentenceSplitter:
    """Cuts paragraphs into sentences. A blank paragraph has none.

    The language decides on abbreviations and quotes. Languages that the library does not know get
    rules that suit many. Paragraphs are not cut where a boundary is in doubt: behind an initial or
    an ordinal number, and before a small letter.

    Args:
        language: code of the language.
        is_required: a missing library is an error. Otherwise paragraphs then stay whole.

    Attributes:
        note: says what to install, once a paragraph that stays whole looks like several sentences.
    """

    def __init__(self, language: str, is_required: bool = True) -> None:
        self.language = language
        self.note = ""
        self._segment: Callable[[str, str], list[str]] | None = None
        try:
            with needing(f"--split-sentences needs the package sentencex: {INSTALL_SPLITTER}"):
                from sentencex import segment
        except MissingExtraError:
            if is_required:
                raise
        else:
            self._segment = segment

    def __call__(self, text: str) -> list[str]:
        """Return the sentences of a paragraph."""
        if SURROGATE.search(text):  # which the pipeline refuses
            return [text]
        if self._segment is None:
            if _SEVERAL.search(text):
                self.note = (
                    "NOTE: a line of several sentences is translated as one, which gives worse "
                    f"translations; {INSTALL_SPLITTER} to have it split"
                )
            return [text] if text.strip() else []
        has_capitals = text.strip(f"{_QUOTES} ")[:1].isupper()
        sentences: list[str] = []
        for part in self._segment(self.language, text):
            is_small = has_capitals and part.lstrip(_QUOTES)[:1].islower()
            if sentences and (is_small or _GOES_ON.search(sentences[-1])):
                sentences[-1] += part
            else:
                sentences.append(part)
        return [*filter(None, map(str.strip, sentences))]


def join_texts(sentences: Iterable[str], language: str) -> str:
    """Join sentences to one text, leaving out blank ones.

    In Chinese and Japanese a space stands only between two ASCII characters, unless the text is
    tokenized. A text is tokenized if most sentences have a space between two other characters.
    The sentences have no spaces around them. The code may be ``zh``, ``zh_TW``, ``zho_Hans``...

    Example:
        >>> join_texts(["我来。", "你好。"], "zh_CN"), join_texts(["Ja.", "", "Gut."], "de")
        ('我来。你好。', 'Ja. Gut.')
    """
    # Keep the language of the code, which may name region and script.
    code, *further = re.split("[^a-z]", language.lower())
    has_spaces = code not in f"{CHINESE} {JAPANESE}".split() or "latn" in further
    texts = list(filter(None, sentences))
    num_tokenized = len(list(filter(_TOKENIZED.search, texts)))
    if has_spaces or 2 * num_tokenized > len(texts):
        return " ".join(texts)
    text = ""
    for sentence in texts:
        if text and text[-1].isascii() and sentence[0].isascii():
            text += " "
        text += sentence
    return text
