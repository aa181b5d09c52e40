import argparse

import pytest
from prep_tools import documents as docs
from prep_tools.command import run_script

WORDS = ["ab", "cd", "ef"]


def made_documents(number: int) -> list[docs.Document]:
    """Documents of three lines. No two lines share a word pair."""
    documents = []
    for n in range(number):
        d = chr(97 + n // 26) + chr(97 + n % 26)
        pairs = [(f"{w}{d}q {w}{d}r {w}{d}s", f"{w}{d}x {w}{d}y {w}{d}z") for w in WORDS]
        documents.append(docs.Document(f"page{d}", tuple(pairs)))
    return documents


def test_no_document_is_in_two_sets_and_none_is_lost():
    documents = made_documents(100)
    corpus = docs.divide(documents, held_out=4, threshold=0.7)
    divided = [*corpus.train, *corpus.valid, *corpus.test]
    assert len(divided) == len(documents) and set(divided) == set(documents)
    assert (len(corpus.valid), len(corpus.test)) == (4, 4)


def test_the_division_does_not_depend_on_the_order_of_the_documents():
    documents = made_documents(60)
    first = docs.divide(documents, 3, 0.7)
    other = docs.divide(documents[::-1], 3, 0.7)
    assert set(first.test) == set(other.test)
    assert set(docs.divide(documents, 3, 0.7, seed=2).test) != set(first.test)


def test_at_most_a_twentieth_is_held_out_in_each_set():
    corpus = docs.divide(made_documents(40), held_out=100, threshold=0.7)
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (36, 2, 2)


def test_documents_that_share_a_name_are_all_kept():
    pieces = made_documents(120)
    documents = [docs.Document(f"page{n % 5}", document.pairs) for n, document in enumerate(pieces)]
    corpus = docs.divide(documents, held_out=4, threshold=0.7)
    parts = [*corpus.train, *corpus.valid, *corpus.test]
    assert sorted(d.pairs for d in parts) == sorted(d.pairs for d in documents)
    assert (len(corpus.valid), len(corpus.test)) == (4, 4)


def test_near_copies_on_either_side_leave_the_held_out_sets():
    train = [docs.Document("t", (("ein altes Haus steht hier", "an old house stands here"),))]
    held_out = [
        docs.Document("source", (("Ein altes Haus steht hier!", "quite another text"),)),
        docs.Document("target", (("etwas ganz anderes", "An old house stands here."),)),
        docs.Document("fresh", (("der Hund schläft", "the dog sleeps"),)),
    ]
    fresh, removed = docs.without_near_copies(held_out, train, 0.7)
    assert [document.name for document in fresh] == ["fresh"]
    assert removed == 2


@pytest.mark.parametrize(
    ("separator", "expected"),
    [
        ("none", ["a", "b", "c"]),
        ("blank", ["a", "b", "", "c"]),
        ("tag", ["<d>", "a", "b", "<d>", "c"]),
    ],
)
def test_separators_stand_between_documents(separator, expected):
    documents = [docs.Document("1", (("a", "A"), ("b", "B"))), docs.Document("2", (("c", "C"),))]
    assert docs.document_lines(documents, 0, separator) == expected


def test_both_sides_are_written_with_the_same_number_of_lines(tmp_path):
    corpus = docs.divide(made_documents(60), 3, 0.7)
    docs.write_corpus(corpus, tmp_path, ("de", "en"), "blank")
    for split in ("train", "valid", "test"):
        source = (tmp_path / f"{split}.de").read_text("utf-8").splitlines()
        target = (tmp_path / f"{split}.en").read_text("utf-8").splitlines()
        assert len(source) == len(target)
        assert list(map(bool, source)) == list(map(bool, target))
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("debug", [False, True])
def test_a_folder_that_cannot_be_made_is_a_one_line_error(tmp_path, capsys, debug):
    (tmp_path / "file").touch()
    parser = argparse.ArgumentParser(prog="script.py")

    def body(arguments):
        docs.write_corpus(docs.Corpus([], [], [], {}), tmp_path / "file" / "x", ("de", "en"), "tag")

    if debug:
        with pytest.raises(NotADirectoryError):
            run_script(parser, body, ["--debug"])
        return
    assert run_script(parser, body, []) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line == f"script.py: error: {tmp_path / 'file' / 'x'}: Not a directory"


@pytest.mark.parametrize(
    "flag", ["--held-out=0", "--held-out=-2", "--held-out=x", "--near-copy=0", "--near-copy=nan"]
)
def test_a_division_that_leaves_nothing_is_refused(flag, capsys):
    parser = argparse.ArgumentParser()
    docs.add_division_options(parser, near_copy=0.7)
    with pytest.raises(SystemExit):
        parser.parse_args([flag])
    assert f"argument {flag.partition('=')[0]}: " in capsys.readouterr().err
