"""examples/markup: tagged texts, alignments, scores, and the whole script in its smallest form."""

import itertools
import json
import random
from collections import Counter

import numpy as np
import pytest

from tests import outputs, tiny
from tests.example_modules import example_modules

NAMES = ("tagged_text", "aligner", "corpus", "measure", "small_model", "run")


@pytest.fixture(scope="module")
def modules():
    with example_modules("markup", NAMES) as modules:
        yield modules


MARKUP = 'Choose <a><span class="key">File </span>&amp; more</a> <b>now</b>.'


def test_tags_are_read_and_written(modules):
    text = modules.tagged_text.TaggedText.of_markup(MARKUP)
    assert text.text == "Choose File & more now."
    marked = [(tag.name, text.text[tag.begin : tag.end]) for tag in text.tags]
    assert marked == [("a", "File & more"), ("span.key", "File"), ("b", "now")]
    assert text.markup() == MARKUP.replace("File </span>", "File</span> ")
    assert text.is_nested
    for damaged in ("a <b>c", "a</b> c", "<b>a <i>c</b> d</i>"):
        assert not modules.tagged_text.TaggedText.of_markup(damaged).is_nested


def test_tags_as_words_become_tags_again(modules):
    text = modules.tagged_text.TaggedText.of_markup(MARKUP)
    symbols = modules.tagged_text.tag_symbols([text])
    line = text.words(symbols)
    tags = list(itertools.chain.from_iterable(symbols.values()))
    assert list(map(line.count, tags)) == [1] * 6
    assert modules.tagged_text.of_words(line, symbols) == text


def test_a_paragraph_is_cut_into_sentences_with_their_tags(modules):
    page = '<p id="par_1">Hier <b>eins</b>. {}Da <i>zwei</i>{} sind.</p>'
    english = '<p id="par_1">Here <b>one</b>. There are <i>two</i>.</p>'
    pairs = list(modules.corpus.page_pairs(page.format("", ""), english))
    first, second = pairs
    assert first[1].markup() == "Here <b>one</b>."
    assert second[1].markup() == "There are <i>two</i>."
    assert all(map(modules.corpus.is_measured, pairs))
    crossing = '<p id="par_1"><u>Hier eins. Da</u> zwei sind.</p>'
    [pair] = modules.corpus.page_pairs(crossing, english)
    assert pair[0].markup() == "<u>Hier eins. Da</u> zwei sind."
    assert not modules.corpus.is_measured(pair)


def test_alignment_learns_words_that_change_places(modules):
    rng = np.random.default_rng(0)
    sources = [rng.permutation(20)[: rng.integers(3, 8)] for _ in range(300)]
    right = 0
    targets = []
    for ids in sources:
        order = [*range(len(ids) - 3), len(ids) - 1, len(ids) - 3, len(ids) - 2]
        targets.append(ids[order] + 20)
    links = modules.aligner.symmetric_links(sources, targets)
    for pairs, source, target in zip(links, sources, targets, strict=True):
        at_source, at_target = np.array(pairs).T
        right += np.count_nonzero(source[at_source] + 20 == target[at_target])
    assert right > 0.98 * sum(map(len, links))
    assert right > 0.95 * sum(map(len, sources))


def test_scores_of_tags_are_those_counted_by_hand(modules):
    of_markup = modules.tagged_text.TaggedText.of_markup
    source = of_markup("Ein <b>rotes Haus</b> <i>hier</i>")
    reference = of_markup("A <b>red house</b> <i>here</i>")
    placed = of_markup("<b>A red</b> house <i>here</i>")
    scores = modules.measure.forced_scores([placed], [(source, reference)])
    assert scores == {"segments": 1, "tags": 2, "f1": 75.0, "exact": 50.0}
    scores = modules.measure.translation_scores([placed], [(source, reference)])
    assert (scores["sound"], scores["agreeing"], scores["f1"]) == (100.0, 1, 75.0)
    assert scores["bleu"] == pytest.approx(100)
    assert modules.measure.f1(Counter("aab"), Counter("ab")) == 0.8
    for damaged in ("A <b>red house</b> here", "A <b>red <i>house</b> here</i>"):
        assert not modules.measure.is_sound(source, of_markup(damaged))
    assert modules.measure.cuts_word(of_markup("a w<b>ord</b>"))
    assert not modules.measure.cuts_word(placed)


def write_corpus(folder):
    """Write a text whose words are letters, each translated by its capital, the tagged one last."""
    rng = random.Random(0)
    folder.mkdir()
    for split, count in (("train", 150), ("valid", 4), ("test", 16)):
        lines = {"de": [], "en": []}
        for number in range(count):
            words = rng.choices("abcdefgh", k=rng.randint(3, 6))
            index = rng.randrange(len(words))
            others = " ".join([*words[:index], *words[index + 1 :]])
            tag = '<span class="literal">{}</span>' if number % 4 == 0 else "<b>{}</b>"
            lines["en"].append(f"{others.upper()} {tag.format(words[index].upper())}")
            words[index] = tag.format(words[index])
            lines["de"].append(" ".join(words))
        for language in tiny.LANGUAGES:
            (folder / f"{split}.{language}").write_text("\n".join(lines[language]) + "\n")


def test_the_script_measures_all_models_and_does_nothing_twice(modules, tmp_path, capsys):
    write_corpus(tmp_path / "text")
    shape = "--encoder-layers 1 --decoder-layers 2 --encoder-embed-dim 16 --decoder-embed-dim 16"
    shape += " --encoder-ffn-embed-dim 16 --decoder-ffn-embed-dim 16 --log-interval 1"
    words = ["--corpus", tmp_path / "text", "--out", tmp_path / "out", "--updates", 2]
    words += ["--subword-size", 40, "--beam", 1, f"--train-flags={shape}"]
    words = list(map(str, words))
    assert modules.run.main(words) == 0, capsys.readouterr().err
    results = json.loads((tmp_path / "out" / "results.json").read_text("utf-8"))
    assert results["with the same tags"] == {"train": 150, "valid": 4, "test": 16}
    by_model = {record["model"]: record for record in results["models"]}
    trained = {"softmax", "relu", "thresholded", "sparsemax", "guided", "words"}
    assert set(by_model) == {"aligner", *trained}
    assert by_model["aligner"]["references"]["f1"] > 80
    for record in by_model.values():
        assert record.get("updates", 2) == 2
        if "layers" in record:
            assert record["translations"]["sound"] == 100
            assert record["translations"]["cut words"] == 0
            assert record["references"]["tags"] == 16
            protected = record["protected"]
            assert (protected["segments"], protected["texts"]) == (4, 4)
            assert 0 < protected["copied"] <= 4  # an untrained model writes few of them
            assert protected["bleu"] != protected["forced bleu"]
            assert outputs.column(record["layers"], "tags") == [4, 4]
    assert set(results["examples"][0]) == {"source", "reference", "position", *by_model}
    capsys.readouterr()
    assert modules.run.main(words) == 0
    again = capsys.readouterr().out
    assert "relu-nmt-" not in again
    assert again == (tmp_path / "out" / "report.md").read_text("utf-8")
