"""Tables with tabs or commas between columns. One column is translated."""

import re
from collections.abc import Iterator

from relu_nmt.applications.files import formats
from relu_nmt.applications.files.document import TextFormat
from relu_nmt.applications.files.segments import Segment, Span, plain_segment
from relu_nmt.errors import DataError


@formats.register("table")
class TableFormat(TextFormat):
    """Tables. The first row tells the character between the columns."""

    reads = frozenset({"column"})

    def segments(self, source: str) -> list[Segment]:
        """Return the texts of the column that ``--column`` names."""
        first = source.partition("\n")[0]
        separator = "\t" if "\t" in first else max(",;", key=first.count)
        rows = list(_rows(source, separator))
        header = [_value(source[slice(*span)]) for span in rows[0]] if rows else []
        column = self.options.column
        number = int(column) - 1 if column.isdecimal() else -1
        if column in header:
            number = header.index(column)
            rows = rows[1:]
        if not 0 <= number < max(1, len(header)):
            raise DataError(f"there is no column {column}; the first row is {first.strip()[:60]!r}")
        segments = []
        for row in rows:
            if number < len(row):
                begin, end = row[number]
                text = source[begin:end]
                if text.startswith('"') and text.endswith('"') and end - begin > 1:
                    begin, end = begin + 1, end - 1
                segment = plain_segment(_value(text), (begin, end), f"{text[:1]}{separator}")
                segments += [] if segment is None else [segment]
        return segments

    def text(self, text: str, style: str, segment: Segment) -> str:
        """Return translated text with doubled quotes, and in quotes where it needs them."""
        first, separator = segment.note[:1], segment.note[-1]
        if first == '"' and len(segment.note) == 2:
            return text.replace('"', '""')
        if separator in text or text.startswith('"'):
            return '"' + text.replace('"', '""') + '"'
        return text


def _value(cell: str) -> str:
    quoted = len(cell) > 1 and cell.startswith('"') and cell.endswith('"')
    return cell[1:-1].replace('""', '"') if quoted else cell


def _rows(source: str, separator: str) -> Iterator[list[Span]]:
    """Yield the places of the cells of each row. Quotes may contain line ends."""
    cell = re.compile(rf'(?:"(?:[^"]|"")*"(?=[{separator}\r\n]|\Z)|[^{separator}\r\n]*)')
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
