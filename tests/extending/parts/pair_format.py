"""A text format of one's own: JSON lines, as {"de": "ein Haus", "en": "a house", "page": "7"}."""

import json
from collections.abc import Iterator, Sequence

from relu_nmt.data import Unit, pair_formats
from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import iterate_lines


@pair_formats.register(".jsonl")
def read_json_lines(path: str, languages: Sequence[str]) -> Iterator[Unit]:
    """Yield the document of each pair, "" if it is not known, and the texts by language."""
    for number, line in enumerate(iterate_lines(path), 1):
        try:
            values = json.loads(line)
            texts = {language: values[language] for language in languages}
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path}:{number}: expected {' and '.join(languages)}") from error
        yield values.get("page", ""), texts
