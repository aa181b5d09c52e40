"""PO files of gettext: the entries without a translation, which becomes fuzzy."""

import re
from collections.abc import Iterator
from dataclasses import replace

from relu_nmt.applications.files import formats
from relu_nmt.applications.files.document import TextFormat
from relu_nmt.applications.files.placing import Translation, Writer, rendered
from relu_nmt.applications.files.segments import Segment, Span, tagged_segment
from relu_nmt.errors import DataError

_BLOCK = re.compile(r"(?:[^\r\n]+(?:\r?\n|\Z))+")
_FIELD = re.compile(
    r'^(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)[ \t]*((?:"(?:[^"\\\n]|\\.)*"\s*)+)', re.M
)
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_FLAGS = re.compile(r"^#,.*", re.M)
_INLINE = re.compile(r"""<(?P<slash>/?)(?P<name>[A-Za-z][\w-]*)[^<>]*>|\n[ \t\n]*""")
_CHARSET = re.compile(rb"charset=([\w.-]+)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@formats.register("po")
class PoFormat(TextFormat):
    """Messages of gettext."""

    reads = frozenset({"retranslate"})
    keeps_equal = False

    def encoding(self, content: bytes) -> str:
        """Return the encoding of the header, by default UTF-8."""
        match = _CHARSET.search(content[:4096])
        declared = match[1].decode() if match else "CHARSET"
        return super().encoding(content) if declared == "CHARSET" else declared

    def segments(self, source: str) -> list[Segment]:
        """Return the entries that are not translated, in order."""
        if "msgid" not in source:
            raise DataError("it has no messages; is it a PO file?")
        blocks = _BLOCK.finditer(source)
        return [segment for block in blocks for segment in self._entry(source, block.span())]

    def _entry(self, source: str, span: Span) -> Iterator[Segment]:
        """Yield a segment for each text of an entry. The first one's span begins at its flags."""
        fields = {match[1]: match for match in _FIELD.finditer(source, *span)}
        texts = {name: _value(match[2]) for name, match in fields.items()}
        strings = [name for name in fields if name.startswith("msgstr")]
        is_done = any(texts[name] for name in strings) and not self.options.retranslate
        if not texts.get("msgid") or is_done:
            return
        flags = _FLAGS.search(source, *span)
        begin = (flags or next(iter(fields.values()))).start()
        for number, name in enumerate(strings):
            text = texts["msgid_plural" if number and "msgid_plural" in texts else "msgid"]
            segment = tagged_segment(text, (0, len(text)), _INLINE)
            end = fields[name].start() + len(fields[name][0].rstrip())
            if segment is not None:
                yield replace(segment, span=(begin, end), note=text)
                begin = end
                if number + 1 < len(strings):
                    begin = fields[strings[number + 1]].start()

    def rendered(self, segment: Segment, translation: Translation, writer: Writer) -> str:
        """Return the fields of an entry with a translation, and the flag that it is fuzzy."""
        message = tagged_segment(segment.note, (0, len(segment.note)), _INLINE)
        assert message is not None, "it had words"
        begin, end = message.span
        inner = rendered(message, translation, _MessageWriter(segment.note))
        source = writer.source(segment.span)
        *_, field = _FIELD.finditer(source)
        head = source[: field.start(2)]
        if not head.startswith("msgstr["):
            head = _with_flag(head)
        line_end = "\r\n" if "\r\n" in source else "\n"
        return head + _quoted(segment.note[:begin] + inner + segment.note[end:], line_end)


class _MessageWriter(Writer):
    """Writes a message, whose tags are spans of the message."""

    def __init__(self, message: str) -> None:
        self._message = message

    def source(self, span: Span) -> str:
        return self._message[slice(*span)]

    def text(self, text: str, style: str) -> str:
        return text


def _value(strings: str) -> str:
    """Return the text of the strings of a field."""
    text = "".join(match[1] for match in _STRING.finditer(strings))
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text)


def _quoted(text: str, line_end: str) -> str:
    """Return a text as strings, one for each of its lines."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
    lines = escaped.replace("\r", "\\r").splitlines(keepends=True)
    strings = [f'"{line}"'.replace("\n", "\\n") for line in lines]
    return line_end.join(['""', *strings] if len(strings) > 1 else strings)


def _with_flag(head: str) -> str:
    """Return the beginning of an entry with the flag ``fuzzy``."""
    first, _, _ = head.partition("\n")
    if not first.startswith("#,"):
        return f"#, fuzzy\r\n{head}" if "\r\n" in head else f"#, fuzzy\n{head}"
    return head if "fuzzy" in first else f"#, fuzzy,{head[2:]}"
