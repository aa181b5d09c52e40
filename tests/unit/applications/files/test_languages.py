import re

import pytest

from relu_nmt.applications.files import FileOptions, Languages, translated
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


def renamed(source, name, languages=GERMAN_TO_ENGLISH):
    """Return a text with the languages of a translation, and no other change."""
    return translate(source, name, identity, languages)


def parts_after(parts, name, languages=GERMAN_TO_ENGLISH):
    return unpacked(translated(packed(parts), name, identity, FileOptions(), languages))


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
    ("before", "languages", "after"),
    [
        ('http-equiv="Content-Language" content="de-DE"', ("de", "en_GB"), "en-GB"),
        ("http-equiv='content-language' content='de'", ("de", "ar"), "ar"),
        ('property="og:locale" content="de_DE"', ("de", "en-GB"), "en_GB"),
        ('property="og:locale" content="fr_FR"', ("de", "en"), "fr_FR"),
        ('property="og:site_name" content="de"', ("de", "en"), "de"),
        ('http-equiv="content-language"', ("de", "en"), "x"),
    ],
)
def test_the_head_of_a_page_names_the_language_of_the_translation(before, languages, after):
    page = "<html><head><meta {}></head><p>Eins</p></html>"
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
        ("zh-Hant-TW", ("TW", "zh", "Hant", "zh-Hant-TW")),
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
