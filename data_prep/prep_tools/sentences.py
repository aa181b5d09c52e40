"""Splitting a paragraph into sentences, the same way in every language.

The rules are few and cautious: a paragraph pair is split only where both sides split into the
same number of sentences, so a missed boundary costs little and a wrong one is mostly undone.
"""

import re

from prep_tools.letters import width

_ENGLISH = "e.g i.e etc vs cf mr mrs ms dr prof no fig figs approx resp incl max min sec vol pp al"
_GERMAN = (
    "z.b d.h u.a o.ä u.ä s.a bzw usw ggf evtl abb nr tab kap std str ca zzgl inkl exkl vgl sog "
    "bspw mio mrd engl dt bd hrsg jh geb gest jan feb mär apr jun jul aug sep sept okt nov dez"
)
_OTHERS = (
    "p.ex ex c.-à-d mm mme env p.ej ej ud uds pág núm es ecc pag sig art bijv d.w.z enz blz nl"
)
# A full stop after one of these does not end a sentence (written without the stop, lower-cased).
ABBREVIATIONS = frozenset(f"{_ENGLISH} {_GERMAN} {_OTHERS}".split())

# A mark, closing quotes or brackets, white space, and then the opening of a sentence. The marks of
# other scripts: Arabic, Urdu, Armenian, Ethiopic.
_BOUNDARY = re.compile(r"[.!?…؟۔։።፧]+[\"'”’»“)\]]*(?P<gap>\s+)(?=[\"'“„«»‘¿¡(\[]*(?P<first>\w))")
# Marks that need no space after them: Chinese and Japanese, the danda of India, Khmer, Burmese.
_WIDE_BOUNDARY = re.compile(r"[。！？．｡।॥។៕။]+[\"'”’»」』》）)]*(?P<gap>\s*)(?=[^\s।])")
_LAST_WORD = re.compile(r"[^\s(\[\"'“„«»‘/]+$")


def _ends_abbreviation(before: str) -> bool:
    """Return whether the text up to and without the full stop ends in an abbreviation."""
    match = _LAST_WORD.search(before)
    if match is None:
        return True  # a lone full stop, as in "the . and the , signs"
    word = match.group().lower()
    # "z. B." arrives as "z" and then "B": single letters never end a sentence here, other than
    # syllables ("네."). Nor do ordinals ("am 3. Oktober"), which look like sentences that end in a
    # number.
    return word in ABBREVIATIONS or (width(word) == 1 and word.isalpha()) or word.isdigit()


def split_sentences(text: str) -> list[str]:
    """Return the sentences of one paragraph, without the white space between them.

    Args:
        text: one paragraph, white space already reduced to single spaces.

    Example:
        >>> split_sentences("Click OK. The dialog (e.g. Fonts) closes! It is done.")
        ['Click OK.', 'The dialog (e.g. Fonts) closes!', 'It is done.']
    """
    cuts: list[tuple[int, int]] = []
    for match in _BOUNDARY.finditer(text):
        if match["first"].islower():
            continue
        mark_at = match.start()
        only_stop = text[mark_at : match.start("gap")].startswith(".")
        if only_stop and text[mark_at : mark_at + 2] != ".." and _ends_abbreviation(text[:mark_at]):
            continue
        cuts.append(match.span("gap"))
    for match in _WIDE_BOUNDARY.finditer(text):
        cuts.append(match.span("gap"))
    sentences = []
    begin = 0
    for end, next_begin in sorted(cuts):
        sentences.append(text[begin:end])
        begin = next_begin
    sentences.append(text[begin:])
    return list(filter(None, sentences))


def split_pair(source: str, target: str) -> list[tuple[str, str]]:
    """Split both sides of a paragraph. If the counts differ, keep it as one pair."""
    sources = split_sentences(source)
    targets = split_sentences(target)
    if len(sources) != len(targets):
        return [(source, target)]
    return list(zip(sources, targets, strict=True))
