"""Subtitles (SubRip and WebVTT). The translation of a sentence is divided among its cues."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import itemgetter

from relu_nmt.applications.files import formats
from relu_nmt.applications.files.aligned_words import AlignedText, Word, aligned_words, source_spans
from relu_nmt.applications.files.document import ReadSource, TextFormat, line_end_of
from relu_nmt.applications.files.segments import Protected, Segment, tagged_segment
from relu_nmt.errors import DataError

_TIME = r"(?:\d+:)?\d+:\d+(?:[.,]\d+)?"
_LINE = r"(?!(?:\d+[ \t]*\r?\n)?[^\r\n]*-->)[^\r\n]+(?:\r?\n|\Z)"
"""A line of text. The next cue may follow without a blank line."""
_CUE = re.compile(rf"^[ \t]*{_TIME}[ \t]*-->[ \t]*{_TIME}[^\r\n]*(?:\r?\n|\Z)((?:{_LINE})*)", re.M)
_STYLE = r"\{\\[^{}\n]*\}"
"""A tag of SubStation Alpha, which SubRip has taken over."""
_TAG = re.compile(rf"<(?P<slash>/?)(?P<name>[A-Za-z]*)[^<>\n]*>|{_STYLE}")
_TOKEN = re.compile(rf"\s*(?:<[^<>\n]*>|{_STYLE}|[^\s\u3040-\u30ff\u3400-\u9fff])+|\s*\S")
_SPEAKER = re.compile(
    rf"^[ \t]*(?:(?:<[^<>/\n][^<>\n]*>|{_STYLE})[ \t]*)*[-–—][ \t]*(?=\S)"
    r"|(?=(?P<voice><v[ \t.][^<>\n]*>))",
    re.M,
)
"""A dash, perhaps behind tags, or a tag that names the speaker."""
_END = re.compile(r"[.!?…:;♪\"”»\])。！？]$")
MOST_CUES = 6  # most cues of one sentence
MOST_SENTENCE = 1_000  # most characters of a sentence that is divided among cues
# Costs of a word that is not in its source word's cue, of an unaligned word, of an empty cue.
WRONG_PART = 1.0
UNKNOWN_PART = 0.5
EMPTY_PART = 100.0


@dataclass(frozen=True)
class Part:
    """The text of a cue or of one speaker in it, and the numbers of its source words."""

    segment: Segment
    words: range


@formats.register("subtitles")
class SubtitleFormat(TextFormat):
    """Subtitles."""

    reads = frozenset({"line_width"})

    def segments(self, source: str) -> Iterator[Segment]:
        """Return the sentences in order. The note of each is the list of its parts."""
        cues = list(_CUE.finditer(source))
        if not cues and source.strip() and not source.startswith("WEBVTT"):
            raise DataError("it has no subtitle times; is it SubRip or WebVTT?")
        return _sentences(_speeches(source, cues))

    def rendered(self, segment: Segment, translation: AlignedText, source: ReadSource) -> str:
        """Return the source from a sentence's first cue to its last cue, with translated texts."""
        parts: Sequence[Part] = segment.note
        words = aligned_words(segment, translation)
        firsts = [part.words.start for part in parts]
        cuts = divided(words, firsts, 2 * self.options.line_width)
        line_end = line_end_of(source(segment.span))
        written = ""
        position = segment.span[0]
        for part, (begin, end) in zip(parts, pairwise(cuts), strict=True):
            first, last = part.segment.span
            # Number the source words within the part. None: in another part.
            numbers: dict[int | None, int] = {word: n for n, word in enumerate(part.words)}
            part_words = [
                replace(word, source=numbers.get(word.source)) for word in words[begin:end]
            ]
            text = self.render_words(part.segment, part_words, source)
            lines = wrapped(text, self.options.line_width)
            written += source((position, first)) + line_end.join(lines)
            position = last
        return written


def _speeches(source: str, cues: Iterable[re.Match[str]]) -> Iterator[Segment | None]:
    """Yield the speeches of all cues. None comes before the speech of another speaker."""
    voice = None
    for cue in cues:
        begin, end = cue.span(1)
        for match in _SPEAKER.finditer(source, begin, end):
            if match.start() > begin:  # a speech before this one
                yield tagged_segment(source, (begin, match.start()), _TAG)
            if match["voice"] is None or match["voice"] != voice:
                yield None
            voice = match["voice"]
            begin = match.end()
        yield tagged_segment(source, (begin, end), _TAG)


def _sentences(texts: Iterable[Segment | None]) -> Iterator[Segment]:
    """Yield sentences, each of one text or several. None ends a sentence."""
    group: list[Segment] = []
    length = 0
    for text in [*texts, None]:
        if text is not None:
            length += len(text.text)
        is_long = len(group) == MOST_CUES or length > MOST_SENTENCE
        if group and (text is None or is_long or _END.search(group[-1].text)):
            yield _sentence(group)
            group = []
            length = 0 if text is None else len(text.text)
        if text is not None:
            group.append(text)


def _sentence(texts: Sequence[Segment]) -> Segment:
    """Return the texts of cues as one segment, whose note has its parts."""
    parts = []
    protected = []
    joined = ""
    num_words = 0
    for text in texts:
        first_word = num_words
        num_words += len(source_spans(text))
        parts.append(Part(text, range(first_word, num_words)))
        joined += " " if joined else ""
        for entry in text.protected:
            protected.append(Protected(len(joined) + entry.begin, len(joined) + entry.end))
        joined += text.text
    span = texts[0].span[0], texts[-1].span[1]
    return Segment(joined, span, protected=protected, note=parts)


def divided(words: Sequence[Word], firsts: Sequence[int], width: int) -> list[int]:
    """Return the cuts that divide a translation into parts, from 0 to the number of words.

    ``firsts`` are the numbers of the first source word of each part. A part should have at most
    ``width`` characters.

    Example:
        >>> words = [Word("", "A", 0), Word(" ", "B", 2), Word(" ", "C", 1), Word(" ", "D", 3)]
        >>> divided(words, [0, 2], 80)
        [0, 1, 4]
    """
    if len(firsts) == 1:
        return [0, len(words)]
    lengths = [0, *accumulate(len(word.before) + len(word.text) for word in words)]
    # best[n] is the cheapest division of the first n words: its cost and its cuts.
    best = [(0.0, [0])] + [(float("inf"), [0])] * len(words)
    for part in range(len(firsts)):
        totals = [0.0, *accumulate(_part_cost(word, part, firsts) for word in words)]
        longer = []
        for end in range(len(best)):
            choices = []
            for begin, (cost, cuts) in enumerate(best[: end + 1]):
                excess = max(0, lengths[end] - lengths[begin] - width) / 10
                cost += totals[end] - totals[begin] + excess
                if begin == end:
                    cost += EMPTY_PART
                choices.append((cost, cuts))
            cost, cuts = min(choices, key=itemgetter(0))
            longer.append((cost, [*cuts, end]))
        best = longer
    _, cuts = best[-1]
    return cuts


def _part_cost(word: Word, part: int, firsts: Sequence[int]) -> float:
    if word.source is None:
        return UNKNOWN_PART
    is_in_part = bisect_right(firsts, word.source) - 1 == part
    return 0.0 if is_in_part else WRONG_PART


def wrapped(text: str, width: int) -> list[str]:
    """Divide a text into lines of similar length, with at most ``width`` characters, tags apart.

    Example:
        >>> wrapped("Das ist <i>ein</i> Haus am See", 16)
        ['Das ist <i>ein</i>', 'Haus am See']
    """
    tokens = [match[0] for match in _TOKEN.finditer(text)]
    lines = _filled(tokens, width)
    for narrower in range(width - 1, 1, -1):
        narrower_lines = _filled(tokens, narrower)
        if len(narrower_lines) > len(lines):
            break
        lines = narrower_lines
    return lines


def _filled(tokens: Sequence[str], width: int) -> list[str]:
    lines = [""]
    for token in tokens:
        longer = (lines[-1] + token).lstrip()
        if lines[-1] and len(_TAG.sub("", longer)) > width:
            lines.append(token.lstrip())
        else:
            lines[-1] = longer
    return lines
