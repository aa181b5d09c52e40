"""Draws layers.svg, the picture of architecture.md, from the rules of tests/unit/test_layers.py.

    python docs/draw_layers.py

A part stands above all that it may import. An arrow that follows from others is left out, and so
are those to the base, which every part may import. What a box says is the first line of the part's
own docstring.
"""

import ast
import sys
import textwrap
from functools import lru_cache
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = Path(__file__).parent / "reference" / "layers.svg"
sys.path.insert(0, str(ROOT))

from tests.unit.test_layers import BASE, MAY_IMPORT, PACKAGE  # noqa: E402

WIDTH, BOX_WIDTH, BOX_HEIGHT, GAP, ROW = 1000, 176, 72, 20, 118
STYLE = """\
text { font-family: sans-serif; font-size: 10px; fill: #333 }
.name { font-size: 15px; font-weight: bold; fill: #123 }
.box { fill: #eef4fb; stroke: #4a7ab5 }
.base { fill: #f4f1e8; stroke: #a08c50 }
path { fill: none; stroke: #8aa4c4; stroke-width: 1.4 }
.page { fill: #fff }"""


def rules() -> dict[str, frozenset[str]]:
    """Return what each part may import; the package's face left out."""
    return {name: frozenset(allowed) for name, allowed in MAY_IMPORT.items() if name != "__init__"}


@lru_cache
def floor(part: str) -> int:
    """Return how many parts stand below one another under this one."""
    return 1 + max((floor(other) for other in rules()[part]), default=-1)


@lru_cache
def below(part: str) -> frozenset[str]:
    """Return all parts that stand under this one, near or far."""
    direct = rules()[part]
    return direct.union(*(below(other) for other in direct))


def is_base(part: str) -> bool:
    """Say whether every part may import it, or it is hardly more than a function."""
    return part in BASE or floor(part) <= 1


def arrows() -> list[tuple[str, str]]:
    """Return who imports whom, without the base and without what other arrows imply."""
    pairs = []
    for part, allowed in sorted(rules().items()):
        parts = {other for other in allowed if not is_base(other)}
        implied = frozenset().union(*(below(other) for other in parts))
        pairs += [(part, other) for other in sorted(parts - implied)]
    return pairs


def purpose(part: str) -> str:
    """Return the first line of the part's docstring."""
    file = PACKAGE / f"{part}.py"
    if not file.is_file():
        file = PACKAGE / part / "__init__.py"
    text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return text.splitlines()[0].rstrip(".").replace("`", "") if text else ""


def positions() -> dict[str, tuple[float, float]]:
    """Return the middle of each box, the lowest floor first."""
    upper = sorted({floor(part) for part in rules() if not is_base(part)})
    middle: dict[str, tuple[float, float]] = {}
    for height, level in enumerate(upper):
        row = [part for part in rules() if floor(part) == level and not is_base(part)]

        def middle_of_imports(part: str) -> float:
            at = [middle[other][0] for user, other in arrows() if user == part and other in middle]
            return sum(at) / len(at) if at else WIDTH / 2

        row.sort(key=lambda part: (middle_of_imports(part), part))
        step = min(BOX_WIDTH * 1.7, (WIDTH - GAP) / len(row))
        y = (len(upper) - height - 0.5) * ROW + GAP
        for number, part in enumerate(row):
            middle[part] = (WIDTH / 2 + (number - (len(row) - 1) / 2) * step, y)
    return middle


def box(part: str, x: float, y: float) -> str:
    """Return the box of a part with its name and purpose, around a point."""
    left, top = x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2
    frame = f'width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"'
    parts = [f'<rect class="box" x="{left:.0f}" y="{top:.0f}" {frame}/>']
    parts.append(f'<text class="name" x="{left + 8:.0f}" y="{top + 18:.0f}">{part}</text>')
    lines = textwrap.wrap(purpose(part), 30, max_lines=3, placeholder=" ...")
    for number, line in enumerate(lines):
        position = f'x="{left + 8:.0f}" y="{top + 34 + 14 * number:.0f}"'
        parts.append(f"<text {position}>{escape(line)}</text>")
    return "\n".join(parts)


def base(y: float) -> str:
    """Return the bar of what every part may import, under the rows."""
    names = ", ".join(sorted(part for part in rules() if is_base(part)))
    frame = f'x="{GAP}" y="{y:.0f}" width="{WIDTH - 2 * GAP}" height="46" rx="6"'
    return (
        f'<rect class="base" {frame}/>\n'
        f'<text class="name" x="{GAP + 8}" y="{y + 18:.0f}">base</text>\n'
        f'<text x="{GAP + 8}" y="{y + 35:.0f}">{names}</text>'
    )


def picture() -> str:
    """Return the picture as SVG."""
    at = positions()
    bottom = max(y for _, y in at.values()) + ROW / 2
    lines = []
    for part, other in arrows():
        (x, y), (to_x, to_y) = at[part], at[other]
        y, to_y = y + BOX_HEIGHT / 2, to_y - BOX_HEIGHT / 2 - 2
        bend = (to_y - y) / 2
        curve = f"M{x:.0f} {y:.0f} C{x:.0f} {y + bend:.0f} {to_x:.0f} {to_y - bend:.0f}"
        lines.append(f'<path d="{curve} {to_x:.0f} {to_y:.0f}" marker-end="url(#tip)"/>')
    size = f'viewBox="0 0 {WIDTH} {bottom + 66:.0f}"'
    tip = (
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 L8 4 L0 8"/></marker>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
            f"<style>{STYLE}</style><defs>{tip}</defs>",
            f'<rect class="page" width="{WIDTH}" height="{bottom + 66:.0f}"/>',
            *lines,
            *(box(part, *position) for part, position in at.items()),
            base(bottom),
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
