"""What pages of HTML share."""

from pathlib import Path

from relu_nmt.io.page import line_style, render_page


def test_more_lines_than_colours_can_be_told_apart():
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
