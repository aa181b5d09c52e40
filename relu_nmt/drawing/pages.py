"""Pages of HTML in one file with their plots and numbers, and CSV beside them.

A page is a Jinja2 template in the folder ``templates`` of its package or in an example's folder. It
extends ``page.html``, the shell with the style, and imports parts of tables and figures from
``parts.html``.
"""

import base64
import csv
import functools
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2

LARGE = 1e6
UNKNOWN = "\u2013"
LEAST_SEEDS = 4
"""Fewer seeds are listed one by one: an interval would be wider than the effect it measures."""


def render_page(folder: str | Path, template: str, values: Mapping[str, Any]) -> str:
    """Return the page of a template. ``folder`` is a path, or the name of a package as text."""
    return _environment(folder).get_template(template).render(values)


@functools.cache
def _environment(folder: str | Path) -> "jinja2.Environment":
    """Return the templates of :func:`render_page`, each of which is compiled once."""
    import jinja2

    # Look for templates in the caller's folder first, then in the shared one.
    loader: jinja2.BaseLoader = jinja2.FileSystemLoader(folder)
    if isinstance(folder, str):
        loader = jinja2.PackageLoader(folder)
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([loader, jinja2.PackageLoader("relu_nmt.drawing")]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "image_source": image_source}
    environment.globals |= {"spread": spread, "plus_minus": plus_minus}
    return environment


def image_source(svg: str) -> str:
    """Return a picture as the ``src`` of an image: a filter of the templates."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode("utf-8")).decode("ascii")


def number(value: float | None, decimals: int = 2, signed: bool = False) -> str:
    """Return a number for readers, or a dash if it is unknown or not finite.

    From a million on, a number with decimals is written with a power of ten.

    Example:
        >>> number(31.236), number(1234567.0, 0), number(None), number(-0.5, 1, signed=True)
        ('31.24', '1,234,567', '–', '−0.5')
        >>> number(10794720.53)
        '1.08e7'
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    sign = "+" if signed else ""
    text = f"{value:{sign},.{decimals}f}"
    if decimals and abs(value) >= LARGE:
        mantissa, _, exponent = f"{value:{sign}.{decimals}e}".partition("e")
        text = f"{mantissa}e{int(exponent)}"
    # Drop the sign of a number that is rounded to 0.
    if not float(text.replace(",", "")):
        text = text.lstrip("+-")
    return text.replace("-", "\u2212")


def spread(
    values: Sequence[float], interval: float | None, signed: bool = False, highest: float = math.inf
) -> str:
    """Return the spread of several seeds' scores in words, empty for one seed.

    ``interval`` is half the width of the interval of their mean. Differences are ``signed``,
    scores are between 0 and ``highest``. Fewer than LEAST_SEEDS values are listed.

    Example:
        >>> spread([24.56, 31.24], 42.4)
        'seeds 24.56, 31.24'
        >>> spread([1.0, 2.0, 3.0, 4.0], 2.05), spread([0.0, 0.0, 0.0, 4.0], 3.18)
        ('± 2.05 seeds', '0.00 to 4.18 seeds')
    """
    if len(values) < 2:
        return ""
    if len(values) < LEAST_SEEDS or interval is None:
        return f"seeds {', '.join(number(value, signed=signed) for value in values)}"
    return f"{plus_minus(sum(values) / len(values), interval, signed, highest)} seeds"


def plus_minus(
    mean: float, interval: float, signed: bool = False, highest: float = math.inf
) -> str:
    """Return an interval in words, with both ends if one is cut off at 0 or ``highest``.

    Example:
        >>> plus_minus(5.0, 1.5), plus_minus(1.0, 1.5), plus_minus(1.0, 1.5, signed=True)
        ('± 1.50', '0.00 to 2.50', '± 1.50')
    """
    below, above = arms(mean, interval, highest)
    if signed or below == above == interval:
        return f"± {number(interval)}"
    return f"{number(mean - below)} to {number(mean + above)}"


def arms(mean: float, interval: float, highest: float = math.inf) -> tuple[float, float]:
    """Return the lengths of an interval below and above its mean, cut at 0 and ``highest``."""
    return min(interval, mean), min(interval, highest - mean)


def csv_text(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> str:
    """Return the columns of the rows as CSV, in full precision. Unknown values are empty cells."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
