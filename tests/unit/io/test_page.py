"""What pages of HTML share."""

import base64
from pathlib import Path

from relu_nmt.io.page import DASHES, common_legend, draw_image, escaped, line_style, render_page


def test_more_lines_than_colors_can_be_told_apart():
    styles = [tuple(line_style(index).items()) for index in range(16)]
    assert len({str(style) for style in styles}) == 16


def test_a_template_in_a_folder_extends_the_shared_page(tmp_path: Path):
    text = (
        '{% extends "page.html" %}{% set title = "a < b" %}{% block content %}{{ x }}{% endblock %}'
    )
    (tmp_path / "own.html").write_text(text)
    page = render_page(tmp_path, "own.html", {"x": 7})
    assert "<h1>a &lt; b</h1>" in page
    assert page.startswith("<!DOCTYPE html>")


def test_a_legend_shows_more_of_a_line_than_its_marker_hides():
    """Two whole periods of the longest dashes, so that a gap stands beside the marker."""
    lines = []

    def draw(figure):
        axes = figure.subplots()
        for index in range(len(DASHES)):
            axes.plot([0, 1], [index, index], label=str(index), **line_style(index))
        common_legend(figure, 4)
        [legend] = figure.legends
        lines.extend(legend.get_lines())
        figure.draw_without_rendering()

    draw_image(7, 3, draw)
    assert len(lines) == len(DASHES)
    for index, line in enumerate(lines):
        style = line_style(index)
        assert line.get_linestyle() == ("-" if index == 0 else "--")
        period = 0 if index == 0 else sum(style["linestyle"][1]) * style["linewidth"]
        first, last = line.get_xdata()[[0, -1]]
        assert last - first >= max(2 * period, 4 * style["markersize"])


def test_dollars_in_text_begin_no_formula():
    pictures = [
        draw_image(4, 2, lambda figure, text=text: figure.suptitle(escaped(text)))
        for text in ("$5 and $6", "$x_{$")
    ]
    texts = [base64.b64decode(picture.partition(",")[2]).decode() for picture in pictures]
    assert "$5 and $6" in texts[0].replace("\\", "") and "<!-- " in texts[1]
