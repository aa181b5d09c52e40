"""Text reduced to its letters, so that lines of every script are compared in the same way."""

import re
import unicodedata

SPACELESS = (
    # Thai, Lao, Tibetan, Burmese, Khmer and their relatives
    "\u0e00-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\ua9e0-\ua9ff\uaa60-\uaa7f"
    # Chinese and Japanese, with their punctuation, and Yi
    "\u2e80-\u312f\u3190-\ua4cf\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Scripts that put no spaces between words: ranges for a set of a regular expression."""
_SPACELESS = re.compile(f"[{SPACELESS}]")
_IDEOGRAPH = re.compile(
    "[\u2e80-\u2fdf\u3005\u3007\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_SYLLABLE = re.compile("[\u3041-\u30ff\u31f0-\u31ff\ua000-\ua4cf\uac00-\ud7a3\uff66-\uff9f]")
# Scripts that leave vowels out, or whose letters have one in them: Hebrew, Arabic, those in India,
# Ethiopia, Thailand and their neighbors, and kana.
_SHORT_WORDS = re.compile(
    "[\u05d0-\u06ff\u0750-\u077f\u0900-\u109f\u1200-\u139f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf"
    "\u3041-\u30ff\u31f0-\u31ff\ua000-\ua4cf\ua9e0-\ua9ff\uaa60-\uaa7f]"
)
# Vowel points of Arabic and Hebrew, which are mostly left out, and variants of emoji.
_OPTIONAL_MARK = re.compile(
    "[\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\ufe00-\ufe0f]"
)
_TATWEEL = "\u0640"  # makes Arabic words longer and means nothing
_DIGITS = re.compile("0+")


def _weight(character: str) -> int:
    """Return the number of copies of a character that gives words of all scripts similar lengths.

    Hangul needs no weight, since its syllables come decomposed into letters.
    """
    if _IDEOGRAPH.match(character):
        return 4
    return 2 if _SHORT_WORDS.match(character) and character.isalpha() else 1


class _Table(dict[int, str | None]):
    """The replacement of each code point of decomposed text, for ``str.translate``.

    Args:
        spaced: put a space for punctuation and before characters of scripts without spaces.
            Otherwise spaces are removed, and characters are repeated by their weight.
    """

    def __init__(self, spaced: bool) -> None:
        self._spaced = spaced

    def __missing__(self, code: int) -> str | None:
        character = chr(code)
        category = unicodedata.category(character)
        replacement: str | None = " " if self._spaced else None
        # Formats and frames, as around the number of a key, are no part of a word.
        if category in ("Cf", "Me") or _OPTIONAL_MARK.match(character) or character == _TATWEEL:
            replacement = None
        elif category[0] == "N" and not _IDEOGRAPH.match(character):
            replacement = "0"
        elif category[0] in "LMN":
            replacement = character if self._spaced else character * _weight(character)
            if self._spaced and category[0] != "M" and _SPACELESS.match(character):
                replacement = " " + character
        self[code] = replacement
        return replacement


_LETTERS = _Table(spaced=False)
_WORDS = _Table(spaced=True)


def _decomposed(text: str) -> str:
    """Return the text without case and decomposed: marks follow letters, wide forms are plain."""
    return unicodedata.normalize("NFKD", text).casefold()


def letters(text: str) -> str:
    """Return the text without differences that copies may have.

    These are case, punctuation, spaces, numbers, optional marks and compatible forms of a
    character. In scripts with short words each character is repeated.

    Example:
        >>> letters("See “Table 12”, page 3!"), letters("天の川")
        ('seetable0page0', '天天天天のの川川川川')
    """
    return _DIGITS.sub("0", _decomposed(text).translate(_LETTERS))


def has_letters(text: str) -> bool:
    """Return False for a line of numbers, punctuation or emoji alone.

    All such lines look alike to :func:`letters`, so they are to be compared whole.

    Example:
        >>> has_letters("12 m"), has_letters("12 €"), has_letters("🙂!")
        (True, False, False)
    """
    return bool(letters(text).strip("0"))


def whole_text(text: str) -> str:
    """Return a line without letters in the form in which it is compared.

    Example:
        >>> whole(" １２  … ")
        '12 ...'
    """
    return " ".join(_OPTIONAL_MARK.sub("", unicodedata.normalize("NFKC", text)).split())


def words(text: str) -> list[str]:
    """Return the words of a text, or the characters with marks in scripts without spaces.

    Example:
        >>> words("Die “Tür” 12"), words("你好。")
        (['die', 'tür', '0'], ['你', '好'])
    """
    return _DIGITS.sub("0", _decomposed(text).translate(_WORDS)).split()


def width(text: str) -> int:
    """Return the length of a text in letters of an alphabet.

    An ideograph counts as three letters, a syllable as two.

    Example:
        >>> width("Wetter"), width("天気")
        (6, 6)
    """
    return len(text) + 2 * len(_IDEOGRAPH.findall(text)) + len(_SYLLABLE.findall(text))


def plain_digits(text: str) -> str:
    """Return the text with the digits of all scripts as 0 to 9. Its length stays.

    Example:
        >>> plain_digits("१२ ٣ ４")
        '12 3 4'
    """
    if text.isascii():
        return text
    return "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)
