"""Tags of HTML in the texts of messages, translation units and cells."""

import xml.etree.ElementTree as ElementTree
from xml.sax.saxutils import escape

import pytest

from tests.unit.applications.files.test_files_of_translators import TWO
from tests.unit.applications.files.translators import (
    backward,
    dropping,
    identity,
    translate,
    upper,
)


def test_tags_of_html_in_a_text_are_tags():
    text = "Ein &lt;b class='x'&gt;rotes&lt;/b&gt; Haus&lt;br /&gt;da 1 &lt; 3"
    written = translate(TWO.format(text), "xliff", backward)
    expected = "3 &lt; 1&lt;br /&gt;DA HAUS &lt;b class='x'&gt;ROTES&lt;/b&gt; EIN"
    assert f"<target>{expected}</target>" in written
    text = "<![CDATA[<p>Ein <b>rotes</b> Haus<br>da</p>]]>"
    written = translate(TWO.format(text), "xliff", backward)
    target = ElementTree.fromstring(written).findall(".//{*}segment/{*}target")[0]
    assert target.text == "<p><br>DA HAUS <b>ROTES</b> EIN</p>"
    assert written.count("<![CDATA[") == 6
    message = 'msgid "eins<br>zwei"\nmsgstr ""\n'
    assert 'msgstr "EINS<br>ZWEI"' in translate(message, "po")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Enter <user name> and <password>", "ENTER <USER NAME> AND <PASSWORD>"),
        ("if a <b and c> d then stop", "IF A <B AND C> D THEN STOP"),
        ("a List<String> b", "A LIST<STRING> B"),
        ("a <link>b</link> <x/>c", "A <link>B</link> <x/>C"),
        ("a <A href='x y' id=z download>b</A> c", "A <A href='x y' id=z download>B</A> C"),
        ("a <a %s>b</a> c", "A <a %s>B</a> C"),
        ("the <meta name='x' content='y'> tag", "THE <meta name='x' content='y'> TAG"),
        ("an <a rel='x' …> or <a rel='x' ...> b", "AN <a rel='x' …> OR <a rel='x' ...> B"),
        ("a <p title='1'>b</p> c", "A <p title='1'>B</p> C"),
    ],
)
@pytest.mark.parametrize("quote", ["'", "&apos;", "&quot;"])
def test_words_in_angle_brackets_are_text_unless_they_are_a_tag(text, expected, quote):
    message = f'msgid "{text}"\nmsgstr ""\n'
    assert translate(message, "po").endswith(f'msgstr "{expected}"\n')
    escaped = escape(text, {"'": quote})
    for source in (escaped, f"<![CDATA[{text}]]>"):
        written = translate(TWO.format(source), "xliff")
        target = ElementTree.fromstring(written).findall(".//{*}segment/{*}target")[0]
        assert target.text.replace('"', "'") == expected


def test_tags_in_a_cell_are_tags():
    table = 'a,"eins <b>zwei</b>, <a href=""x y"">drei</a> ""vier"" <5"\n1,fünf <i>sechs</i>\n'
    assert translate(table, "table", identity, column="2") == table
    first = '"5 < "" VIER "" <a href=""x y"">DREI</a> , <b>ZWEI</b> EINS"'
    expected = f"a,{first}\n1,<i>SECHS</i> FÜNF\n"
    assert translate(table, "table", backward, column="2") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<p>Eins</p><p>Zwei</p>", "<p>ZWEI</p> <p>EINS</p>"),
        ("<p>Eins</p> <P>Zwei</p>", "<P>ZWEI</p> <p>EINS</p>"),
        ("<ul><li>Eins</li><li>Zwei</li></ul>", "<ul><li>ZWEI</li> <li>EINS</li></ul>"),
        ("<p>Eins</p><code>zwei</code>", "<code>zwei</code> <p>EINS</p>"),
        ("Eins<hr/>Zwei<HR>Drei", "DREI ZWEI<HR> EINS<hr/>"),
        (
            "<option>Eins</option><option>Zwei</option>",
            "<option>ZWEI</option> <option>EINS</option>",
        ),
        ("ein <option> ist", "IST > OPTION < EIN"),
        ("<a href='x'>Eins</a><a href='y'>Zwei</a>", "<a href='y'>ZWEI</a> <a href='x'>EINS</a>"),
        ("Eins<img src='x'>Zwei", "ZWEI EINS<img src='x'>"),
    ],
)
def test_block_elements_in_a_text_divide_words(text, expected):
    assert written_in_all(text, backward) == [expected] * 4
    assert written_in_all(text, identity) == [text] * 4


@pytest.mark.parametrize(
    "code",
    [
        "<code>foo bar</code>",
        "<KBD class='x'>Strg <b>C</b></kbd>",
        "<code>List<String> x</code>",
        "<span translate='no'>Re Lu</span>",
        "<b class='x notranslate'>Re <i>Lu</i></b>",
    ],
)
def test_code_in_a_text_stays_at_its_place(code):
    assert written_in_all(f"Siehe {code} da", upper) == [f"SIEHE {code} DA"] * 4
    assert written_in_all(f"Siehe {code} da", backward) == [f"DA {code} SIEHE"] * 4
    assert written_in_all(f"Siehe {code} da", dropping) == [f"{code} Nichts"] * 4


@pytest.mark.parametrize(
    "empty",
    [
        "<!-- wp:paragraph -- <b> -->",
        "<style>p > a {color: red}</style>",
        "<script>if (a < b) write('</b>');</script>",
    ],
)
def test_comments_and_scripts_in_a_text_are_empty_tags(empty):
    assert written_in_all(f"{empty}<p>Eins {empty} da", upper) == [f"{empty}<p>EINS {empty} DA"] * 4
    assert written_in_all(f"Eins {empty} da", backward) == [f"{empty} DA EINS"] * 4


def test_an_element_that_stays_may_end_after_another_or_not_at_all():
    text = "<code>a <code>b c</code> d <code>e"
    assert written_in_all(text, upper) == ["<code>A <code>b c</code> D <code>E"] * 4
    text = "<span class='notranslated'>a</span> <img translate='no'> b"
    assert written_in_all(text, upper) == [text.replace(">a<", ">A<").replace(" b", " B")] * 4


def written_in_all(text, translate_segments):
    """Return the translations of a text in PO, a table, and XLIFF, both escaped and unparsed."""
    written = translate(f'msgid "{text}"\nmsgstr ""\n', "po", translate_segments)
    texts = [written.partition('msgstr "')[2].removesuffix('"\n')]
    texts.append(translate(f"{text}\tb\n", "table", translate_segments).removesuffix("\tb\n"))
    for source in (escape(text), f"<![CDATA[{text}]]>"):
        root = ElementTree.fromstring(translate(TWO.format(source), "xliff", translate_segments))
        texts.append(root.findall(".//{*}segment/{*}target")[0].text)
    return texts


@pytest.mark.parametrize("reference", ["&nbsp;", "&#160;", "&lt;"])
def test_a_reference_in_escaped_html_is_one_text(reference):
    source = f"Eins {escape(reference)} zwei &amp; drei"
    expected = f"DREI &amp; ZWEI {escape(reference)} EINS"
    assert f"<target>{expected}</target>" in translate(TWO.format(source), "xliff", backward)


def test_a_note_in_escaped_html_is_no_part_of_its_word():
    source = escape("Wort<sup>1</sup> zwei")
    expected = escape("ZWEI WORT<sup>1</sup>")
    assert f"<target>{expected}</target>" in translate(TWO.format(source), "xliff", backward)
    source = "<![CDATA[Wort<sup>1</sup> zwei]]>"
    assert translate(TWO.format(source), "xliff", backward).count("<target>") == 2


def test_a_pair_of_a_name_without_content_stays_a_pair():
    message = 'msgid "Siehe <link href=\'x\'>Hilfe</link>."\nmsgstr ""\n'
    assert "HILFE</link>." in translate(message, "po")
    text = "Siehe <link href='x'>Hilfe zu Writer</link> im Text"
    expected = "TEXT IM <link href='x'>WRITER ZU HILFE</link> SIEHE"
    assert f'msgstr "{expected}"' in translate(f'msgid "{text}"\nmsgstr ""\n', "po", backward)
    assert escape(expected) in translate(TWO.format(escape(text)), "xliff", backward)


def test_empty_values_in_a_cell_belong_to_their_tag():
    cell = '"eins <img alt="""" src=""x.png""> zwei"\n'
    assert translate(cell, "table") == cell.replace("eins", "EINS").replace("zwei", "ZWEI")
