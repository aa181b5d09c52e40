"""Checks that reject pairs of texts which are no translations of each other."""

import re
from collections import Counter

from prep_tools.letters import SPACELESS, plain_digits, width, words

# Short texts may differ more: "OK" and "In Ordnung".
LARGEST_RATIO = 2.8
LEEWAY_LETTERS = 12
# Frequent in English, and no words of the other languages that manuals are translated into.
_ENGLISH_WORDS = (
    "the of and to is that with for this are you be not it by from which used when should "
    "have your if then than they these those there their would can"
)
_ENGLISH = frozenset(_ENGLISH_WORDS.split())
_LETTER = re.compile(r"[^\W\d_]")
_NUMBER = re.compile(r"\d+(?:[.,\u00a0\u202f\u066b\u066c\uff0e]\d+)*")
_NOT_DIGIT = re.compile(r"\D")
# Characters of words in scripts with spaces, so that "使用-a和--all" has two options.
_IN_WORD = rf"[^\W{SPACELESS}]"
_OPTION = re.compile(
    rf"(?<!{_IN_WORD})(?<!-)--[A-Za-z](?:{_IN_WORD}|-)*"
    rf"|(?<![^\s{SPACELESS}\uff01-\uff5e])-[A-Za-z](?!{_IN_WORD})"
)
_IDENTIFIER = re.compile(rf"{_IN_WORD}+(?=\(\d?\))|[A-Za-z]{_IN_WORD}*_{_IN_WORD}+")


def _numbers(text: str) -> Counter[str]:
    """Count the numbers with at least two digits: smaller ones are often written as words."""
    digits = (_NOT_DIGIT.sub("", match) for match in _NUMBER.findall(plain_digits(text)))
    return Counter(number for number in digits if len(number) > 1)


def lengths_differ(source: str, target: str) -> bool:
    """Return whether one text is too long for a translation of the other."""
    short, long = sorted((width(source), width(target)))
    return long > LARGEST_RATIO * short + LEEWAY_LETTERS


def _words_of_letters(text: str) -> list[str]:
    return " ".join(words(text)).replace("0", " ").split()


def _is_untranslated(translation: str, english: str) -> bool:
    translated = _words_of_letters(translation)
    if not translated:
        return False
    originals = set(_words_of_letters(english))
    function_words = sum(word in _ENGLISH for word in translated)
    if function_words >= 2 and function_words / len(translated) >= 0.12:
        return True
    same = sum(word in originals for word in translated)
    return len(translated) >= 5 and same / len(translated) >= 0.75


def reason_to_drop(translation: str, english: str) -> str | None:
    """Return why this pair is of no use, or None for a useful pair.

    Args:
        translation: text in another language than English.
        english: its original.

    Example:
        >>> reason_to_drop("Siehe ls(1), Option -a.", "See ls(1), option --all.")
        'options or identifiers differ'
    """
    if translation == english:
        return "equal on both sides"
    if not _LETTER.search(translation) or not _LETTER.search(english):
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
