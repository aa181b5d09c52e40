"""Plain text: each line is a segment."""

import re
from collections.abc import Iterator

from relu_nmt.applications.files import formats
from relu_nmt.applications.files.document import TextFormat
from relu_nmt.applications.files.segments import KEPT_SPACE, Segment, tagged_segment


@formats.register("text")
class PlainTextFormat(TextFormat):
    """Plain text with a sentence or paragraph per line. Repeated spaces stay."""

    def segments(self, source: str) -> Iterator[Segment | None]:
        for line in re.finditer(r"[^\n]+", source):
            yield tagged_segment(source, line.span(), KEPT_SPACE)
