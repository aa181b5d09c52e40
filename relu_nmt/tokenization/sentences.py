"""Sentences of paragraphs, by the package sentencex."""

import re
from collections.abc import Callable

from relu_nmt.errors import MissingExtraError, needing
from relu_nmt.tokenization.base import SURROGATE

INSTALL_SPLITTER = "pip install 'relu-nmt[sentences]'"
_QUOTES = "\"'„“”»«‚‘’("
# Ends of a part after which the sentence goes on: an initial, or a number of up to two digits.
_GOES_ON = re.compile(r"(?:^|[\s(])(?:[^\W\d_]|\d{1,2})\.\s*$")
# An end of a sentence with words on both sides.
_SEVERAL = re.compile(rf"\w[.!?…][{_QUOTES})]*\s+[{_QUOTES}]*\w|[。！？].")


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
