import itertools
import random

import europarl_documents
import pytest
from prep_tools.command import run_script
from prep_tools.europarl_turns import align_paragraphs, align_sitting, read_turns
from prep_tools.length_alignment import align

from tests.commands import command_line
from tests.data_prep.made_archives import lines, made_pairs, make_tar, read_report, side_of

LANGUAGES = ("en", "de")


def write_split(prefix, documents):
    """Write documents (lists of pairs) with a line <d> before each."""
    for side, language in enumerate(LANGUAGES):
        lines = []
        for document in documents:
            lines += ["<d>", *side_of(document, side)]
        prefix.with_name(f"{prefix.name}.{language}").write_text("\n".join(lines) + "\n", "utf-8")


def made_document(first, size):
    return made_pairs(range(first, first + size), "en", "de")


def sitting(documents, side):
    """The text of a sitting: one chapter, one turn per document, two sentences a paragraph."""
    text = ["<CHAPTER ID=1>", f"Title {LANGUAGES[side]}"]
    for number, document in enumerate(documents, 1):
        text.append(f'<SPEAKER ID={number} LANGUAGE="EN" NAME="Someone">')
        for index, pair in enumerate(document):
            text.append(pair[side][0].upper() + pair[side][1:])
            if index % 2:
                text.append("<P>")
    return "\n".join(text) + "\n"


def make_release(path, sittings):
    files = {}
    for name, documents in sittings.items():
        for side, language in enumerate(LANGUAGES):
            files[f"txt/{language}/{name}.txt"] = sitting(documents, side)
        files[f"txt/fr/{name}.txt"] = "<CHAPTER ID=1>\nnot wanted\n"
    files["txt/en/ep-99-99-99.txt"] = "<CHAPTER ID=1>\nonly English\n"
    return make_tar(path, files)


def run(folder, *flags):
    arguments = command_line(["--out", folder / "out", "--workers", "1", "--no-binarize", flags])
    return run_script(europarl_documents.make_parser(), europarl_documents.make_corpus, arguments)


def prefixes(folder, *splits):
    flags = []
    for split in splits:
        flags += [f"--{split}pref", str(folder / split)]
    return flags


def test_the_published_split_is_copied(tmp_path, capsys):
    train = [made_document(0, 8), made_document(100, 3)]
    train[0][2] = ("", "nur Deutsch")
    write_split(tmp_path / "train", train)
    write_split(tmp_path / "valid", [made_document(200, 6)])
    write_split(tmp_path / "test", [made_document(300, 6)])
    assert run(tmp_path, prefixes(tmp_path, "train", "valid", "test")) == 0
    written = lines(tmp_path, "train.en")
    assert written[0] == "<d>" and written.count("<d>") == 2 and len(written) == 2 + 7 + 3
    assert len(lines(tmp_path, "train.de")) == len(written)
    printed = capsys.readouterr().out
    assert "valid: 6 sentence pairs, expected 3,587" in printed
    assert "test: 1 documents, expected 360" in printed
    assert "--document-separator tag --subword subword-nmt --subword-size 32000" in printed


@pytest.mark.parametrize(
    ("english", "german", "message"),
    [
        ("<d>\na\n<d>\nb\n", "<d>\na\nb\n<d>\n", "line 3: only one side"),
        ("a\nb\n", "a\nb\n", "begins without a line <d>"),
        ("<d>\na\n", "<d>\na\nb\n", "ends before line 3"),
    ],
)
def test_files_in_another_format_are_refused(english, german, message, tmp_path, capsys):
    (tmp_path / "train.en").write_text(english)
    (tmp_path / "train.de").write_text(german)
    assert run(tmp_path, prefixes(tmp_path, "train")) == 2
    assert message in capsys.readouterr().err


def test_published_training_documents_stay_as_they_are(tmp_path, capsys):
    formula = ("Thank you very much.", "Vielen Dank.")
    train = [[*made_document(0, 4), formula, *made_document(10, 4)], [formula, formula]]
    valid = [*made_document(200, 6), formula]
    write_split(tmp_path / "train", train)
    write_split(tmp_path / "valid", [valid])
    write_split(tmp_path / "test", [made_document(300, 6)])
    assert run(tmp_path, prefixes(tmp_path, "train", "valid", "test")) == 0
    for side, language in enumerate(LANGUAGES):
        expected = []
        for document in train:
            expected += ["<d>", *side_of(document, side)]
        assert lines(tmp_path, f"train.{language}") == expected
    printed = capsys.readouterr().out
    assert "train is left as it is; 3 of its 11 pairs are also in valid or test" in printed
    report = read_report(tmp_path)
    assert report["train"] == {"documents": 2, "pairs": 11}
    assert report["training pairs also in valid or test"] == 3


def in_release(documents):
    """The English lines of train.en that these documents of the release give."""
    written = []
    for document in documents:
        written += ["<d>", *(english[0].upper() + english[1:] for english, _ in document)]
    return written


def rebuild(folder, documents, valid, *flags):
    """Rebuild from a release of one sitting. ``valid`` is one document."""
    make_release(folder / "europarl.tgz", {"ep-96-04-15": documents})
    write_split(folder / "valid", [valid])
    write_split(folder / "test", [made_document(900, 6)])
    archive = str(folder / "europarl.tgz")
    return run(folder, prefixes(folder, "valid", "test"), "--archive", archive, flags)


def test_rebuilding_leaves_out_held_out_text(tmp_path, capsys):
    held_out = made_document(500, 8)
    documents = [made_document(0, 8), held_out, made_document(600, 8), made_document(700, 5)]
    # The held-out text is tokenized a little, as the published one is.
    valid = [(a.replace(".", " ."), b) for a, b in held_out]
    assert rebuild(tmp_path, documents, valid) == 0
    assert lines(tmp_path, "train.en") == in_release([documents[0], documents[2]])
    printed = capsys.readouterr().out
    assert "it is not the published one" in printed
    assert "1 of the 2 documents of valid and test are in the rebuilt text" in printed
    assert "are valid and test from Europarl v7?" in printed
    report = read_report(tmp_path)
    removed = report["held-out text in the training set"]
    assert removed == {
        "held-out documents found": 1,
        "training documents left out": 1,
        "training documents cut": 0,
        "pairs left out": 8,
    }
    assert "rebuilt" in report["source"]


def test_held_out_text_is_removed_in_any_alignment(tmp_path):
    held_out = made_document(500, 8)
    documents = [made_document(0, 8), held_out]
    joined = []
    for first, second in zip(held_out[::2], held_out[1::2], strict=True):
        joined.append(tuple(map(" ".join, zip(first, second, strict=True))))
    assert rebuild(tmp_path, documents, joined) == 0
    assert lines(tmp_path, "train.en") == in_release(documents[:1])


def test_formulas_of_held_out_documents_stay(tmp_path):
    held_out = made_document(500, 8)
    formulas = held_out[2:4]
    documents = [[*made_document(600, 4), *formulas, *made_document(700, 4)], held_out]
    assert rebuild(tmp_path, documents, held_out) == 0
    assert lines(tmp_path, "train.en") == in_release(documents[:1])


@pytest.mark.parametrize(("unit", "documents"), [("turns", 3), ("chapters", 1), ("sittings", 1)])
def test_a_unit_of_the_release_becomes_a_document(unit, documents, tmp_path):
    texts = [made_document(0, 6), made_document(100, 6), made_document(200, 6)]
    for side, language in enumerate(LANGUAGES):
        (tmp_path / f"x.{language}").write_text(sitting(texts, side))
    aligned = align_sitting((tmp_path / "x.en", tmp_path / "x.de"), unit)
    sizes = [len(document.pairs) for document in aligned if len(document.pairs) >= 6]
    assert len(sizes) == documents
    assert sum(sizes) == 18 + (unit != "turns")


def test_whole_documents_are_held_out_without_a_given_split(tmp_path, capsys):
    texts = [made_document(10 * n, 7) for n in range(60)]
    make_release(tmp_path / "europarl.tgz", {"ep-96-04-15": texts[:30], "ep-96-04-16": texts[30:]})
    assert run(tmp_path, "--archive", str(tmp_path / "europarl.tgz")) == 0
    assert lines(tmp_path, "train.de").count("<d>") == 54
    assert lines(tmp_path, "valid.de").count("<d>") == 3
    assert "whole documents are held out" in capsys.readouterr().out


def long_release(folder):
    """Twenty sittings of two files each, and a test set whose turns are in one of them."""
    texts = {}
    for day in range(1, 21):
        turns = [made_document(300 * day + 20, 9), made_document(300 * day + 40, 9)]
        texts[f"ep-07-11-{day:02d}-003"] = texts[f"ep-07-11-{day:02d}-012"] = turns
    make_release(folder / "europarl.tgz", texts)
    write_split(folder / "valid", [made_document(9_000, 6)])
    write_split(folder / "test", [texts["ep-07-11-05-003"][0][:6]])
    return [*prefixes(folder, "valid", "test"), "--archive", str(folder / "europarl.tgz")]


@pytest.mark.parametrize(("unit", "train", "held_out"), [("chapters", 36, 2), ("sittings", 18, 1)])
def test_the_long_variant_joins_consecutive_turns(unit, train, held_out, tmp_path, capsys):
    assert run(tmp_path, *long_release(tmp_path), "--documents", unit) == 0
    for split, count in (("train", train), ("valid", held_out), ("test", held_out)):
        assert lines(tmp_path, f"{split}.en").count("<d>") == count
    # The two files of a day are one sitting, in the order of its agenda.
    for text in "\n".join(lines(tmp_path, "test.de")).removeprefix("<d>").split("<d>"):
        assert len(text.split()) > 4 * 9 * (2 if unit == "chapters" else 4)
    assert lines(tmp_path, "test-turns.en")[0] == "<d>"
    assert len(lines(tmp_path, "test-turns.de")) == 7
    printed = capsys.readouterr().out
    assert f"--testpref {tmp_path}/out/test,{tmp_path}/out/test-turns" in printed
    assert "test: English words of" in printed


def test_the_published_test_set_is_not_in_the_long_training_set(tmp_path):
    assert run(tmp_path, *long_release(tmp_path), "--documents", "sittings") == 0
    written = list(map(str.lower, lines(tmp_path, "train.en")))
    assert set(written) & set(map(str.lower, lines(tmp_path, "test-turns.en"))) == {"<d>"}
    report = read_report(tmp_path)
    assert report["test-turns"] == {"documents": 1, "pairs": 6}
    assert "documents are sittings" in report["source"]
    # The rest of that turn begins a document, all else of the sitting follows it.
    source = side_of(made_document(300 * 5 + 20 + 6, 3), 0)
    begin = written.index(source[0])
    assert written[begin - 1] == "<d>" and written[begin : begin + 3] == source
    assert written[begin + 3] == made_document(300 * 5 + 40, 1)[0][0]


def test_long_documents_need_the_source_release(tmp_path, capsys):
    assert run(tmp_path, "--trainpref", "x", "--documents", "chapters") == 2
    assert "leave --trainpref out" in capsys.readouterr().err


def test_both_held_out_sets_are_needed(tmp_path, capsys):
    assert run(tmp_path, "--validpref", "x") == 2
    assert "both --validpref and --testpref" in capsys.readouterr().err


def test_turns_of_a_sitting_are_read(tmp_path):
    path = tmp_path / "ep.txt"
    path.write_text(
        '<CHAPTER ID="001">\nA title\n\n<SPEAKER ID=1 NAME="A">\nOne.\nTwo.\n<P>\nThree.\n'
        "<SPEAKER ID=1>\nAgain.\n<CHAPTER ID=2>\n<SPEAKER ID=2>\n",
        "utf-8",
    )
    assert read_turns(path) == {
        ("1", "title", 0): ["A title"],
        ("1", "1", 0): ["One. Two.", "Three."],
        ("1", "1", 1): ["Again."],
    }


def test_paragraphs_are_aligned_one_by_one_or_together():
    assert align_paragraphs(["Aa bb. Cc dd.", "Ee."], ["Ff gg. Hh ii.", "Jj."]) == [
        ("Aa bb.", "Ff gg."),
        ("Cc dd.", "Hh ii."),
        ("Ee.", "Jj."),
    ]
    assert align_paragraphs(["Aa bb cc.", "Dd ee ff."], ["Gg hh ii. Jj kk ll."]) == [
        ("Aa bb cc.", "Gg hh ii."),
        ("Dd ee ff.", "Jj kk ll."),
    ]


def test_a_sentence_that_was_divided_is_joined():
    sources = [
        "Kurz.",
        "Dieser Satz ist lang, denn er hat zwei Teile, die man trennen kann.",
        "Ende.",
    ]
    targets = [
        "Short.",
        "This sentence is long, it has two parts,",
        "which one may divide.",
        "End.",
    ]
    assert [(len(a), len(b)) for a, b in align(sources, targets)] == [(1, 1), (1, 2), (1, 1)]


@pytest.mark.parametrize("seed", range(20))
def test_groups_contain_all_sentences_of_both_sides(seed):
    lots = random.Random(seed)
    sides = ([], [])
    for side in sides:
        for _ in range(lots.randint(0, 9)):
            side.append("x" * lots.randint(1, 80))
    for side, groups in zip(sides, zip(*align(*sides), strict=True), strict=False):
        assert list(itertools.chain.from_iterable(groups)) == side
