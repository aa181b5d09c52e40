"""Pieces of an HTML page; everything that is not made here is escaped."""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

MINUS = "\u2212"
UNKNOWN = "\u2013"


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(text: object) -> Markup:
    """Return text as HTML; markup stays."""
    return text if isinstance(text, Markup) else Markup(html.escape(str(text)))


def number(value: float | None, decimals: int = 2, signed: bool = False) -> str:
    """Return a number for readers; a dash if it is unknown or not finite.

    Example:
        >>> number(31.236), number(1234567.0, 0), number(None), number(-0.5, 1, signed=True)
        ('31.24', '1,234,567', '–', '−0.5')
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    text = f"{value:+,.{decimals}f}" if signed else f"{value:,.{decimals}f}"
    if not float(text.replace(",", "")):
        text = text.lstrip("+-")
    return text.replace("-", MINUS)


def p_text(value: float) -> str:
    """Return a p-value for readers."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def megabytes(value: float | None) -> str:
    """Return bytes as MB."""
    return UNKNOWN if value is None else number(value / 1e6, 0)


def small(*lines: object) -> Markup:
    """Return lines in small print, the empty ones left out."""
    return Markup("".join(f"<small>{escape(line)}</small>" for line in lines if line))


def joined(*parts: object) -> Markup:
    """Return texts and markup as one piece of HTML."""
    return Markup("".join(map(escape, parts)))


def styled(text: object, style: str) -> Markup:
    """Return text in a style of the page."""
    return Markup(f'<span class="{style}">{escape(text)}</span>')


def link(text: object, target: str) -> Markup:
    """Return a link to a file beside the page."""
    return Markup(f'<a href="{html.escape(target)}">{escape(text)}</a>')


@dataclass
class Table:
    """A table; its first column names the rows.

    Args:
        header: titles of the columns.
        caption: above it.
        rows: (class of the row, cells).
        text_columns: numbers of the columns to be aligned left.
    """

    header: Sequence[object]
    caption: object = ""
    rows: list[tuple[str, Sequence[object]]] = field(default_factory=list)
    text_columns: Sequence[int] = ()

    def add(self, *cells: object, style: str = "") -> None:
        """Add a row."""
        self.rows.append((style, cells))

    def html(self) -> Markup:
        """Return the table in a box that scrolls on narrow screens."""
        lines = ['<div class="scroll"><table>']
        if self.caption:
            lines.append(f"<caption>{escape(self.caption)}</caption>")
        titles = "".join(
            f'<th scope="col"{self._align(i)}>{escape(title)}</th>'
            for i, title in enumerate(self.header)
        )
        lines.append(f"<thead><tr>{titles}</tr></thead><tbody>")
        for style, (name, *cells) in self.rows:
            opening = f'<tr class="{style}">' if style else "<tr>"
            content = "".join(
                f"<td{self._align(i)}>{escape(cell)}</td>" for i, cell in enumerate(cells, 1)
            )
            lines.append(f'{opening}<th scope="row">{escape(name)}</th>{content}</tr>')
        lines.append("</tbody></table></div>")
        return Markup("\n".join(lines))

    def _align(self, column: int) -> str:
        return ' class="text"' if column in self.text_columns else ""


def facts(pairs: Iterable[tuple[object, object]]) -> Markup:
    """Return names with what belongs to them."""
    rows = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs if value)
    return Markup('<dl class="facts">' + "\n".join(rows) + "</dl>")


def figure(svg: str, caption: object) -> Markup:
    """Return a plot with its caption."""
    return Markup(
        f'<figure><div role="img" aria-label="{html.escape(str(caption))}">{svg}</div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def details(title: object, content: Markup) -> Markup:
    """Return content that is folded away."""
    return Markup(f"<details><summary>{escape(title)}</summary>{content}</details>")


def paragraph(text: object, style: str = "") -> Markup:
    """Return a paragraph."""
    return Markup(f'<p class="{style}">{escape(text)}</p>' if style else f"<p>{escape(text)}</p>")


def heading(text: object) -> Markup:
    """Return the title of a section."""
    return Markup(f"<h2>{escape(text)}</h2>")


def code(text: object) -> Markup:
    """Return a command or a program's output."""
    return Markup(f"<pre>{escape(text)}</pre>")
