"""What speaks against two texts being translations of each other."""

import re
from collections import Counter

# Short texts may differ more: "OK" and "In Ordnung".
LARGEST_RATIO = 2.8
LEEWAY_CHARACTERS = 12
# Frequent in English, and no words of the other languages that manuals are translated into.
_ENGLISH_WORDS = (
    "the of and to is that with for this are you be not it by from which used when should "
    "have your if then than they these those there their would can"
)
_ENGLISH = frozenset(_ENGLISH_WORDS.split())
_WORD = re.compile(r"[^\W\d_]+")
_NUMBER = re.compile(r"\d+(?:[.,\u00a0\u202f]\d+)*")
_NOT_DIGIT = re.compile(r"\D")
_OPTION = re.compile(r"(?<![\w-])--[A-Za-z][\w-]*|(?<!\S)-[A-Za-z](?!\w)")
_IDENTIFIER = re.compile(r"\w+(?=\(\d?\))|[A-Za-z]\w*_\w+")


def _numbers(text: str) -> Counter[str]:
    """Count the numbers with at least two digits: smaller ones are often written as words."""
    digits = (_NOT_DIGIT.sub("", match) for match in _NUMBER.findall(text))
    return Counter(number for number in digits if len(number) > 1)


def lengths_differ(source: str, target: str) -> bool:
    """Say whether one text is too long for a translation of the other."""
    short, long = sorted((len(source), len(target)))
    return long > LARGEST_RATIO * short + LEEWAY_CHARACTERS


def _is_untranslated(translation: str, english: str) -> bool:
    words = _WORD.findall(translation.lower())
    originals = set(_WORD.findall(english.lower()))
    if not words:
        return False
    function_words = sum(word in _ENGLISH for word in words)
    if function_words >= 2 and function_words / len(words) >= 0.12:
        return True
    same = sum(word in originals for word in words)
    return len(words) >= 5 and same / len(words) >= 0.75


def reason_to_drop(translation: str, english: str) -> str | None:
    """Return why this pair is of no use, or None if it is.

    Args:
        translation: text in another language than English.
        english: its original.

    Example:
        >>> reason_to_drop("Siehe ls(1), Option -a.", "See ls(1), option --all.")
        'options or identifiers differ'
    """
    if translation == english:
        return "equal on both sides"
    if not _WORD.search(translation) or not _WORD.search(english):
        return "without letters"
    if lengths_differ(translation, english):
        return "lengths differ too much"
    if _is_untranslated(translation, english):
        return "still in English"
    if _numbers(translation) != _numbers(english):
        return "numbers differ"
    for pattern in (_OPTION, _IDENTIFIER):
        if Counter(pattern.findall(translation)) != Counter(pattern.findall(english)):
            return "options or identifiers differ"
    return None
