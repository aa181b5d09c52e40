"""relu-nmt-generate --max-doc-tokens and relu-nmt-translate-document on documents of digits.

The models are untrained, so that hardly a group has as many sentences as it should. Where the
translations matter, the search is replaced by one that copies.
"""

import io
import json
import random
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu

from relu_nmt.cli import generate, interactive, score, translate_document
from relu_nmt.config import to_dict
from relu_nmt.data.documents import DocumentConfig
from relu_nmt.errors import MissingExtraError
from relu_nmt.evaluation.significance import SegmentStatistics
from relu_nmt.recipes import translate_text
from relu_nmt.tokenization.base import sentence_splitter
from relu_nmt.translation.search.hypotheses import Hypothesis
from relu_nmt.translation.search.translations import Translation
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator import Translator
from tests.tiny import digit_documents, lines_of, preprocessed, save_tiny_model, write_documents

NUM_DOCUMENTS = 5
AS_JSON = ["--tokenize", "none", "--format", "json"]
SHORT = ["--beam", "2", "--max-len-a", "0.5", "--max-len-b", "4", "--cpu", "--no-progress-bar"]


def save_model(path, task, **settings):
    """Save an untrained model, as if trained with these settings of documents."""
    learned = {name: settings.pop(name) for name in list(settings) if "position" in name}
    learned |= {"encoder_positions": "learned" if learned else None}
    metadata = {"args": {"documents": to_dict(DocumentConfig(**settings))}}
    save_tiny_model(path, task, metadata=metadata, attention="reluformer", **learned)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Documents of one to five lines of digits, one line of 40; models with and without <sep>."""
    folder = tmp_path_factory.mktemp("documents")
    rng = random.Random(0)
    (folder / "flat-text").mkdir()
    documents = digit_documents(rng, NUM_DOCUMENTS)
    documents[2][1] = " ".join("1234567890" * 4)
    for split in ("train", "test"):
        write_documents(folder, split, documents)
        write_documents(folder / "flat-text", split, documents, between="\n")
    splits, separated = ("train", "test"), {"document_separator": "blank"}
    preprocessed(folder, "data", splits, joined_dictionary=True, **separated)
    preprocessed(folder / "flat-text", "../flat", splits, joined_dictionary=True)
    task = TranslationTask.from_data_folder(folder / "data")
    separated = task.with_sentence_separator()
    mixture = {"doc_mixture": (1, 24, 12), "sentence_separator": True}
    save_model(folder / "sep.safetensors", separated, **mixture)
    save_model(folder / "short.safetensors", separated, max_source_positions=20, **mixture)
    save_model(folder / "joined.safetensors", task, max_doc_tokens=24)
    save_model(folder / "sentences.safetensors", task)
    return folder


@pytest.fixture
def copying(monkeypatch):
    """Replace the search by a copy of the source in which 3 becomes 4."""

    def copy(self, sources):
        dictionary = self.task.target_dictionary
        wrong = {dictionary.index("3"): dictionary.index("4")}
        found = []
        for source in sources:
            ids = np.array([wrong.get(i, i) for i in source.ids[len(source.context) :].tolist()])
            hypothesis = Hypothesis(ids, -1.0, -np.ones(len(ids), dtype=np.float32))
            tokens = dictionary.symbols_of(ids)
            found.append([Translation(self.task.target_text.decode(tokens), tokens, hypothesis)])
        return found

    monkeypatch.setattr(Translator, "searcher", lambda self, *_: partial(copy, self))


def run(command, *arguments, expect=0):
    assert command.main([str(argument) for argument in arguments]) == expect


def generate_documents(folder, capsys, model, limit, *flags):
    """Run relu-nmt-generate; return its output and the results it wrote."""
    results = folder / "results.json"
    arguments = [folder / "data", "--path", folder / f"{model}.safetensors", *SHORT]
    run(generate, *arguments, "--max-doc-tokens", limit, "--results", results, *flags)
    return capsys.readouterr().out, json.loads(results.read_text())


def test_the_speed_does_not_include_the_first_sentence(folder, capsys, copying, monkeypatch):
    sizes, clock, searcher = [], [0.0], Translator.searcher

    def slow_at_first(self, sources):
        clock[0] += 1 if sizes else 100
        sizes.append(len(sources))
        return searcher(self)(sources)

    monkeypatch.setattr(Translator, "searcher", lambda self, *_: partial(slow_at_first, self))
    told = SimpleNamespace(perf_counter=lambda: clock[0])
    monkeypatch.setattr("relu_nmt.recipes.translate_split.time", told)
    _, results = generate_documents(folder, capsys, "sep", 12)
    assert sizes[0] == 1 < sizes[1]
    assert results["seconds"] == len(sizes) - 1
    sizes.clear()
    run(generate, folder / "data", "--path", folder / "sep.safetensors", *SHORT)
    assert sizes[0] > 1  # without results there is nothing to warm up for


@pytest.mark.parametrize("limit", [1, 12, 24, 1000])
@pytest.mark.parametrize("model", ["sep", "joined"])
def test_d_bleu_does_not_depend_on_the_groups(folder, capsys, copying, model, limit):
    flags = ["--output", folder / f"{model}.out", "--output-separator", "blank"]
    output, results = generate_documents(folder, capsys, model, limit, *flags)
    _, sentences = generate_documents(folder, capsys, model, 1)
    assert results["d_bleu"] == sentences["d_bleu"]
    assert results["chrf"] == sentences["chrf"]
    assert 0 < results["d_bleu"]["score"] < 100
    assert f"d-BLEU = {results['d_bleu']['score']:.2f}" in output
    assert results["d_bleu"]["signature"] in output
    statistics = SegmentStatistics.from_json(results["document_statistics"])
    assert len(statistics.counts) == results["documents"]
    assert statistics.score() == pytest.approx(results["d_bleu"]["score"])

    arguments = ["--sys", folder / f"{model}.out", "--ref", folder / "test.en"]
    run(score, *arguments, "--document-separator", "blank", *AS_JSON)
    scored = json.loads(capsys.readouterr().out)
    assert scored[0]["score"] == results["d_bleu"]["score"]
    if model == "sep" or limit == 1:
        assert scored[1]["score"] == results["s_bleu"]["score"]
        assert results["s_bleu"] == sentences["s_bleu"]
        assert results["mismatches"] == results["mismatch_rate"] == 0
        lines = (folder / "test.de").read_text().replace("3", "4")
        assert (folder / f"{model}.out").read_text() == lines
    else:
        assert results["s_bleu"] is results["s_bleu_by_position"] is None
        assert results["mismatches"] is None
        assert "trained without --sentence-separator" in output


def test_lines_are_printed_for_each_group(folder, capsys):
    output, results = generate_documents(folder, capsys, "sep", 24)
    for kind in "STHDP":
        assert [number for number, _ in lines_of(output, kind)] == list(range(results["groups"]))
    task = TranslationTask.from_data_folder(folder / "data").with_sentence_separator()
    raw = (folder / "flat-text/test.de").read_text().splitlines()
    tokens = [token for _, [source] in lines_of(output, "S") for token in source.split()]
    assert tokens == [token for line in raw for token in task.source_text.encode(line)]
    for (_, [source]), (_, [target]) in zip(
        lines_of(output, "S"), lines_of(output, "T"), strict=True
    ):
        assert source == target
        assert len(source.split()) < 24 or source.count("<sep>") == 1
    assert not any("<sep>" in text for _, [_, text] in lines_of(output, "D"))
    for (_, [_, tokens]), (_, [scores]) in zip(
        lines_of(output, "H"), lines_of(output, "P"), strict=True
    ):
        assert len(scores.split()) == len(tokens.split()) + 1
    assert results["sentences"] == len(raw)
    assert results["memory_bytes"] > 5e7
    assert results["lengths"]["groups"] == results["groups"]
    assert results["lengths"]["over_long_sentences"] == 1
    assert f"Translated {len(raw)} sentences ({results['tokens']:,} tokens) in " in output
    assert results["tokens"] == sum(len(s.split()) for _, [s] in lines_of(output, "P"))


@pytest.mark.parametrize("overlap", [0, 1])
def test_sentences_are_scored_by_position(folder, capsys, copying, overlap):
    path = folder / "positions.out"
    flags = ["--output", path, "--output-separator", "tag", "--max-len-a", 2]
    flags += ["--window-overlap", overlap] if overlap else []
    output, results = generate_documents(folder, capsys, "sep", 24, *flags)
    lines = [line for line in path.read_text().splitlines() if line != "<d>"]
    references = (folder / "flat-text/test.en").read_text().splitlines()
    in_document = [place + 1 for i in range(NUM_DOCUMENTS) for place in range(i + 1)]
    in_group = []
    for (_, [source]), (_, [target]) in zip(
        lines_of(output, "S"), lines_of(output, "T"), strict=True
    ):
        read, new = (text.split().count("<sep>") for text in (source, target))
        in_group += range(read - new + 1, read + 1)
    assert in_document != in_group
    found = results["s_bleu_by_position"]
    assert list(found) == ["position", "group position"]
    for name, positions in (("position", in_document), ("group position", in_group)):
        assert list(found[name]) == ["1", "2-4", "5-9", "10-19", ">19"]
        ranges = ((1, 1), (2, 4), (5, 9), (10, 19), (20, 99))
        for (low, high), values in zip(ranges, found[name].values(), strict=True):
            own = [i for i, position in enumerate(positions) if low <= position <= high]
            assert values["sentences"] == len(own)
            expected = None
            if own:
                texts = [lines[i] for i in own], [[references[i] for i in own]]
                expected = sacrebleu.corpus_bleu(*texts, tokenize="none", force=True).score
            assert values["score"] == expected
        assert sum(one["sentences"] for one in found[name].values()) == results["sentences"]
        assert found[name]["1"]["score"] > 20
        assert found[name]["1"]["signature"] == results["s_bleu"]["signature"]


def test_sentences_of_mismatched_groups_have_no_position(folder, capsys):
    _, results = generate_documents(folder, capsys, "sep", 24, "--free-sentence-count")
    numbers = [
        sum(one["sentences"] for one in buckets.values())
        for buckets in results["s_bleu_by_position"].values()
    ]
    assert numbers[0] == numbers[1] < results["sentences"]


def test_mismatches_are_counted_and_keep_the_group_in_one_line(folder, capsys):
    path = folder / "mismatches.out"
    flags = ["--output", path, "--output-separator", "tag", "--quiet", "--free-sentence-count"]
    output, results = generate_documents(folder, capsys, "sep", 24, *flags)
    assert not lines_of(output, "H")
    assert results["mismatches"] > 0
    assert (rate := results["mismatch_rate"]) == results["mismatches"] / results["groups"]
    assert f"{results['mismatches']} of {results['groups']} ({rate:.2%})" in output
    assert path.read_text().count("<d>\n") == NUM_DOCUMENTS
    tagged = (folder / "test.en").read_text().replace("\n\n", "\n<d>\n")
    (folder / "tagged.en").write_text(f"<d>\n{tagged}")
    arguments = ["--sys", path, "--ref", folder / "tagged.en"]
    run(score, *arguments, "--document-separator", "tag", *AS_JSON)
    scored = json.loads(capsys.readouterr().out)
    assert scored[0]["score"] == results["d_bleu"]["score"]
    assert (results["s_bleu"] or {"score": None})["score"] == scored[1]["score"]


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--window-overlap", 2],
        ["--sampling", "--beam", 2],
        ["--prefix-size", 3],
        ["--no-repeat-ngram-size", 2],
    ],
)
def test_by_default_groups_have_as_many_sentences_as_their_sources(folder, capsys, flags):
    path = folder / "counted.out"
    flags = ["--output", path, "--output-separator", "tag", *flags]
    output, results = generate_documents(folder, capsys, "sep", 24, *flags)
    assert results["mismatches"] == results["mismatch_rate"] == 0
    assert f"mismatch of the number of sentences: 0 of {results['groups']} (0.00%)" in output
    assert path.read_text().count("\n") == results["sentences"] + results["documents"]
    assert results["s_bleu"] is not None


def test_sentences_of_a_model_without_separators_cannot_be_counted(folder, capsys):
    arguments = [folder / "data", "--path", folder / "joined.safetensors", *SHORT]
    run(generate, *arguments, "--max-doc-tokens", 24, "--free-sentence-count", expect=2)
    assert "--free-sentence-count: the model was trained without" in capsys.readouterr().err


def test_the_longest_output_and_a_missing_s_bleu_are_reported(folder, capsys, monkeypatch):
    monkeypatch.setattr(
        "relu_nmt.evaluation.document_scores.AlignedDocuments.sentence_score", lambda *_: None
    )
    output, results = generate_documents(folder, capsys, "sep", 24, "--max-len-b", 1)
    assert results["at_limit"] > 0
    assert f"NOTE: {results['at_limit']} translations reached the longest output" in output
    assert "beam=2: s-BLEU: none, no document has as many sentences as its reference" in output


def test_empty_translations_are_reported(folder, capsys):
    flags = [1, "--min-len", 0, "--max-len-a", 0, "--max-len-b", 0]
    _, err = translate(folder, capsys, "1 2\n3\n\n4\n", "--max-doc-tokens", *flags)
    assert "NOTE: 3 of 3 (100.00%) lines have an empty translation" in err
    output, _ = generate_documents(folder, capsys, "sep", *flags, "--output", folder / "empty")
    assert "NOTE: 15 of 15 (100.00%) lines have an empty translation and are not in " in output


def test_an_overlap_shows_context_in_the_source_only(folder, capsys, copying):
    flags = ["--window-overlap", 1, "--max-len-a", 2]
    output, results = generate_documents(folder, capsys, "sep", 24, *flags)
    groups = results["groups"]
    sources = [fields[0] for _, fields in lines_of(output, "S")]
    targets = [fields[0] for _, fields in lines_of(output, "T")]
    assert len(sources) == groups
    assert all(source.endswith(target) for source, target in zip(sources, targets, strict=True))
    assert sources != targets
    for (_, [_, tokens]), target in zip(lines_of(output, "H"), targets, strict=True):
        assert tokens == target.replace("3", "4")
    tokens = [token for target in targets for token in target.split()]
    raw = (folder / "flat-text/test.en").read_text().split()
    assert [token for token in tokens if token != "<sep>"] == raw


def test_source_only_counting_length_notes_and_results_files_work(folder, capsys):
    _, results = generate_documents(folder, capsys, "sep", 24, "--count-source-only")
    assert results["count_source_only"] is True
    output, _ = generate_documents(folder, capsys, "sep", 30)
    assert "NOTE: --max-doc-tokens 30, but the model was trained on up to 24 tokens" in output
    arguments = [folder / "data", "--path", folder / "sep.safetensors", *SHORT]
    run(generate, *arguments, "--results-path", folder / "lines", "--max-doc-tokens", 24)
    assert "d-BLEU" in (folder / "lines/generate-test.txt").read_text()


@pytest.mark.parametrize(
    ("model", "data", "flags", "score", "note"),
    [
        ("sep", "data", "", "d-BLEU", "joined up to 24 tokens, as in training; --max-doc-tokens"),
        ("sep", "data", "--max-doc-tokens 1", "d-BLEU", "single sentences are translated (--max"),
        ("sep", "data", "--max-doc-tokens 9", "d-BLEU", "up to 9 tokens (--max-doc-tokens 9)"),
        ("sep", "flat", "", "BLEU =", "the data has no boundaries of documents"),
        ("sentences", "data", "", "BLEU =", "single sentences are translated, as in training"),
        ("sentences", "flat", "", "BLEU =", None),
    ],
)
def test_all_commands_choose_the_length_of_groups_by_one_rule(
    folder, capsys, copying, model, data, flags, score, note
):
    path = ["--path", folder / f"{model}.safetensors", "--cpu", *flags.split()]
    run(generate, folder / data, *path)
    out = capsys.readouterr().out
    assert f"beam=5: {score}" in out
    assert [line for line in out.splitlines() if "training" in line or "trained" in line] == [
        line for line in out.splitlines() if note and note in line
    ]
    if data == "flat":
        return
    run(translate_document, folder / "test.de", *path)
    assert note in capsys.readouterr().err


def test_document_options_work_without_max_doc_tokens(folder, capsys, copying):
    path = ["--path", folder / "sep.safetensors", "--cpu", *SHORT]
    written = ["--output", folder / "default", "--results", folder / "default.json"]
    run(generate, folder / "data", *path, *written)
    results = json.loads((folder / "default.json").read_text())
    assert results["max_doc_tokens"] == 24
    documents = (folder / "test.de").read_text().replace("3", "4")
    assert (folder / "default").read_text() == documents


def test_a_note_says_that_interactive_does_not_join_lines(folder, capsys, copying):
    (folder / "two").write_text("1\n2\n")
    path = ["--input", folder / "two", "--cpu", "--path"]
    run(interactive, *path, folder / "sep.safetensors")
    out, err = capsys.readouterr()
    assert out == "1\n2\n" and err.count("each line is translated on its own") == 1
    assert "up to 24 tokens; relu-nmt-translate-document" in err
    run(interactive, *path, folder / "sentences.safetensors")
    assert capsys.readouterr().err == ""


TEXTS = {
    "usual": "1 2 3\n4 5\n\n6\n7 8 9 0 1\n",
    "blank lines anywhere": "\n\n1 2\n \n\n3\n4\n\n\n",
    "one line": "1 2 3\n",
    "no last newline": "1 2\n3 4",
    "windows newlines": "1 2\r\n\r\n3 4\r\n5\r\n",
    "nothing": "",
    "only blank lines": "\n\n",
    "a long line": " ".join("1234567890" * 5) + "\n1\n",
    "looks like a separator": "1 <sep> 2\n3 <sep>\n<sep>\n",
}


def translate(folder, capsys, text, *flags, model="sep"):
    path = folder / "input.txt"
    path.write_bytes(text.encode("utf-8"))
    run(translate_document, path, "--path", folder / f"{model}.safetensors", *SHORT, *flags)
    return capsys.readouterr()


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("flags", [[], ["--max-doc-tokens", 8, "--window-overlap", 2]])
def test_every_line_gives_one_line_and_blank_lines_stay(folder, capsys, name, flags):
    out, err = translate(folder, capsys, TEXTS[name], *flags)
    lines = TEXTS[name].splitlines()
    translated = out.split("\n")[:-1]
    assert len(translated) == len(lines)
    assert not any(text for text, line in zip(translated, lines, strict=True) if not line.strip())
    assert "<sep>" not in out
    documents = "".join("x" if line.strip() else " " for line in lines).split()
    assert f"{sum(map(len, documents))} lines of {len(documents)} documents in " in err
    assert "Traceback" not in err


@pytest.mark.parametrize("flags", [[], ["--max-doc-tokens", 7, "--window-overlap", 1]])
def test_lines_stand_beside_their_own_translations(folder, capsys, copying, flags):
    for text in TEXTS.values():
        if "sep" not in text:
            out, _ = translate(folder, capsys, text, *flags)
            lines = text.replace("3", "4").splitlines()
            assert out == "".join(f"{line.strip()}\n" for line in lines)


def test_mismatches_are_repaired_and_reported(folder, capsys):
    text = "1 2\n3\n4 5 6\n7\n\n8\n"
    out, err = translate(folder, capsys, text, "--free-sentence-count")
    assert out.count("\n") == 6
    assert "1 of 2 (50.00%) groups had another number of sentences than lines" in err
    assert "translated again in halves" in err


@pytest.mark.filterwarnings("ignore:.*reached the longest output")
def test_python_gives_the_same_documents_as_the_command(folder, capsys):
    text = "1 2\n3\n4 5 6\n7\n\n8\n"
    for flags, settings in (
        ([], {}),
        (["--max-doc-tokens", 1], {"max_doc_tokens": 1}),
        (
            ["--max-doc-tokens", 10, "--window-overlap", 1],
            {"max_doc_tokens": 10, "window_overlap": 1},
        ),
    ):
        out, _ = translate(folder, capsys, text, *flags)
        translator = Translator.from_checkpoint(folder / "sep.safetensors", "cpu")
        documents = [document.split("\n") for document in text.rstrip("\n").split("\n\n")]
        search = {"beam": 2, "max_len_a": 0.5, "max_len_b": 4}
        found = translator.translate_documents(documents, **settings, **search)
        assert "\n\n".join("\n".join(lines) for lines in found) + "\n" == out


def test_python_gets_the_counts_that_the_command_reports(folder, capsys, recwarn):
    documents = [["1 2", "3", "4 5 6", "7"], ["8"]]
    text = "\n\n".join("\n".join(lines) for lines in documents)
    for flags, search in (([], {}), (["--max-len-b", 60], {"max_len_b": 60})):
        recwarn.clear()
        _, err = translate(folder, capsys, text, *flags)
        translator = Translator.from_checkpoint(folder / "sep.safetensors", "cpu")
        search = {"beam": 2, "max_len_a": 0.5, "max_len_b": 4, **search}
        found = translator.translate_documents(documents, **search)
        assert [len(lines) for lines in found] == [4, 1]
        assert found == [list(lines) for lines in found]
        assert (found.num_groups, found.num_undivided) == (2, 0)
        assert f"{found.num_mismatched} of 2 ({found.mismatch_rate:.2%}) groups had" in err
        assert f"{found.num_repeated} translated again in halves" in err
        messages = [str(warning.message) for warning in recwarn]
        assert len(messages) == bool(found.num_at_limit)
        told = f"NOTE: {found.num_at_limit} translations reached the longest output"
        assert (told in err) == bool(messages)
        assert all(warning.filename == __file__ for warning in recwarn)
        if not flags:
            number = f"{found.num_at_limit} of {len(found.windows)}"
            assert messages[0].startswith(f"{number} translations reached the longest output")
            assert "0.5 * source + 4 tokens" in messages[0]


def test_the_mismatch_rate_is_none_without_separators(folder, copying):
    translator = Translator.from_checkpoint(folder / "joined.safetensors", "cpu")
    found = translator.translate_documents([["1 2", "3"], ["4"], []])
    assert found == [["1 2 4"], ["4"], []]
    assert (found.mismatch_rate, found.num_undivided, found.num_groups) == (None, 1, 2)
    alone = translator.translate_documents([["1 2", "3"]], max_doc_tokens=1)
    assert (alone.mismatch_rate, alone.num_groups, alone.num_at_limit) == (0, 2, 0)
    assert translator.translate_documents([]).mismatch_rate == 0


def test_models_without_separators_give_a_line_for_each_group(folder, capsys, copying):
    text = "1 2\n3\n4 5 6\n\n7\n\n"
    out, err = translate(folder, capsys, text, model="joined")
    assert out == "1 2 4 4 5 6\n\n7\n\n"
    assert "1 of 2 (50.00%) groups of several lines became one line each" in err
    out, err = translate(folder, capsys, text, "--max-doc-tokens", 1, model="joined")
    assert out == text.replace("3", "4")
    assert "became one line" not in err


def test_the_default_length_is_that_of_training(folder, capsys, copying):
    text = "1 2\n3\n" * 7
    assert " in 1 groups of up to 24 tokens" in translate(folder, capsys, text, model="joined").err
    assert " in 2 groups of up to 24 tokens" in translate(folder, capsys, text).err  # with <sep>
    out, err = translate(folder, capsys, text, model="sentences")
    assert " in 14 groups of one" in err
    assert out == text.replace("3", "4")
    err = translate(folder, capsys, text, "--max-doc-tokens", 40).err
    assert "NOTE: --max-doc-tokens 40, but the model was trained on up to 24 tokens" in err
    err = translate(folder, capsys, text, "--max-doc-tokens", 40, model="sentences").err
    assert "but the model was trained on single sentences" in err


def test_standard_input_and_the_longest_output(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1 2 3\n\n4\n")))
    run(translate_document, "-", "--path", folder / "sep.safetensors", "--cpu", "--max-len-b", 1)
    out, err = capsys.readouterr()
    assert out.count("\n") == 3
    assert "translations reached the longest output (1.5 * source + 1 tokens" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.txt"], "nothing.txt: cannot read the text"),
        (["latin1.txt"], "latin1.txt:2: not UTF-8"),
        (["test.de", "--max-doc-tokens", "0"], "--max-doc-tokens 0: expected 1 or more"),
        (["test.de", "--window-overlap", "-1"], "--window-overlap -1: expected 0 or more"),
        (["test.de", "--prefix-size", "1"], "needs references"),
        (["test.de", "--nbest", "2"], "--nbest: each line has one translation"),
        (["test.de", "--max-doc-tokens", "1", "--window-overlap", "1"], "single sentences"),
        (["test.de", "--path", "joined.safetensors", "--window-overlap", "1"], "--sentence-sep"),
        (["test.de", "--path", "sentences.safetensors", "--window-overlap", "1"], "give more"),
        (["test.de", "--path", "short.safetensors"], "the model can read 20"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(folder, capsys, arguments, message):
    (folder / "latin1.txt").write_bytes("1\nHäuser\n".encode("latin-1"))
    paths = [str(folder / a) if "." in a else a for a in arguments]
    if "--path" not in paths:
        paths += ["--path", str(folder / "sep.safetensors")]
    run(translate_document, *paths, "--cpu", expect=2)
    error = capsys.readouterr().err
    assert error.startswith("relu-nmt-translate-document: error: ")
    assert error.count("\n") == 1
    assert message in error


@pytest.mark.parametrize(
    ("data", "flags", "message"),
    [
        ("flat", "--max-doc-tokens 9", "test.de-en.documents: no such file"),
        ("data", "--max-doc-tokens 0", "--max-doc-tokens 0: expected 1 or more"),
        ("flat", "--window-overlap 1", "--window-overlap 1 does nothing without --max-doc"),
        ("flat", "--output x", "--output x does nothing without --max-doc-tokens"),
        ("data", "--max-doc-tokens 9 --output {folder}/data", "is a folder"),
        ("data", "--attention-stats /dev/null", "is no plain file"),
        ("data", "--max-doc-tokens 9 --results {folder}/test.de/x", "cannot write it"),
        ("data", "--max-doc-tokens 9 --window-overlap 1 --prefix-size 1", "neither --prefix-size"),
        ("data", "--max-doc-tokens 9 --window-overlap 1 --print-attention", "--print-attention"),
    ],
)
def test_mistakes_with_a_data_folder(folder, capsys, data, flags, message):
    flags = ["--path", folder / "sep.safetensors", "--cpu", *flags.format(folder=folder).split()]
    run(generate, folder / data, *flags, expect=2)
    error = capsys.readouterr().err
    assert error.startswith("relu-nmt-generate: error: ") and message in error
    assert error.count("\n") == 1


def test_sentences_too_long_for_learned_positions_can_be_left_out(folder, capsys):
    flags = ["--skip-invalid-size-inputs-valid-test"]
    output, _ = generate_documents(folder, capsys, "short", 12, *flags)
    assert "NOTE: 1 sentences of more than 20 tokens stay empty" in output
    model = ["--path", folder / "short.safetensors", "--max-doc-tokens", 12]
    run(generate, folder / "data", *model, "--cpu", expect=2)
    assert "--skip-invalid-size-inputs-valid-test" in capsys.readouterr().err


TERMS = "1 2\t7 8\n3\n\n4 5\t9\t9 1\n6\t0\n"


@pytest.mark.parametrize("flags", [[], ["--window-overlap", 1], ["--max-doc-tokens", 1]])
def test_each_line_has_its_prefix_and_the_terms_behind_its_tabs(folder, capsys, flags):
    (folder / "prefixes").write_text("\n8 8\n\n\n5\n")
    (folder / "banned").write_text("2\n3 3\n")
    flags = ["--prefixes", folder / "prefixes", "--banned-terms", folder / "banned", *flags]
    for constraints in (["--constraints"], ["--constraints", "unordered"]):
        out, err = translate(folder, capsys, TERMS, *flags, *constraints)
        first, second, blank, third, fourth = out.split("\n")[:-1]
        assert "7 8" in first and second.startswith("8 8") and not blank
        assert "9 1" in third and third.count("9") >= 2 and "2" not in out and "3 3" not in out
        assert fourth.startswith("5") and "0" in fourth
        assert "4 lines of 2 documents" in err


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("1\n\t5\n2\n", ["--constraints"], "input.txt:2: the line is blank, and so is its"),
        ("1\n\n2\n", ["--prefixes", "{folder}/three"], "input.txt:2: the line is blank"),
        ("1\n", ["--prefixes", "{folder}/three"], "three: 3 lines, but the text has 1; give one"),
        ("1\n\n2\n1\tx y\n", ["--constraints"], "line 4: the term 'x y' cannot be forced"),
        ("1\t2\n", ["--constraints", "--sampling"], "--sampling: terms can be forced in plain"),
        ("1\t2\n", ["--constraints", "--split-sentences"], "--constraints: with --split-sent"),
        ("1\t2\n", ["--constraints", "--free-sentence-count"], "may write any number of them"),
        ("1\t2\n", ["--constraints", "--path", "{folder}/joined.safetensors"], "trained without"),
    ],
)
def test_wrong_prefixes_and_terms_are_one_line_and_exit_2(folder, capsys, text, flags, message):
    (folder / "three").write_text("1\n1\n1\n")
    (folder / "input.txt").write_text(text)
    flags = [flag.format(folder=folder) for flag in flags]
    path = ["--path", folder / "sep.safetensors"] * ("--path" not in flags)
    run(translate_document, folder / "input.txt", *path, *flags, "--cpu", expect=2)
    error = capsys.readouterr().err.replace("NOTE", "").splitlines()
    assert len(error) == 1 and message in error[0]


@pytest.mark.parametrize("limit", [1, 12])
def test_paragraphs_are_cut_into_sentences_and_joined_again(
    folder, capsys, copying, monkeypatch, limit
):
    languages = []

    def splitter(language):
        languages.append(language)
        return lambda paragraph: [part.strip() for part in paragraph.split("9")]

    monkeypatch.setattr(translate_text, "sentence_splitter", splitter)
    text = "1 2 9 3 9 5 6\n7\n\n8 9 1\n"
    out, err = translate(folder, capsys, text, "--max-doc-tokens", limit, "--split-sentences")
    assert out == "1 2 4 5 6\n7\n\n8 1\n"
    assert languages == ["de"]
    assert "6 lines of 2 documents" in err


def test_paragraphs_are_split_by_the_rules_of_their_language():
    pytest.importorskip("sentencex")
    split = sentence_splitter("de")
    expected = ["Das ist z. B. ein Haus.", "Wo ist Dr. Müller?", "Er kam am 3. Mai."]
    assert split(" ".join(expected)) == expected
    assert split("  ") == []


def test_a_missing_sentence_splitter_is_an_error_with_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(MissingExtraError, match=r"pip install .relu-nmt\[sentences\]"):
        sentence_splitter("de")


def test_sentences_of_a_chinese_paragraph_are_joined_without_spaces():
    numbers = [4, 4, 5]
    lines = ["我来。", "你好。", "好！"]
    assert translate_text._joined(lines, numbers, "zh") == ["我来。你好。", "好！"]
    assert translate_text._joined(["Ja.", "Gut.", ""], numbers, "de") == ["Ja. Gut.", ""]


def test_a_note_on_tabs_comes_before_the_translations(folder, capsys, copying):
    (folder / "tabs").write_text("1 2\n3\t4\n5\t6\n")
    path = ["--path", folder / "sentences.safetensors", "--cpu"]
    for command, words in ((interactive, ["--input"]), (translate_document, [])):
        run(command, *words, folder / "tabs", *path)
        first = capsys.readouterr().err.splitlines()[0]
        assert first.startswith("NOTE: lines 2, 3: what stands behind a tab is translated as text")
        run(command, *words, folder / "tabs", *path, "--constraints")
        assert "behind a tab" not in capsys.readouterr().err
