"""The Moses tokeniser and detokeniser, with Moses' default escaping of special characters."""

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

from relu_nmt.errors import MissingExtraError
from relu_nmt.tokenization.base import Tokenizer, tokenizers

try:
    import sacremoses
except ImportError as missing:
    raise MissingExtraError(
        "the Moses tokenizer needs the package sacremoses: pip install sacremoses"
    ) from missing


@lru_cache(maxsize=4)
def _character_set(characters: str) -> frozenset[str]:
    return frozenset(characters)


class _FastMosesTokenizer(sacremoses.MosesTokenizer):
    """sacremoses makes a set of all letters of Unicode anew for every abbreviation; here once."""

    def islower(self, text: str) -> bool:
        return _character_set(self.IsLower).issuperset(text)

    def isanyalpha(self, text: str) -> bool:
        return not _character_set(self.IsAlpha).isdisjoint(text)


@tokenizers.register("moses")
class MosesTokenizer(Tokenizer):
    """Moses' rules, as ported to Python by sacremoses.

    Back and forth gives the same sentence where spaces stand as usual around punctuation; text
    such as ``a ,b`` comes back in the usual spacing.

    Args:
        language: chooses abbreviations and apostrophe rules; English for unknown ones.

    Attributes:
        aggressive: split hyphens between letters too (Moses' ``-a``).

    Example:
        >>> moses = MosesTokenizer("en")
        >>> moses.split("It's a dog.")
        ['It', '&apos;s', 'a', 'dog', '.']
        >>> moses.join(['It', '&apos;s', 'a', 'dog', '.'])
        "It's a dog."
    """

    package = "sacremoses"
    aggressive: ClassVar[bool] = False

    def __init__(self, language: str) -> None:
        super().__init__(language)
        self._tokenizer = _FastMosesTokenizer(language)
        self._detokenizer = sacremoses.MosesDetokenizer(language)

    def split(self, text: str) -> list[str]:
        """Return the words of ``text``."""
        return self._tokenizer.tokenize(text, aggressive_dash_splits=self.aggressive)

    def join(self, words: Sequence[str]) -> str:
        """Return the sentence with the usual spacing."""
        return self._detokenizer.detokenize(list(words)) if words else ""

    def written(self, text: str) -> list[str]:
        """Return each character, or the escape for it."""
        written = [self._tokenizer.escape_xml(character) for character in text]
        if self.aggressive:
            hyphen, _ = self._tokenizer.AGGRESSIVE_HYPHEN_SPLIT
            # Moses leaves control characters out before it looks for hyphens between letters.
            kept = [place for place, own in enumerate(text) if own >= " " or own.isspace()]
            for match in hyphen.finditer("".join(text[place] for place in kept)):
                written[kept[match.end() - 1]] = "@-@"
        return written


@tokenizers.register("moses-aggressive")
class AggressiveMosesTokenizer(MosesTokenizer):
    """Moses with ``-a``, as usual for WMT14."""

    aggressive = True
