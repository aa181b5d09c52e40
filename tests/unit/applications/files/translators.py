"""Translators for tests, which need no model."""

from relu_nmt.applications.files import UNKNOWN_LANGUAGES, FileOptions, translated
from relu_nmt.applications.files.aligned_words import AlignedText, source_spans


def identity(segments):
    """Return each text as its translation."""
    return [reordered(segment, sorted) for segment in segments]


def upper(segments):
    """Return each text in capitals, except for protected words."""
    return [reordered(segment, sorted, str.upper) for segment in segments]


def backward(segments):
    """Return the words of each text in capitals, the last one first."""
    return [reordered(segment, lambda spans: spans[::-1], str.upper) for segment in segments]


def dropping(segments):
    """Return a word that is aligned to none."""
    return [AlignedText("Nichts")] * len(segments)


def reordered(segment, order, change=str):
    """Return the words of a segment in another order, each with its link."""
    protected_spans = {(entry.begin, entry.end) for entry in segment.protected}
    spans = source_spans(segment)
    text = ""
    links = []
    end_before = 0
    ordered = order(spans)
    for begin, end in ordered:
        space = segment.text[end_before:begin] if ordered == spans else " " * bool(text)
        word = segment.text[begin:end]
        if (begin, end) not in protected_spans:
            # Letters that would become several stay.
            word = "".join(change(x) if len(change(x)) == 1 else x for x in word)
        text += space
        links.append(((begin, end), (len(text), len(text) + len(word))))
        text += word
        end_before = end
    return AlignedText(text, links)


def translate(source, name, translate=upper, languages=UNKNOWN_LANGUAGES, **options):
    """Return a text translated as a file of a format."""
    options = FileOptions(**options)
    return translated(source.encode(), name, translate, options, languages).decode()
