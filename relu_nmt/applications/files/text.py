"""Plain text: each line is a segment."""

import re

from relu_nmt.applications.files import formats
from relu_nmt.applications.files.document import TextFormat
from relu_nmt.applications.files.segments import Segment, plain_segment


@formats.register("text")
class PlainTextFormat(TextFormat):
    """Plain text, a sentence or paragraph a line."""

    def segments(self, source: str) -> list[Segment]:
        """Return the lines of a text that have words."""
        lines = re.finditer(r"[^\n]+", source)
        segments = [plain_segment(line[0], line.span()) for line in lines]
        return [segment for segment in segments if segment is not None]
