"""The tokeniser of BLEU that suits the language of translations."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from relu_nmt.errors import ConfigError
from relu_nmt.evaluation.bleu import DEFAULT_TOKENIZER, MetricConfig

# By ISO 639 codes of two and three letters; cn and jp are none, but common.
CODES = {
    "zh": "zh zho chi cmn yue wuu gan hak nan hsn cdo cjy cpx czh czo mnp lzh cn",
    "ja-mecab": "ja jpn jp",
    "ko-mecab": "ko kor",
    "char": "th tha lo lao km khm my mya bur bo bod tib dz dzo shn mnw rki blk ksw nod khb tdd",
}
"""Languages that sacreBLEU's 13a does not suit: nearly all have no spaces between words."""
SCRIPTS = {
    DEFAULT_TOKENIZER: "latn cyrl",
    "zh": "hans hant hani",
    "ja-mecab": "jpan hrkt hira kana",
    "ko-mecab": "kore hang",
    "char": "thai laoo khmr mymr tibt lana talu tale java bali",
}
"""The same by ISO 15924 codes, which count more where a language has one."""
INSTEAD = {"ja-mecab": "char", "ko-mecab": DEFAULT_TOKENIZER}
"""What takes the place of a tokeniser whose package is not installed."""
LONGEST_WORDS = 15
"""Mean characters of a word above which a text has hardly any spaces."""


@dataclass(frozen=True)
class ChosenTokenizer:
    """A tokeniser of BLEU, and why.

    Args:
        name: as ``--sacrebleu-tokenizer`` takes it.
        note: one line for the user; empty if there is nothing to tell.
        has_spaces: the language has spaces between words.
    """

    name: str
    note: str
    has_spaces: bool


def recommended_tokenizer(language: str) -> str:
    """Return the tokeniser that sacreBLEU's documentation recommends for a language.

    Args:
        language: ``zh``, ``zh-CN``, ``zh_TW``, ``zho_Hans``, ``cmn``...

    Reference: README of sacreBLEU 2.6. It recommends zh, ja-mecab and ko-mecab for their languages
    and 13a for others. For other languages without spaces char is the one that needs no network.

    Example:
        >>> [recommended_tokenizer(code) for code in ("de", "zh_TW", "jpn_Jpan", "tha", "zh-Latn")]
        ['13a', 'zh', 'ja-mecab', 'char', '13a']
    """
    code, *further = re.split(r"[^a-z]", language.lower())
    for wanted, table in [*((part, SCRIPTS) for part in further), (code, CODES)]:
        for name, codes in table.items():
            if wanted in codes.split():
                return name
    return DEFAULT_TOKENIZER


def choose_tokenizer(language: str, references: Sequence[str]) -> ChosenTokenizer:
    """Return the tokeniser for a language, or the next best if its package is not installed.

    Args:
        language: its code; empty if it is unknown.
        references: a text with hardly any spaces is told of if the language is said to have some.
    """
    name = wanted = recommended_tokenizer(language)
    note = f"BLEU of {language} uses the tokeniser {name}" if name != DEFAULT_TOKENIZER else ""
    if wanted in INSTEAD:
        try:
            MetricConfig(tokenize=wanted).build()
        except ConfigError:
            name, package = INSTEAD[wanted], f"sacrebleu[{wanted[:2]}]"
            note = f"BLEU of {language} uses the tokeniser {name}; for {wanted} install '{package}'"
    elif wanted == DEFAULT_TOKENIZER:
        lengths = [len(word) for line in references for word in line.split()]
        if sum(lengths) > LONGEST_WORDS * len(lengths):
            note = "the references have hardly any spaces; --sacrebleu-tokenizer char suits them"
    return ChosenTokenizer(name, note, wanted in (DEFAULT_TOKENIZER, "ko-mecab"))
