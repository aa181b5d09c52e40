import re
import xml.etree.ElementTree as ElementTree

import pytest

from relu_nmt.applications.files import FileOptions, Languages, translated
from relu_nmt.errors import DataError
from tests.unit.applications.files.translators import (
    backward,
    identity,
    translate,
    upper,
)

HEADER = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
DONE = '\n# Notiz\n#: a.c:1\n#, c-format\nmsgid "Datei %s"\nmsgstr "file %s"\n'
PO = (
    f'{HEADER}{DONE}\n#. Hilfe\n#, c-format\nmsgctxt "x"\nmsgid ""\n"Die <b>große</b> "\n'
    '"Datei\\n"\n"ist \\"%s\\"\\n"\nmsgstr ""\n\nmsgid "%d Bild"\nmsgid_plural "%d Bilder"\n'
    'msgstr[0] ""\nmsgstr[1] ""\n\n#~ msgid "alt"\n#~ msgstr ""\n'
)


def test_entries_of_po_without_a_translation_become_fuzzy():
    written = translate(PO, "po")
    assert written == PO.replace("#, c-format\nmsgctxt", "#, fuzzy, c-format\nmsgctxt").replace(
        '\\"%s\\"\\n"\nmsgstr ""',
        '\\"%s\\"\\n"\nmsgstr ""\n"DIE <b>GROßE</b> DATEI\\n"\n"IST \\"%s\\"\\n"',
    ).replace(
        'msgid "%d Bild"\nmsgid_plural "%d Bilder"\nmsgstr[0] ""\nmsgstr[1] ""',
        '#, fuzzy\nmsgid "%d Bild"\nmsgid_plural "%d Bilder"\nmsgstr[0] "%d BILD"\n'
        'msgstr[1] "%d BILDER"',
    )


def test_translated_entries_of_po_stay_unless_they_are_to_be_replaced():
    assert translate(HEADER + DONE, "po", upper) == HEADER + DONE
    again = translate(HEADER + DONE, "po", upper, retranslate=True)
    assert again == HEADER + DONE.replace("#, c-f", "#, fuzzy, c-f").replace(
        '"file %s"', '"DATEI %s"'
    )


def test_po_keeps_its_encoding_and_line_ends():
    content = PO.replace("UTF-8", "ISO-8859-1").replace("\n", "\r\n").encode("latin-1")
    written = translated(content, "po", upper, FileOptions())
    assert written.count(b"\r\n") == written.count(b"\n")
    assert "GROßE".encode("latin-1") in written
    with pytest.raises(DataError, match="no messages"):
        translate("kein PO", "po")


OLD = """<?xml version="1.0"?>
<xliff version="1.2"><file source-language="de" target-language="en"><body>
 <trans-unit id="1">
  <source>Ein <g id="1">rotes</g> Haus<x id="2"/>, <ph id="3">&lt;br&gt;</ph>da</source>
  <note>Notiz</note>
 </trans-unit>
 <trans-unit id="2"><source>fertig</source><target state="final">done</target></trans-unit>
 <trans-unit id="3"><source>alt</source><target>old</target></trans-unit>
 <trans-unit id="4"><source>neu <bpt id="1">b</bpt>x<ept id="1">/b</ept></source>
  <target state="new"/><alt-trans><source>neu</source><target>new</target></alt-trans></trans-unit>
 <trans-unit id="5" translate="no"><source>nein</source></trans-unit>
 <trans-unit id="6" approved="yes"><source>ja</source></trans-unit>
</body></file></xliff>
"""
NEW = """<?xml version="1.0"?>
<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="de"><file id="f">
 <unit id="1"><segment id="s1" state="initial">
   <source>Ein <pc id="1">rotes</pc> <mrk id="m" translate="no">Haus</mrk></source>
 </segment><ignorable><source> </source></ignorable><segment><source>Zwei</source></segment></unit>
 <unit id="2"><segment state="final"><source>fertig</source></segment></unit>
 <unit id="3" translate="no"><segment><source>nein</source></segment></unit>
 <unit id="4"><segment state="translated"><source>a</source><target>b</target></segment></unit>
</file></xliff>
"""


def test_units_of_xliff_get_a_target_to_review():
    written = translate(OLD, "xliff")
    target = '<target state="needs-review-translation">'
    assert written == OLD.replace(
        "da</source>\n",
        f'da</source>\n  {target}EIN <g id="1">ROTES</g> HAUS<x id="2"/>, '
        '<ph id="3">&lt;br&gt;</ph>DA</target>\n',
    ).replace(
        '<target state="new"/>', f'{target}NEU <bpt id="1">b</bpt>X<ept id="1">/b</ept></target>'
    )
    ElementTree.fromstring(written)
    backwards = translate(OLD, "xliff", backward)
    assert '<g id="1">ROTES</g> EIN</target>' in backwards
    assert f'{target}<bpt id="1">b</bpt>X<ept id="1">/b</ept> NEU</target>' in backwards
    again = translate(OLD, "xliff", retranslate=True)
    assert f"{target}ALT</target>" in again
    assert '<target state="final">done</target>' in again


def test_segments_of_xliff_2_get_their_state():
    written = translate(NEW, "xliff")
    assert written == NEW.replace(
        '<segment id="s1" state="initial">', '<segment id="s1" state="translated">'
    ).replace(
        "Haus</mrk></source>\n",
        'Haus</mrk></source>\n   <target>EIN <pc id="1">ROTES</pc> '
        '<mrk id="m" translate="no">Haus</mrk></target>\n',
    ).replace(
        "<segment><source>Zwei</source>",
        '<segment state="translated"><source>Zwei</source><target>ZWEI</target>',
    )


def test_files_of_translators_without_work_stay():
    assert translate(HEADER + DONE, "po", identity) == HEADER + DONE
    done = OLD[: OLD.index(' <trans-unit id="1"')] + OLD[OLD.index(' <trans-unit id="5"') :]
    assert translate(done, "xliff") == done


TABLE = 'id\tde\ten\n1\tEin Haus\tx\n2\t"Zwei, ""drei"""\ty\n3\n4\t\tz\n'


def test_one_column_of_a_table_is_translated():
    assert translate(TABLE, "table", identity, column="2") == TABLE
    written = translate(TABLE, "table", column="de")
    assert written == TABLE.replace("Ein Haus", "EIN HAUS").replace("Zwei", "ZWEI").replace(
        "drei", "DREI"
    )
    assert translate("a;b\r\nc;d\r\n", "table", column="2") == "a;B\r\nc;D\r\n"
    assert translate("a,b c\n", "table", lambda s: [*map(comma, s)], column="2") == 'a,"b, c"\n'
    with pytest.raises(DataError, match="no column 4"):
        translate(TABLE, "table", column="4")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"Hallo, du, da";x;y\n', '"HALLO, DU, DA";x;y\n'),
        ('"Ein, ""zwei"",\nda";x\n', '"EIN, ""ZWEI"",\nDA";x\n'),
        ("ein &amp; da &eacute; zwei,x\n", "EIN &amp; DA &eacute; ZWEI,x\n"),
        ("R&D;x;y\n", "R&D;x;y\n"),
        ('5" Rohr\t6" Rohr\n', '5" ROHR\t6" Rohr\n'),
        ('"ein\tda",x\n', '"EIN\tDA",x\n'),
    ],
)
def test_separators_within_cells_and_references_do_not_count(source, expected):
    assert translate(source, "table") == expected


def comma(segment):
    from relu_nmt.applications.files.aligned_words import AlignedText

    return AlignedText(segment.text.replace(" ", ", "))


def test_lines_of_a_message_keep_their_indentation():
    source = 'msgid "Usage:\\n  -h  help\\n"\nmsgstr ""\n'
    assert '"  -H  HELP\\n"' in translate(source, "po")


def test_an_entry_whose_first_form_has_no_words_becomes_fuzzy():
    source = 'msgid "%d"\nmsgid_plural "%d files"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    written = translate(source, "po")
    assert written.startswith("#, fuzzy\n")
    assert written.endswith('msgstr[0] ""\nmsgstr[1] "%d FILES"\n')


def test_the_only_form_of_an_entry_is_made_from_its_plural():
    source = 'msgid "Eine Datei"\nmsgid_plural "%d Dateien"\nmsgstr[0] ""\n'
    assert translate(source, "po").endswith('\nmsgstr[0] "%d DATEIEN"\n')


@pytest.mark.parametrize("end", ["", "\n", '\n\nmsgid "da"\nmsgstr ""\n'])
@pytest.mark.parametrize("num_forms", [1, 2, 3])
@pytest.mark.parametrize("num_fields", [1, 2, 3])
def test_entries_get_as_many_forms_as_the_header_says(num_fields, num_forms, end):
    header = f'msgid ""\nmsgstr ""\n"Plural-Forms: nplurals={num_forms}; plural=0;\\n"\n\n'
    entry = 'msgid "ein Bild"\nmsgid_plural "%d Bilder"\n'
    fields = [f'msgstr[{number}] ""' for number in range(num_fields)]
    texts = ["EIN BILD", "%d BILDER", "%d BILDER"] if num_forms > 1 else ["%d BILDER"]
    written = [f'msgstr[{number}] "{texts[number]}"' for number in range(num_forms)]
    end_written = end.replace("msgid", "#, fuzzy\nmsgid").replace('""', '"DA"')
    for line_end in ("\n", "\r\n"):
        source = f"{header}{entry}{line_end.join(fields)}{end}"
        source = source.replace("\r\n", "\n").replace("\n", line_end)
        expected = header + "#, fuzzy\n" + entry + "\n".join(written) + end_written
        assert translate(source, "po") == expected.replace("\n", line_end)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"eins\vzwei\fdrei\a", r"EINS\vZWEI\fDREI\a"),
        (r"\bein\x65\163 \\x \"da\"", r"\bEINES \\X \"DA\""),
        (r"\033[1mfett\x1b[0m da\001", r"\033[1mFETT\033[0m DA\001"),
        (r"\303\274ber \xe2\x82\xac\040ein\303\244", "ÜBER € EINÄ"),
        (r"eins\377 zwei \303\n", r"EINS\377 ZWEI \303\n"),
    ],
)
def test_characters_with_a_backslash_stay(text, expected):
    message = 'msgid "{}"\nmsgstr "{}"\n'
    assert (
        translate(message.format(text, ""), "po") == f"#, fuzzy\n{message.format(text, expected)}"
    )


@pytest.mark.parametrize(
    ("charset", "text", "expected"),
    [("iso-8859-1", r"\374ber", "ÜBER"), ("gbk", r"\326\320 \377", r"中 \377")],
)
def test_escaped_bytes_have_the_charset_of_the_file(charset, text, expected):
    message = f'msgid ""\nmsgstr "charset={charset}\\n"\n\nmsgid "{text}"\nmsgstr ""\n'
    written = translated(message.encode(), "po", upper, FileOptions()).decode(charset)
    assert written.endswith(f'msgstr "{expected}"\n')


@pytest.mark.parametrize(
    ("charset", "text", "expected"),
    [("x", r"\374ber", "ÜBER"), ("utf-16", r"ein\t\tda", r"EIN\t\tDA")],
)
def test_a_byte_order_mark_tells_the_charset_of_messages(charset, text, expected):
    source = f'\ufeffmsgid ""\nmsgstr "charset={charset}\\n"\n\nmsgid "{text}"\nmsgstr ""\n'
    assert translate(source, "po").endswith(f'msgstr "{expected}"\n')


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ('""\n"A: b\\n"\n', '""\n"Language: de_AT\\n"\n"A: b\\n"\n'),
        ('"A: b\\nLanguage: en\\n"\n', '"A: b\\nLanguage: de_AT\\n"\n'),
        ('""\n"A: \\"b\\n"\n"Language: \\n"\n', '""\n"A: \\"b\\n"\n"Language: de_AT\\n"\n'),
        ('"A: b\\nLanguage: fr\\n"\n', '"A: b\\nLanguage: fr\\n"\n'),
        ('"Language-Team: x\\n"\n', '"Language: de_AT\\n"\n"Language-Team: x\\n"\n'),
        ('""\n', '""\n'),
    ],
)
def test_every_header_of_po_names_its_language(header, expected):
    languages = Languages("en", "de_AT")
    for line_end in ("\n", "\r\n"):
        source = f'msgid ""\nmsgstr {header}\nmsgid "a"\nmsgstr ""\n'.replace("\n", line_end)
        written = translate(source, "po", languages=languages)
        assert written.replace("\r\n", "\n").startswith(f'msgid ""\nmsgstr {expected}\n#, fuzzy\n')
        assert written.count("\r") in (0, written.count("\n"))


@pytest.mark.parametrize("attribute", ['target-language=""', "target-language = ''"])
def test_an_empty_language_of_xliff_is_replaced(attribute):
    source = (
        f'<xliff version="1.2"><file {attribute} source-language="de"><body><trans-unit>'
        "<source>eins</source></trans-unit></body></file></xliff>"
    )
    root = ElementTree.fromstring(translate(source, "xliff", languages=Languages("de", "en")))
    assert root[0].attrib == {"target-language": "en", "source-language": "de"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Sie haben <x id="1"/> neue', 'SIE HABEN <x id="1"/> NEUE'),
        ("Ein <y:z/> Wort", "EIN <y:z/> WORT"),
        ('Ein <mrk mtype="protected">Name</mrk> da', 'EIN <mrk mtype="protected">Name</mrk> DA'),
    ],
)
def test_placeholders_and_protected_words_of_xliff(text, expected):
    source = (
        f'<xliff version="1.2" xmlns:y="y"><file><body><trans-unit id="1"><source>{text}</source>'
        "</trans-unit></body></file></xliff>"
    )
    assert f">{expected}</target>" in translate(source, "xliff")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'Ein &lt;code>a <g id="1">b</g> c&lt;/code> da',
            'DA &lt;code>a <g id="1">b</g> c&lt;/code> EIN',
        ),
        (
            'Ein <g id="1">&lt;code>a <x id="2"/>b&lt;/code> rot</g> da',
            'DA <g id="1">ROT &lt;code>a <x id="2"/>b&lt;/code></g> EIN',
        ),
        (
            'Ein &lt;b translate="no">a <g id="1">b</g> c&lt;/b> da',
            'DA &lt;b translate="no">a <g id="1">b</g> c&lt;/b> EIN',
        ),
        (
            "Ein <![CDATA[rot <code>]]><g id='1'>b</g><![CDATA[ c</code> da]]>",
            "DA <![CDATA[<code>]]><g id='1'>b</g><![CDATA[ c</code>]]> ROT EIN",
        ),
        (
            "Ein &lt;code&gt;a &lt;ul&gt; b&lt;/code&gt; da",
            "DA &lt;code&gt;a &lt;ul&gt; b&lt;/code&gt; EIN",
        ),
        # Markup tells code by its type or itself.
        (
            'Ein <g id="1" ctype="x-code">a b</g> da',
            'DA <g id="1" ctype="x-code">a b</g> EIN',
        ),
        (
            'Ein <bpt id="1">&lt;code></bpt>a b<ept id="1">&lt;/code></ept> da',
            'DA <bpt id="1">&lt;code></bpt>a b<ept id="1">&lt;/code></ept> EIN',
        ),
        ('Ein {<g id="1">name</g>} da', 'DA {<g id="1">name</g>} EIN'),
        ('Ein {na<x id="1"/>me} da', 'DA {na<x id="1"/>me} EIN'),
        ('Ein <g id="1">{na</g>me} da', 'DA <g id="1">{na</g>me} EIN'),
        ('Ein %<g id="1">(n)</g>d da', 'DA %<g id="1">(n)</g>d EIN'),
    ],
)
def test_code_and_placeholders_with_elements_of_xliff_stay(text, expected):
    unit = f"<trans-unit><source>{text}</source></trans-unit>"
    source = f"<xliff><file><body>{unit}</body></file></xliff>"
    assert f">{expected}</target>" in translate(source, "xliff", backward)


TWO = (
    '<xliff version="2.1" srcLang="de" trgLang="en" xmlns:m="m"><file id="f" xml:space="preserve">'
    '<skeleton href="x"/><notes><note>Notiz</note></notes><group id="g" translate="no">'
    '<unit id="u" translate="yes" xml:space="default"><m:matches><m:match><source>Ein Haus</source>'
    "<target>A house</target></m:match></m:matches><originalData>"
    '<data id="d1">&lt;b&gt;</data><data id="d2">&lt;br/&gt;</data>'
    '<data id="d3">&lt;code&gt;</data></originalData>'
    '<segment id="s" state="initial" subState="o:p"><source>{}</source></segment></unit>'
    '<unit id="v"><segment><source>nein</source></segment></unit></group></file></xliff>'
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('a <sc id="1" dataRef="d1"/>b c<ec startRef="1"/>', '<sc id="1" dataRef="d1"/>C B<ec st'),
        ('a <sm id="1"/>b c<em startRef="1"/>', '<sm id="1"/>C B<em startRef="1"/> A'),
        (
            'a <sm id="1" translate="no"/>b c<em startRef="1"/> d',
            'D <sm id="1" translate="no"/>b c<',
        ),
        ('a <mrk id="1" translate="no">b c</mrk> d', 'D <mrk id="1" translate="no">b c</mrk> A'),
        # A placeholder of a line break divides words, by its type or its data.
        ('ab<ph id="1" subType="xlf:lb"/>cd', '<ph id="1" subType="xlf:lb"/>CD AB'),
        ('ab<ph id="1" dataRef="d2"/>cd', '<ph id="1" dataRef="d2"/>CD AB'),
        ('ab<ph id="1" dataRef="d1"/>cd', 'ABCD<ph id="1" dataRef="d1"/>'),
        ('a <pc id="1" dataRefStart="d3">b c</pc> d', 'D <pc id="1" dataRefStart="d3">b c</pc> A'),
        # Pairs that overlap begin before they end.
        (
            'a <sc id="1"/>b <pc id="2">c<ec startRef="1"/> d</pc> e',
            'E <pc id="2">D C<sc id="1"/></pc> <ec startRef="1"/>B A',
        ),
        (
            'a <pc id="2">b <sc id="1"/>c</pc> d<ec startRef="1"/> e',
            'E D<sc id="1"/> <pc id="2"><ec startRef="1"/>C B</pc> A',
        ),
        (
            'a <sm id="1" translate="no"/>b <pc id="2">c<em startRef="1"/> d</pc>',
            '<pc id="2">D C<sm id="1" translate="no"/></pc> <em startRef="1"/>B A',
        ),
        ('a <sc id="1" isolated="yes"/>b', '<sc id="1" isolated="yes"/>B A'),
        (
            '<pc id="1">a <pc id="2">b</pc></pc> c<cp hex="1a"/>',
            'C <pc id="1"><pc id="2">B</pc> A</pc><cp',
        ),
    ],
)
def test_inline_elements_of_xliff_2(text, expected):
    source = TWO.format(text)
    written = translate(source, "xliff", backward)
    ElementTree.fromstring(written)
    rest, _, behind = written.rpartition("</target>")
    head, _, target = rest.rpartition("<target>")
    assert target.startswith(expected)
    assert len(target.replace(" ", "")) == len(text.replace(" ", ""))
    assert head + behind == source.replace(' state="initial" subState="o:p"', ' state="translated"')


def test_spaces_and_prefixes_of_xliff_2():
    source = TWO.replace(' xml:space="default"', "").format(" a  b ")
    assert "<target> A  B </target>" in translate(source, "xliff")
    source = re.sub(r"<(/?)(?!m:)(?=[a-z])", r"<\1x:", TWO).format("a")
    written = translate(source, "xliff")
    assert written.count('state="translated"><x:source>a</x:source><x:target>A</x:target>') == 1


def test_xliff_2_names_the_language_of_its_targets():
    source = TWO.replace(' trgLang="en"', "")
    written = translate(source.format("a"), "xliff", languages=Languages(target="en_GB"))
    assert written.startswith('<xliff version="2.1" srcLang="de" xmlns:m="m" trgLang="en-GB"><file')
    assert translate(TWO.format("a"), "xliff", languages=Languages(target="en_GB")).startswith(
        TWO[:70]
    )
    assert translate(
        source.format("1"), "xliff", languages=Languages(target="en_GB")
    ) == source.format("1")


def test_sentences_of_xliff_1_keep_their_marks():
    marks = '<mrk mtype="seg" mid="0">{}</mrk> <mrk mtype="seg" mid="1">{}</mrk>'
    source = (
        "<xliff><file><body><trans-unit><source>eins zwei</source><seg-source>"
        f'{marks.format("eins", "zwei")}</seg-source><target state="new">{marks.format("", "")}'
        "</target></trans-unit></body></file></xliff>"
    )
    target = f'<target state="needs-review-translation">{marks.format("EINS", "ZWEI")}</target>'
    assert target in translate(source, "xliff")


@pytest.mark.parametrize("divided", ["<seg-source/>", "<seg-source> </seg-source>"])
def test_a_divided_source_without_text_leaves_the_source(divided):
    unit = f"<trans-unit><source>eins</source>{divided}</trans-unit>"
    written = translate(f"<xliff><file><body>{unit}</body></file></xliff>", "xliff")
    assert '<target state="needs-review-translation">EINS</target>' in written


def test_a_first_row_with_commas_in_a_text_is_divided_by_its_tabs():
    assert translate("a\tHallo, du, da\n", "table", column="2") == "a\tHALLO, DU, DA\n"


@pytest.mark.parametrize("space, expected", [("preserve", "\n  "), ("default", " ")])
def test_lines_of_xliff_that_preserve_their_spaces_stay(space, expected):
    source = (
        f'<xliff version="1.2"><file><body><trans-unit id="1" xml:space="{space}">'
        "<source>Eins da\n  zwei\n</source></trans-unit></body></file></xliff>"
    )
    assert f">EINS DA{expected}ZWEI\n</target>" in translate(source, "xliff")


def test_entries_of_po_without_a_blank_line_between_them():
    source = 'msgid "eins"\nmsgstr ""\n# Notiz\nmsgid "zwei"\nmsgstr ""\n'
    assert translate(source, "po") == (
        '#, fuzzy\nmsgid "eins"\nmsgstr "EINS"\n# Notiz\n#, fuzzy\nmsgid "zwei"\nmsgstr "ZWEI"\n'
    )


def test_unparsed_text_of_xliff_is_translated():
    source = (
        '<xliff version="1.2"><file><body><trans-unit id="1"><source><![CDATA[eins < zwei]]>'
        "</source></trans-unit></body></file></xliff>"
    )
    assert '<target state="needs-review-translation">EINS &lt; ZWEI</target>' in translate(
        source, "xliff"
    )


@pytest.mark.parametrize(
    "text",
    [
        "<![CDATA[ eins <a>zwei</a> ]]>",
        "<![CDATA[\n<p>eins</p>\n]]>",
        " <![CDATA[ eins]]> <![CDATA[<b>zwei</b> ]]> ",
        "<![CDATA[ ]]>eins<![CDATA[ ]]>",
        "<![CDATA[</b> eins<img>]]>",
        "<![CDATA[<code> </code>eins]]>",
    ],
)
def test_unparsed_text_of_xliff_keeps_its_ends(text):
    root = ElementTree.fromstring(translate(TWO.format(text), "xliff", identity))
    unit = root.find(".//{*}segment")
    assert unit.find("{*}target").text == unit.find("{*}source").text


def test_runs_of_spaces_in_plain_text_stay_before_their_words():
    source = "  Name:    der Wert\tzwei  \nEins.  Zwei .\n"
    assert translate(source, "text", identity) == source
    assert translate(source, "text") == source.upper()
    assert translate("eins    zwei drei\n", "text", backward) == "DREI    ZWEI EINS\n"


def test_cells_keep_their_spaces_and_lines():
    table = 'a,"Zwei  Wörter\r\n\r\nund ""eins"" mehr"\nb,ein   Wort\n'
    assert translate(table, "table", column="2") == table.upper().replace("A,", "a,").replace(
        "B,", "b,"
    )
    source = "a  b c,x\n"
    assert translate(source, "table", lambda s: [*map(comma, s)]) == '"a,  b, c",x\n'


def test_xml_keeps_its_encoding():
    source = (
        '<?xml version="1.0" encoding="shift_jis"?><xliff version="1.2"><file><body>'
        "<trans-unit id='1'><source>猫 cat</source></trans-unit></body></file></xliff>"
    )
    written = translated(source.encode("shift_jis"), "xliff", upper, FileOptions())
    assert ">猫 CAT</target>" in written.decode("shift_jis")
