"""Recognition of files that are no plain text: documents, archives, pictures, and text with markup.

The content decides, not the name. Text may mention markup: a single sign of it is not enough where
a sentence may begin with it.
"""

import json
import re
from collections.abc import Sequence

from relu_nmt.errors import DataError

MOST_LINES = 200  # most lines to look at
NUL_SHARE = 1 / 32  # least share of bytes 0 in UTF-16: spaces and line ends have one each
ARCHIVE = "decompress it first, or give the file its usual name, such as text.gz"
PICTURE = "give the text that it shows"
PANDOC = "convert it to plain text first, for example with pandoc -t plain --wrap=none"
DOCUMENT = f"relu-nmt-translate-document reads .docx, .odt and .epub by their names; or {PANDOC}"
BINARY = "it is no text, but binary data; give plain text in UTF-8"
# First bytes of files, their kind, and the way to plain text.
SIGNATURES: tuple[tuple[bytes, str, str], ...] = (
    (b"PK\x03\x04", "a document of Word, OpenOffice or EPUB, or a ZIP archive", DOCUMENT),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a document of an old Office", "save it as plain text"),
    (b"%PDF-", "a PDF", "convert it to plain text first, for example with pdftotext"),
    (b"%!PS", "PostScript", "convert it to plain text first, for example with ps2ascii"),
    (b"{\\rtf", "an RTF document", PANDOC),
    (b"\x1f\x8b\x08", "compressed by gzip", ARCHIVE),
    (b"BZh91AY&SY", "compressed by bzip2", ARCHIVE),
    (b"\xfd7zXZ\x00", "compressed by xz", ARCHIVE),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", ARCHIVE),
    (b"\x89PNG", "a PNG picture", PICTURE),
    (b"\xff\xd8\xff", "a JPEG picture", PICTURE),
    (b"\xff\xfe", "UTF-16", "convert it first: iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "UTF-16", "convert it first: iconv -f UTF-16 -t UTF-8"),
)

# Kinds of markup, and the formats of relu-nmt-translate-document that read them.
FORMATS = {
    "subtitles (SubRip or WebVTT)": "subtitles",
    "subtitles (WebVTT)": "subtitles",
    "HTML or XML": "html",
    "a PO file of messages": "po",
}

_TIME = r"(\d+:)?\d\d?:\d\d[.,]\d+"
_TIME_LINE = re.compile(rf"{_TIME}\s*(-->|,)\s*{_TIME}(\s.*)?")
_TIME_BEFORE = re.compile(rf"\[{_TIME}\]|\{{\d+\}}\{{\d+\}}|Dialogue: \d+,{_TIME},")
_LYRICS_TAG = re.compile(r"\[(al|ar|au|by|length|offset|re|ti|ve):[^\]]*\]")
# Elements that may begin a sentence, beside all elements of a single letter.
_INLINE = r"(?!(?:br|code|em|font|img|mark|ph|small|span|strong|sub|sup|term|tt)\b)"
_MARKUP = re.compile(
    r"<(?:!DOCTYPE\s|\?xml\s|!--|(?:html|head|body|div|p|table|ul|ol|h[1-6]|section|svg)\b[^<>]*>"
    rf"|{_INLINE}[a-z][\w:.-]+\s+[\w:-]+\s*=\s*[\"'])",
    re.IGNORECASE,
)
_ROOT = re.compile(rf"<{_INLINE}([A-Za-z][\w:.-]+)>")
_LATEX = re.compile(r"\\document(class|style)(\[.*\])?\{")
_JSON_KEY = re.compile(r'[\[{\s]*"([^"\\]|\\.)*"\s*:')
_JSON_VALUE = re.compile(r'[\[{]|("([^"\\]|\\.)*"|[-+.\w]*)[\]},]*$')


def refuse_binary(data: bytes, path: str) -> None:
    """Refuse the first bytes of a text if another kind of file begins so (DataError)."""
    for signature, kind, advice in SIGNATURES:
        if data.startswith(signature):
            raise DataError(f"{path}: it is {kind}, not plain text in UTF-8; {advice}")


def refuse_utf16(data: bytes, path: str) -> None:
    """Refuse UTF-16 without a byte-order mark, which UTF-8 reads with NULs (DataError)."""
    if data.count(0) <= max(1, NUL_SHARE * len(data)):  # one NUL may be a slip of the keyboard
        return
    num_odd = data[1::2].count(0)
    num_even = data[::2].count(0)
    if max(num_odd, num_even) < 4 * min(num_odd, num_even):
        raise DataError(f"{path}: {BINARY}")
    name = "UTF-16LE" if num_odd > num_even else "UTF-16BE"
    raise DataError(
        f"{path}: it looks like {name}, not plain text in UTF-8; convert it first: "
        f"iconv -f {name} -t UTF-8"
    )


def refuse_markup(lines: Sequence[str], origin: str) -> None:
    """Refuse text of a file with markup, of which only a part is to be translated (DataError)."""
    kind = markup_kind(lines)
    if kind is not None:
        advice = "take its text out first, a sentence or paragraph a line"
        if kind in FORMATS:
            advice = f"relu-nmt-translate-document --format {FORMATS[kind]} translates its text"
        raise DataError(
            f"{origin}: it looks like {kind}, not plain text, and its markup would be translated; "
            f"{advice}"
        )


def markup_kind(lines: Sequence[str]) -> str | None:
    """Return the kind of markup in the first lines of a text, or None for plain text.

    Example:
        >>> markup_kind(["1", "00:00:01,000 --> 00:00:02,500", "Hello."])
        'subtitles (SubRip or WebVTT)'
        >>> markup_kind(["{Hello}", "<b>There</b> is a file."])
    """
    filled = list(filter(None, map(str.strip, lines[:MOST_LINES])))
    if not filled:
        return None
    first = filled[0]
    last = filled[-1]
    has_times = any(map(_TIME_LINE.fullmatch, filled))
    # Plain text may show a line of times, but does not begin with it.
    if first == "WEBVTT" or any(map(_TIME_LINE.fullmatch, filled[:2])):
        return "subtitles (SubRip or WebVTT)"
    if first.startswith("WEBVTT") and has_times:
        return "subtitles (WebVTT)"
    timed = [line for line in filled if not _LYRICS_TAG.fullmatch(line)]
    if first == "[Script Info]" or (timed and all(map(_TIME_BEFORE.match, timed))):
        return "subtitles or lyrics with times"
    # Plain text may begin with a tag, but does not continue or end with tags.
    num_tags = sum(line.startswith("<") for line in filled[1:])
    if _MARKUP.match(first) and (last.endswith(">") or 4 * num_tags >= len(filled)):
        return "HTML or XML"
    root = _ROOT.match(first)
    if root is not None and num_tags > 1 and last.endswith(f"</{root[1]}>"):
        return "XML"
    text = "\n" + "\n".join(filled)
    if '\nmsgid "' in text and "\nmsgstr" in text:
        return "a PO file of messages"
    if any(map(_LATEX.match, filled)):
        return "LaTeX"
    return "JSON" if first[0] in "[{" and _is_json(filled) else None


def _is_json(lines: Sequence[str]) -> bool:
    """Return True for a JSON object or list with texts, or for one of these on each line."""
    if _is_value("\n".join(lines)) or all(map(_is_value, lines)):
        return True
    # If the end of a long text is missing, look at each line.
    is_key = [_JSON_KEY.match(line) is not None for line in lines]
    pairs = zip(is_key, lines, strict=True)
    return any(is_key) and all(has_key or _JSON_VALUE.match(line) for has_key, line in pairs)


def _is_value(text: str) -> bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict | list) and '"' in text
