import pytest

from relu_nmt.applications.files.aligned_words import AlignedText
from tests.unit.applications.files.translators import backward, identity, translate

PAGE = """---
title: Ein Haus
name: nicht
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
        '---\ntitle: "EIN HAUS"\nname: nicht\n---\n# EIN *TITEL* MIT `code`\n',
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
        "****",
        "*** **",
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
        ("***Ein** Baum* da\n", "DA *BAUM **EIN***\n"),
        ("***Ein* Baum** da\n", "DA **BAUM *EIN***\n"),
        ("___Ein_ Baum__ da\n", "DA __BAUM _EIN___\n"),
        ("**so ***ein** Baum* da** ja\n", "JA **DA *BAUM **EIN*** SO**\n"),
        ("***Ein** Baum da\n", "*DA BAUM **EIN**\n"),
    ],
)
def test_three_marks_begin_or_end_two_pairs(text, expected):
    assert translate(text, "markdown", backward) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("## 1. Ein Haus\n", "## 1\\. EIN HAUS\n"),
        ("Ein sh*t und *so* da\n", "EIN SH\\*T UND *SO* DA\n"),
        ("**a** p*(g) 2*b c\n", "**A** P\\*(G) 2\\*B C\n"),
        ("kostet \\$5 oder 6\\$ http://x/$a\n", "KOSTET \\$5 ODER 6\\$ http://x/$a\n"),
        ("|a|\n|-|\n|ab \\$5 \\| $a$ 6\\$|\n", "|A|\n|-|\n|AB \\$5 \\| $a$ 6\\$|\n"),
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


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "[^1]: Ein da\n[^b]: Zwei da\n\n    Mehr da\n",
            "[^1]: DA EIN\n[^b]: DA ZWEI\n\n    DA MEHR\n",
        ),
        ("> [!NOTE]\n> Ein da\n", "> [!NOTE]\n> DA EIN\n"),
        ("[!da](http://x.y) Ein da\n", "DA EIN [DA !](http://x.y)\n"),
        ("[!da][r] Ein da\n\n[r]: http://x\n", "DA EIN [DA !][r]\n\n[r]: http://x\n"),
        ("[!da]: http://x.y\n", "[!da]: http://x.y\n"),
        ("> [!tip]- Ein Titel\n> Ein da\n", "> [!tip]- TITEL EIN\n> DA EIN\n"),
        ("+++\nname = 'Ein da'\n+++\nEin da\n", "+++\nname = 'Ein da'\n+++\nDA EIN\n"),
        (":::note\nEin da\n:::\nzwei da\n", ":::note\nDA EIN\n:::\nDA ZWEI\n"),
        ("::: tip Ein Titel\n- Ein da\n:::\n", "::: tip TITEL EIN\n- DA EIN\n:::\n"),
        (":::tip[Ein Titel]{.x}\nEin da\n:::\n", ":::tip[TITEL EIN]{.x}\nDA EIN\n:::\n"),
        (
            '!!! note "not da"\n    Ein da\n\n    mehr\n',
            '!!! note "DA NOT"\n    DA EIN\n\n    MEHR\n',
        ),
        ("zwei da\n??? note\n    Ein da\n", "DA ZWEI\n??? note\n    DA EIN\n"),
        ("!!! Ein da\n", "DA EIN ! ! !\n"),
        ('=== "Ein da"\n\n    mehr\n', '=== "DA EIN"\n\n    MEHR\n'),
        ("Ein Wort\n: Ein da\n:   zwei\n    da\n", "WORT EIN\n: DA EIN\n:   DA\n    ZWEI\n"),
        ("Ein da\n$$\na_1\n+ b\n$$\nzwei da\n", "DA EIN\n$$\na_1\n+ b\n$$\nDA ZWEI\n"),
    ],
)
def test_blocks_of_dialects_stay_apart(source, expected):
    for end in ("\n", "\r\n"):
        written = expected.replace("\n", end)
        assert translate(source.replace("\n", end), "markdown", backward) == written
        assert translate(written, "markdown", identity) == written


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("Ein $\\alpha_i + a$ da\n", "DA $\\alpha_i + a$ EIN\n"),
        ("Ein $$a_1$$ da\n", "DA $$a_1$$ EIN\n"),
        ("Ein $5 und $6 da\n", "DA 6 $ UND 5 $ EIN\n"),
        ("Ein $2x + 3y$ da\n", "DA $2x + 3y$ EIN\n"),
        ("Ein $`a_1`$ da\n", "DA $`a_1`$ EIN\n"),
        ("Ein $5, `$`, da\n", "DA , `$` , 5 $ EIN\n"),
        ("Ein $5 und 6$ da\n", "DA $ 6 UND 5 $ EIN\n"),
        ("Ein $5 (statt 6 US$) da\n", "DA ) $ US 6 STATT ( 5 $ EIN\n"),
        ("Ein :no_entry: da 1:2:3 :+1:\n", "3 : 2 : 1 :no_entry: DA EIN :+1:\n"),
        ("Ein ${a}/${b} da\n", "DA ${b} / ${a} EIN\n"),
        ("Ein <code>a &amp; b</code> da\n", "DA <code>a &amp; b</code> EIN\n"),
        ('Ein <kbd class="x">Strg C</kbd> da\n', 'DA <kbd class="x">Strg C</kbd> EIN\n'),
        ('Ein <i translate="no">X y</i> da\n', 'DA <i translate="no">X y</i> EIN\n'),
        ("Ein <b class='x notranslate'>X</b> da\n", "DA <b class='x notranslate'>X</b> EIN\n"),
        ("Ein <var>x y</var> <variable> da\n", "<variable> DA <var>x y</var> EIN\n"),
    ],
)
def test_formulas_and_code_in_a_line_stay(source, expected):
    assert translate(source, "markdown", backward) == expected
    assert translate(source, "markdown", identity) == source


def test_attributes_of_tags_in_a_line_are_text():
    source = 'Ein <img alt="Bild da"> und <a href=x title=Oben>Haus</a>, <b>da\n\n<i>Ein *x*</i>\n'
    expected = (
        'EIN <img alt="BILD DA"> UND <a href=x title="OBEN">HAUS</a>, <b>DA\n\n<i>EIN *X*</i>\n'
    )
    assert translate(source, "markdown") == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("[Haus](x (Ein Titel))\n", "[HAUS](x (TITEL EIN))\n"),
        ("[Haus](x 'Ein \\'Titel\\'')\n", "[HAUS](x '\\' TITEL \\' EIN')\n"),
        ('[Haus](x "Ein \\"Titel\\"")\n', '[HAUS](x "\\" TITEL \\" EIN")\n'),
        ("![\\$5 ab 6\\$](x)\n", "![\\$ 6 AB 5 \\$](x)\n"),
        ("![Ein \\*](x 'Titel')\n", "![\\* EIN](x 'TITEL')\n"),
    ],
)
def test_titles_of_links_are_text_in_any_quotation_marks(source, expected):
    assert translate(source, "markdown", backward) == expected


def test_a_cell_may_contain_escaped_bars():
    source = '| A |\n|---|\n| ein \\| `a \\| b` [x](y "Ja \\| da") ![Haus \\| Hof](z) |\n'
    expected = '| A |\n|---|\n| EIN \\| `a \\| b` [X](y "JA \\| DA") ![HAUS \\| HOF](z) |\n'
    assert translate(source, "markdown") == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("**fett** *kursiv*\n", "**Groß**\n"),
        ("**fett***kursiv* da\n", "**Groß** da\n"),
        ("*fett***kursiv** da\n", "*Groß* da\n"),
    ],
)
def test_marks_without_words_disappear(source, expected):
    def translator(segments):
        [segment] = segments
        text = expected.strip("*\n").replace("*", "")
        end = len(segment.text)
        return [AlignedText(text, [((0, 4), (0, 4)), ((end - 2, end), (5, 7))])]

    assert translate(source, "markdown", translator) == expected
    assert translate(source, "markdown", identity) == source


def test_the_width_of_the_first_line_includes_its_prefix():
    assert translate("> Zitat eins\n> zwei\n", "markdown") == "> ZITAT EINS\n> ZWEI\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("---\ntitle: Ein da\n---\n", '---\ntitle: "DA EIN"\n---\n'),
        ('---\ntitle: Ein "da"\n---\n', '---\ntitle: "\\" DA \\" EIN"\n---\n'),
        ("---\nx: 1\ntitle: 'Ein da'\n...\n", '---\nx: 1\ntitle: "DA EIN"\n...\n'),
        ('---\ndescription: "Ein \\" da" \n---\n', '---\ndescription: "DA \\" EIN" \n---\n'),
        ('+++\ntitle = "Ein da"\n+++\n', '+++\ntitle = "DA EIN"\n+++\n'),
        ("---\ntitle: >\n  Ein da\n---\n", "---\ntitle: >\n  Ein da\n---\n"),
        ("---\nx:\n  title: Ein da\n---\n", "---\nx:\n  title: Ein da\n---\n"),
        ("---\ntitle: Ein da # nicht\n---\n", "---\ntitle: Ein da # nicht\n---\n"),
        ("---\ntitle: Ein\n  da\n---\n", "---\ntitle: Ein\n  da\n---\n"),
        ("---\ntitle: Ein\n\n  da\n---\n", "---\ntitle: Ein\n\n  da\n---\n"),
        ("---\ntitle: Ein da\n\nx:\n  y\n---\n", '---\ntitle: "DA EIN"\n\nx:\n  y\n---\n'),
        ('---\ntitle: "\\u00e4 \\/ da"\n---\n', '---\ntitle: "DA / Ä"\n---\n'),
        ('---\ntitle: "\\xe4 da"\n---\n', '---\ntitle: "\\xe4 da"\n---\n'),
        ('---\ntitle: "\\ud83d da"\n---\n', '---\ntitle: "\\ud83d da"\n---\n'),
        ("---\ntitle: 'Ein \\*da'\n---\n", '---\ntitle: "DA * \\\\ EIN"\n---\n'),
        ("---\ntitle: true\n---\n", "---\ntitle: true\n---\n"),
        ("---\ntitle: No\n---\n", "---\ntitle: No\n---\n"),
        ("---\ntitle: 0xAB\n---\n", "---\ntitle: 0xAB\n---\n"),
        ("---\ntitle: No da\n---\n", '---\ntitle: "DA NO"\n---\n'),
        ("---\ntitle: 10 Tipps\n---\n", '---\ntitle: "TIPPS 10"\n---\n'),
        ("---\nx: 1\n---\n\ntitle: Ein da\n", "---\nx: 1\n---\n\nDA EIN : TITLE\n"),
    ],
)
def test_the_title_in_the_front_matter_is_text(source, expected):
    for end in ("\n", "\r\n"):
        written = translate(source.replace("\n", end), "markdown", backward)
        assert written == expected.replace("\n", end)
    assert translate(source, "markdown", identity) == source


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("# Ein da {#x .klein}\n", "# DA EIN {#x .klein}\n"),
        ("Ein da\n{: .klein }\n", "DA EIN\n{: .klein }\n"),
        ("![Bild](x){width=50%} da\n", "![BILD](x){width=50%} DA\n"),
        ("Ein {name} da\n", "DA {name} EIN\n"),
    ],
)
def test_lists_of_attributes_stay(source, expected):
    assert translate(source, "markdown", backward) == expected


def test_a_reference_needs_a_semicolon():
    assert translate("und &auml &auml; da\n", "markdown") == "UND &AUML Ä DA\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("> <!-- c --> Ein da\n", "> <!-- c --> DA EIN\n"),
        ("> <p>Ein\n> da</p>\n", "> <p>DA EIN</p>\n"),
        ("> <pre>Ein\n> da</pre>\n", "> <pre>\n> DA EIN</pre>\n"),
        (">\t<p>Ein da</p>\n", ">\t<p>DA EIN</p>\n"),
        ("> - <p title='Ein\n>   da'>Haus</p>\n", "> - <p title='DA EIN'>HAUS</p>\n"),
        ("<p\n>Ein da</p>\n", "<p\n>DA EIN</p>\n"),
    ],
)
def test_html_in_a_quote_keeps_its_mark(source, expected):
    for end in ("\n", "\r\n"):
        written = translate(source.replace("\n", end), "markdown", backward)
        assert written == expected.replace("\n", end)
    assert translate(source, "markdown", identity) == source


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("<img a>\nEin\n\nda\n\n<img b>\nzwei\n", "<img a>\nEIN\n\nDA\n\n<img b>\nZWEI\n"),
        ("<b>\nEin\n\nda\n\n</b>\nzwei\n", "<b> EIN\n\nDA\n\n</b>\nZWEI\n"),
        ("<a name=x>\n\n# Ein\n</a>\nda\n", "<a name=x>\n\n# EIN\n</a>\nDA\n"),
        ("- <b>\n  Ein\n- <i>\n  da\n", "- <b> EIN\n- <i> DA\n"),
        ("> <b>\n> Ein\n>\n> > <b>\n> > da\n", "> <b> EIN\n>\n> > <b> DA\n"),
        ("> <i>\n> Ein</i>\n\n<b>\nda</b>\n", "> <i>EIN</i>\n\n<b>DA</b>\n"),
    ],
)
def test_blocks_of_html_with_a_line_between_them_stay_apart(source, expected):
    assert translate(source, "markdown") == expected
