import itertools
import os

import pytest

from relu_nmt.applications.files import FileOptions, check_options, translate_file
from relu_nmt.applications.files.aligned_words import AlignedText
from relu_nmt.applications.files.segments import Protected, Segment
from relu_nmt.applications.files.sentences import SegmentTranslator, read_glossary, sentence_spans
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.translation.search.config import GenerationConfig
from tests.commands import assert_refused, run_here
from tests.tiny import save_tiny_model, tiny_task
from tests.unit.applications.files.translators import identity
from tests.unit.applications.serving.served_models import WORDS, make_translator

PAGE = "<p>das <b>Haus</b> ist gross . ein <a href='x'>Garten</a> ist klein .</p><p>ein Haus</p>"


@pytest.mark.parametrize("separated", [True, False])
def test_a_model_translates_a_page_with_all_its_tags(tmp_path, separated):
    path = tmp_path / "a.html"
    output = tmp_path / "b.html"
    path.write_text(PAGE)
    make_translator(separated).translate_file(path, output, beam=2)
    written = output.read_text()
    for tag in ("<p>", "</p>", "<b>", "<a href='x'>", "</a>"):
        assert written.count(tag) == max(PAGE.count(tag), written.count(tag) * (tag == "<b>"))
    assert written != PAGE


def test_a_model_tells_xliff_its_language(tmp_path):
    path = tmp_path / "a.xlf"
    output = tmp_path / "b.xlf"
    unit = "<unit><segment><source>ein Haus</source></segment></unit>"
    path.write_text(f'<xliff version="2.0" srcLang="de"><file>{unit}</file></xliff>')
    make_translator().translate_file(path, output, beam=2)
    assert output.read_text().startswith('<xliff version="2.0" srcLang="de" trgLang="en"><file>')


@pytest.mark.parametrize("separated", [True, False])
def test_terms_of_a_glossary_are_forced(separated):
    translator = make_translator(separated)
    config = GenerationConfig(beam=3)
    translate = SegmentTranslator(translator, config, glossary={"Haus": "big house"})
    [translation] = translate([Segment("das Haus ist klein .", (0, 20))])
    assert "big house" in translation.text
    assert translation.links
    for begin, end in itertools.chain(*translation.links):
        assert begin < end


@pytest.mark.parametrize(
    ("begin", "end", "terms"),
    [(4, 8, []), (0, 20, []), (4, 6, ["big house"]), (0, 0, ["big house"])],
)
def test_protected_texts_are_not_forced_nor_are_terms_in_them(monkeypatch, begin, end, terms):
    translate = SegmentTranslator(make_translator(), glossary={"Haus": "big house"})
    requests = []
    encode = translate.translator.sources.encode
    monkeypatch.setattr(
        translate.translator.sources,
        "encode",
        lambda request, read: requests.append(request) or encode(request, read),
    )
    protected = [Protected(begin, end)] if end else []
    translate([Segment("das Haus ist klein .", (0, 20), protected=protected)])
    [request] = requests
    assert list(request.forced) == [terms]


def test_texts_that_the_model_cannot_write_are_counted():
    translate = SegmentTranslator(make_translator(), GenerationConfig(beam=2))
    segment = Segment("ein {x} Haus", (0, 12), protected=[Protected(4, 7)])
    translate([segment, segment])
    assert "2 protected texts copied" in translate.notes[1]


def test_each_copy_of_a_protected_text_is_counted(monkeypatch):
    translate = SegmentTranslator(make_translator(), GenerationConfig(beam=2))
    monkeypatch.setattr(
        translate, "_translated", lambda sentences: [AlignedText("the dictionary {n}")]
    )
    text = "{n} dict {n}"
    protected = [Protected(0, 3), Protected(4, 8), Protected(9, 12)]
    translate([Segment(text, (0, 12), protected=protected)])
    assert translate.num_copied == 2


def test_links_of_a_second_sentence_belong_to_it():
    translate = SegmentTranslator(make_translator(), GenerationConfig(beam=2))
    text = "Das Haus ist gross. Der Garten ist klein."
    [translation] = translate([Segment(text, (0, len(text)))])
    for (begin, end), (target_begin, target_end) in translation.links:
        assert text[begin:end].strip() and translation.text[target_begin:target_end].strip()
        assert end <= len(text) and target_end <= len(translation.text)


def test_models_without_weights_place_tags_by_position():
    translator = make_translator(separated=True, attention="linear")
    [translation] = SegmentTranslator(translator)([Segment("ein Haus", (0, 8))])
    assert translation.text == "" or translation.links


def test_a_sentence_does_not_end_within_a_protected_text():
    text = "Nimm a. b. Dann"
    spans = sentence_spans(text, ["Nimm a.", "b.", "Dann"], [Protected(5, 10)])
    assert [text[begin:end] for begin, end in spans] == ["Nimm a. b.", "Dann"]


@pytest.mark.parametrize(
    ("name", "options"),
    [("html", {"column": "2"}), ("po", {"line_width": 20}), ("table", {"retranslate": True})],
)
def test_options_of_other_formats_are_refused(name, options):
    with pytest.raises(ConfigError, match=f"does nothing for the file format {name}; leave it out"):
        check_options([name], FileOptions(**options))


def test_a_glossary_has_two_columns(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_text("Haus\thouse\nalter Garten\told garden\n")
    assert read_glossary(str(path)) == {"Haus": "house", "alter Garten": "old garden"}
    path.write_text("Haus\thouse\tx\n")
    with pytest.raises(DataError, match=r"terms.tsv:1: expected"):
        read_glossary(str(path))


# ------------------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_tiny_model(path, tiny_task(WORDS.split()))
    return path


def run(model, *words, check=True):
    flags = ["--cpu", "--beam", "2", "--max-len-b", "4", "--no-progress-bar", words]
    return run_here("translate_document", "--path", model, flags, check=check)


def test_the_command_writes_the_translation_beside_the_file(tmp_path, model):
    (tmp_path / "page.html").write_text(PAGE)
    assert "page.en.html" in run(model, tmp_path / "page.html").stderr
    assert (tmp_path / "page.en.html").read_text().count("<a href='x'>") == 1
    (tmp_path / "a.txt").write_text("ein Haus\n\ndas Haus\n")
    printed = run(model, tmp_path / "a.txt").stdout
    assert run(model, tmp_path / "a.txt", "--output", tmp_path / "b.txt").stdout == ""
    assert (tmp_path / "b.txt").read_text() == printed


def test_the_command_translates_a_folder(tmp_path, model):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/page.html").write_text(PAGE)
    (tmp_path / "a.txt").write_text("ein Haus\n\ndas Haus\n")
    run(model, tmp_path / "in", tmp_path / "a.txt", "--output-dir", tmp_path / "out")
    assert (tmp_path / "out/page.html").read_text().count("<a href='x'>") == 1
    printed = run(model, tmp_path / "a.txt").stdout
    assert (tmp_path / "out/a.txt").read_text() == printed


@pytest.mark.parametrize(
    ("name", "content", "flags", "message"),
    [
        ("a.pdf", b"%PDF-", (), "pdftotext"),
        ("a.docx", b"PK no zip", (), "damaged"),
        ("a.xlf", b"<x><y></x>", (), "well-formed"),
        ("a.html", b"\xff\xfe\xff", (), "encoding"),
        ("a.html", b"<p>x", ("--format", "wrong"), "unknown file format"),
        ("a.html", b"<p>x", ("--constraints",), "--constraints belongs to lines"),
        ("a.html", b"<p>x", ("--glossary", "nowhere.tsv"), "nowhere.tsv"),
        ("a.csv", b"x,y\n", ("--column", "z"), "no column z"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(tmp_path, model, name, content, flags, message):
    (tmp_path / name).write_bytes(content)
    output = tmp_path / "out"
    output.write_text("old")
    assert_refused(run(model, tmp_path / name, "--output", output, flags, check=False), message)
    assert output.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == sorted([name, "out"])


def test_a_format_of_a_user_is_one_file(tmp_path, model):
    module = tmp_path / "shout.py"
    module.write_text(
        "import re\n"
        "from relu_nmt.applications.files import formats\n"
        "from relu_nmt.applications.files.document import TextFormat\n"
        "from relu_nmt.applications.files.segments import plain_segment\n\n\n"
        '@formats.register("shout")\n'
        "class Shout(TextFormat):\n"
        "    def segments(self, source):\n"
        "        spans = [m.span(1) for m in re.finditer('!(.*?)!', source)]\n"
        "        return [plain_segment(source[a:b], (a, b)) for a, b in spans]\n"
    )
    (tmp_path / "a.shout").write_text("x !ein Haus! y")
    run(model, tmp_path / "a.shout", "--user-module", module)
    written = (tmp_path / "a.en.shout").read_text()
    assert written.startswith("x !") and written.endswith("! y")


def test_a_failed_translation_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.html"
    output = tmp_path / "b.html"
    path.write_text("<p>eins")
    output.write_text("old")

    def failing(segments):
        raise ConfigError("no")

    with pytest.raises(ConfigError):
        translate_file(path, output, failing, FileOptions(), "html")
    assert output.read_text() == "old"
    translate_file(path, output, identity, FileOptions(), "html")
    assert output.read_text() == "<p>eins"
    with pytest.raises(DataError, match="cannot read"):
        translate_file(tmp_path / "none.html", output, identity, FileOptions(), "html")
