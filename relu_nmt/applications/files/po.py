"""PO files of gettext. Entries without a translation get one, which is marked as fuzzy."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from relu_nmt.applications.files import formats
from relu_nmt.applications.files.aligned_words import AlignedText
from relu_nmt.applications.files.document import ReadSource, TextFormat, line_end_of
from relu_nmt.applications.files.html import tag_pattern
from relu_nmt.applications.files.segments import KEPT_SPACE, Segment, Span, tagged_segment
from relu_nmt.errors import DataError

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_CONTENT = r'[^"\\\n]*(?:\\.[^"\\\n]*)*'
"""Content of a string. An alternative per character would take the matcher much memory."""
_FIELD = re.compile(
    rf'^(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)[ \t]*((?:"{_CONTENT}"\s*)+)', re.M
)
_STRING = re.compile(f'"({_CONTENT})"')
_FLAGS = re.compile(r"^#,.*", re.M)
_INLINE = re.compile(
    rf"{tag_pattern('<', '>')}|{KEPT_SPACE.pattern}|\x1b\[[\d;]*m|[\x00-\x1f\udc80-\udcff]"
)
"""Tags of HTML, white space that stays, colors of a terminal, control characters and bytes."""
_HEADER = re.compile(r'^msgid[ \t]+""\s*^msgstr[ \t]+(?:""\s*)*"(?!")', re.M)
"""The header, up to its first character."""
_LANGUAGE = re.compile(rf'(?:{_CONTENT}"\s*")*?(?:{_CONTENT}\\n)?Language:[ \t]*([\w@.-]*)\\n')
"""The header behind its first mark, up to its language."""
_NUM_FORMS = re.compile(r"Plural-Forms:[ \t]*nplurals[ \t]*=[ \t]*([1-9])\b")
_ESCAPE = re.compile(r"(?:\\(?:[abfnrtv]|[0-3]?[0-7]{1,2}|x[\da-fA-F]{2}))+|\\(.)")
_ESCAPES = {code: f"\\{code:03o}" for code in range(32) if chr(code) != "\n"}
_ESCAPES |= {0xDC00 + code: f"\\{code:03o}" for code in range(128, 256)}  # bytes of no character
_ESCAPES |= {
    code: f"\\{letter}" for code, letter in zip(b'\a\b\t\v\f\r"\\', 'abtvfr"\\', strict=True)
}
"""How characters are written, by their numbers. Line ends also end a string."""


@dataclass(frozen=True)
class _Message:
    """The text of a message, whose segment is ``text[words[0]:words[1]]``, and its new field."""

    text: str
    words: Span
    field: str
    line_end: str


@formats.register("po")
class PoFormat(TextFormat):
    """Messages of gettext."""

    reads = frozenset({"retranslate"})
    keeps_equal = False
    declaration = re.compile(rb"charset=([\w.-]+)")

    def encoding(self, content: bytes) -> str:
        """Return the encoding of the header, in which templates have the word CHARSET."""
        declared = super().encoding(content)
        return "utf-8" if declared == "CHARSET" else declared

    def with_languages(self, source: str) -> str:
        """Return a source whose header names the target language, unless it names another."""
        header = _HEADER.search(source)
        if header is None:
            return source
        field = _LANGUAGE.match(source, header.end())
        language = self.languages.tag.replace("-", "_")
        if field is None:
            line = f'Language: {language}\\n"{line_end_of(source)}"'
            return source[: header.end()] + line + source[header.end() :]
        if field[1]:
            language = self.languages.after_translation(field[1])
        if language != field[1]:
            begin, end = field.span(1)
            source = source[:begin] + language.replace("-", "_") + source[end:]
        return source

    def segments(self, source: str) -> Iterator[Segment]:
        """Yield the entries that are not translated, in order."""
        if "msgid" not in source:
            raise DataError("it has no messages; is it a PO file?")
        charset = self.encoding(source[:4096].encode())
        for span in _entries(source):
            yield from self._entry(source, span, charset)

    def _entry(self, source: str, span: Span, charset: str) -> Iterator[Segment]:
        """Yield a segment for each text of an entry. The first span begins at the flags."""
        fields = {match[1]: match for match in _FIELD.finditer(source, *span)}
        texts = {name: _value(match[2], charset) for name, match in fields.items()}
        strings = [name for name in fields if name.startswith("msgstr")]
        is_done = any(texts[name] for name in strings) and not self.options.retranslate
        if not texts.get("msgid") or is_done:
            return
        flags = _FLAGS.search(source, *span)
        first = flags or next(iter(fields.values()))
        begin: int | None = first.start()
        line_end = line_end_of(source[slice(*span)])
        begins = {name: match.start() for name, match in fields.items()}
        ends = {name: match.start() + len(match[0].rstrip()) for name, match in fields.items()}
        last = max(ends.values())
        header = _NUM_FORMS.search(source, 0, 4096)
        if header and "msgid_plural" in texts:
            # Insert missing forms behind the last one, and replace further ones by the last form.
            strings = [f"msgstr[{number}]" for number in range(int(header[1]))]
            ends[strings[-1]] = last
        for number, name in enumerate(strings):
            if begin is None:
                begin = begins.get(name, last)
            text = texts["msgid"]
            if number > 0 or len(strings) == 1:
                text = texts.get("msgid_plural", text)
            segment = tagged_segment(text, (0, len(text)), _INLINE)
            if segment is not None:
                note = _Message(text, segment.span, name, line_end)
                yield replace(segment, span=(begin, ends.get(name, last)), note=note)
                begin = None

    def rendered(self, segment: Segment, translation: AlignedText, source: ReadSource) -> str:
        """Return the fields of an entry with a translation, and the flag that it is fuzzy."""
        message: _Message = segment.note
        text = super().rendered(segment, translation, lambda span: message.text[slice(*span)])
        begin, end = message.words
        fields = source(segment.span)
        head = f"{fields}{message.line_end}{message.field} "
        for match in _FIELD.finditer(fields):
            if match[1] == message.field:
                head = fields[: match.start(2)]
        if "msgid" in head:
            head = _with_flag(head)
        return head + _quoted(message.text[:begin] + text + message.text[end:], message.line_end)


def _entries(source: str) -> Iterator[Span]:
    """Yield the places of the entries. An entry ends at a blank line, or where another begins."""
    begin = 0
    is_translated = False
    for line in _LINE.finditer(source):
        begins_entry = line[0].startswith(("#", "msgctxt", "msgid"))
        if not line[0].strip() or (is_translated and begins_entry):
            yield begin, line.start()
            begin = line.start()
            is_translated = False
        is_translated = is_translated or line[0].startswith("msgstr")
    yield begin, len(source)


def _value(strings: str, charset: str) -> str:
    """Return the text of strings. Bytes that are no character are surrogates."""

    def unescaped(match: re.Match[str]) -> str:
        if match[1]:
            return match[1]
        letters = match[0].encode().decode("unicode_escape")
        if letters.isascii():
            return letters
        try:
            return letters.encode("latin-1").decode(charset, "surrogateescape")
        except (LookupError, UnicodeError):  # a byte order mark tells another charset
            return letters

    text = "".join(match[1] for match in _STRING.finditer(strings))
    return _ESCAPE.sub(unescaped, text)


def _quoted(text: str, line_end: str) -> str:
    lines = text.translate(_ESCAPES).splitlines(keepends=True)
    strings = [f'"{line}"'.replace("\n", "\\n") for line in lines]
    if len(strings) > 1:
        strings.insert(0, '""')
    return line_end.join(strings)


def _with_flag(head: str) -> str:
    first, _, _ = head.partition("\n")
    if not first.startswith("#,"):
        return f"#, fuzzy{line_end_of(head)}{head}"
    return head if "fuzzy" in first else f"#, fuzzy,{head[2:]}"
