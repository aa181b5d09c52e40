"""Maps of attention weights of a sentence pair, by query and key, drawn with their tokens."""

import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relu_nmt.data.dictionary import EOS
from relu_nmt.drawing.figures import COLORS, draw_svg, draw_weights, escaped
from relu_nmt.errors import ConfigError, reporting
from relu_nmt.io.safe_write import safe_writer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SLOT_NAMES = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}
AXES = {
    "encoder": ("source (query)", "source (key)"),
    "decoder": ("target to come (query)", "target so far (key)"),
    "cross": ("target (query)", "source (key)"),
}
"""Names of the vertical and of the horizontal axis, by slot."""
DIGITS = 4  # significant digits of the weights in JSON
MOST_LABELS = 60
"""Label every token of a side with up to this many tokens. Otherwise label some, with numbers."""
FEW_LARGE = 48  # number of labels of a side with more tokens, in a large map
FEW_SMALL = 28  # the same number in one of many small maps
STEP = 0.115  # inches between labels
LETTER = 0.058  # inches per letter of a label
LEAST_SIDE = 1.5  # inches of the smallest side of a map
LEAST_WIDTH = 4.5  # inches of a figure
LEAST_HEIGHT = 2.8
WIDEST = 12.6
LABEL_SIZE = 6.8  # points
NAME_SIZE = 8.5
MOST_LETTERS = 18  # cut labels to this many letters
LETTERS_PER_INCH = 13
MOST_TITLE_LINES = 4
MOST_LINES = 12  # draw a line at each end of a sentence up to this many
SENTENCES = COLORS[1]
SPACE = "\u2581"  # first character of each word of SentencePiece
CONTINUED = "@@"  # last characters of each part of a word of BPE that is not its last part
DRAWN_SPACE = "\u00a0"  # a space that keeps its width at the beginning of a label
LONE_SPACE = "\u2423"


@dataclass(frozen=True)
class AttentionMap:
    """The attention weights of one layer, for a sentence pair or for sentences that are joined."""

    slot: str  # ``encoder``, ``decoder`` or ``cross``
    layer: int  # from 0
    head: int | None  # from 0. None for all
    queries: list[str]  # Nq labels of the rows. In the decoder, a row is the predicted token.
    # Nk labels of the columns. In the decoder's self-attention, these are the tokens that it reads.
    keys: list[str]
    weights: np.ndarray  # [Nq, Nk], or [H, Nq, Nk] for all heads. Rows need not sum to 1.
    # Number of each query's and each key's sentence, [Nq] and [Nk]. None: a single sentence.
    query_sentences: np.ndarray | None = None
    key_sentences: np.ndarray | None = None

    def to_json(self) -> str:
        """Return the map as one line of JSON, with weights of four significant digits."""
        rounded = np.vectorize(lambda weight: float(f"{weight:.{DIGITS}g}"), otypes=[float])
        values: dict[str, Any] = {"slot": self.slot, "layer": self.layer, "head": self.head}
        values |= {"queries": self.queries, "keys": self.keys}
        values["weights"] = rounded(self.weights).tolist()
        return json.dumps(values, ensure_ascii=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Draw the map as SVG. Exact zeros are white, and rows are not divided by their sums."""
        if Path(path).suffix != ".svg":
            raise ConfigError(f"{path}: maps are drawn as SVG; give a name that ends in .svg")
        with reporting(f"{path}: cannot write it"), safe_writer(path) as file:
            file.write(picture(self).encode())


TitledMap = tuple[str, AttentionMap]
"""The title of a map in a figure, and the map with weights [Nq, Nk]."""


def large_maps(maps: Mapping[str, AttentionMap], title: Sequence[str] = ()) -> str:
    """Draw the maps of several checkpoints side by side, below a title of several paragraphs.

    Reference: ReLUFormer, Figure 5.
    """
    panels = []
    for name, attention_map in maps.items():
        # Average over heads if the map has several, [Nq, Nk].
        if attention_map.weights.ndim == 3:
            attention_map = replace(attention_map, weights=attention_map.weights.mean(0))
        panels.append((name, attention_map))
    return _figure([panels], FEW_LARGE, title)


def head_maps(maps: Mapping[str, AttentionMap], title: Sequence[str] = ()) -> str:
    """Draw maps of all heads, grouped by checkpoint. See :func:`large_maps`."""
    groups = []
    for name, attention_map in maps.items():
        panels = []
        for head, weights in enumerate(attention_map.weights):
            panel_title = f"head {head}"
            # Write the name of the checkpoint only above its first head.
            if len(maps) > 1:
                panel_title = f"{name}\n{panel_title}"
                name = ""
            panels.append((panel_title, replace(attention_map, weights=weights)))
        groups.append(panels)
    return _figure(groups, FEW_SMALL, title)


def picture(attention_map: AttentionMap) -> str:
    """Draw the map of one head or of all heads, below the sentences and the name of the place."""
    slot = attention_map.slot
    draw = large_maps
    heads = f"head {attention_map.head}"
    if attention_map.head is None:
        draw = head_maps
        heads = "every head"
    title = [f"{SLOT_NAMES[slot]}, layer {attention_map.layer}, {heads}"]
    # Write only the sentences that the slot reads.
    if slot != "decoder":
        title.append(f"source: {readable(attention_map.keys)}")
    if slot != "encoder":
        title.append(f"target: {readable(attention_map.queries)}")
    return draw({"": attention_map}, title)


def readable(symbols: Sequence[str]) -> str:
    """Join pieces of SentencePiece and of BPE by their marks.

    Example:
        >>> readable(["\u2581Haus", "tür", "\u2581.", "</s>"]), readable(["Haus@@", "tür", "."])
        ('Haustür .', 'Haustür .')
    """
    tokens = [token for token in symbols if token != EOS]
    text = " ".join(tokens)
    if SPACE in text:
        text = "".join(tokens).replace(SPACE, " ")
    return text.replace(f"{CONTINUED} ", "").strip()


def _figure(groups: Sequence[Sequence[TitledMap]], few: int, title: Sequence[str]) -> str:
    """Draw maps in rows. Each group begins a row. A side of many tokens has ``few`` labels."""
    # Measure a map with its labels, in inches.
    maps = [attention_map for _, attention_map in chain.from_iterable(groups)]
    queries = [attention_map.queries for attention_map in maps]
    height, left = _side(queries, few)
    width, below = _side([attention_map.keys for attention_map in maps], few)
    width += 0.15 if queries.count(queries[0]) == len(queries) else left
    # Divide maps into as few rows of equal length as fit the page.
    largest_group = max(map(len, groups))
    num_rows = -(-largest_group // max(1, int((WIDEST - left) / width)))
    columns = -(-largest_group // num_rows)
    rows: list[Sequence[TitledMap]] = []
    for group in groups:
        for first in range(0, len(group), columns):
            rows.append(group[first : first + columns])
    inches = max(left + columns * width + 0.8, LEAST_WIDTH)
    # Wrap the title to the width of the figure.
    wrapper = textwrap.TextWrapper(
        int(LETTERS_PER_INCH * inches), max_lines=MOST_TITLE_LINES, placeholder=" …"
    )
    lines: list[str] = []
    for paragraph in title:
        lines += wrapper.wrap(paragraph)

    def draw(figure: "Figure") -> None:
        if lines:
            text = escaped("\n".join(lines))
            figure.suptitle(text, x=0.01, ha="left", fontsize=NAME_SIZE)
        # Scale the colors so that few rows exceed the darkest.
        largest = np.concatenate([np.abs(part.weights).max(-1) for part in maps])
        # Ignore weights that are not finite (a diverged model). They stay blank.
        largest = largest[np.isfinite(largest)]
        strongest = 1.0
        if len(largest):
            strongest = float(np.quantile(largest, 0.9)) or 1.0
        signed = any((part.weights < 0).any() for part in maps)
        # Draw each map on its axes, and hide axes without a map.
        grid = figure.subplots(len(rows), columns, squeeze=False)
        for row, axes_of_row in zip(rows, grid, strict=True):
            for axes in axes_of_row[len(row) :]:
                axes.set_visible(False)
            labeled_queries = None
            for axes, (name, part) in zip(axes_of_row, row, strict=False):
                axes.spines[:].set_linewidth(0.5)
                image = draw_weights(axes, part.weights, strongest, signed)
                axes.set_title(escaped(name), loc="left", fontsize=NAME_SIZE)
                _label(axes, part, few, part.queries != labeled_queries)
                _divide(axes, part)
                labeled_queries = part.queries
        _add_scale(figure, image, grid, bool((largest > strongest).any()))

    above = 0.45 if len(groups) > 1 else 0.3
    tall = len(rows) * (height + below + above) + 0.16 * len(lines)
    return draw_svg(inches, max(tall, LEAST_HEIGHT), draw)


def _side(sides: Sequence[Sequence[str]], few: int) -> tuple[float, float]:
    """Return the inches of the longest side with these tokens, and of the widest label."""
    inches = LEAST_SIDE
    num_letters = 0
    for tokens in sides:
        num_labels = few if len(tokens) > MOST_LABELS else len(tokens)
        inches = max(inches, STEP * num_labels)
        num_letters = max(num_letters, max(map(len, _ticks(tokens, few)[1])))
    return inches, 0.35 + LETTER * num_letters


def drawn_tokens(tokens: Sequence[str]) -> list[str]:
    """Return the tokens as labels. Instead of subword marks, a space precedes each word.

    Example:
        >>> [label.replace(DRAWN_SPACE, " ") for label in drawn_tokens(["▁Haus", "tür"])]
        [' Haus', 'tür']
    """
    labels = []
    has_parts = any(token.endswith(CONTINUED) for token in tokens)
    begins_word = has_parts
    for token in tokens:
        label = token.removesuffix(CONTINUED).replace(SPACE, DRAWN_SPACE)
        if label == DRAWN_SPACE:
            label = LONE_SPACE
        if begins_word and token != EOS:
            label = DRAWN_SPACE + label
        labels.append(label)
        begins_word = has_parts and not token.endswith(CONTINUED)
    return labels


def _ticks(tokens: Sequence[str], few: int) -> tuple[Sequence[int], list[str]]:
    """Return indices and labels of the labeled tokens. Labels have numbers if some are missing."""
    names = []
    for token in drawn_tokens(tokens):
        if len(token) > MOST_LETTERS:
            token = f"{token[: MOST_LETTERS - 1]}…"
        names.append(token)
    if len(tokens) <= MOST_LABELS:
        return range(len(tokens)), names
    indices = range(0, len(tokens), -(-len(tokens) // few))
    return indices, [f"{index + 1} {names[index]}" for index in indices]


def _label(axes: "Axes", attention_map: AttentionMap, few: int, with_queries: bool) -> None:
    """Label the axes and tokens. Label queries only ``with_queries``."""
    sides = (axes.yaxis, attention_map.queries), (axes.xaxis, attention_map.keys)
    for (axis, tokens), name in zip(sides, AXES[attention_map.slot], strict=True):
        indices, labels = _ticks(tokens, few)
        # The map to the left already has these labels.
        if axis is axes.yaxis and not with_queries:
            labels = [""] * len(labels)
            name = ""
        elif len(labels) < len(tokens):
            name += ": number and token"
        axis.set_ticks(indices, list(map(escaped, labels)))
        axis.set_tick_params(length=2, pad=2, labelsize=LABEL_SIZE)
        axis.set_label_text(name, fontsize=NAME_SIZE)
    # Turn the labels of keys upright, so that they do not overlap.
    axes.tick_params(axis="x", rotation=90)


def _add_scale(figure: "Figure", image: Any, panels: Any, exceeded: bool) -> None:
    """Draw the scale of colors. It ends in an arrow if weights exceed the scale."""
    lowest, highest = image.get_clim()
    beyond = "neither"
    if exceeded:
        beyond = "both" if lowest else "max"
    shrink = min(0.8, 2.6 / figure.get_figheight())
    bar = figure.colorbar(image, ax=panels, shrink=shrink, pad=0.01, extend=beyond, aspect=25)
    bar.outline.set_visible(False)
    bar.set_label("weight; blank: exactly 0", fontsize=8)
    # The square roots of the ticks are evenly spaced.
    ticks = [highest * step * abs(step) / 16 for step in range(-4 if lowest else 0, 5)]
    bar.set_ticks(ticks, labels=list(map("{:.2g}".format, ticks)))
    bar.ax.tick_params(labelsize=7.5)


def _divide(axes: "Axes", attention_map: AttentionMap) -> None:
    """Mark the ends of sentences, with lines if they are few."""
    sides = (
        (axes.yaxis, attention_map.query_sentences, axes.axhline),
        (axes.xaxis, attention_map.key_sentences, axes.axvline),
    )
    for axis, numbers, draw_line in sides:
        ends: list[float] = []
        if numbers is not None:
            ends = list(np.flatnonzero(np.diff(numbers)) + 0.5)
        axis.set_ticks(ends, minor=True)
        # Draw lines only for a few sentences. Many would hide the map.
        if len(ends) <= MOST_LINES:
            for end in ends:
                draw_line(end, color=SENTENCES, linewidth=0.5, alpha=0.5)
    # Show the marks on the sides without labels.
    sides_with_marks: Any = {"top": True, "right": True, "bottom": False, "left": False}
    axes.tick_params(which="minor", length=3, color=SENTENCES, width=0.7, **sides_with_marks)
