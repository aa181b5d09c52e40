import re

import pytest

from relu_nmt.applications.files import FileOptions, Languages, translated
from relu_nmt.applications.files.aligned_words import AlignedText
from tests.unit.applications.files.test_containers import BOOK, packed, unpacked
from tests.unit.applications.files.test_files_of_translators import OLD
from tests.unit.applications.files.translators import identity, translate

GERMAN_TO_ENGLISH = Languages("de", "en_GB")
PAGE = (
    '<html LANG="de-AT" xml:lang=de><head><script>x = "<p lang=\'de\'>"</script></head>'
    '<!-- <p lang="de"> --><p>Eins <q lang=\'de\'>zwei</q> <i lang="fr">oui</i></p>'
    '<div translate="no"><p lang="de">drei</p></div><p class="notranslate" lang="de">vier</p>'
    '<code lang="de">x y</code><pre class="code" lang="de">x</pre><textarea lang="de">x</textarea>'
    '<a hreflang="de" data-lang="de">fünf</a></html>'
)
ENGLISH_PAGE = (
    PAGE.replace('LANG="de-AT" xml:lang=de', 'LANG="en-GB" xml:lang=en-GB')
    .replace("<q lang='de'>", "<q lang='en-GB'>")
)  # fmt: skip
PO = (
    'msgid ""\nmsgstr ""\n"Language-Team: x\\n"\n"Language: {}\\n"\n"MIME-Version: 1.0\\n"\n\n'
    'msgid "Eins"\nmsgstr "x"\n\nmsgid ""\n"Language: de\\n"\nmsgstr ""\n"Language: de\\n"\n\n'
    'msgid "Zwei"\nmsgstr ""\n'
)


WORD = '<w:document xmlns:w="w">{}</w:document>'


def renamed(source, name, languages=GERMAN_TO_ENGLISH):
    """Return a text with the languages of a translation, and no other change."""
    return translate(source, name, identity, languages)


def parts_after(parts, name, languages=GERMAN_TO_ENGLISH):
    return unpacked(translated(packed(parts), name, identity, FileOptions(), languages))


def arabic_after(parts, name, text):
    """Return the parts of a file whose texts have all one Arabic translation."""

    def arabic(segments):
        return [AlignedText(text)] * len(segments)

    return unpacked(translated(packed(parts), name, arabic, FileOptions(), Languages("de", "ar")))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("de", "en-GB"),
        ("DE_de", "en-GB"),
        ("de-Latn-AT", "en-GB"),
        ("den", "den"),
        ("fr", "fr"),
        ("", ""),
    ],
)
def test_only_a_name_of_the_source_language_becomes_the_target_language(name, expected):
    assert GERMAN_TO_ENGLISH.after_translation(name) == expected


@pytest.mark.parametrize(
    ("source", "target"), [("", ""), ("de", ""), ("", "en"), ("de", "de"), ("de", 'e"n')]
)
def test_unknown_or_equal_languages_leave_a_file_as_it_is(source, target):
    languages = Languages(source, target)
    assert languages.after_translation("de") == "de"
    assert renamed(PAGE, "html", languages) == PAGE
    assert parts_after(BOOK, "epub", languages) == BOOK


def test_elements_of_a_page_name_the_language_of_their_translation():
    assert renamed(PAGE, "html") == ENGLISH_PAGE


@pytest.mark.parametrize(
    ("before", "languages", "after"),
    [
        ('lang="de"', ("de", "ar"), 'dir="rtl" lang="ar"'),
        ("lang=de", ("de", "he_IL"), 'dir="rtl" lang=he-IL'),
        ('lang="de" dir=""', ("de", "fa"), 'lang="fa" dir="rtl"'),
        ("lang=de dir=ltr", ("de", "he_IL"), "lang=he-IL dir=rtl"),
        (
            "xml:lang='de' lang='de'",
            ("de", "uz-Arab"),
            """dir="rtl" xml:lang='uz-Arab' lang='uz-Arab'""",
        ),
        ('lang="de"', ("de", "en-SD"), 'lang="en-SD"'),
        ('lang="de"', ("de", "ar-EG-Latn"), 'lang="ar-EG-Latn"'),
        ('DIR="LTR" LANG="de"', ("de", "fa"), 'DIR="rtl" LANG="fa"'),
        ('lang="ar" dir="rtl"', ("ar", "en"), 'lang="en" dir="ltr"'),
        ('lang="ar" dir="rtl"', ("ar", "fa"), 'lang="fa" dir="rtl"'),
        ('lang="de" dir="rtl"', ("de", "en"), 'lang="en" dir="rtl"'),
        ('lang="de" dir="auto"', ("de", "ar"), 'lang="ar" dir="auto"'),
        ('lang="fr" dir="ltr"', ("de", "ar"), 'lang="fr" dir="ltr"'),
        ('dir="ltr"', ("de", "ar"), 'dir="rtl"'),
        ('dir="rtl"', ("de", "ar"), 'dir="rtl"'),
        ('dir="rtl"', ("ar", "en"), 'dir="ltr"'),
        ('id="x"', ("de", "ar"), 'dir="rtl" id="x"'),
        ('id="x"', ("ar", "de"), 'id="x"'),
        ('id="x"', ("", "ar"), 'id="x"'),
        ('lang="fr"', ("de", "ar"), 'lang="fr"'),
        ('lang=""', ("de", "ar"), 'dir="rtl" lang=""'),
        ('dir="ltr"', ("", "ar"), 'dir="ltr"'),
    ],
)
def test_an_element_with_a_new_language_has_the_direction_of_its_script(before, languages, after):
    page = "<html {}><p>Eins</p></html>"
    expected = page.format(after)
    assert renamed(page.format(before), "html", Languages(*languages)) == expected
    if before.startswith("xml:"):
        chapter = {**BOOK, "OPS/eins.xhtml": page.format(before)}
        assert parts_after(chapter, "epub", Languages(*languages))["OPS/eins.xhtml"] == expected


def test_blocks_have_the_direction_of_the_page_and_other_elements_keep_theirs():
    body = '<{} dir="ltr"><p>Eins <bdo dir="ltr" lang="{}">x</bdo> <b dir="ltr">zwei</b></p></{}>'
    page = f'<html lang="{{}}" dir="{{}}">{body}<p lang="fr" dir="ltr">oui</p></html>'
    after = page.replace('<{} dir="ltr">', '<{} dir="rtl">')
    for name in ("body", "div"):
        source = page.format("de", "ltr", name, "de", name)
        expected = after.format("ar", "rtl", name, "ar", name)
        assert renamed(source, "html", Languages("de", "ar")) == expected


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ('<div lang="fr"><p dir="ltr">un mot</p>{}</div>{}', ""),
        ('<div lang="fr"><p lang="de" {}>Wort</p><p lang="en">x</p></div>{}', "de"),
        ('<div lang="fr"><div lang="en"><p>x</p></div><p dir="ltr">mot</p>{}</div>{}', ""),
        ('<div lang="fr"><div lang="de" {0}><p {0}>Wort</p></div></div>{1}', "de"),
        ('<pre dir="ltr">Wort</pre><pre dir="ltr"><code>x</code></pre>{}{}', ""),
        ('<pre lang="de" {}>Wort</pre>{}', "de"),
    ],
)
def test_foreign_elements_and_preformatted_texts_keep_their_direction(page, expected):
    before = page.format('dir="ltr"' if expected else "", '<p dir="ltr">Ein Wort</p>')
    after = page.format('dir="rtl"' if expected else "", '<p dir="rtl">Ein Wort</p>')
    after = after.replace('lang="de"', 'lang="ar"')
    assert renamed(before, "html", Languages("de", "ar")) == after


@pytest.mark.parametrize(
    ("before", "languages", "after"),
    [
        ('http-equiv="Content-Language" content="de-DE"', ("de", "en_GB"), "en-GB"),
        ("http-equiv='content-language' content='de'", ("de", "ar"), "ar"),
        ('property="og:locale" content="de_DE"', ("de", "en-GB"), "en_GB"),
        ('property="og:locale" content="fr_FR"', ("de", "en"), "fr_FR"),
        ('property="og:site_name" content="de"', ("de", "en"), "de"),
        ('http-equiv="content-language"', ("de", "en"), ""),
    ],
)
def test_the_head_of_a_page_names_the_language_of_the_translation(before, languages, after):
    page = "<head><meta {}></head><p>Eins</p>"
    expected = re.sub(r"""(content=["'])[\w-]*""", rf"\g<1>{after}", before)
    assert renamed(page.format(before), "html", Languages(*languages)) == page.format(expected)


def test_a_file_without_text_stays():
    page = '<html lang="de"><p>1</p></html>'
    assert renamed(page, "html") == page
    content = packed({"word/document.xml": '<w:lang xmlns:w="w" w:val="de"/>'}) + b"x"
    assert translated(content, "docx", identity, FileOptions(), GERMAN_TO_ENGLISH) == content


def test_a_book_names_the_language_of_its_translation():
    written = parts_after(
        {**BOOK, "OPS/eins.xhtml": '<html xml:lang="de"><p>Eins</p></html>'}, "epub"
    )
    assert "<dc:language>en-GB</dc:language>" in written["OPS/p.opf"]
    assert written["OPS/eins.xhtml"] == '<html xml:lang="en-GB"><p>Eins</p></html>'
    spaced = {**BOOK, "OPS/p.opf": BOOK["OPS/p.opf"].replace(">de<", ">\n de <")}
    assert ">\n en-GB <" in parts_after(spaced, "epub")["OPS/p.opf"]
    french = {**BOOK, "OPS/p.opf": BOOK["OPS/p.opf"].replace(">de<", ">fr<")}
    assert parts_after(french, "epub") == french


def test_the_runs_and_defaults_of_word_name_the_language_of_the_translation():
    language = '<w:lang w:val="{}" w:eastAsia="de-DE"/>'
    run = "<w:r><w:rPr>{}</w:rPr><w:t>{}</w:t></w:r>"
    texts = run.format(language.format("de-DE"), "Eins ") + run.format(language.format("fr"), "oui")
    document = '<w:document xmlns:w="w"><w:p>' + texts + '<w:r lang="de"/></w:p></w:document>'
    style = f'<w:styles xmlns:w="w"><w:rPr>{language}</w:rPr></w:styles>'
    parts = {"word/document.xml": document, "word/styles.xml": style.format("de-AT")}
    assert parts_after(parts, "docx") == {
        "word/document.xml": document.replace('w:val="de-DE"', 'w:val="en-GB"'),
        "word/styles.xml": style.format("en-GB"),
    }


@pytest.mark.parametrize(
    ("target", "values"),
    [
        ("en_GB", ("GB", "en", "none", "en-GB")),
        ("en", ("none", "en", "none", "en")),
        ("sr-Cyrl-RS", ("RS", "sr", "Cyrl", "sr-Cyrl-RS")),
    ],
)
def test_the_styles_of_a_text_name_the_language_of_the_translation(target, values):
    form = 'fo:country="{}" fo:language="{}" fo:script="{}" style:rfc-language-tag="{}"'
    german = form.format("AT", "de", "Latn", "de-Latn-AT")
    content = (
        f'<x xmlns:fo="f" xmlns:style="s" xmlns:text="t"><p {german} xml:lang="fr"/>'
        '<p fo:language="fr" fo:country="FR"/><text:p>Eins</text:p></x>'
    )
    written = parts_after({"content.xml": content}, "odt", Languages("de", target))
    expected = content.replace(german, form.format(*values))
    assert written == {"content.xml": expected}


@pytest.mark.parametrize(
    ("before", "languages", "after"),
    [
        ('w:val="en-US"', ("en", "ja"), 'w:eastAsia="ja" w:val="en-US"'),
        ('w:val="en-US" w:eastAsia="ja-JP"', ("en", "ja"), 'w:val="en-US" w:eastAsia="ja-JP"'),
        ('w:val="en-US" w:eastAsia="zh-CN"', ("en", "zh_TW"), 'w:val="en-US" w:eastAsia="zh-TW"'),
        ('w:val="en-US" w:bidi="ar-SA"', ("en", "he"), 'w:val="en-US" w:bidi="he"'),
        ('w:val="en-US" w:bidi="he-IL"', ("en", "th-TH"), 'w:val="en-US" w:bidi="th-TH"'),
        ('w:val="fr-FR" w:bidi="ar-SA"', ("en", "he"), 'w:val="fr-FR" w:bidi="ar-SA"'),
        ('w:val="fr-FR" w:eastAsia="ja-JP"', ("ja", "en"), 'w:val="en" w:eastAsia="ja-JP"'),
        ('w:val="en-US" w:eastAsia="ja-JP"', ("ja", "en"), 'w:val="en-US" w:eastAsia="ja-JP"'),
        ('w:val="ja"', ("ja", "en"), 'w:val="en"'),
        ('w:eastAsia="ja-JP"', ("ja", "ko"), 'w:eastAsia="ko"'),
        ('w:val="pt-BR"', ("pt-BR", "pt"), 'w:val="pt"'),
        ('w:eastAsia="ja-JP"', ("ja", "uz-Arab"), 'w:bidi="uz-Arab" w:eastAsia="ja-JP"'),
    ],
)
def test_word_names_a_language_for_the_script_of_the_translation(before, languages, after):
    style = '<w:styles xmlns:w="w"><w:lang {}/></w:styles>'
    parts = {"word/document.xml": WORD.format("<w:p><w:r><w:t>Eins</w:t></w:r></w:p>")}
    written = parts_after(
        {**parts, "word/styles.xml": style.format(before)}, "docx", Languages(*languages)
    )
    assert written["word/styles.xml"] == style.format(after)


@pytest.mark.parametrize(
    ("before", "languages", "after"),
    [
        (
            'fo:language="en" fo:country="US" style:language-asian="zh" style:country-asian="CN"',
            ("en", "ja"),
            'fo:language="en" fo:country="US" style:language-asian="ja" style:country-asian="none"',
        ),
        (
            'fo:language="en" style:language-asian="ja" style:country-asian="JP"',
            ("en", "ja"),
            'fo:language="en" style:language-asian="ja" style:country-asian="JP"',
        ),
        (
            'fo:language="en"',
            ("en", "zh-TW"),
            'style:country-asian="TW" style:language-asian="zh" fo:language="en"',
        ),
        (
            'fo:language="en" style:rfc-language-tag-complex="hi-IN"',
            ("en", "ur_PK"),
            'style:country-complex="PK" style:language-complex="ur" fo:language="en" '
            'style:rfc-language-tag-complex="ur-PK"',
        ),
        (
            'fo:language="fr" style:language-complex="ar" style:country-complex="SA"',
            ("ar", "en"),
            'fo:language="en" style:language-complex="ar" style:country-complex="SA"',
        ),
    ],
)
def test_a_style_names_a_language_for_the_script_of_the_translation(before, languages, after):
    content = '<x xmlns:fo="f" xmlns:style="s" xmlns:text="t"><p {}/><text:p>Eins</text:p></x>'
    written = parts_after({"content.xml": content.format(before)}, "odt", Languages(*languages))
    assert written == {"content.xml": content.format(after)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<w:p>{}</w:p>", "<w:p><w:pPr><w:bidi/></w:pPr>{}</w:p>"),
        ("<w:p><w:pPr/>{}</w:p>", "<w:p><w:pPr><w:bidi/></w:pPr>{}</w:p>"),
        (
            "<w:p> <w:pPr><w:pStyle/><w:tabs><w:tab/></w:tabs><w:ind/></w:pPr>{}</w:p>",
            "<w:p> <w:pPr><w:pStyle/><w:tabs><w:tab/></w:tabs><w:bidi/><w:ind/></w:pPr>{}</w:p>",
        ),
        (
            '<w:p><w:pPr><w:bidi w:val="0"/><w:jc/></w:pPr>{}</w:p>',
            '<w:p><w:pPr><w:bidi w:val="1"/><w:jc/></w:pPr>{}</w:p>',
        ),
        (
            "<w:p><w:pPr><w:bidi/><w:rPr><w:rtl/></w:rPr></w:pPr>{}</w:p>",
            "<w:p><w:pPr><w:bidi/><w:rPr><w:rtl/></w:rPr></w:pPr>{}</w:p>",
        ),
        (
            "<w:tbl><w:tblPr><w:tblStyle/><w:tblW/></w:tblPr><w:p><w:pPr/>{}</w:p></w:tbl>",
            "<w:tbl><w:tblPr><w:tblStyle/><w:bidiVisual/><w:tblW/></w:tblPr>"
            "<w:p><w:pPr><w:bidi/></w:pPr>{}</w:p></w:tbl>",
        ),
        (
            "<w:p><w:pPr/>{}</w:p><w:sectPr><w:cols/><w:docGrid/></w:sectPr>",
            "<w:p><w:pPr><w:bidi/></w:pPr>{}</w:p>"
            "<w:sectPr><w:cols/><w:bidi/><w:docGrid/></w:sectPr>",
        ),
    ],
)
def test_a_word_file_has_the_direction_of_its_translation(before, after):
    run = '<w:r>{}<w:t xml:space="preserve">{}</w:t></w:r>'
    source = WORD.format(before.format(run.format("", "Eins")))
    expected = WORD.format(after.format(run.format("<w:rPr><w:rtl/></w:rPr>", "واحد")))
    parts = {"word/document.xml": source}
    assert arabic_after(parts, "docx", "واحد")["word/document.xml"] == expected
    back = parts_after({"word/document.xml": expected}, "docx", Languages("ar", "de"))
    for switch in ("bidi", "rtl", "bidiVisual"):
        expected = re.sub(rf'<w:{switch}(?: w:val="1")?/>', f'<w:{switch} w:val="0"/>', expected)
    assert back == {"word/document.xml": expected}


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        (
            "واحد",
            "<w:b/><w:sz w:val='9'/>",
            "<w:b/><w:bCs/><w:sz w:val='9'/><w:szCs w:val='9'/><w:rtl/>",
        ),
        ("واحد", "<w:bCs w:val='0'/><w:b/><w:lang/>", "<w:bCs w:val='0'/><w:b/><w:rtl/><w:lang/>"),
        ("واحد A", "<w:i/><w:iCs/><w:u/>", "<w:i/><w:iCs/><w:u/><w:rtl/>"),
        ("(1) !", "<w:u/>", "<w:u/><w:rtl/>"),
        ("A", "<w:u/>", "<w:u/>"),
        ("واحد", "<w:rtl w:val='0'/>", "<w:rtl w:val='1'/>"),
    ],
)
def test_a_run_from_right_to_left_keeps_its_looks(text, before, after):
    run = '<w:r><w:rPr>{}</w:rPr><w:t xml:space="preserve">{}</w:t></w:r>'
    body = f"<w:p><w:pPr><w:bidi/></w:pPr>{run}</w:p>"
    parts = {"word/document.xml": WORD.format(body.format(before, "Eins"))}
    expected = {"word/document.xml": WORD.format(body.format(after, text))}
    assert arabic_after(parts, "docx", text) == expected


def test_a_run_from_left_to_right_keeps_its_looks():
    properties = "<w:rPr><w:bCs/><w:szCs w:val='9'/><w:cs/></w:rPr>"
    source = WORD.format(f"<w:p><w:r>{properties}<w:t>Eins</w:t></w:r></w:p>")
    expected = source.replace("<w:bCs/>", "<w:bCs/><w:b/>").replace("<w:cs/>", '<w:cs w:val="0"/>')
    expected = expected.replace("<w:szCs w:val='9'/>", "<w:szCs w:val='9'/><w:sz w:val='9'/>")
    written = parts_after({"word/document.xml": source}, "docx", Languages("ar", "de"))
    assert written == {"word/document.xml": expected}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            'page-layout-properties style:writing-mode="lr-tb"',
            'page-layout-properties style:writing-mode="rl-tb"',
        ),
        (
            'table-properties style:writing-mode="page"',
            'table-properties style:writing-mode="page"',
        ),
        (
            'paragraph-properties fo:text-align="start"',
            'paragraph-properties fo:text-align="right"',
        ),
        (
            'paragraph-properties fo:text-align="center"',
            'paragraph-properties fo:text-align="center"',
        ),
        ("paragraph-properties", "paragraph-properties"),
        (
            "default",
            'default fo:text-align="right" style:writing-mode="rl-tb"',
        ),
        (
            'default fo:text-align="justify" style:writing-mode="page"',
            'default fo:text-align="justify" style:writing-mode="page"',
        ),
    ],
)
def test_an_open_document_has_the_direction_of_its_translation(before, after):
    default = "<style:paragraph-properties{}/></style:default-style>"
    default = f'<style:default-style style:family="paragraph">{default}'
    content = '<x xmlns:fo="f" xmlns:style="s" xmlns:text="t">{}<text:p>Eins</text:p></x>'
    forms = [
        default.format(x[7:]) if x[:7] == "default" else f"<style:{x}/>" for x in (before, after)
    ]
    source, expected = map(content.format, forms)
    assert parts_after({"content.xml": source}, "odt", Languages("de", "ar")) == {
        "content.xml": expected
    }
    right_to_left = expected.replace("start", "end")
    back = parts_after({"content.xml": right_to_left}, "odt", Languages("ar", "de"))
    left_to_right = right_to_left.replace('"right"', '"left"').replace("rl-tb", "lr-tb")
    assert back == {"content.xml": left_to_right}


@pytest.mark.parametrize(
    ("before", "languages", "after"),
    [
        ("<spine>", ("de", "ar"), '<spine page-progression-direction="rtl">'),
        (
            '<spine page-progression-direction="ltr">',
            ("de", "ar"),
            '<spine page-progression-direction="rtl">',
        ),
        (
            '<spine page-progression-direction="rtl">',
            ("ar", "de"),
            '<spine page-progression-direction="ltr">',
        ),
        (
            '<spine page-progression-direction="default">',
            ("de", "ar"),
            '<spine page-progression-direction="rtl">',
        ),
        ("<spine>", ("ar", "de"), "<spine>"),
        (
            '<spine page-progression-direction="rtl">',
            ("ja", "en"),
            '<spine page-progression-direction="rtl">',
        ),
        ('<package dir="ltr" ', ("de", "ar"), '<package dir="rtl" '),
        ('<package version="2.0" ', ("de", "ar"), '<package version="2.0" '),
    ],
)
def test_a_book_has_the_direction_of_its_translation(before, languages, after):
    def book(start):
        name = start.split("<")[1].split(" ")[0].strip(">")
        return BOOK["OPS/p.opf"].replace(f"<{name}{'>' if start.endswith('>') else ' '}", start)

    package = book(before).replace(">de<", f">{languages[0]}<")
    written = parts_after({**BOOK, "OPS/p.opf": package}, "epub", Languages(*languages))
    expected = book(after).replace(">de<", f">{languages[1]}<")
    if before == '<package dir="ltr" ':
        expected = expected.replace("<spine>", '<spine page-progression-direction="rtl">')
    assert written["OPS/p.opf"] == expected


@pytest.mark.parametrize(
    ("language", "expected"), [("de_AT", "en_GB"), ("", "en_GB"), ("fr", "fr"), ("pt-BR", "pt-BR")]
)
def test_the_header_of_po_names_the_language_of_the_translation(language, expected):
    source = PO.format(language)
    written = renamed(source, "po")
    assert written.startswith(
        source.replace(f"Language: {language}\\n", f"Language: {expected}\\n", 1)[:100]
    )
    assert written.count("Language: de\\n") == source.count("Language: de\\n")


def test_xliff_1_names_the_language_of_its_targets():
    source = OLD.replace(' target-language="en"', "")
    written = renamed(source, "xliff")
    assert '<file source-language="de" target-language="en-GB">' in written
