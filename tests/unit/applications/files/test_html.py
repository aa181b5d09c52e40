import pytest

from relu_nmt.applications.files import FileOptions, markup, translated
from relu_nmt.applications.files.segments import plain_segment
from relu_nmt.errors import DataError
from tests.unit.applications.files.translators import backward, identity, translate, upper

PAGE = """<!DOCTYPE html>
<html lang=de><head><meta charset="utf-8"><title>Das &amp; mehr</title>
<meta name="description" content="Eine Seite"><meta name="robots" content="none">
<script>if (a<b) "x" </script><style>p > a {}</style></head>
<body>
 <p title='Ein "Haus"'> <img src=x alt="ein Bild"> Das <b>große <i>rote</i> Haus</b> ist
    <a href="x&y" title=rot>sch&ouml;n</a>,<br>und <code>ls <var>x</var></code> auch. </p>
 <!-- kein Text --><pre class="code">Code <b>x</b></pre>
 <ul><li>Eins<li>Zwei<li translate=no>Nein<li>Drei</ul>
 <p><b><i>Alles fett</i></b> <span translate="no">nicht</span> &copy; 5&nbsp;km</p>
 <table><tr><td>Zelle<td>Zelle <sup>2</sup></table><input type=submit value="Los"> <b>offen
</body></html>
"""


def test_the_identity_keeps_every_byte():
    assert translate(PAGE, "html", identity) == PAGE
    assert translate(PAGE.replace("\n", "\r\n"), "html", identity) == PAGE.replace("\n", "\r\n")


def test_translating_html_changes_its_text_only():
    written = translate(PAGE, "html")
    for text in (
        "<title>DAS &amp; MEHR</title>",
        'content="EINE SEITE"',
        'content="none"',
        '<script>if (a<b) "x" </script>',
        "<p title='EIN &quot;HAUS&quot;'> <img src=x alt=\"EIN BILD\"> DAS <b>",
        '<a href="x&y" title="ROT">SCHÖN</a>,<br>UND <code>ls <var>x</var></code> AUCH. </p>',
        '<!-- kein Text --><pre class="code">Code <b>x</b></pre>',
        "<li>EINS<li>ZWEI<li translate=no>Nein<li>DREI</ul>",
        '<p><b><i>ALLES FETT</i></b> <span translate="no">nicht</span> &copy; 5&nbsp;KM</p>',
        "<td>ZELLE<td>ZELLE <sup>2</sup></table>",
        '<input type=submit value="LOS"> <b>OFFEN\n',
    ):
        assert text in written


def test_segments_come_in_reading_order():
    received = []
    translate(PAGE, "html", lambda segments: received.extend(segments) or identity(segments))
    texts = [segment.text for segment in received]
    assert texts[:5] == ["Das & mehr", "Eine Seite", 'Ein "Haus"', "ein Bild", "rot"]
    assert texts[5] == "Das große rote Haus ist schön, und ls x auch."
    assert texts[6:10] == ["Eins", "Zwei", "Drei", "Alles fett nicht © 5 km"]


def test_the_declared_encoding_is_protected():
    page = '<meta charset="iso-8859-1"><p>schön'.encode("latin-1")
    assert translated(page, "html", identity, FileOptions()) == page
    assert translated(page, "html", upper, FileOptions()).endswith("SCHÖN".encode("latin-1"))
    with_mark = b"\xef\xbb\xbf<p>eins"
    assert translated(with_mark, "html", upper, FileOptions()) == b"\xef\xbb\xbf<p>EINS"
    with pytest.raises(DataError, match="not in the encoding utf-8"):
        translated(b"<meta charset=utf-8><p>sch\xf6n", "html", upper, FileOptions())
    with pytest.raises(DataError, match="not in the encoding wrong"):
        translated(b"<meta charset=wrong><p>eins", "html", upper, FileOptions())


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("<div>" * 10_000 + "x" + "</div>" * 10_000, "nested more than 200 deep"),
        ("<b>" * 10_000 + "x" + "</b>" * 10_000, "nested more than 200 deep"),
        ("x" + "<b>" * 100_000, "tags"),
        ("<p>" + "wort " * 2_000_000, "characters"),
    ],
)
def test_a_page_that_is_no_document_is_refused(page, message):
    with pytest.raises(DataError, match=message):
        translate(page, "html")


@pytest.mark.parametrize(
    "page",
    ["<", "<p", "a < b > c", "<!--", "<script>x", "</b>x</i>", "<b><i>x</b></i>", "&", "&#0;x"],
)
def test_damaged_markup_stays_as_it_is(page):
    assert translate(page, "html", identity) == page
    assert len(translate(page, "html", backward)) >= len(page) - 2


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (
            "<p>Sei <math><mi>sin</mi></math> klein</p>",
            "<p>SEI <math><mi>sin</mi></math> KLEIN</p>",
        ),
        ("<p>Ein <img src=a> Bild</p>", "<p>EIN <img src=a> BILD</p>"),
        (
            "<p>Ein <picture><img alt='rot'></picture> Bild</p>",
            "<p>EIN <picture><img alt='ROT'></picture> BILD</p>",
        ),
        ("<p>Ein <img src=a>, ja</p>", "<p>EIN <img src=a>, JA</p>"),
        ("<p><i class=x></i> Ein</p>", "<p><i class=x></i> EIN</p>"),
        ("<p>Ein <a id=x></a> Wort</p>", "<p>EIN <a id=x></a> WORT</p>"),
        ("<p>Ein <a id=x><img></a> Wort</p>", "<p>EIN <a id=x><img></a> WORT</p>"),
    ],
)
def test_formulas_stay_and_images_keep_the_spaces_around_them(page, expected):
    assert translate(page, "html") == expected


def test_a_last_slash_of_a_value_without_quotes_is_no_end_of_the_tag():
    page = "<p>Das <a href=http://x.org/>Haus am See</a> ist</p>"
    expected = "<p>IST <a href=http://x.org/>SEE AM HAUS</a> DAS</p>"
    assert translate(page, "html", backward) == expected


def test_an_encoding_that_python_alone_knows_is_refused():
    with pytest.raises(DataError, match="encoding undefined"):
        translate('<meta charset="undefined"><p>Hallo</p>', "html")


def test_latin_1_is_the_code_page_of_windows_as_in_browsers():
    page = '<meta charset="iso-8859-1"><p>„schön“'.encode("cp1252")
    assert translated(page, "html", upper, FileOptions()).endswith("„SCHÖN“".encode("cp1252"))
    control = b'<meta charset="iso-8859-1"><p>a\x81'
    assert translated(control, "html", upper, FileOptions()).endswith(b"A\x81")


def test_elements_that_overlap_are_written_once():
    page = "<object>Eins <iframe>zwei</object> drei</iframe> vier"
    assert translate(page, "html") == page.replace("Eins", "EINS").replace("zwei", "ZWEI").replace(
        "drei", "DREI"
    ).replace("vier", "VIER")


@pytest.mark.parametrize(
    ("source", "text", "written"),
    [
        (
            "Das Haus<sup>1</sup> geht.<sup>2</sup> Ja",
            "Das Haus geht. Ja",
            "JA .<sup>2</sup> GEHT HAUS<sup>1</sup> DAS",
        ),
        (
            'Das x<sup id="r"><a href="#n" title="eine Note">[3]</a></sup>, ja',
            "Das x, ja",
            'JA , X<sup id="r"><a href="#n" title="NOTE EINE">[3]</a></sup> DAS',
        ),
        ('Haus<a href="#n"><sup>1</sup></a> ja', "Haus ja", 'JA HAUS<a href="#n"><sup>1</sup></a>'),
        # Exponents and formulas are parts of the text.
        ("10 m<sup>2</sup> bis 10<sup>6</sup>", "10 m2 bis 106", None),
        ("H<sub>2</sub>O 1<sup>er</sup> <sup>1</sup> x<sup>2</sup>", "H2O 1er 1 x2", None),
    ],
)
def test_the_number_of_a_note_is_no_part_of_the_word_before_it(source, text, written):
    texts = []

    def noted(segments):
        texts.extend(segment.text for segment in segments)
        return backward(segments)

    result = translate(f"<p>{source}</p>", "html", noted)
    assert text in texts
    assert written is None or result == f"<p>{written}</p>"
    assert translate(f"<p>{source}</p>", "html", identity) == f"<p>{source}</p>"


@pytest.mark.parametrize("name", ["pre", "PRE"])
def test_preformatted_text_keeps_its_lines_and_spaces(name):
    page = f"<{name}>\n  Eins <b>zwei</b>\n   drei  <code>x  y</code>\n\n\tvier\n</{name}>"
    expected = page.replace("Eins", "EINS").replace("zwei", "ZWEI").replace("drei", "DREI")
    assert translate(page, "html") == expected.replace("vier", "VIER")
    assert translate(f"{page}<p>fünf\n sechs", "html").endswith("<p>FÜNF SECHS")
    lines = "eins zwei\n" * 9_000
    assert translate(f"<{name}>{lines}</{name}>", "html") == f"<{name}>{lines.upper()}</{name}>"


@pytest.mark.parametrize(
    "page",
    [
        "<pre><code>eins\n  zwei</code></pre>",
        '<pre class="programlisting">eins</pre>',
        '<div class="highlight-sh"><div class=highlight><pre><span></span>eins</pre></div></div>',
        '<div class="x">\n<pre translate="no">eins</pre></div>',
        "<textarea>eins</textarea>",
    ],
)
def test_code_and_contents_of_forms_stay(page):
    assert translate(page, "html") == page


def test_spaces_behind_a_listing_are_those_of_a_page():
    listing = "<pre class='code'>x  y</pre>"
    assert translate(f"{listing}<p>eins\n  zwei\n\n drei</p>", "html") == (
        f"{listing}<p>EINS ZWEI DREI</p>"
    )
    poem = "<div><br class='screen-only'><pre>eins</pre></div>"
    assert translate(poem, "html") == poem.replace("eins", "EINS")


def test_a_word_behind_code_behind_a_line_break_keeps_its_space():
    page = "<p>eins zwei<br><code>x1</code> drei</p>"
    assert translate(page, "html") == "<p>EINS ZWEI<br><code>x1</code> DREI</p>"


def test_a_soft_hyphen_between_spaces_leaves_one_space():
    assert plain_segment("a \u00ad b", (0, 5)).text == "a b"


@pytest.mark.parametrize("hyphen", ["&shy;", "\u00ad"])
def test_a_word_with_a_soft_hyphen_is_one_word(hyphen):
    assert translate(f"<p>Die Haus{hyphen}tür</p>", "html", backward) == "<p>HAUSTÜR DIE</p>"


def test_a_page_that_can_be_read_is_not_in_utf_16():
    page = '<meta charset="utf-16"><p>eins'
    assert translate(page, "html") == page.replace("eins", "EINS")


def test_a_page_of_too_many_tags_is_refused(monkeypatch):
    monkeypatch.setattr(markup, "MOST_PIECES", 10)
    assert translate("<p>a" * 5, "html") == "<p>A" * 5
    with pytest.raises(DataError, match="more than 10 tags and texts"):
        translate("<p>a" * 6, "html")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "<a href=1>Start</a><a href=2>Über uns</a><a href=3>Kontakt</a>",
            "Start Über uns Kontakt",
        ),
        ("<span><a>Start</a></span><span><a><b>Über</b></a></span> ja", "Start Über ja"),
        ("<a>Start</a><a><img></a><a><code>x1</code></a> ja", "Start x1 ja"),
        ("<label>Name</label><input><label>Ort</label>", "Name Ort"),
        ("ein<img>zwei <svg></svg>drei", "ein zwei drei"),
        ("ein<img> zwei<a> drei</a><a> vier</a>", "ein zwei drei vier"),
        ("<a>हिन्दी</a><a>मराठी</a><a>Eins »</a><a>Zwei</a>", "हिन्दी मराठी Eins » Zwei"),
        # Other tags and comments stand within words, too, and a mark touches its word.
        ("<span>W</span><span>ort</span>, <b>W</b>ort, Tür<wbr>schloss", "Wort, Wort, Türschloss"),
        ("Ha<!-- c -->us<img>! Ja<a>[1]</a><a>[2]</a>", "Haus! Ja[1][2]"),
    ],
)
def test_links_labels_and_pictures_divide_words_that_touch(source, text):
    texts = []

    def noted(segments):
        texts.extend(segment.text for segment in segments)
        return identity(segments)

    assert translate(f"<p>{source}</p>", "html", noted) == f"<p>{source}</p>"
    assert texts == [text]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("html", "<a href=1>Start</a><a href=2>Über uns</a><a href=3>Kontakt</a>"),
        ("html", "<b><a>Eins</a></b><b><a><i>zwei</i></a></b> und"),
        ("html", "<label>Name</label><input><label>Ort</label>"),
        ("html", "ein<img>zwei"),
        ("markdown", "[Start](a)[Über *uns*](b) und"),
        ("po", 'msgid "<a>Eins</a><a>Zwei</a>"\nmsgstr ""\n'),
    ],
)
def test_divided_words_get_no_space_in_the_same_place(name, source):
    written = translate(source, name)
    if name == "po":
        assert 'msgstr "<a>EINS</a><a>ZWEI</a>"' in written
    else:
        assert written.lower() == source.lower()


def test_divided_words_that_leave_their_place_keep_their_spaces():
    page = "<nav><a href=1>Start</a><a href=2>Über uns</a> und</nav>"
    expected = "<nav>UND <a href=2>UNS ÜBER</a> <a href=1>START</a></nav>"
    assert translate(page, "html", backward) == expected
    assert translate("<p>ein<img>zwei</p>", "html", backward) == "<p>ZWEI EIN<img></p>"


@pytest.mark.parametrize(
    "page",
    [
        "<p>Das <a href=x>Haus <img src=y></a> ist",
        "<label>Name <input></label>",
        "<b>Haus <!--c--></b> und",
        "<a>Haus <i class=x></i></a>",
    ],
)
def test_a_tag_at_the_end_of_a_pair_keeps_the_space_before_it(page):
    assert translate(page, "html").lower() == page.lower()


def test_references_without_a_semicolon_and_templates_stay():
    page = "<p>Ein &copy 2020, &lt <%= name %>! {% if x %}Ja{% endif %} %{a} #{b} %*d @c"
    expected = "<p>EIN &copy 2020, &lt <%= name %>! {% if x %}JA{% endif %} %{a} #{b} %*d @c"
    assert translate(page, "html") == expected
    assert translate("<p>&auml R&D", "html") == "<p>Ä R&amp;D"
    assert translate("Das ist {% if x %} <%= y %>", "text") == "DAS IST {% if x %} <%= y %>"


def test_a_link_to_a_note_is_no_part_of_the_word_before_it():
    page = '<p>Das Wort<a epub:type="noteref" href="#n">1</a> geht'
    expected = '<p>GEHT WORT<a epub:type="noteref" href="#n">1</a> DAS'
    assert translate(page, "html", backward) == expected


def test_texts_of_all_buttons_are_translated():
    page = '<input type=SUBMIT value="eins"><input type=reset value="zwei"><input value="drei">'
    expected = page.replace("eins", "EINS").replace("zwei", "ZWEI")
    assert translate(page, "html") == expected
