"""relu-nmt-generate on a made corpus and untrained models."""

import gc
import json
import math
import re
import shutil
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch

from relu_nmt.applications.layer_statistics import LayerStatistics
from relu_nmt.evaluation.metrics import Metric
from relu_nmt.jobs.translate import documents as translate_documents
from relu_nmt.jobs.translate import lines as translate_lines
from relu_nmt.jobs.translate import split as translate_split
from relu_nmt.translation.agreement import at_folder
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator import Translator
from tests.commands import assert_refused
from tests.commands import run_here as run
from tests.outputs import lines_of, numbers_of, texts_of
from tests.untrained_models import BLANK, NUM_TEST, SHORT


@pytest.fixture(scope="module")
def generated(folder):
    model = folder / "checkpoint1.safetensors"
    return run("generate", folder / "raw-bin", "--path", model, SHORT).stdout


def test_all_kinds_of_lines_are_printed_in_input_order(generated, folder):
    for kind in "STHDP":
        assert numbers_of(generated, kind) == list(range(NUM_TEST))
    assert [line[:1] for line in generated.split("\n")[:10]] == list("STHDP" * 2)
    task = TranslationTask.from_data_folder(folder / "raw-bin")
    raw = (folder / "test.de").read_text(encoding="utf-8").split("\n")
    for number, [source] in lines_of(generated, "S"):
        assert source.split() == task.source_text.encode(raw[number])


def test_scores_are_in_base_2_and_add_up(generated, folder):
    translator = Translator.from_checkpoint(folder / "checkpoint1.safetensors", device="cpu")
    raw = (folder / "test.de").read_text(encoding="utf-8").split("\n")[:NUM_TEST]
    expected = translator.translate_nbest(raw, max_len_b=8)
    rows = zip(*(lines_of(generated, kind) for kind in "HDP"), expected, strict=True)
    for (_, [score, tokens]), (_, [same, text]), (_, [positions]), [best] in rows:
        assert score == same
        assert float(score) == pytest.approx(best.score / math.log(2), abs=1e-5)
        assert (tokens.split(), text) == (best.tokens, best.text)
        values = list(map(float, positions.split()))
        assert len(values) == len(best.hypothesis.ids)
        assert sum(values) / len(values) == pytest.approx(float(score), abs=1e-3)


def test_an_empty_sentence_stays_empty(generated):
    assert lines_of(generated, "S")[BLANK][1] == [""]
    assert lines_of(generated, "H")[BLANK][1] == ["0.0", ""]


def test_the_score_is_of_raw_text_and_ignores_case_for_lowercased_data(generated, folder):
    last = generated.rstrip("\n").split("\n")[-1]
    assert last.startswith("Generate test with beam=5: BLEU = ")
    assert "case:lc" in last
    assert "tok:13a" in last
    texts = texts_of(generated)
    references = (folder / "test.en").read_text(encoding="utf-8").split("\n")[:NUM_TEST]
    score = Metric(lowercase=True).score(texts, [references])
    assert str(score) in last
    assert re.search(rf"Translated {NUM_TEST} sentences \([\d,]+ tokens\) in ", generated)


def test_batch_size_changes_nothing(generated, folder):
    model = folder / "checkpoint1.safetensors"
    small = run(
        "generate",
        folder / "raw-bin",
        "--path",
        model,
        SHORT,
        "--batch-size",
        2,
        "--max-tokens",
        20,
    ).stdout
    for kind in "STHDP":
        for (_, fields), (_, other_fields) in zip(
            lines_of(generated, kind), lines_of(small, kind), strict=True
        ):
            if kind in "HD":
                assert float(fields[0]) == pytest.approx(float(other_fields[0]), abs=1e-5)
                fields, other_fields = fields[1:], other_fields[1:]
            if kind != "P":
                assert fields == other_fields


def test_processes_translate_as_one_does(folder):
    model = folder / "checkpoint1.safetensors"
    words = [folder / "raw-bin", "--path", model, SHORT, "--cpu", "--batch-size", 2]
    single, three = (run("generate", words, "--workers", number).stdout for number in (1, 3))
    for kind in "STHDP":
        assert lines_of(single, kind) == lines_of(three, kind)


def test_damaged_references_are_an_error_before_the_search(folder, tmp_path):
    data = shutil.copytree(folder / "raw-bin", tmp_path / "data")
    path = data / "test.de-en.en.raw"
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    words = [data, "--path", folder / "checkpoint1.safetensors"]
    done = run("generate", words, SHORT, check=False)
    assert_refused(done, f"{path}:1: not UTF-8")
    assert done.stdout == ""
    assert "T-" in run("generate", words, "--cpu", "--score-reference").stdout


def test_remove_bpe_nbest_alignment_and_results_path_work_together(folder, tmp_path):
    model = folder / "checkpoint1.safetensors"
    flags = ["--remove-bpe", "--nbest", 2, "--print-alignment", "--results-path", tmp_path / "out"]
    done = run("generate", folder / "raw-bin", "--path", model, SHORT, flags)
    output = (tmp_path / "out/generate-test.txt").read_text(encoding="utf-8")
    assert "H-0" not in done.stdout
    assert "@@" not in output
    hypotheses = lines_of(output, "H")
    assert len(hypotheses) == 2 * NUM_TEST - 1  # the empty sentence has one
    for pairs, positions in zip(texts_of(output, "A"), texts_of(output, "P"), strict=True):
        assert len(pairs.split()) == len(positions.split()) - 1
        assert re.fullmatch(r"(\d+-\d+ ?)*", pairs)


def test_score_reference_and_prefix(folder):
    arguments = [folder / "raw-bin", "--path", folder / "checkpoint1.safetensors", "--cpu"]
    scored = run("generate", arguments, "--score-reference").stdout
    assert texts_of(scored, "H") == texts_of(scored, "T")
    assert numbers_of(scored, "H") == numbers_of(scored, "T")
    assert "BLEU" not in scored
    forced = run("generate", arguments, "--max-len-b", 8, "--prefix-size", 2).stdout
    for target, tokens in zip(texts_of(forced, "T"), texts_of(forced, "H"), strict=True):
        assert tokens.split()[:2] == target.split()[:2]


@pytest.mark.parametrize("search", [["--score-reference"], SHORT], ids=["given", "searched"])
def test_statistics_of_memories_are_those_of_the_references(folder, tmp_path, search):
    model = folder / "checkpoint1.safetensors"
    memories = tmp_path / "memories.json"
    flags = [*search, "--memory-stats", memories, "--attention-stats", tmp_path / "attention.json"]
    flags += [] if "--cpu" in search else ["--cpu"]
    run("generate", folder / "raw-bin", "--path", model, flags)
    report = json.loads(memories.read_text())
    attention = json.loads((tmp_path / "attention.json").read_text())
    translator = Translator.from_checkpoint(str(model), "cpu")
    eos = 2
    split = at_folder(translator.task, folder / "raw-bin").load_split("test")
    statistics = LayerStatistics(translator.ensemble, memories_only=True)
    tokens = 0
    for number in set(range(NUM_TEST)) - {BLANK}:
        source, target = split.pair(number)
        previous = np.array([[eos, *target[:-1]]])
        tokens += previous.size
        statistics.add_batch(torch.tensor(source[None].astype("int64")), torch.tensor(previous))
    expected = statistics.report()
    assert (report.pop("subset"), report["sentences"]) == ("test", NUM_TEST - 1)
    assert report["sentences"] == attention["sentences"] and "slots" in attention
    assert report["modules"].keys() == {"encoder.0", "decoder.0"}
    assert report["modules"]["decoder.0"]["tokens"] == tokens
    for name, statistics in report["overall"].items():
        assert statistics == pytest.approx(expected["overall"][name], rel=1e-4), name


def test_an_ensemble_translates_and_quiet_prints_the_score_only(folder):
    paths = f"{folder / 'checkpoint1.safetensors'}:{folder / 'checkpoint2.safetensors'}"
    quiet = run("generate", folder / "raw-bin", "--path", paths, SHORT, "--quiet").stdout
    assert not lines_of(quiet, "H")
    assert "BLEU" in quiet


def test_a_data_folder_of_fairseq_is_scored_on_its_tokens(folder):
    done = run("generate", folder / "plain-bin", "--path", folder / "plain.safetensors", SHORT)
    assert "tok:none" in done.stdout
    assert "NOTE: the folder keeps no raw references" in done.stdout
    detokenized = run(
        "generate",
        folder / "plain-bin",
        ["--path", folder / "plain.safetensors", *SHORT, "--tokenizer", "moses", "--quiet"],
    )
    assert "tok:13a" in detokenized.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["raw-bin"], "--path"),
        (["raw-bin", "--path", "nothing.safetensors"], "nothing.safetensors: no such checkpoint"),
        (["plain-bin", "--path", "checkpoint1.safetensors"], "not the dictionary of "),
        (["raw-bin", "--path", "checkpoint1.safetensors", "--gen-subset", "test7"], "no split"),
        (["raw-bin", "--path", "checkpoint1.safetensors", "-s", "fr"], "--source-lang fr"),
        (["raw-bin", "--path", "checkpoint1.safetensors", "--nbest", "9"], "--nbest 9"),
        (["raw-bin", "--path", "checkpoint1.safetensors", "--fp16"], "--fp16 needs a CUDA GPU"),
        (
            ["raw-bin", "--path", "checkpoint1.safetensors", "--sacrebleu-tokenizer", "14a"],
            "BLEU tokenizer '14a': choose one of",
        ),
        (["raw-bin", "--path", "short.safetensors"], "--skip-invalid-size-inputs-valid-test"),
        (
            ["raw-bin", "--path", "checkpoint1.safetensors", "--replace-unk", "no-lexicon"],
            "no-lexicon",
        ),
        (
            ["plain-bin", "--path", "plain.safetensors", "--replace-unk"],
            "--replace-unk: test: the data folder has token ids only",
        ),
    ],
)
def test_mistakes_give_one_line_and_exit_2(folder, arguments, message):
    paths = [folder / word if "." in word or word.endswith("-bin") else word for word in arguments]
    done = run("generate", paths, "--cpu", check=False)
    assert_refused(done, message)
    assert "Traceback" not in done.stderr
    assert not done.stdout


def test_too_long_sentences_can_be_left_out(folder):
    arguments = [folder / "raw-bin", "--path", folder / "short.safetensors", *SHORT]
    output = run("generate", arguments, "--skip-invalid-size-inputs-valid-test").stdout
    empty = texts_of(output).count("")
    assert 1 < empty < NUM_TEST
    assert f"NOTE: {empty - 1} sentences of more than 9 tokens" in output


def test_generate_writes_no_banned_term(folder):
    arguments = [folder / "raw-bin", "--path", folder / "checkpoint1.safetensors", *SHORT]
    plain = texts_of(run("generate", arguments).stdout)
    words = set(filter(str.isalpha, " ".join(plain).lower().split()))
    (folder / "never").write_text("\n".join(words), "utf-8")
    printed = texts_of(run("generate", arguments, "--banned-terms", folder / "never").stdout)
    assert len(words) > 1 and len(printed) == len(plain)
    for text in printed:
        assert words.isdisjoint(text.lower().split())


def test_a_result_keeps_no_model(folder, monkeypatch):
    load = translate_split.load_translator
    models = []

    def noted(*arguments):
        translator = load(*arguments)
        models.extend(map(weakref.ref, translator.models))
        return translator

    monkeypatch.setattr(translate_split, "load_translator", noted)
    options = {"path": folder / "checkpoint1.safetensors", "cpu": True, "max_len_b": 8}
    settings = translate_split.Settings.of(data=folder / "raw-bin", **options)
    result = translate_split.run(settings, progress=False)
    gc.collect()
    assert len(result.groups) == NUM_TEST
    [model] = models
    assert model() is None


def test_recipes_return_the_translations_that_the_commands_print(folder, capfd):
    flags = ["--path", folder / "checkpoint1.safetensors", *SHORT]
    printed = run("generate", folder / "raw-bin", flags).stdout
    options = {"path": folder / "checkpoint1.safetensors", "cpu": True, "max_len_b": 8}
    result = translate_split.run(
        translate_split.Settings.of(data=folder / "raw-bin", **options), progress=False
    )
    texts = texts_of(printed)
    assert [line.text for line in result.groups] == texts
    (score,) = result.scores.values()
    assert printed.rstrip().endswith(f"with beam=5: {score}")
    assert result.counts == [1] * NUM_TEST
    assert f"{result.num_at_limit} translations reached" in printed or not result.num_at_limit
    (folder / "lines.de").write_text("Das Haus\n\nBrot\n", encoding="utf-8")
    settings = translate_lines.TranslateLinesSettings.of(input=folder / "lines.de", **options)
    lines = translate_lines.translate_lines(settings, progress=False)
    text, documents = translate_documents.translate_documents(
        translate_documents.TranslateDocumentsSettings.of(
            file=folder / "lines.de", max_doc_tokens=1, max_len_a=0, **options
        ),
        progress=False,
    )
    assert documents == [[lines[0]], [lines[2]]]
    assert text[1] == lines[1] == ""
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("command", ["generate", "interactive", "score", "average"])
def test_help_does_not_import_pytorch(command):
    code = (
        f"import sys; from relu_nmt.cli.{command} import main\n"
        "try: main(['--help'])\n"
        "finally: assert not {'torch', 'sacrebleu', 'sentencepiece'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--help" in done.stdout
