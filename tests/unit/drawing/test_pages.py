"""Parts that pages of HTML share."""

import re
from pathlib import Path
from xml.etree import ElementTree

from relu_nmt.drawing.figures import (
    DASHES,
    common_legend,
    draw_svg,
    escaped,
    line_style,
    plain_axes,
)
from relu_nmt.drawing.pages import render_page

SVG = "{http://www.w3.org/2000/svg}"


def test_more_lines_than_colors_can_be_told_apart():
    styles = [str(line_style(index)) for index in range(16)]
    assert len(set(styles)) == 16


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

    draw_svg(7, 3, draw)
    assert len(lines) == len(DASHES)
    for index, line in enumerate(lines):
        style = line_style(index)
        assert line.get_linestyle() == ("-" if index == 0 else "--")
        period = 0 if index == 0 else sum(style["linestyle"][1]) * style["linewidth"]
        first, last = line.get_xdata()[[0, -1]]
        assert last - first >= max(2 * period, 4 * style["markersize"])


def test_dollars_in_text_begin_no_formula():
    for text in ("$5 and $6", "$x_{$"):
        drawn = draw_svg(4, 2, lambda figure, text=text: figure.suptitle(escaped(text)))
        assert f">{text}</text>" in drawn


def test_pictures_are_small_and_keep_the_digits_of_labels():
    def draw(figure):
        axes = figure.subplots()
        axes.plot([0, 1 / 3], [0, 2 / 3])
        axes.set_title("3.14159")

    svg = draw_svg(4, 2, draw)
    root = ElementTree.fromstring(svg)
    assert svg.startswith("<svg") and "metadata" not in svg and "\n" not in svg
    assert ">3.14159<" in svg
    coordinates = "".join(element.get("d") for element in root.iter(f"{SVG}path"))
    assert not re.search(r"\.\d{3}", coordinates)
    # All names that are referred to are still there.
    names = {element.get("id") for element in root.iter()}
    referred = set(re.findall(r'(?:url\(|href=")#([\w.-]+)', svg))
    assert referred and referred <= names


def test_titles_are_wrapped_to_their_plots():
    titles = []

    def draw(figure):
        for axes in figure.subplots(1, 3):
            plain_axes(axes, "encoder self-attention: weight on other sentences, %")
            titles.append(axes.get_title(loc="left"))

    draw_svg(10.5, 3, draw)
    assert titles == ["encoder self-attention: weight on other\nsentences, %"] * 3


def test_pages_have_a_dark_scheme_without_colors_outside_of_its_variables(tmp_path: Path):
    (tmp_path / "own.html").write_text('{% extends "page.html" %}{% set title = "a" %}')
    page = render_page(tmp_path, "own.html", {})
    variables, _, rules = page.partition("html {")
    light, _, dark = variables.partition("@media (prefers-color-scheme: dark)")
    names = re.findall(r"(--\w+):", light)
    assert names and re.findall(r"(--\w+):", dark) == names
    assert not re.search(r"#[0-9a-f]{3,6}\b", rules)
    assert set(re.findall(r"var\((--\w+)\)", rules)) == set(names)
