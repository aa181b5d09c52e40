"""Tables with tabs, commas or semicolons between columns. One column is translated."""

import html
import re
from collections.abc import Iterator

from relu_nmt.applications.files import formats
from relu_nmt.applications.files.aligned_words import AlignedText
from relu_nmt.applications.files.document import ReadSource, TextFormat
from relu_nmt.applications.files.html import tag_pattern
from relu_nmt.applications.files.segments import KEPT_SPACE, Segment, Span, tagged_segment
from relu_nmt.errors import DataError

_QUOTED_NOTE = "quoted"
_TAG = re.compile(f"{tag_pattern('<', '>')}|{KEPT_SPACE.pattern}")
_QUOTED_CELL = re.compile(r'(?<![^,;\t\r\n])"[^"]*(?:""[^"]*)*"(?![^,;\t\r\n])')
_QUOTED = re.compile(rf'"(?P<letter>")|{_TAG.pattern}')


@formats.register("table")
class TableFormat(TextFormat):
    """Tables. The first row shows whether tabs, commas or semicolons separate the columns."""

    reads = frozenset({"column"})

    def segments(self, source: str) -> Iterator[Segment | None]:
        """Yield the texts of the column that ``--column`` names."""
        first = source.partition("\n")[0]
        bare = html.unescape(_QUOTED_CELL.sub("", source).partition("\n")[0])
        separator = "\t" if "\t" in bare else max(",;", key=bare.count)
        rows = list(_rows(source, separator))
        header = [_value(source[begin:end]) for begin, end in rows[0]]
        column = self.options.column
        number = -1
        if column.isdecimal():
            number = int(column) - 1
        if column in header:
            number = header.index(column)
            rows = rows[1:]
        if not 0 <= number < len(header):
            raise DataError(f"there is no column {column}; the first row is {first.strip()[:60]!r}")
        for row in rows:
            if number < len(row):
                begin, end = row[number]
                if _is_quoted(source[begin:end]):
                    yield tagged_segment(source, (begin + 1, end - 1), _QUOTED, _QUOTED_NOTE)
                else:
                    yield tagged_segment(source, (begin, end), _TAG, separator)

    def text(self, text: str, style: str, segment: Segment) -> str:
        """Return translated text with doubled quotes in a cell with quotes."""
        return text.replace('"', '""') if segment.note == _QUOTED_NOTE else text

    def rendered(self, segment: Segment, translation: AlignedText, source: ReadSource) -> str:
        """Return the text of a cell, in quotes where it needs them."""
        text = super().rendered(segment, translation, source)
        if segment.note != _QUOTED_NOTE and (segment.note in text or text.startswith('"')):
            doubled = text.replace('"', '""')
            return f'"{doubled}"'
        return text


def _is_quoted(cell: str) -> bool:
    return len(cell) > 1 and cell.startswith('"') and cell.endswith('"')


def _value(cell: str) -> str:
    return cell[1:-1].replace('""', '"') if _is_quoted(cell) else cell


def _rows(source: str, separator: str) -> Iterator[list[Span]]:
    """Yield the places of the cells of each row. Quotes may contain line ends."""
    cell = re.compile(rf'(?:"[^"]*(?:""[^"]*)*"(?=[{separator}\r\n]|\Z)|[^{separator}\r\n]*)')
    row: list[Span] = []
    position = 0
    while position <= len(source):
        match = cell.match(source, position)
        assert match is not None, "an empty cell"
        row.append(match.span())
        position = match.end() + 1
        if source[match.end() : position] != separator:
            yield row
            row = []
            position += source.startswith("\r\n", match.end())
