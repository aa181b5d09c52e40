"""relu-nmt-generate, -interactive, -average and -score on a made corpus and untrained models."""

import gc
import gzip
import json
import math
import random
import re
import shutil
import subprocess
import sys
import warnings
import weakref

import pytest
import torch

from relu_nmt.applications.layer_statistics import LayerStatistics
from relu_nmt.evaluation.metrics import MetricConfig
from relu_nmt.jobs.translate import documents as translate_documents
from relu_nmt.jobs.translate import lines as translate_lines
from relu_nmt.jobs.translate import shared
from relu_nmt.jobs.translate import split as translate_split
from relu_nmt.training.checkpoint import load_checkpoint
from relu_nmt.translation.agreement import at_folder
from relu_nmt.translation.search.translations import load_translations
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator import Translator
from tests.commands import run_here as run
from tests.tiny import lines_of, preprocessed, save_tiny_model, write_lines

NUM_TEST = 12
BLANK = 4  # number of the empty test sentence
SHORT = ["--max-len-b", "8", "--cpu"]


def write_corpus(folder):
    rng = random.Random(0)
    words = ["Haus", "Hund", "ist", "ein", "gross", "Das", ",", "rot", "isst", "Brot"]
    english = {"Haus": "house", "Hund": "dog", "ist": "is", "ein": "a", "Brot": "bread"}
    for split, count in (("train", 200), ("valid", 8), ("test", NUM_TEST)):
        sources = []
        targets = []
        for number in range(count):
            source = [rng.choice(words) for _ in range(rng.randint(2, 9))]
            if split == "test" and number == BLANK:
                source = []
            sources.append(" ".join(source))
            targets.append(" ".join(english.get(word, word) for word in source))
        write_lines(folder, split, sources, targets)


def save_model(path, task, seed, **settings):
    metadata = {"args": {"lr": seed}, "training_state": {"epoch": seed}}
    save_tiny_model(path, task, seed, metadata=metadata, attention="reluformer", **settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A corpus, a data folder made from raw text, one without manifest, and checkpoints."""
    folder = tmp_path_factory.mktemp("generate")
    write_corpus(folder)
    splits = ("train", "valid", "test")
    raw = {"tokenizer": "moses", "lowercase": True, "subword": "subword-nmt", "subword_size": 20}
    preprocessed(folder, "raw-bin", splits, joined_dictionary=True, **raw)
    preprocessed(folder, "plain-bin", splits, joined_dictionary=True)
    for path in [*(folder / "plain-bin").glob("*.raw"), folder / "plain-bin/manifest.json"]:
        path.unlink()  # fairseq-preprocess makes the remaining files
    task = TranslationTask.from_data_folder(folder / "raw-bin")
    for seed in (1, 2, 3):
        save_model(folder / f"checkpoint{seed}.safetensors", task, seed)
        save_model(folder / f"checkpoint_1_{100 * seed}.safetensors", task, seed)
    learned = {"encoder_positions": "learned", "max_source_positions": 9}
    save_model(folder / "short.safetensors", task, 1, **learned)
    plain = TranslationTask.from_data_folder(folder / "plain-bin")
    save_model(folder / "plain.safetensors", plain, 1)
    return folder


@pytest.fixture(scope="module")
def generated(folder):
    model = folder / "checkpoint1.safetensors"
    return run("generate", folder / "raw-bin", "--path", model, *SHORT).stdout


def test_all_kinds_of_lines_are_printed_in_input_order(generated, folder):
    for kind in "STHDP":
        assert [number for number, _ in lines_of(generated, kind)] == list(range(NUM_TEST))
    first_kinds = [line[0] for line in generated.split("\n")[:10]]
    assert first_kinds == list("STHDP" * 2)
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
        values = [float(value) for value in positions.split()]
        assert len(values) == len(best.hypothesis.tokens)
        assert sum(values) / len(values) == pytest.approx(float(score), abs=1e-3)


def test_an_empty_sentence_stays_empty(generated):
    assert lines_of(generated, "S")[BLANK][1] == [""]
    assert lines_of(generated, "H")[BLANK][1] == ["0.0", ""]


def test_the_score_is_of_raw_text_and_ignores_case_for_lowercased_data(generated, folder):
    last = generated.rstrip("\n").split("\n")[-1]
    assert last.startswith("Generate test with beam=5: BLEU = ")
    assert "case:lc" in last
    assert "tok:13a" in last
    texts = [text for _, [_, text] in lines_of(generated, "D")]
    references = (folder / "test.en").read_text(encoding="utf-8").split("\n")[:NUM_TEST]
    score = MetricConfig(lowercase=True).score(texts, [references])
    assert str(score) in last
    assert re.search(rf"Translated {NUM_TEST} sentences \([\d,]+ tokens\) in ", generated)


def test_batch_size_changes_nothing(generated, folder):
    model = folder / "checkpoint1.safetensors"
    small = run(
        "generate",
        folder / "raw-bin",
        "--path",
        model,
        *SHORT,
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
    words = ["generate", folder / "raw-bin", "--path", model, *SHORT, "--cpu", "--batch-size", 2]
    single, three = (run(*words, "--workers", number).stdout for number in (1, 3))
    for kind in "STHDP":
        assert lines_of(single, kind) == lines_of(three, kind)


def test_damaged_references_are_an_error_before_the_search(folder, tmp_path):
    data = shutil.copytree(folder / "raw-bin", tmp_path / "data")
    path = data / "test.de-en.en.raw"
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    words = ["generate", data, "--path", folder / "checkpoint1.safetensors", *SHORT]
    done = run(*words, check=False)
    assert done.returncode == 2 and f"{path}:1: not UTF-8" in done.stderr
    assert done.stdout == ""
    assert "T-" in run(*words[:-3], "--cpu", "--score-reference").stdout


def test_remove_bpe_nbest_alignment_and_results_path_work_together(folder, tmp_path):
    model = folder / "checkpoint1.safetensors"
    flags = ["--remove-bpe", "--nbest", 2, "--print-alignment", "--results-path", tmp_path / "out"]
    done = run("generate", folder / "raw-bin", "--path", model, *SHORT, *flags)
    output = (tmp_path / "out/generate-test.txt").read_text(encoding="utf-8")
    assert "H-0" not in done.stdout
    assert "@@" not in output
    hypotheses = lines_of(output, "H")
    assert len(hypotheses) == 2 * NUM_TEST - 1  # the empty sentence has one
    for (_, [pairs]), (_, [positions]) in zip(
        lines_of(output, "A"), lines_of(output, "P"), strict=True
    ):
        assert len(pairs.split()) == len(positions.split()) - 1
        assert all(re.fullmatch(r"\d+-\d+", pair) for pair in pairs.split())


def test_score_reference_and_prefix(folder):
    arguments = [folder / "raw-bin", "--path", folder / "checkpoint1.safetensors", "--cpu"]
    scored = run("generate", *arguments, "--score-reference").stdout
    assert [fields for _, [_, *fields] in lines_of(scored, "H")] == [
        fields for _, fields in lines_of(scored, "T")
    ]
    assert "BLEU" not in scored
    forced = run("generate", *arguments, "--max-len-b", 8, "--prefix-size", 2).stdout
    for (_, [target]), (_, [_, tokens]) in zip(
        lines_of(forced, "T"), lines_of(forced, "H"), strict=True
    ):
        assert tokens.split()[:2] == target.split()[:2]


@pytest.mark.parametrize("search", [["--score-reference"], SHORT], ids=["given", "searched"])
def test_statistics_of_memories_are_those_of_the_references(folder, tmp_path, search):
    model = folder / "checkpoint1.safetensors"
    files = tmp_path / "memories.json", tmp_path / "attention.json"
    flags = [*search, "--memory-stats", files[0], "--attention-stats", files[1]]
    flags += [] if "--cpu" in search else ["--cpu"]
    run("generate", folder / "raw-bin", "--path", model, *flags)
    report, attention = (json.loads(file.read_text()) for file in files)
    translator = Translator.from_checkpoint(str(model), "cpu")
    eos = 2
    split = at_folder(translator.task, folder / "raw-bin").load_split("test")
    batches = []
    for number in set(range(NUM_TEST)) - {BLANK}:
        source, target = (torch.tensor(ids.astype("int64")) for ids in split.pair(number))
        batches.append((source[None], torch.cat([torch.tensor([eos]), target[:-1]])[None]))
    statistics = LayerStatistics(translator.ensemble, memories_only=True)
    for batch in batches:
        statistics.add_batch(*batch)
    expected = statistics.report()
    assert (report.pop("subset"), report["sentences"]) == ("test", NUM_TEST - 1)
    assert report["sentences"] == attention["sentences"] and "slots" in attention
    assert report["modules"].keys() == {"encoder.0", "decoder.0"}
    assert report["modules"]["decoder.0"]["tokens"] == sum(b[1].numel() for b in batches)
    for name, statistics in report["overall"].items():
        assert statistics == pytest.approx(expected["overall"][name], rel=1e-4), name


def test_an_ensemble_translates_and_quiet_prints_the_score_only(folder):
    paths = f"{folder / 'checkpoint1.safetensors'}:{folder / 'checkpoint2.safetensors'}"
    quiet = run("generate", folder / "raw-bin", "--path", paths, *SHORT, "--quiet").stdout
    assert not lines_of(quiet, "H")
    assert "BLEU" in quiet


def test_a_data_folder_of_fairseq_is_scored_on_its_tokens(folder):
    done = run("generate", folder / "plain-bin", "--path", folder / "plain.safetensors", *SHORT)
    assert "tok:none" in done.stdout
    assert "NOTE: the folder keeps no raw references" in done.stdout
    detokenized = run(
        "generate",
        folder / "plain-bin",
        *["--path", folder / "plain.safetensors", *SHORT, "--tokenizer", "moses", "--quiet"],
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
    done = run("generate", *paths, "--cpu", check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert not done.stdout


def test_too_long_sentences_can_be_left_out(folder):
    arguments = [folder / "raw-bin", "--path", folder / "short.safetensors", *SHORT]
    output = run("generate", *arguments, "--skip-invalid-size-inputs-valid-test").stdout
    empty = [number for number, fields in lines_of(output, "D") if fields[1] == ""]
    assert 1 < len(empty) < NUM_TEST
    assert f"NOTE: {len(empty) - 1} sentences of more than 9 tokens" in output


def test_interactive_gives_one_line_for_each_line(folder):
    model = ["--path", folder / "checkpoint1.safetensors", *SHORT]
    text = "Das Haus\n\nein Hund ist rot\n \nBrot"
    lines = run("interactive", *model, stdin=text).stdout.split("\n")
    assert len(lines) == 6
    assert lines[5] == ""
    assert [bool(line) for line in lines[:5]] == [True, False, True, False, True]
    translator = Translator.from_checkpoint(folder / "checkpoint1.safetensors", device="cpu")
    assert translator.translate(text.split("\n"), max_len_b=8) == lines[:5]

    (folder / "input.de").write_text(text, encoding="utf-8")
    flags = ["--input", folder / "input.de", "--buffer-size", 2, "--nbest", 2]
    twice = run("interactive", folder / "raw-bin", *model, *flags).stdout.split("\n")
    assert len(twice) == 11
    # fairseq's D- lines: number, score in base 2, text. Padded, so that there are two a line.
    fields = [line.split("\t") for line in twice[:10]]
    assert [name for name, _, _ in fields] == [f"D-{number // 2}" for number in range(10)]
    assert [text for _, _, text in fields[::2]] == lines[:5]
    best = translator.translate_nbest(text.split("\n"), nbest=2, max_len_b=8)
    expected = [t.score / 0.6931471805599453 for t in (best[0][0], best[0][1], best[2][0])]
    scores = [float(fields[i][1]) for i in (0, 1, 4)]
    assert scores == pytest.approx(expected, abs=1e-5)

    (folder / "input.de.gz").write_bytes(gzip.compress(text.encode()))
    flags[1] = folder / "input.de.gz"
    assert run("interactive", *model, *flags).stdout.split("\n") == twice

    full = run("interactive", *model, "--format", "fairseq", stdin=text).stdout
    assert [text for _, [_, text] in lines_of(full, "D")] == lines[:5]
    assert [number for number, _ in lines_of(full, "S")] == list(range(5))


def test_interactive_reads_the_table_of_unknown_words_once(folder, tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(
        "relu_nmt.translator.translator.load_translations",
        lambda path: read.append(path) or load_translations(path),
    )
    (tmp_path / "table").write_text("haus house\n")
    options = {"path": folder / "checkpoint1.safetensors", "cpu": True, "max_len_b": 8}
    (tmp_path / "text").write_text("ein haus\nein hund\n\nbrot\n")
    flags = {"input": tmp_path / "text", "buffer_size": 1, "replace_unk": tmp_path / "table"}
    settings = translate_lines.TranslateLinesSettings.of(**options, **flags)
    assert len(translate_lines.translate_lines(settings, progress=False)) == 4
    assert len(read) == 1


def test_interactive_gives_json(folder):
    model = ["--path", folder / "checkpoint1.safetensors", *SHORT]
    text = "Das Haus\n\nein Hund ist rot"
    flags = ["--nbest", 2, "--format", "json", "--print-alignment"]
    answers = [
        json.loads(line)
        for line in run("interactive", *model, *flags, stdin=text).stdout.splitlines()
    ]
    assert {answer["score_unit"] for answer in answers} == {"nats"}
    pairs = [(answer["id"], answer["source"]) for answer in answers]
    assert pairs == list(enumerate(text.split("\n")))
    translator = Translator.from_checkpoint(folder / "checkpoint1.safetensors", device="cpu")
    expected = translator.translate_nbest(text.split("\n"), nbest=2, max_len_b=8)
    for answer, translations in zip(answers, expected, strict=True):
        nbest = answer["translations"]
        assert [t["text"] for t in nbest] == [t.text for t in translations]
        for entry, other in zip(nbest, translations, strict=True):
            assert entry["score"] == pytest.approx(other.score, abs=1e-5)
            assert len(entry["token_scores"]) == len(entry["tokens"]) + 1  # of </s>, too
    assert len(answers[0]["translations"][0]["alignment"]) == len(
        answers[0]["translations"][0]["tokens"]
    )
    refused = run("interactive", *model, "--format", "json", "--max-source-length", 2, stdin=text)
    assert json.loads(refused.stdout.splitlines()[0])["translations"][0]["score"] is None


def test_interactive_reads_prefixes_and_banned_terms_from_files(folder):
    model = ["--path", folder / "checkpoint1.safetensors", *SHORT]
    lines = ["Das Haus", "", "ein Hund ist rot"]
    plain = run("interactive", *model, stdin="\n".join(lines)).stdout.split("\n")
    (folder / "prefixes").write_text("house\n\n\n", "utf-8")
    word = plain[2].split()[0]
    (folder / "banned").write_text(f"{word.upper()}\n\n", "utf-8")
    flags = ["--prefixes", folder / "prefixes"]
    done = run("interactive", *model, *flags, "--buffer-size", 2, stdin="\n".join(lines))
    outputs = done.stdout.split("\n")
    assert outputs[0].startswith("house") and outputs[1:] == plain[1:]
    flags = ["--banned-terms", folder / "banned"]
    other = run("interactive", *model, *flags, stdin="\n".join(lines)).stdout.split("\n")
    assert word.lower() not in other[2].lower().split()
    other = run("interactive", *model, *flags, "--match-case", stdin="\n".join(lines))
    assert other.stdout.split("\n") == plain
    (folder / "prefixes").write_text("house\n", "utf-8")
    flags = ["--prefixes", folder / "prefixes"]
    done = run("interactive", *model, *flags, stdin="\n".join(lines), check=False)
    assert done.returncode == 2 and "prefixes: 1 line, but the input has more" in done.stderr
    (folder / "prefixes").write_text("house\n\n\nhouse\n", "utf-8")
    done = run("interactive", *model, *flags, stdin="\n".join(lines), check=False)
    assert done.returncode == 2 and done.stdout.split("\n") == outputs
    assert "prefixes: 4 lines, but the input has only 3; give one for each" in done.stderr


def test_generate_writes_no_banned_term(folder):
    arguments = [folder / "raw-bin", "--path", folder / "checkpoint1.safetensors", *SHORT]
    plain = lines_of(run("generate", *arguments).stdout, "D")
    texts = " ".join(text for _, (_, text) in plain)
    words = {word.lower() for word in texts.split() if word.isalpha()}
    (folder / "never").write_text("\n".join(words), "utf-8")
    printed = lines_of(run("generate", *arguments, "--banned-terms", folder / "never").stdout, "D")
    assert len(words) > 1 and len(printed) == len(plain)
    for _, (_, text) in printed:
        assert words.isdisjoint(text.lower().split())


@pytest.mark.parametrize("flags", [["--constraints"], ["--constraints", "unordered"]])
def test_interactive_forces_the_terms_behind_the_tabs(folder, flags):
    model = ["--path", folder / "checkpoint1.safetensors", *SHORT]
    text = "Das Haus\thouse\tdog\n\nein Hund ist rot\nein\t\thouse"
    flags = [*flags, "--format", "fairseq"]
    printed = run("interactive", *model, *flags, stdin=text).stdout.splitlines()
    lines = {}
    for number in range(4):
        lines[number] = [line for line in printed if line[1:3] == f"-{number}"]
    assert [line[0] for line in lines[0]] == list("SCCHDP")
    assert lines[0][0].split("\t")[1].split() == ["das", "haus"]
    words = lines[0][4].split("\t")[2].split()
    assert "house" in words and "dog" in words
    last = len(words) - 1 - words[::-1].index("dog")
    assert "unordered" in flags or words.index("house") < last
    plain = run("interactive", *model, stdin="\n\nein Hund ist rot").stdout.splitlines()
    assert lines[2][2].split("\t")[2] == plain[2]
    assert [line[0] for line in lines[3]] == list("SCHDP") and "house" in lines[3][3]
    done = run("interactive", *model, *flags, "--sampling", stdin=text, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--sampling:" in done.stderr
    text = "Das Haus\n\n\thouse"
    flags = [*flags, "--buffer-size", 2]
    done = run("interactive", *model, *flags, stdin=text, check=False)
    assert done.returncode == 2
    assert "line 3: the term 'house' cannot be forced: the line is blank" in done.stderr


def test_interactive_draws_pictures_of_the_attention(folder, tmp_path):
    model = ["--path", folder / "checkpoint1.safetensors", *SHORT]
    flags = ["--attention-pictures", tmp_path / "maps"]
    done = run("interactive", *model, *flags, stdin="Das Haus\n\nein Hund")
    names = ["0.svg", "2.svg"]
    assert sorted(path.name for path in (tmp_path / "maps").iterdir()) == names
    assert f"attention pictures: {tmp_path}/maps/0.svg to {tmp_path}/maps/2.svg\n" in done.stderr
    picture = (tmp_path / "maps/0.svg").read_text("utf-8")
    for text in ("source: das haus", "target: ", "source (key)", "target (query)"):
        assert text in picture
    again = run("interactive", *model, *flags, stdin="ein Hund", check=False)
    assert (again.returncode, again.stdout, again.stderr.count("\n")) == (2, "", 1)
    assert f"--attention-pictures {tmp_path}/maps: 0.svg is there already" in again.stderr
    assert (tmp_path / "maps/0.svg").read_text("utf-8") == picture


def test_interactive_reports_translations_that_reached_the_limit(folder):
    lines = ["Das Haus", "", "ein Hund ist rot", "Brot"]
    model = ["--path", folder / "checkpoint1.safetensors", "--cpu"]
    translator = Translator.from_checkpoint(folder / "checkpoint1.safetensors", device="cpu")
    for longest in (1, 400):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            translations = translator.translate(lines, max_len_b=longest)
        cut = [number + 1 for number in translations.at_limit]
        flags = ["--max-len-b", longest, "--buffer-size", 2]
        done = run("interactive", *model, *flags, stdin="\n".join(lines))
        assert done.stdout.split("\n")[:-1] == translations
        notes = [line for line in done.stderr.split("\n") if "NOTE" in line]
        assert len(notes) == len(caught) == bool(cut)
        if cut:
            named = "lines " if len(cut) > 1 else "line "
            named += ", ".join(map(str, cut))
            assert notes[0].endswith(f"--max-len-b change it ({named})")
            assert f"{len(cut)} of 4 translations reached" in str(caught[0].message)
            assert f"{len(cut)} translations reached the longest output" in notes[0]
        if longest == 1:
            assert cut == [1, 3, 4]


def test_a_result_keeps_no_model(folder, monkeypatch):
    load = shared.load_translator
    models = []

    def noted(*arguments):
        translator = load(*arguments)
        models.extend(map(weakref.ref, translator.models))
        return translator

    monkeypatch.setattr(shared, "load_translator", noted)
    options = {"path": folder / "checkpoint1.safetensors", "cpu": True, "max_len_b": 8}
    settings = translate_split.Settings.of(data=folder / "raw-bin", **options)
    result = translate_split.run(settings, progress=False)
    gc.collect()
    assert len(result.groups) == NUM_TEST
    assert [model() for model in models] == [None]


def test_recipes_return_the_translations_that_the_commands_print(folder, capfd):
    flags = ["--path", folder / "checkpoint1.safetensors", *SHORT]
    printed = run("generate", folder / "raw-bin", *flags).stdout
    options = {"path": folder / "checkpoint1.safetensors", "cpu": True, "max_len_b": 8}
    result = translate_split.run(
        translate_split.Settings.of(data=folder / "raw-bin", **options), progress=False
    )
    texts = [text for _, [_, text] in lines_of(printed, "D")]
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


def test_interactive_answers_each_line_as_it_arrives(folder, quick_python):
    arguments = ["--path", str(folder / "checkpoint1.safetensors"), *SHORT]
    with subprocess.Popen(
        [quick_python, "-m", "relu_nmt.cli.interactive", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as process:
        for line in ("Das Haus", "", "ein Hund"):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            assert bool(answer.strip()) == bool(line)
        process.stdin.close()
        assert process.stdout.read() == ""
        assert process.wait() == 0


def test_interactive_names_the_damaged_line(folder):
    (folder / "latin1.de").write_bytes("Haus\nHäuser\n".encode("latin-1"))
    model = ["--path", folder / "checkpoint1.safetensors", *SHORT]
    done = run("interactive", *model, "--input", folder / "latin1.de", check=False)
    assert done.returncode == 2
    assert "latin1.de:2: not UTF-8" in done.stderr
    done = run("interactive", *model, "--input", folder / "nothing.de", check=False)
    assert done.returncode == 2
    assert "nothing.de" in done.stderr


def test_averaged_checkpoints_have_the_mean_of_the_weights(folder, tmp_path):
    output = tmp_path / "average.safetensors"
    run(
        "average",
        *["--inputs", folder, "--num-epoch-checkpoints", 2, "--checkpoint-upper-bound", 2],
        *["--output", output],
    )
    parts = [load_checkpoint(folder / f"checkpoint{i}.safetensors") for i in (1, 2)]
    average = load_checkpoint(output)
    for name, value in average.model_tensors.items():
        expected = (parts[0].model_tensors[name] + parts[1].model_tensors[name]) / 2
        torch.testing.assert_close(value, expected)
    assert average.metadata["task"] == parts[0].metadata["task"]
    assert average.metadata["averaged"] == ["checkpoint2.safetensors", "checkpoint1.safetensors"]
    assert "training_state" not in average.metadata
    assert Translator.from_checkpoint(output, "cpu").translate(["ein Haus"], max_len_b=5)[0]

    by_updates = tmp_path / "updates.safetensors"
    run("average", "--inputs", folder, "--num-update-checkpoints", 2, "--output", by_updates)
    names = load_checkpoint(by_updates).metadata["averaged"]
    assert names == ["checkpoint_1_300.safetensors", "checkpoint_1_200.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["FOLDER", "--num-epoch-checkpoints", "4"], "3 checkpoints saved by epochs, but 4"),
        (["checkpoint1.safetensors", "plain.safetensors"], "the source dictionary is"),
        (["checkpoint1.safetensors", "short.safetensors"], "the model setting "),
        (["nothing.safetensors"], "no such checkpoint"),
        (["checkpoint1.safetensors", "--checkpoint-upper-bound", "3"], "needs --num-epoch"),
    ],
)
def test_checkpoints_that_do_not_fit_cannot_be_averaged(folder, tmp_path, arguments, message):
    inputs = [folder if a == "FOLDER" else folder / a if "." in a else a for a in arguments]
    done = run("average", "--inputs", *inputs, "--output", tmp_path / "a.safetensors", check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_score_command_prints_the_score(tmp_path):
    (tmp_path / "ref").write_text("a b c d\nA house is here .\n", encoding="utf-8")
    (tmp_path / "sys").write_text("a b c d\na house is here .\n", encoding="utf-8")
    output = run("score", "--sys", tmp_path / "sys", "--ref", tmp_path / "ref").stdout
    assert "nrefs:1|case:mixed" in output
    assert not output.startswith("BLEU = 100")
    flags = ["--ref", tmp_path / "ref", "--ignore-case"]
    text = (tmp_path / "sys").read_text(encoding="utf-8")
    lines = run("score", *flags, "--metrics", "bleu,chrf", stdin=text).stdout.split("\n")
    assert lines[0].startswith("BLEU = 100.00")
    assert lines[1].startswith("chrF2 = 100.00")
    by_line = run("score", *flags, "--sentence-bleu", "-s", tmp_path / "sys").stdout.split("\n")
    assert [line.split(" ")[0] for line in by_line[:2]] == ["0", "1"]
    assert by_line[2].startswith("signature: ")


def test_the_score_command_names_files_that_do_not_match(tmp_path):
    (tmp_path / "ref").write_text("a\nb\n", encoding="utf-8")
    (tmp_path / "sys").write_text("a\n", encoding="utf-8")
    done = run("score", "--sys", tmp_path / "sys", "--ref", tmp_path / "ref", check=False)
    assert done.returncode == 2
    assert "ref: 2 lines, but" in done.stderr
    assert "sys has 1" in done.stderr
    done = run("score", "--sys", tmp_path / "sys", check=False)
    assert done.returncode == 2
    assert "--ref" in done.stderr


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
