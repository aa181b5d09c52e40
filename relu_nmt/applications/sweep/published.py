"""Published figures, read from a YAML file, for the report to show beside those measured."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relu_nmt.config.yaml_text import parse_yaml
from relu_nmt.errors import DataError

FIELDS = {"title": str, "source": str, "columns": dict, "rows": dict}
FORM = (
    "expected title and source (texts), columns ('COLUMN of results.csv' or 'COLUMN@LENGTH': its "
    "title) and rows (name of an attention or variant: a list of numbers, texts or null, one for "
    "each column)"
)

Value = float | str | None


@dataclass(frozen=True)
class Published:
    """A table of a paper.

    Args:
        title: of the table.
        source: paper, table, data and training.
        columns: titles, by column of results.csv: ``d_bleu``, or ``d_bleu@512`` where it is that
            of a document length.
        rows: a value for each column, by attention or variant; texts are shown as they are.

    Example:
        >>> rows = {"softmax": [34.22], "reluformer": [None]}
        >>> table = Published("Table 1", "a paper", {"d_bleu": "BLEU"}, rows)
        >>> table.value("softmax", "d_bleu")
        34.22
    """

    title: str
    source: str
    columns: dict[str, str]
    rows: dict[str, list[Value]]

    @classmethod
    def of(cls, values: Any) -> "Published | None":
        """Return the table that JSON or YAML holds; None of None.

        Raises:
            ValueError: something else.
        """
        if values is None:
            return None
        if not isinstance(values, dict) or values.keys() != FIELDS.keys():
            raise ValueError(FORM)
        for name, kind in FIELDS.items():
            if not isinstance(values[name], kind) or not values[name]:
                raise ValueError(f"{name}: {FORM}")
        for column in values["columns"]:
            _, at, length = str(column).partition("@")
            if at and not length.isdigit():
                raise ValueError(f"columns: {column}: {FORM}")
        for name, row in values["rows"].items():
            if not isinstance(row, list) or len(row) != len(values["columns"]):
                raise ValueError(f"rows: {name}: {FORM}")
            if not all(value is None or isinstance(value, int | float | str) for value in row):
                raise ValueError(f"rows: {name}: {FORM}")
        return cls(**values)

    def value(self, name: str, column: str) -> Value:
        """Return a published value; None if there is none."""
        row = self.rows.get(name)
        return None if row is None else row[list(self.columns).index(column)]


def read_published(path: str) -> Published:
    """Return the table of a YAML file.

    Raises:
        DataError: the file cannot be read, or holds something else.
    """
    try:
        found = Published.of(parse_yaml(Path(path).read_text("utf-8")) or {})
    except OSError as error:
        raise DataError(f"--published {path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"--published {path}: {error}") from error
    assert found is not None
    return found
