"""Translation memories and tables as text. The expected texts are written by hand."""

import gzip
import io
import itertools
import subprocess
import sys
from collections import Counter

import pytest

from relu_nmt.data.pair_files import LEFT_OUT, pair_format, read_pairs, scan_pairs
from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import read_chunk

HEADER = (
    '<header srclang="en-US" datatype="xml" segtype="sentence"><prop type="x-filename">all</prop>'
)


def memory(*units, start='<?xml version="1.0" encoding="UTF-8"?>\n'):
    body = "\n".join(f"<tu>{unit}</tu>" for unit in units)
    return f'{start}<tmx version="1.4">{HEADER}</header><body>\n{body}\n</body></tmx>\n'


def tuv(language, text, attribute="xml:lang"):
    return f'<tuv {attribute}="{language}"><prop type="x-context">c</prop><seg>{text}</seg></tuv>'


def read(path, languages=("de", "en")):
    counts = Counter()
    return list(read_pairs(path, languages, counts)), counts[LEFT_OUT]


def write(folder, text, name="memory.tmx", encoding="utf-8"):
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def only_source(folder, segment):
    [(_, pair)], _ = read(write(folder, memory(tuv("de", segment) + tuv("en", "x"))))
    return pair[0]


@pytest.mark.parametrize(
    ("segment", "text"),
    [
        (
            "Ein <bpt i='1'>&lt;b&gt;</bpt>fettes<ept i='1'>&lt;/b&gt;</ept> Wort.",
            "Ein fettes Wort.",
        ),
        ("Bild <ph>{0}</ph> hier", "Bild hier"),
        ("<ph/>Am Anfang <it pos='begin'>x</it>", "Am Anfang"),
        ("un<bpt i='1'>&lt;i&gt;</bpt>glaub<ept i='1'/>lich", "unglaublich"),
        ("Klick <hi type='bold'>hier</hi>!", "Klick hier!"),
        ("Fuß<ph>\\f <sub>eine Fußnote</sub></ph>note", "Fußnote"),
        ("Alt <ut>{\\b</ut>und neu", "Alt und neu"),
        ("Zeile<ph type='lb'/>zwei", "Zeile zwei"),
        ("Zeile<ph>&lt;br/&gt;</ph>zwei", "Zeile zwei"),
        ("\n   Zeile eins\n   Zeile zwei\r\n", "Zeile eins Zeile zwei"),
        (
            "Zeile eins&#x2028;Zeile zwei&#13;drei&#x85;vier",
            "Zeile eins\u2028Zeile zwei drei\x85vier",
        ),
        ("A &amp; B &lt;c&gt; &#8364; <![CDATA[<d> & e]]>", "A & B <c> € <d> & e"),
        ("10\u00a0% von 3  Euro", "10\u00a0% von 3  Euro"),
        ("你好，世界。", "你好，世界。"),
    ],
)
def test_texts_of_segments_are_read_without_codes(tmp_path, segment, text):
    assert only_source(tmp_path, segment) == text


@pytest.mark.parametrize("codes", [("de", "en"), ("DE-DE", "EN_US"), ("de_AT", "en-gb")])
@pytest.mark.parametrize("attribute", ["xml:lang", "lang"])
def test_language_codes_are_matched(tmp_path, codes, attribute):
    other = tuv("fr-FR", "f", attribute)
    unit = tuv(codes[1], "e", attribute) + other + tuv(codes[0], "d", attribute)
    assert read(write(tmp_path, memory(unit))) == ([("", ("d", "e"))], 0)


def test_the_exact_code_precedes_its_regions(tmp_path):
    unit = tuv("de-AT", "a") + tuv("de", "d") + tuv("de", "later") + tuv("en", "e")
    path = write(tmp_path, memory(unit))
    assert read(path)[0] == [("", ("d", "e"))]
    assert read(path, ("de_at", "en"))[0] == [("", ("a", "e"))]
    assert read(path, ("en",))[0] == [("", ("e",))]


def test_a_missing_language_is_an_error(tmp_path):
    path = write(tmp_path, memory(tuv("de-DE", "d") + tuv("en", "e") + tuv("den", "x")))
    with pytest.raises(DataError, match=r"no pair of 'de' and 'fr'.*'de-DE', 'en', 'den'"):
        read(path, ("de", "fr"))
    path = write(tmp_path, memory(tuv("de", "d")))
    with pytest.raises(DataError, match=r"no pair of 'de' and 'en' in it; its languages are 'de'"):
        read(path)


@pytest.mark.parametrize(
    ("encoding", "declared"),
    [
        ("utf-8-sig", "UTF-8"),
        ("utf-16", "UTF-16"),
        ("utf-16-le", None),
        ("utf-16-be", None),
        ("iso-8859-1", "ISO-8859-1"),
        ("windows-1252", "windows-1252"),
    ],
)
def test_all_encodings_of_xml_are_read(tmp_path, encoding, declared):
    start = f'<?xml version="1.0" encoding="{declared}"?>' if declared else "\ufeff"
    text = memory(tuv("de", "Größe") + tuv("en", "size"), start=start)
    assert read(write(tmp_path, text, encoding=encoding))[0] == [("", ("Größe", "size"))]


def test_compressed_memories_are_read(tmp_path):
    path = tmp_path / "Memory.TMX.gz"
    path.write_bytes(gzip.compress(memory(tuv("de", "d") + tuv("en", "e")).encode()))
    assert pair_format(path) == ".tmx"
    assert read(path)[0] == [("", ("d", "e"))]


@pytest.mark.parametrize(
    "kind",
    [
        *("x-document", "document", "file", "x-filename:SingleString", "Txt::Doc. No.", "fileId"),
        *("x-sourcefile", "x-xtm:filename", "x-memoq:document"),
    ],
)
def test_properties_name_the_documents(tmp_path, kind):
    def unit(document, text):
        properties = f'<prop type="project">p</prop><prop type="{kind}"> {document} </prop>'
        return properties + tuv("de", text) + tuv("en", text)

    path = write(tmp_path, memory(unit("a.docx", "1"), unit("b &amp; c", "2"), unit("a.docx", "3")))
    assert [document for document, _ in read(path)[0]] == ["a.docx", "b & c", "a.docx"]


def test_units_without_a_side_are_counted(tmp_path):
    pair = tuv("de", "d") + tuv("en", "e")
    units = [tuv("de", "d"), tuv("de", "d") + tuv("en", " "), tuv("de", "<ph/>") + tuv("en", "e")]
    path = write(tmp_path, memory(*[pair, *units, pair]))
    assert read(path) == ([("", ("d", "e"))] * 2, 3)


BOMB = '<?xml version="1.0"?>\n<!DOCTYPE tmx [\n<!ENTITY a "aaaaaaaaaa">\n' + "".join(
    f'<!ENTITY {name} "{f"&{before};" * 10}">\n'
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("start", "segment", "message"),
    [
        (f"{BOMB}]>", "&i;", "memory.tmx:3: declares the entity 'a'"),
        (
            '<!DOCTYPE tmx [<!ENTITY x SYSTEM "file:///etc/passwd">]>',
            "&x;",
            "memory.tmx:1: declares the entity 'x'",
        ),
        (
            '<!DOCTYPE tmx [<!ENTITY % x SYSTEM "http://localhost/x.dtd"> %x;]>',
            "x",
            "memory.tmx:1: declares the entity 'x'",
        ),
        ('<!DOCTYPE tmx SYSTEM "tmx14.dtd">', "&unknown;", "entity '&unknown;' is not declared"),
        ("", "&unknown;", "memory.tmx:2: damaged or cut short: undefined entity"),
    ],
)
def test_entities_are_refused(tmp_path, start, segment, message):
    path = write(tmp_path, memory(tuv("de", segment) + tuv("en", "e"), start=start))
    with pytest.raises(DataError, match=message) as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_named_entities_of_html_are_read(tmp_path):
    start = '<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "tmx14.dtd">'
    path = write(tmp_path, memory(tuv("de", "10&nbsp;%") + tuv("en", "e"), start=start))
    assert read(path)[0] == [("", ("10\u00a0%", "e"))]


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_a_truncated_memory_is_an_error(tmp_path, share):
    text = memory(*[tuv("de", f"Satz {n}") + tuv("en", f"text {n}") for n in range(50)])
    path = write(tmp_path, text[: int(share * len(text))])
    line = text[: int(share * len(text))].count("\n") + 1
    with pytest.raises(DataError, match=f"memory.tmx:{line}: damaged or cut short: "):
        read(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "memory.tmx:1: damaged"),
        (b"plain text", "memory.tmx:1: damaged"),
        (b"<html><body/></html>", "memory.tmx:1: expected a TMX, found an XML file of <html>"),
        (b'<?xml version="1.0" encoding="UTF-16"?><tmx/>', "memory.tmx:1: damaged"),
        (b'<?xml version="1.0" encoding="klingon"?><tmx/>', "memory.tmx"),
        (b'<?xml version="1.0" encoding="shift_jis"?><tmx/>', "cannot decode the text"),
        (b"<tmx><body/></tmx>", "no pair of 'de' and 'en' in it"),
    ],
)
def test_other_files_are_no_memories(tmp_path, content, message):
    path = tmp_path / "memory.tmx"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(path)


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        (
            'ein "Haus\ta "house"\n"zwei\t"two\n',
            [("", 'ein "Haus', 'a "house"'), ("", '"zwei', '"two')],
        ),
        ("\ufeffd1\t1\ta\tA\r\nd2\t1\tb\tB", [("d1", "a", "A"), ("d2", "b", "B")]),
        ("a\tA\n\nb\tB\n", [("", "a", "A"), ("1", "b", "B")]),
        ("en-US\tfr\tde_DE\nA\tx\ta\n", [("", "a", "A")]),
        ("source\ttarget\tscore\na\tA\t1\n", [("", "a", "A")]),
        ("document\tde\ten\nx y\ta\tA\n", [("x y", "a", "A")]),
        ("a\u2028b\x0cc\td\x85e\n", [("", "a\u2028b\x0cc", "d\x85e")]),
    ],
)
def test_tables_are_read_as_pairs_with_their_documents(tmp_path, text, pairs):
    path = write(tmp_path, text, "table.tsv")
    assert [(document, *pair) for document, pair in read(path)[0]] == pairs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tb\tc\n", "table.tsv:1: 3 columns, expected two"),
        ("a\tb\nc\td\te\n", "table.tsv:2: 3 columns, expected 2 as in the first line"),
        ("a\tb\na\n", "table.tsv:2: 1 columns, expected 2"),
        ("a\n", "table.tsv:1: 1 columns"),
        ("", "no pair of 'de' and 'en'"),
        ("a\t \n \tb\n", "no pair of 'de' and 'en'"),
    ],
)
def test_wrong_tables_are_errors(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read(write(tmp_path, text, "table.tsv"))


def test_a_table_that_is_not_utf_8_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"table\.tsv:2: not UTF-8"):
        read(write(tmp_path, "a\tb\nGröße\tsize\n", "table.tsv", "iso-8859-1"))


@pytest.mark.parametrize(
    ("separator", "lines"),
    [
        ("none", ["a1", "a2", "b1"]),
        ("blank", ["a1", "a2", "", "b1"]),
        ("tag", ["<d>", "a1", "a2", "<d>", "b1"]),
    ],
)
def test_sides_are_read_as_text_files(tmp_path, separator, lines):
    text = "a\t1\ta1\tA1\na\t2\ta2\tA2\nb\t1\tb1\tB1\n"
    path = write(tmp_path, text, "table.tsv")
    sides, _ = scan_pairs(str(path), ("de", "en"), separator, io.BytesIO)
    path.unlink()
    for side, expected in zip(sides, (lines, list(map(str.upper, lines))), strict=True):
        texts = list(itertools.chain.from_iterable(map(read_chunk, side.readable_chunks())))
        assert texts == [line.replace("<D>", "<d>") for line in expected]
        assert side.num_lines == len(texts)


READ = """
import resource, sys
from collections import Counter
from relu_nmt.data.pair_files import read_pairs
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
count = sum(1 for _ in read_pairs(sys.argv[1], ("de", "en"), Counter()))
print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = tmp_path / "memory.tmx.gz"
    unit = f"<tu>{tuv('de', 'Ein Satz ' * 30)}{tuv('en', 'A sentence ' * 30)}</tu>\n"
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write(f'<tmx version="1.4">{HEADER}</header><body>')
        for _ in range(40):
            file.write(unit * 1000)
        file.write("</body></tmx>")
    done = subprocess.run([sys.executable, "-c", READ, path], capture_output=True, check=True)
    count, grown = map(int, done.stdout.split())
    unit_bytes = 1024 if sys.platform != "darwin" else 1
    assert count == 40_000
    assert grown * unit_bytes < 20_000_000  # of 30,000,000 bytes of XML
