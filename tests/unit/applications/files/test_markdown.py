import pytest

from relu_nmt.applications.files.aligned_words import AlignedText
from tests.unit.applications.files.translators import backward, identity, translate

PAGE = """---
title: nicht
---
# Ein *Titel* mit `code`

> Das ist ein **sehr großer** Absatz
> mit [einem Link](http://a.b/c_d "Der Titel") und ![ein Bild](b.png),
> auch <b>fett</b>  \n> neu. Snake\\_case und 2 * 3 [ref] und [Ref][] &copy; http://x.y/_z_

- [ ] eins
- zwei ***stark*** [^1]

| A | B |
|---|:-:|
| eins \\| zwei | drei **vier** |

<div class="x">
<p title="ein Titel">Ein Absatz</p>
</div>

```
code
```

    code

Setext
------

[ref]: http://x.y "t"
[^1]: Eine Fußnote hier.
"""


def test_the_identity_keeps_every_byte():
    assert translate(PAGE, "markdown", identity) == PAGE
    assert translate(PAGE.replace("\n", "\r\n"), "markdown", identity) == PAGE.replace("\n", "\r\n")


def test_translating_markdown_changes_its_text_only():
    written = translate(PAGE, "markdown")
    for text in (
        "---\ntitle: nicht\n---\n# EIN *TITEL* MIT `code`\n",
        "> DAS IST EIN **SEHR GROßER** ABSATZ MIT [EINEM\n> LINK](http://a.b/c_d "
        '"DER TITEL") UND ![EIN BILD](b.png), AUCH <b>FETT</b>  \n> NEU. SNAKE_CASE UND ',
        "2 \\* 3 [REF][ref] UND [REF][Ref] &copy;\n> http://x.y/_z_\n",
        "- [ ] EINS\n- ZWEI ***STARK*** [^1]\n",
        "| A | B |\n|---|:-:|\n",
        "| DREI **VIER** |",
        '<div class="x">\n<p title="EIN TITEL">EIN ABSATZ</p>\n</div>\n',
        "```\ncode\n```\n\n    code\n\nSETEXT\n------\n",
        '[ref]: http://x.y "t"\n[^1]: EINE FUßNOTE HIER.\n',
    ):
        assert text in written


def test_marks_move_with_their_words():
    assert translate("eins **zwei** [drei](x)", "markdown", backward) == "[DREI](x) **ZWEI** EINS"


@pytest.mark.parametrize(
    "text",
    [
        "*",
        "a * b*",
        "**a",
        "a**",
        "[",
        "[x",
        "]",
        "![",
        "`",
        "a ` b",
        "[a](",
        "<",
        "a_b_c",
        "\\",
        "~~",
        "`\n`",
    ],
)
def test_marks_without_a_partner_stay(text):
    assert translate(f"x {text} y\n", "markdown", identity) == f"x {text} y\n"
    assert "Y" in translate(f"x {text} y\n", "markdown")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ein **fetter *Baum*** da\n", "DA ***BAUM* FETTER** EIN\n"),
        ("Ein *fetter **Baum*** da\n", "DA ***BAUM** FETTER* EIN\n"),
    ],
)
def test_three_marks_end_two_pairs(text, expected):
    assert translate(text, "markdown", backward) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("## 1. Ein Haus\n", "## 1\\. EIN HAUS\n"),
        ("Ein sh*t und *so* da\n", "EIN SH\\*T UND *SO* DA\n"),
        ("**a** p*(g) 2*b c\n", "**A** P\\*(G) 2\\*B C\n"),
        ("Im \\_\\_lt\\_\\_ da\n", "IM \\_\\_LT\\_\\_ DA\n"),
        ("Im [`a([b[, c[, d]]])`](e)\n", "IM [`a([b[, c[, d]]])`](e)\n"),
        ("Im [``a`b`` rot](http://u/x) und `c` da\n", "IM [``a`b`` ROT](http://u/x) UND `c` DA\n"),
        ("Im [a ` b](e) `` da\n", "IM [A \\` B](e) \\`\\` DA\n"),
        ("**ที่**นี่ **हिन्दी**में a\n", "**ที่**นี่ **हिन्दी**में A\n"),
        ("के_के_के a_b_c\n", "के\\_के\\_के A_B_C\n"),
        ("Siehe [`x`][]\n\n[`x`]: y\n", "SIEHE [`x`][`x`]\n\n[`x`]: y\n"),
    ],
)
def test_numbers_lone_marks_and_short_links_stay_what_they_are(text, expected):
    assert translate(text, "markdown") == expected
    assert translate(text, "markdown", identity) == text


def test_links_with_spaces_and_badges_stay_whole():
    assert translate("Das [x](<a b.html>) da\n", "markdown") == "DAS [X](<a b.html>) DA\n"
    text = "[![Bild](a.png)](http://x.org) Text\n"
    assert translate(text, "markdown") == "[![BILD](a.png)](http://x.org) TEXT\n"


def test_references_to_notes_stay_at_their_words():
    source = "Das Haus[^1]. Ein Wort<sup>2</sup>, ja"
    written = "JA , WORT<sup>2</sup> EIN . HAUS[^1] DAS"
    assert translate(source, "markdown", backward) == written


def test_a_tag_of_html_may_have_two_lines():
    source = 'Text <a href="x"\n   class="y">Hier</a> da.\n'
    assert translate(source, "markdown") == 'TEXT <a href="x"\n   class="y">HIER</a> DA.\n'


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_paragraph_of_several_lines_becomes_one_of_about_their_width(end):
    source = f"> - eins zwei drei vier{end}>   fünf [a](<b c d e.html>) - 6 {end}>   acht{end}"
    assert translate(source, "markdown", identity) == source
    assert translate(source, "markdown", backward) == (
        f"> - ACHT 6 - [A](<b c d e.html>){end}>   FÜNF VIER DREI ZWEI EINS{end}"
    )


def test_a_hard_break_stays_a_break_and_no_line_begins_like_a_block():
    source = "eins - zwei  \ndrei\\\nvier - fünf - sechs - sieben\nacht\n"
    assert translate(source, "markdown") == source.upper()
    source = source.replace("\n", "\r\n")
    assert translate(source, "markdown") == source.upper()
    source = "aaa bbb ccc\nddd 1) - - - - - - - - - 2. + # > 3 eee\n"
    assert translate(source, "markdown", backward) == (
        "EEE 3 > # + . 2 - - - - - - - - - ) 1\nDDD CCC BBB AAA\n"
    )


def test_no_line_of_a_quote_is_empty_behind_a_hard_break():
    links = [((0, 5), (0, 5)), ((6, 9), (6, 9)), ((10, 13), (10, 20)), ((14, 17), (21, 24))]
    translation = AlignedText("Rosen rot roterdings alt", links)
    source = "> Rosen rot  \n> rot\n> alt\n"
    written = translate(source, "markdown", lambda segments: [translation])
    assert written == "> Rosen rot  \n> roterdings\n> alt\n"


def test_lines_may_end_in_carriage_returns():
    source = "# eins\r\rzwei drei\r\n- vier\r- fünf\r"
    assert translate(source, "markdown") == source.upper()
