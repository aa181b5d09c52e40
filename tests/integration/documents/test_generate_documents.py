"""relu-nmt-generate --max-doc-tokens on documents of digits.

The models are untrained, so that hardly a group has as many sentences as it should. Where the
translations matter, the search is replaced by one that copies.
"""

import itertools
import json
import re
from functools import partial
from types import SimpleNamespace

import pytest
import sacrebleu

from relu_nmt.cli import generate, score, translate_document
from relu_nmt.evaluation.significance import SegmentStatistics
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator import Translator
from tests.commands import assert_refused, run_here
from tests.integration.documents.document_models import (
    AS_JSON,
    NUM_DOCUMENTS,
    SHORT,
    run,
    translate,
)
from tests.outputs import column, containing, lines_of, numbers_of, texts_of
from tests.tiny import dictionaries_of, preprocessed

SIDES = (("src", "de"), ("tgt", "en"))


def generate_documents(folder, capsys, model, limit, *flags):
    """Run relu-nmt-generate and return its output and the results it wrote."""
    results = folder / "results.json"
    arguments = [folder / "data", "--path", folder / f"{model}.safetensors", *SHORT]
    run(generate, arguments, "--max-doc-tokens", limit, "--results", results, flags)
    return capsys.readouterr().out, json.loads(results.read_text())


def test_the_speed_does_not_include_the_first_sentence(folder, capsys, copying, monkeypatch):
    sizes = []
    clock = [0.0]
    window_translator = Translator.window_translator

    def slow_at_first(self, sources, *_, **__):
        clock[0] += 1 if sizes else 100
        sizes.append(len(sources))
        return window_translator(self)(sources)

    monkeypatch.setattr(
        Translator, "window_translator", lambda self, _: partial(slow_at_first, self)
    )
    fake_time = SimpleNamespace(perf_counter=lambda: clock[0])
    monkeypatch.setattr("relu_nmt.jobs.translate.split.time", fake_time)
    _, results = generate_documents(folder, capsys, "sep", 12)
    assert sizes[0] == 1 < sizes[1]
    assert results["seconds"] == len(sizes) - 1
    sizes.clear()
    run(generate, folder / "data", "--path", folder / "sep.safetensors", SHORT)
    assert sizes[0] > 1  # without results there is nothing to warm up for


@pytest.mark.parametrize("limit", [1, 12, 24, 1000])
@pytest.mark.parametrize("model", ["sep", "joined"])
def test_d_bleu_does_not_depend_on_the_groups(folder, capsys, copying, model, limit):
    flags = ["--output", folder / f"{model}.out", "--output-separator", "blank"]
    output, results = generate_documents(folder, capsys, model, limit, flags)
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
    run(score, arguments, "--document-separator", "blank", AS_JSON)
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
        assert numbers_of(output, kind) == list(range(results["groups"]))
    task = TranslationTask.from_data_folder(folder / "data").with_sentence_separator()
    raw = (folder / "flat-text/test.de").read_text().splitlines()
    tokens = " ".join(texts_of(output, "S")).split()
    assert tokens == list(itertools.chain.from_iterable(map(task.source_text.encode, raw)))
    assert texts_of(output, "S") == texts_of(output, "T")
    for source in texts_of(output, "S"):
        assert len(source.split()) < 24 or source.count("<sep>") == 1
    assert not containing(texts_of(output), "<sep>")
    for tokens, scores in zip(texts_of(output, "H"), texts_of(output, "P"), strict=True):
        assert len(scores.split()) == len(tokens.split()) + 1
    assert results["sentences"] == len(raw)
    assert results["memory_bytes"] > 5e7
    assert results["lengths"]["groups"] == results["groups"]
    assert results["lengths"]["over_long_sentences"] == 1
    assert f"Translated {len(raw)} sentences ({results['tokens']:,} tokens) in " in output
    assert results["tokens"] == len(" ".join(texts_of(output, "P")).split())


@pytest.mark.parametrize("overlap", [0, 1])
def test_sentences_are_scored_by_position(folder, capsys, copying, overlap):
    path = folder / "positions.out"
    flags = ["--output", path, "--output-separator", "tag", "--max-len-a", 2]
    flags += ["--window-overlap", overlap] if overlap else []
    output, results = generate_documents(folder, capsys, "sep", 24, flags)
    lines = path.read_text().replace("<d>\n", "").splitlines()
    references = (folder / "flat-text/test.en").read_text().splitlines()
    in_document = []
    for sentences in range(1, NUM_DOCUMENTS + 1):
        in_document += range(1, sentences + 1)
    in_group = []
    for source, target in zip(texts_of(output, "S"), texts_of(output, "T"), strict=True):
        read = source.split().count("<sep>")
        new = target.split().count("<sep>")
        in_group += range(read - new + 1, read + 1)
    assert in_document != in_group
    scores = results["s_bleu_by_position"]
    assert list(scores) == ["position", "group position"]
    for name, positions in (("position", in_document), ("group position", in_group)):
        assert list(scores[name]) == ["1", "2-4", "5-9", "10-19", ">19"]
        ranges = ((1, 1), (2, 4), (5, 9), (10, 19), (20, 99))
        for (low, high), values in zip(ranges, scores[name].values(), strict=True):
            sentences = [i for i, position in enumerate(positions) if low <= position <= high]
            assert values["sentences"] == len(sentences)
            expected = None
            if sentences:
                texts = [lines[i] for i in sentences], [[references[i] for i in sentences]]
                expected = sacrebleu.corpus_bleu(*texts, tokenize="none", force=True).score
            assert values["score"] == expected
        assert sum(column(scores[name].values(), "sentences")) == results["sentences"]
        assert scores[name]["1"]["score"] > 20
        assert scores[name]["1"]["signature"] == results["s_bleu"]["signature"]


def test_sentences_of_mismatched_groups_have_no_position(folder, capsys):
    _, results = generate_documents(folder, capsys, "sep", 24, "--free-sentence-count")
    numbers = []
    for buckets in results["s_bleu_by_position"].values():
        numbers.append(sum(column(buckets.values(), "sentences")))
    assert numbers[0] == numbers[1] < results["sentences"]


def test_mismatches_are_counted_and_keep_the_group_in_one_line(folder, capsys):
    path = folder / "mismatches.out"
    flags = ["--output", path, "--output-separator", "tag", "--quiet", "--free-sentence-count"]
    output, results = generate_documents(folder, capsys, "sep", 24, flags)
    assert not lines_of(output, "H")
    assert results["mismatches"] > 0
    assert (rate := results["mismatch_rate"]) == results["mismatches"] / results["groups"]
    assert f"{results['mismatches']} of {results['groups']} ({rate:.2%})" in output
    assert path.read_text().count("<d>\n") == NUM_DOCUMENTS
    tagged = (folder / "test.en").read_text().replace("\n\n", "\n<d>\n")
    (folder / "tagged.en").write_text(f"<d>\n{tagged}")
    arguments = ["--sys", path, "--ref", folder / "tagged.en"]
    run(score, arguments, "--document-separator", "tag", AS_JSON)
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
    output, results = generate_documents(folder, capsys, "sep", 24, flags)
    assert results["mismatches"] == results["mismatch_rate"] == 0
    assert f"mismatch of the number of sentences: 0 of {results['groups']} (0.00%)" in output
    assert path.read_text().count("\n") == results["sentences"] + results["documents"]
    assert results["s_bleu"] is not None


def test_sentences_of_a_model_without_separators_cannot_be_counted(folder, capsys):
    arguments = [folder / "data", "--path", folder / "joined.safetensors", *SHORT]
    run(generate, arguments, "--max-doc-tokens", 24, "--free-sentence-count", expect=2)
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
    _, err = translate(folder, capsys, "1 2\n3\n\n4\n", "--max-doc-tokens", flags)
    assert "NOTE: 3 of 3 (100.00%) lines have an empty translation" in err
    output, _ = generate_documents(folder, capsys, "sep", flags, "--output", folder / "empty")
    assert "NOTE: 15 of 15 (100.00%) lines have an empty translation and are not in " in output


def test_an_overlap_shows_context_in_the_source_only(folder, capsys, copying):
    flags = ["--window-overlap", 1, "--max-len-a", 2]
    output, results = generate_documents(folder, capsys, "sep", 24, flags)
    groups = results["groups"]
    sources = texts_of(output, "S")
    targets = texts_of(output, "T")
    assert len(sources) == groups
    for source, target in zip(sources, targets, strict=True):
        assert source.endswith(target)
    assert sources != targets
    assert texts_of(output, "H") == "\n".join(targets).replace("3", "4").split("\n")
    raw = (folder / "flat-text/test.en").read_text().split()
    assert " ".join(targets).replace("<sep>", "").split() == raw


def test_source_only_counting_length_notes_and_results_files_work(folder, capsys):
    _, results = generate_documents(folder, capsys, "sep", 24, "--count-source-only")
    assert results["count_source_only"] is True
    assert generate_documents(folder, capsys, "sep", 24)[1]["groups"] == results["groups"]
    output, _ = generate_documents(folder, capsys, "sep", 30)
    assert "NOTE: --max-doc-tokens 30, but the model was trained on up to 24 tokens" in output
    arguments = [folder / "data", "--path", folder / "sep.safetensors", *SHORT]
    run(generate, arguments, "--results-path", folder / "lines", "--max-doc-tokens", 24)
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
    run(generate, folder / data, path)
    out = capsys.readouterr().out
    assert f"beam=5: {score}" in out
    notes = containing(out.splitlines(), note) if note else []
    assert re.findall(r".*train(?:ing|ed).*", out) == notes
    if data == "flat":
        return
    run(translate_document, folder / "test.de", path)
    assert note in capsys.readouterr().err


def test_document_options_work_without_max_doc_tokens(folder, capsys, copying):
    path = ["--path", folder / "sep.safetensors", "--cpu", *SHORT]
    written = ["--output", folder / "default", "--results", folder / "default.json"]
    run(generate, folder / "data", path, written)
    results = json.loads((folder / "default.json").read_text())
    assert results["max_doc_tokens"] == 24
    documents = (folder / "test.de").read_text().replace("3", "4")
    assert (folder / "default").read_text() == documents


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
def test_mistakes_with_a_data_folder(folder, data, flags, message):
    flags = ["--path", folder / "sep.safetensors", "--cpu", *flags.format(folder=folder).split()]
    assert_refused(run_here("generate", folder / data, flags, check=False), message)


def test_sentences_too_long_for_learned_positions_can_be_left_out(folder, capsys):
    flags = ["--skip-invalid-size-inputs-valid-test"]
    output, _ = generate_documents(folder, capsys, "short", 12, flags)
    assert "NOTE: 1 sentence of more than 20 tokens left empty" in output
    model = ["--path", folder / "short.safetensors", "--max-doc-tokens", 12]
    run(generate, folder / "data", model, "--cpu", expect=2)
    assert "--skip-invalid-size-inputs-valid-test" in capsys.readouterr().err


def test_groups_do_not_depend_on_the_references(folder, tmp_path, capsys, copying):
    source = "1 2 3\n4 5\n6 7\n\n1 2\n3\n"
    for ending, text in (("de", source), ("en", source.replace("2", "2 2 2 2 2"))):
        (tmp_path / f"test.{ending}").write_text(text)
    settings = {**dictionaries_of(folder / "data"), "document_separator": "blank"}
    data = preprocessed(tmp_path, "data", ("test",), **settings)
    counts = []
    for flags in (SHORT, [*SHORT, "--count-source-only"], ["--score-reference", "--cpu"]):
        results = tmp_path / "results.json"
        words = [data, "--path", folder / "sep.safetensors", "--results", results]
        run(generate, words, "--max-doc-tokens", 12, flags)
        counts.append(json.loads(results.read_text())["groups"])
    capsys.readouterr()
    _, err = translate(folder, capsys, source, "--max-doc-tokens", 12)
    assert f"5 lines of 2 documents in {counts[0]} groups" in err
    assert counts[0] == counts[1] < counts[2]
