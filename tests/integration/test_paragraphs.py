"""Lines of several sentences: a model of single sentences translates them one by one."""

import itertools
import json
import math
import re
import sys

import numpy as np
import pytest

from relu_nmt.errors import ConfigError, MissingExtraError
from relu_nmt.translator import Translator
from tests.commands import assert_refused, run_here
from tests.outputs import column, lines_of, numbers_of, texts_of
from tests.tiny import as_text, save_tiny_model, tiny_model, tiny_task
from tests.unit.applications.serving.clients import client_of

pytest.importorskip("sentencex")

SENTENCES = ["Ein Haus ist rot.", "Wo ist Dr. Haus?", "Das Haus!"]
PARAGRAPH = " ".join(SENTENCES)
LINES = [PARAGRAPH, "", SENTENCES[1], " ".join(SENTENCES[1:])]
PARTS = [SENTENCES, [], SENTENCES[1:2], SENTENCES[1:]]
WORDS = ["Ein", "Haus", "ist", "rot.", "Wo", "Dr.", "Haus?", "Das", "Haus!", "rot"]
SEARCH = {"beam": 3, "max_len_b": 4}
FLAGS = ["--cpu", "--beam", 3, "--max-len-b", 4]
TEXT = as_text(LINES)
NOTE = "NOTE: 2 lines of several sentences, which are translated one by one as in training"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_tiny_model(path, tiny_task(WORDS))
    return path


@pytest.fixture(scope="module")
def translator(model):
    return Translator.from_checkpoint(model, "cpu")


@pytest.fixture(scope="module")
def expected(translator):
    """Return the joined translations of the sentences of each line."""
    return [" ".join(translator.translate(part, **SEARCH)) for part in PARTS]


pytestmark = pytest.mark.filterwarnings("ignore:.*reached the longest output")


def test_commands_keep_lines_and_translate_their_sentences(model, tmp_path, expected):
    (tmp_path / "text").write_text(TEXT)
    flags = ["--path", model, FLAGS]
    arguments = {"interactive": (TEXT, []), "translate_document": ("", tmp_path / "text")}
    for command, (stdin, text) in arguments.items():
        done = run_here(command, text, flags, stdin=stdin)
        if command == "interactive":
            assert done.stdout.split("\n") == [*expected, ""]
        assert f"{NOTE} (lines 1, 4); --no-split-sentences keeps" in done.stderr
        unsplit = run_here(command, text, flags, "--no-split-sentences", stdin=stdin)
        assert done.stdout.count("\n") == unsplit.stdout.count("\n") == 4
        assert done.stdout != unsplit.stdout and "NOTE: 2 lines of several" not in unsplit.stderr
        split = run_here(command, text, flags, "--split-sentences", stdin=stdin)
        assert split.stdout == done.stdout and "NOTE: 2 lines of several" not in split.stderr
    done = run_here("interactive", flags, "--buffer-size", 1, stdin=TEXT)
    assert done.stdout.split("\n") == [*expected, ""]


def test_fairseqs_lines_are_those_of_a_line(model, translator, expected):
    flags = ["--format", "fairseq", "--print-alignment"]
    done = run_here("interactive", "--path", model, FLAGS, flags, stdin=TEXT)
    assert numbers_of(done.stdout, "S") == [0, 1, 2, 3] and texts_of(done.stdout, "S") == LINES
    assert texts_of(done.stdout) == expected
    texts, scores, alignments = (dict(lines_of(done.stdout, kind)) for kind in "HPA")
    for number, parts in enumerate(PARTS):
        values = list(map(float, scores[number][-1].split()))
        tokens = texts[number][-1].split()
        assert len(values) == len(tokens) + 1
        assert float(texts[number][0]) == pytest.approx(np.mean(values), abs=1e-4)
        translations = translator.translate_nbest(parts, **SEARCH)
        total = sum(nbest[0].hypothesis.positional_scores.sum() for nbest in translations)
        assert sum(values) == pytest.approx(total / math.log(2), abs=1e-3)
        # Each token is aligned with the sentence it translates.
        pairs = [pair.split("-") for pair in alignments[number][-1].split()]
        assert [int(target) for _, target in pairs] == list(range(len(tokens)))
        begins = np.cumsum([0, *map(len, map(str.split, parts))])
        lengths = [len(nbest[0].tokens) for nbest in translations]
        owners = np.repeat(np.arange(len(lengths)), lengths)
        for owner, (source, _) in zip(owners, pairs, strict=True):
            assert begins[owner] <= int(source) <= begins[owner + 1]


@pytest.mark.parametrize("flags", [[], ["--unnormalized"], ["--scorer", "coverage:beta=0.2"]])
def test_json_has_the_hypotheses_of_the_line(model, expected, flags):
    flags = [*FLAGS, *flags, "--format", "json", "--nbest", 2]
    done = run_here("interactive", "--path", model, flags, stdin=TEXT)
    for line, text in zip(map(json.loads, done.stdout.splitlines()), LINES, strict=True):
        assert line["source"] == text and line["source_tokens"] == text.split()
        scores = column(line["translations"], "score")
        assert scores == sorted(scores, reverse=True) and len(scores) == (2 if text else 1)
        for h in line["translations"]:
            assert len(h["token_scores"]) == len(h["tokens"]) + 1
            if "--unnormalized" in flags:
                assert h["score"] == pytest.approx(sum(h["token_scores"]), abs=1e-4)


def test_python_and_the_server_translate_sentences_too(translator, expected):
    assert translator.translate(LINES, **SEARCH) == expected
    assert [nbest[0].text for nbest in translator.translate_nbest(LINES, **SEARCH)] == expected
    translations = translator.translate_documents([LINES[:2], LINES[2:]], **SEARCH, max_len_a=0)
    assert list(itertools.chain.from_iterable(translations)) == expected
    assert translations.num_mismatched == translations.num_undivided == 0
    assert translations.num_groups == 4
    with client_of(translator, {**SEARCH, "max_len_a": 0}) as client:
        answer = client.post("/translate", json={"lines": LINES}).json()
    assert answer["lines"] == expected
    assert column(answer["groups"], "lines") == [[text] for text in expected]
    unsplit = translator.translate(LINES, split_sentences=False, **SEARCH)
    assert unsplit != expected and unsplit[2] == expected[2]
    with client_of(translator, {**SEARCH, "max_len_a": 0}, split_sentences=False) as client:
        assert client.post("/translate", json={"lines": LINES}).json()["lines"] == unsplit


def test_lines_of_one_sentence_are_translated_as_before(translator):
    search = {**SEARCH, "nbest": 3}
    plain = translator.translate_nbest(SENTENCES, **search, split_sentences=False)
    results = translator.translate_nbest(SENTENCES, **search, split_sentences=True)
    pairs = zip(itertools.chain(*plain), itertools.chain(*results), strict=True)
    for first, second in pairs:
        assert (first.text, first.tokens, first.score) == (second.text, second.tokens, second.score)
        assert np.array_equal(first.hypothesis.ids, second.hypothesis.ids)


def test_lines_with_a_prefix_or_terms_stay_whole(translator):
    terms = {"prefixes": ["Das Haus", ""], "split_sentences": True}
    texts = translator.translate([PARAGRAPH, PARAGRAPH], **SEARCH, **terms)
    terms["split_sentences"] = False
    unsplit = translator.translate([PARAGRAPH, PARAGRAPH], **SEARCH, **terms)
    assert texts[0] == unsplit[0] and texts[0].startswith("Das Haus") and texts[1] != unsplit[1]
    forced = {"forced": [["rot"], []], "beam": 3, "max_len_b": 4}
    texts = translator.translate([PARAGRAPH, PARAGRAPH], **forced)
    assert "rot" in texts[0] and texts[1] == translator.translate([PARAGRAPH], **SEARCH)[0]


def test_a_sentence_without_tokens_is_left_out():
    task = tiny_task(WORDS, tokenizer="moses")
    translator = Translator([tiny_model(task)], task, "cpu")
    lines = [SENTENCES[0], f"{SENTENCES[0]} \x01"]  # a control character is no word of Moses
    first, second = translator.translate_nbest(lines, **SEARCH, nbest=2)
    assert len(first) == 2
    assert [translation.text for translation in second] == [t.text for t in first]


@pytest.mark.parametrize("truncate", [False, True])
def test_the_longest_source_is_that_of_a_sentence(tmp_path, truncate):
    path = tmp_path / "short.safetensors"
    save_tiny_model(path, tiny_task(WORDS), max_source_positions=6, positions="learned")
    long = "Ein Haus ist Haus ist Haus ist rot. Das Haus!"
    flags = [*FLAGS, *["--truncate-source"] * truncate]
    done = run_here("interactive", "--path", path, flags, stdin=f"{PARAGRAPH}\n{long}\n")
    assert "NOTE: 1 line of more than 6 tokens" in done.stderr and "(line 2)" in done.stderr
    translator = Translator.from_checkpoint(path, "cpu")
    cut = ["Ein Haus ist Haus ist", "Das Haus!"]
    line = " ".join(translator.translate(SENTENCES, **SEARCH))
    shortened = " ".join(translator.translate(cut, **SEARCH))
    assert done.stdout.split("\n") == [line, shortened * truncate, ""]


def test_a_model_of_documents_keeps_lines_whole_unless_asked(tmp_path):
    path = tmp_path / "documents.safetensors"
    save_tiny_model(
        path, tiny_task(WORDS), metadata={"args": {"documents": {"max_doc_tokens": 50}}}
    )
    translator = Translator.from_checkpoint(path, "cpu")
    unsplit = translator.translate(LINES, **SEARCH)
    assert unsplit == translator.translate(LINES, **SEARCH, split_sentences=False)
    assert unsplit != translator.translate(LINES, **SEARCH, split_sentences=True)
    together = "--split-sentences: lines up to 50 tokens are translated together"
    with pytest.raises(ConfigError, match=re.escape(together)):
        translator.translate_documents([LINES], **SEARCH, split_sentences=True)
    flags = [path, "--cpu", "--port", 0, "--split-sentences"]
    assert_refused(run_here("serve", flags, check=False), together)


def test_without_the_library_a_note_says_what_to_install(model, monkeypatch, tmp_path, translator):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    note = "several sentences is translated as one.*pip install 'relu-nmt\\[sentences\\]'"
    (tmp_path / "text").write_text(TEXT)
    flags = ["--path", model, FLAGS]
    arguments = {"interactive": (TEXT, []), "translate_document": ("", tmp_path / "text")}
    for command, (stdin, text) in arguments.items():
        done = run_here(command, text, flags, stdin=stdin)
        assert done.stderr.count("pip install 'relu-nmt[sentences]'") == 1
        unsplit = run_here(command, text, flags, "--no-split-sentences", stdin=stdin)
        assert unsplit.stdout == done.stdout and "pip install" not in unsplit.stderr
        done = run_here(command, text, flags, "--split-sentences", stdin=stdin, check=False)
        assert_refused(done, "--split-sentences needs the package")
    with pytest.warns(UserWarning, match=note):
        translator.translate(LINES, **SEARCH)
    with pytest.warns(UserWarning, match=note):
        translator.translate_document(LINES, **SEARCH)
    with pytest.raises(MissingExtraError):
        translator.translate(LINES, **SEARCH, split_sentences=True)
