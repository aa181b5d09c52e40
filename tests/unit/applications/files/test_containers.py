import io
import re
import zipfile

import pytest

from relu_nmt.applications.files import FileOptions, translated
from relu_nmt.applications.files.aligned_words import AlignedText
from relu_nmt.errors import DataError
from tests.unit.applications.files.translators import backward, identity, upper

BODY = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<w:document xmlns:w="w" xmlns:mc="mc"><w:body>{}'
    "<w:sectPr/></w:body></w:document>"
)
RUN = '<w:r><w:t xml:space="preserve">{}</w:t></w:r>'
BOLD = '<w:r><w:rPr><w:b/></w:rPr><w:t xml:space="preserve">{}</w:t></w:r>'
ODT_BODY = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<office:document-content xmlns:office="o" '
    'xmlns:text="t" xmlns:draw="d" xmlns:svg="s"><office:body>{}</office:body>'
    "</office:document-content>"
)
OPF = (
    '<?xml version="1.0"?><package xmlns:dc="d"><metadata><dc:title>Das Buch</dc:title>'
    '<dc:language>de</dc:language></metadata><manifest><item id="b" href="zwei.xhtml"/>'
    '<item id="a" href="eins.xhtml"/><item id="n" href="toc.ncx"/></manifest>'
    '<spine><itemref idref="a"/><itemref idref="b"/></spine></package>'
)
PAGE = (
    '<?xml version="1.0"?><!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.1//EN" "http://w3.org/x.dtd">'
    "<html><body><p>{} <em>Seite</em>&#160;x</p></body></html>"
)
MARKED = "<ncx><navPoint><navLabel><text>Eins</text></navLabel></navPoint></ncx>"
BOOK = {
    "mimetype": "application/epub+zip",
    "META-INF/container.xml": '<container><rootfile full-path="OPS/p.opf"/></container>',
    "OPS/p.opf": OPF,
    "OPS/eins.xhtml": PAGE.format("Erste"),
    "OPS/zwei.xhtml": PAGE.format("Zweite"),
    "OPS/toc.ncx": MARKED,
    "OPS/x.css": "p {}",
}


def packed(parts):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            stored = zipfile.ZIP_STORED if name == "mimetype" else None
            archive.writestr(name, content, compress_type=stored)
    return target.getvalue()


def unpacked(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name).decode() for name in archive.namelist()}


def parts_after(parts, name, translate):
    return unpacked(translated(packed(parts), name, translate, FileOptions()))


def word(body, translate=upper):
    """Return the translated body of a Word file."""
    parts = {"[Content_Types].xml": "<x/>", "word/document.xml": BODY.format(body)}
    assert parts_after(parts, "docx", identity) == parts
    begin, end = BODY.split("{}")
    written = parts_after(parts, "docx", translate)
    assert written["[Content_Types].xml"] == "<x/>"
    return written["word/document.xml"].removeprefix(begin).removesuffix(end)


def odt(body, translate=upper):
    """Return the translated body of an OpenDocument text."""
    parts = {"mimetype": "application/vnd.oasis.opendocument.text"}
    parts["content.xml"] = ODT_BODY.format(body)
    assert parts_after(parts, "odt", identity) == parts
    begin, end = ODT_BODY.split("{}")
    written = parts_after(parts, "odt", translate)["content.xml"]
    return written.removeprefix(begin).removesuffix(end)


# ------------------------------------------------------------------------------- Word


def test_runs_of_equal_properties_are_one_text():
    body = "<w:p><w:pPr/><w:r><w:t>Ein H</w:t></w:r><w:proofErr/><w:r><w:t>aus</w:t></w:r></w:p>"
    assert word(body) == f"<w:p><w:pPr/>{RUN.format('EIN HAUS')}<w:proofErr/></w:p>"


def test_the_properties_of_a_run_go_with_its_words():
    bold = BOLD.format("großes")
    behind = RUN.format(" Haus &amp; Hof")
    body = f"<w:p>{RUN.format('Ein sehr ')}{bold}{behind}</w:p>"
    bold = BOLD.format("GROßES")
    behind = RUN.format(" HAUS &amp; HOF")
    assert word(body) == f"<w:p>{RUN.format('EIN SEHR ')}{bold}{behind}</w:p>"
    assert word(body, backward) == (
        f"<w:p>{RUN.format('HOF &amp; HAUS ')}{bold}{RUN.format(' SEHR EIN')}</w:p>"
    )


def test_links_fields_and_references_stay_whole():
    note = '<w:r><w:rPr><w:v/></w:rPr><w:footnoteReference w:id="1"/></w:r>'
    field = [
        '<w:r><w:fldChar w:fldCharType="begin"/></w:r>',
        "<w:r><w:instrText>HYPERLINK x</w:instrText></w:r>",
        '<w:r><w:fldChar w:fldCharType="separate"/></w:r>',
        RUN.format("da"),
        '<w:r><w:fldChar w:fldCharType="end"/></w:r>',
    ]
    link = f'<w:hyperlink r:id="2">{BOLD.format("eins zwei")}</w:hyperlink>'
    before = RUN.format("Wort") + note + RUN.format(" und ")
    body = f"<w:p>{before}{''.join(field)}{RUN.format(' ')}{link}</w:p>"
    written = word(body.replace('r:id="2"', 'w:id="2"'), backward)
    assert written.count(note) == 1
    assert f"{RUN.format(' UND WORT')}{note}" in written
    assert "".join(field).replace(">da<", ">DA<") in written
    assert f'<w:hyperlink w:id="2">{BOLD.format("ZWEI EINS")}</w:hyperlink>' in written


@pytest.mark.parametrize("text", ["lange Worte", "eins"])
def test_a_link_to_a_bookmark_of_any_name_is_a_link(text):
    link = f'<w:hyperlink w:anchor="noteref_1">{RUN.format("{}")}</w:hyperlink>'
    body = f"<w:p>{RUN.format('Das ')}{link}</w:p>"
    after = f"<w:p>{RUN.format('DAS ')}{link}</w:p>"
    assert word(body.format(text)) == after.format(text.upper())


def test_a_field_that_ends_within_a_link_of_its_text():
    begin = '<w:r><w:fldChar w:fldCharType="begin"/></w:r>'
    end = '<w:r><w:fldChar w:fldCharType="end"/></w:r>'
    link = f'<w:hyperlink w:id="2">{RUN.format("b ")}{end}{RUN.format("c")}</w:hyperlink>'
    body = f"<w:p>{RUN.format('x ')}{begin}{RUN.format('a ')}{begin}{link}{end}</w:p>"
    link = f'<w:hyperlink w:id="2">{end}{RUN.format("C B")}</w:hyperlink>'
    assert word(body, backward) == (
        f"<w:p>{begin}{begin}{link}{RUN.format(' A')}{end}{RUN.format(' X')}</w:p>"
    )


def test_the_code_of_a_field_stays_with_its_begin():
    mark = '<w:r><w:fldChar w:fldCharType="{}"/></w:r>'
    code = "<w:r><w:instrText>REF x</w:instrText></w:r>"
    begin = f"{mark.format('begin')}{code}{mark.format('separate')}"
    inserted = f"<w:ins>{begin}{RUN.format('eins ')}</w:ins>{RUN.format('zwei')}"
    body = f"<w:p>{RUN.format('null ')}{inserted}{mark.format('end')}{RUN.format(' drei')}</w:p>"
    for order in (identity, backward):
        written = word(body, order)
        assert begin in written
        assert written.index(begin) < written.index(mark.format("end"))


def test_a_break_within_a_run_stays_and_boxes_are_segments():
    body = "<w:p><w:r><w:br/><w:t>eins</w:t><w:br/><w:t>zwei</w:t><w:tab/></w:r></w:p>"
    written = word(body)
    assert written.count("<w:br/>") == 2
    assert written.count("<w:tab/>") == 1
    box = f"<w:r><w:pict><w:p>{RUN.format('Kasten')}</w:p></w:pict></w:r>"
    written = word(f"<w:p>{RUN.format('vor')}{box}{RUN.format('nach')}</w:p>")
    assert f"<w:pict><w:p>{RUN.format('KASTEN')}</w:p></w:pict>" in written
    assert "VOR" in written


def test_descriptions_of_pictures_are_translated():
    picture = '<w:r><w:drawing><wp:docPr xmlns:wp="p" id="1" name="Bild 1" descr="Ein Bild &amp;"/>'
    body = f"<w:p>{RUN.format('vor')}{picture}</w:drawing></w:r></w:p>"
    expected = body.replace("vor", "VOR").replace("Ein Bild", "EIN BILD")
    assert word(body) == expected


def test_labels_of_charts_and_diagrams_have_one_translation():
    run = '<a:p><a:r><a:rPr lang="de"/><a:t>{}</a:t></a:r></a:p>'
    labels = "<c:strCache><c:pt><c:v>Jahr</c:v></c:pt></c:strCache>"
    numbers = "<c:numCache><c:formatCode>General</c:formatCode><c:v>1E5</c:v></c:numCache>"
    chart = f'<c:x xmlns:a="a" xmlns:c="c">{run.format("Titel ")}{labels}{numbers}</c:x>'
    diagram = f'<d:x xmlns:a="a" xmlns:d="d">{run.format("eins zwei")}</d:x>'
    parts = {
        "word/document.xml": BODY.format(""),
        "word/diagrams/drawing1.xml": diagram,
        "word/diagrams/data1.xml": diagram,
        "word/charts/chart1.xml": chart,
        "word/charts/style1.xml": chart,
    }
    assert parts_after(parts, "docx", identity) == parts
    written = parts_after(parts, "docx", numbered)
    title = chart.replace("Titel", "Text 0").replace("Jahr", "Text 1")
    assert written["word/charts/chart1.xml"] == title
    for name in ("data1", "drawing1"):
        assert written[f"word/diagrams/{name}.xml"] == diagram.replace("eins zwei", "Text 2")
    assert written["word/charts/style1.xml"] == chart


def numbered(segments):
    """Return a text with the number of each segment."""
    return [AlignedText(f"Text {number}") for number in range(len(segments))]


# ------------------------------------------------------------------- OpenDocument and EPUB


def test_spans_notes_and_frames_of_a_text():
    note = "<text:note><text:note-body><text:p>Eine Note</text:p></text:note-body></text:note>"
    frame = "<draw:frame><draw:text-box><text:p>Bild</text:p></draw:text-box></draw:frame>"
    body = (
        f'<text:h>Titel</text:h><text:p>Ein<text:s/><text:span a="T1">rotes</text:span> Haus{note}'
        f" da.{frame}<text:line-break/></text:p>"
    )
    assert odt(body) == (
        f'<text:h>TITEL</text:h><text:p>EIN<text:s/><text:span a="T1">ROTES</text:span> '
        f"HAUS{note.replace('Eine Note', 'EINE NOTE')} DA.{frame.replace('Bild', 'BILD')}"
        "<text:line-break/></text:p>"
    )


def test_a_book_is_read_in_its_order():
    assert parts_after(BOOK, "epub", identity) == BOOK
    segments = []
    written = parts_after(BOOK, "epub", lambda s: segments.extend(s) or upper(s))
    texts = [segment.text for segment in segments]
    assert texts == ["Das Buch", "Erste Seite x", "Zweite Seite x", "Eins"]
    assert "<p>ERSTE <em>SEITE</em>&#160;X</p>" in written["OPS/eins.xhtml"]
    assert "<dc:title>DAS BUCH</dc:title><dc:language>de<" in written["OPS/p.opf"]
    assert "<text>EINS</text>" in written["OPS/toc.ncx"]
    assert written["OPS/x.css"] == "p {}"
    content = translated(packed(BOOK), "epub", upper, FileOptions())
    first = zipfile.ZipFile(io.BytesIO(content)).infolist()[0]
    assert (first.filename, first.compress_type) == ("mimetype", zipfile.ZIP_STORED)


# ------------------------------------------------------------------------------- damage


def docx_of(document):
    return packed({"word/document.xml": document})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no zip", "damaged"),
        (docx_of(BODY.format("x"))[:-30], "damaged"),
        (docx_of(BODY.format("x")).replace(b"word/document", b"word/documend", 1), "damaged"),
        (packed({"a.xml": "<x/>"}), "no file of this format"),
        (docx_of("<w:p>"), "well-formed"),
        (docx_of('<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>'), "entity a"),
        (docx_of('<!DOCTYPE x SYSTEM "http://a/b.dtd"><x/>'), "outside"),
        (docx_of('<!DOCTYPE x [<!ENTITY % a SYSTEM "file:///etc/passwd"> %a;]><x/>'), "entity"),
        (docx_of(b'<?xml version="1.0" encoding="ascii"?><x>\xc3\xa4</x>'), "encoding ascii"),
        (docx_of("<x>" * 100_000 + "</x>" * 100_000), "elements"),
        (docx_of("<x>" + " " * 30_000_000 + "</x>"), "larger than it looks"),
        (packed({f"{i}": "" for i in range(10_001)}), "larger than it looks"),
    ],
)
def test_damaged_files_and_bombs_are_refused(content, message):
    with pytest.raises(DataError, match=message):
        translated(content, "docx", identity, FileOptions())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("<w:r><w:t>T</w:t><w:noBreakHyphen/><w:t>Shirt</w:t></w:r>", RUN.format("T\u2011SHIRT")),
        ("<w:r><w:t>Haus</w:t><w:softHyphen/><w:t>tür</w:t></w:r>", RUN.format("HAUSTÜR")),
        (
            "<w:r><w:t>Eins</w:t></w:r><w:r><w:ptab/></w:r><w:r><w:t>Zwei</w:t></w:r>",
            RUN.format("EINS") + "<w:r><w:ptab/></w:r>" + RUN.format("ZWEI"),
        ),
    ],
)
@pytest.mark.parametrize("name", ["word/document.xml", "word/document2.xml"])
def test_hyphens_and_tabs_of_word_and_the_name_of_its_text(name, content, expected):
    parts = {name: BODY.format(f"<w:p>{content}</w:p>")}
    assert parts_after(parts, "docx", upper) == {name: BODY.format(f"<w:p>{expected}</w:p>")}


def test_a_field_in_a_text_does_not_end_the_paragraph():
    source = "<text:p>Vor <text:variable-set>x</text:variable-set> nach</text:p>"
    written = parts_after({"content.xml": ODT_BODY.format(source)}, "odt", upper)
    expected = "<text:p>VOR <text:variable-set>x</text:variable-set> NACH</text:p>"
    assert written == {"content.xml": ODT_BODY.format(expected)}


def test_a_book_without_a_package_is_refused():
    with pytest.raises(DataError, match="no file of this format"):
        parts_after({**BOOK, "META-INF/container.xml": "<container/>"}, "epub", upper)


def test_spaces_that_word_keeps_stay():
    bold = "<w:r><w:rPr><w:b/></w:rPr><w:t>{}</w:t></w:r>"
    note = '<w:r><w:footnoteRef w:id="1"/></w:r>'
    body = f"<w:p>{note}{RUN.format(' Ein  Haus ')}{bold.format('mit')}{RUN.format('   Tür, ')}"
    body += f"{RUN.format(' da ')}</w:p>"
    written = word(body)
    texts = re.findall(r"<w:t[^>]*>([^<]*)", written)
    assert "".join(texts) == " EIN  HAUS MIT   TÜR,  DA "
    assert written.startswith(f"<w:p>{note}{RUN.format(' ')}{RUN.format('EIN')}{RUN.format('  ')}")
    assert "".join(re.findall(r"<w:t[^>]*>([^<]*)", word(body, backward))).count("   ") == 1
    # Without xml:space they stay within a text, where an earlier tag can keep them.
    body = "<w:p><w:r><w:t> Ein   Haus </w:t></w:r></w:p>"
    words = [RUN.format(word) for word in ("EIN", "   ", "HAUS")]
    other = f"<w:p>{RUN.format('X')}</w:p>"
    assert word(other + body) == f"{other}<w:p>{''.join(words)}</w:p>"
    assert word(body + other) == f"<w:p>{RUN.format('EIN HAUS')}</w:p>{other}"


@pytest.mark.parametrize(
    ("paragraph", "text", "space"),
    [
        ("<w:p>", "", ""),
        ("<w:p>", ' xml:space="default"', ""),
        ("<w:p>", ' xml:space="preserve"', " "),
        ('<w:p xml:space="preserve">', "", " "),
        ('<w:p xml:space="preserve">', ' xml:space="default"', ""),
    ],
)
def test_a_space_at_the_end_of_a_run_that_is_not_shown_is_no_space(paragraph, text, space):
    body = f"{paragraph}<w:r><w:t{text}>Ein </w:t></w:r><w:r><w:t{text}>Haus</w:t></w:r></w:p>"
    assert word(body) == f"{paragraph}{RUN.format(f'EIN{space}HAUS')}</w:p>"


def test_a_space_beside_a_space_of_a_text_stays():
    body = '<text:p>Ein <text:change text:id="1"/><text:s/>Haus <text:s text:c="2"/>da</text:p>'
    assert odt(body) == body.replace("Ein", "EIN").replace("Haus", "HAUS").replace("da<", "DA<")
    body = "<text:p>a<text:line-break/><text:span> <text:s/>b<text:tab/> c</text:span></text:p>"
    assert odt(body) == body.replace("a<", "A<").replace("b<", "B<").replace("c<", "C<")


def test_text_in_an_element_of_other_xml_is_translated():
    properties = '<w:customXml w:element="x"><w:customXmlPr><w:attr/></w:customXmlPr>'
    body = f"<w:p>{RUN.format('eins ')}{properties}{RUN.format('zwei drei')}</w:customXml></w:p>"
    element = f"{properties}{RUN.format('DREI ZWEI')}</w:customXml>"
    assert word(body, backward) == f"<w:p>{element}{RUN.format(' EINS')}</w:p>"


def test_the_base_of_a_ruby_is_text_and_its_reading_is_left_out():
    reading = "<w:rt><w:r><w:t>ひがし</w:t></w:r></w:rt>"
    ruby = f"<w:ruby><w:rubyPr/>{reading}<w:rubyBase>{RUN.format('east')}</w:rubyBase></w:ruby>"
    body = f"<w:p>{RUN.format('the ')}<w:r>{ruby}</w:r>{RUN.format(' gate')}</w:p>"
    assert word(body) == f"<w:p>{RUN.format('THE EAST GATE')}</w:p>"
    assert word(body, backward) == f"<w:p>{RUN.format('GATE EAST THE')}</w:p>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "&lt;div&gt;&lt;p class=&quot;x&quot;&gt;Ein &lt;b&gt;gutes&lt;/b&gt; Buch.&lt;/p&gt;"
            "&lt;p&gt;Und &amp;amp; mehr&lt;/p&gt;&lt;/div&gt;",
            "&lt;div&gt;&lt;p class=&quot;x&quot;&gt;EIN &lt;b&gt;GUTES&lt;/b&gt; BUCH.&lt;/p&gt;"
            "&lt;p&gt;UND &amp;amp; MEHR&lt;/p&gt;&lt;/div&gt;",
        ),
        (
            "<![CDATA[Ein <i>gutes</i> Buch]]>",
            "EIN <![CDATA[<i>]]>GUTES<![CDATA[</i>]]> BUCH",
        ),
        ("Ein &amp; zwei &lt; drei", "EIN &amp; ZWEI &lt; DREI"),
    ],
)
def test_the_description_of_a_book_may_be_escaped_html(text, expected):
    element = "<dc:description>{}</dc:description></metadata>"
    package = OPF.replace("</metadata>", element)
    book = {**BOOK, "OPS/p.opf": package.format(text)}
    assert parts_after(book, "epub", identity) == book
    written = parts_after(book, "epub", upper)["OPS/p.opf"]
    assert element.format(expected) in written
