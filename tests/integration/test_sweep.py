"""relu-nmt-sweep with the real commands, on documents of generated digits."""

import dataclasses
import itertools
import json
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

from relu_nmt.applications.sweep.runner import StepRunner
from relu_nmt.cli import score, sweep
from relu_nmt.jobs.sweep.job import plan_steps
from tests.commands import run_steps_in_forks
from tests.outputs import column, csv_rows, select
from tests.tiny import digit_documents, preprocessed, write_documents

TRAIN = "--arch transformer_tiny --cpu --max-tokens 64 --warmup-updates 4 --sentence-separator"
GENERATE = "--beam 2 --max-len-b 8 --max-len-a 0.5 --cpu"


@pytest.fixture(autouse=True)
def quick(monkeypatch, quick_python):
    monkeypatch.setattr(sys, "executable", quick_python)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Documents of one to six lines of digits, and their copies."""
    return make_data(tmp_path_factory.mktemp("digits"), "\n\n", document_separator="blank")


def make_data(folder, between, **options):
    rng = random.Random(0)
    for split, count in (("train", 20), ("valid", 3), ("test", 4)):
        write_documents(folder, split, digit_documents(rng, count), between)
    splits = ("train", "valid", "test")
    return preprocessed(folder, "data", splits, joined_dictionary=True, **options)


def words(data, folder, flags, train=""):
    options = ["--save-dir", str(folder), "--seeds", "1", "--generate-flags", GENERATE]
    return [str(data), *options, *shlex.split(flags), "--", *TRAIN.split(), *train.split()]


def records(folder):
    return csv_rows(folder / "results.csv")


@pytest.mark.slow
def test_two_cells_from_training_to_report(data, tmp_path, capsys, monkeypatch):
    run_steps_in_forks(monkeypatch)
    contrast = {
        "source_language": "de",
        "source": "1 2",
        "reference": "1 2",
        "contrasts": ["2 1"],
        "source_context": ["3"],
        "reference_context": ["3"],
        "phenomenon": "order",
    }
    (tmp_path / "contrasts.jsonl").write_text(json.dumps(contrast) + "\n")
    flags = "--attentions softmax,reluformer --lengths 32 --jobs 2"
    flags += f" --contrastive {tmp_path}/contrasts.jsonl --budget"
    assert sweep.main(words(data, tmp_path, f"{flags} 4u", "--log-interval 1")) == 0
    assert "| 6/6 | nothing left | report: " in capsys.readouterr().out
    cells = select(records(tmp_path), row="cell")
    assert column(cells, "attention") == ["softmax", "reluformer"]
    page = (tmp_path / "report.html").read_text("utf-8")
    for row in cells:
        folder = tmp_path / "models" / f"{row['attention']}-L32-seed1"
        results = json.loads((folder / "evaluate-32.results.json").read_text())
        assert float(row["d_bleu"]) == pytest.approx(results["d_bleu"]["score"])
        assert (row["updates"], row["documents"], row["test_groups"]) == ("4", "4", row["groups"])
        assert float(row["train_tokens_per_second"]) > 0
        assert float(row["train_memory_bytes"]) > 5e7
        assert float(row["encoder_entropy"]) > 0
        assert f"<td>{float(row['chrf']):.2f}</td>" in page
        scores = json.loads((folder / "contrasts.results.json").read_text())
        assert column(scores, "context") == ["all"] * 2 + ["0"] * 2
        for total, name in ((scores[1], "context"), (scores[3], "alone")):
            assert float(row[f"accuracy_{name}[order]"]) == total["score"]
            assert row["chance[order]"] == str(total["chance"]) == "50.0"
        assert f"<td>{scores[0]['score']:.1f}<small>alone {scores[2]['score']:.1f}</small>" in page
    # Scoring the text again gives the same d-BLEU.
    references = tmp_path / "reference.en"
    raw = iter((data / "test.de-en.en.raw").read_text().split("\n"))
    counts = map(int, (data / "test.de-en.documents").read_text().split())
    text = ""
    for count in counts:
        text += "\n".join(["<d>", *itertools.islice(raw, count)]) + "\n"
    references.write_text(text)
    capsys.readouterr()
    command = ["--sys", str(folder / "evaluate-32.txt"), "--ref", str(references)]
    command += ["--document-separator", "tag", "--tokenize", "none", "--format", "json"]
    assert score.main(command) == 0
    again = json.loads(capsys.readouterr().out)[0]
    assert again["score"] == pytest.approx(float(cells[-1]["d_bleu"]))
    # The same command runs nothing. Another budget is refused before the first step.
    assert sweep.main(words(data, tmp_path, f"{flags} 4u", "--log-interval 1")) == 0
    assert "begins" not in capsys.readouterr().out
    assert sweep.main(words(data, tmp_path, f"{flags} 5u", "--log-interval 1")) == 2
    assert "'--max-update 4' where there is '--max-update 5'" in capsys.readouterr().err
    assert sweep.main(["--report-only", "--save-dir", str(tmp_path)]) == 0
    untimed = re.compile(r"<dd>\d\d \w+ \d{4}, \d\d:\d\d</dd>")
    assert untimed.sub("", (tmp_path / "report.html").read_text("utf-8")) == untimed.sub("", page)


@pytest.mark.slow
def test_a_stopped_mixture_continues_and_a_divergence_is_a_result(
    data, tmp_path, capsys, quick_python
):
    flags = "--attentions softmax --doc-mixture 1,16 --lengths 1,16 --budget 100u"
    train = "--log-interval 1 --disable-validation"
    is_done = True
    while is_done:  # On a busy machine the training may end before the signal comes.
        shutil.rmtree(tmp_path / "models", ignore_errors=True)
        command = [quick_python, "-m", "relu_nmt.cli.sweep"]
        command += words(data, tmp_path, f"{flags} --checkpoint last", train)
        log = tmp_path / "models/softmax-mix1+16-seed1/train.log"
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        while not (log.exists() and "num_updates=3," in log.read_text()):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate()
        is_done = "num_updates=100," in log.read_text()
    assert process.returncode == 128 + signal.SIGTERM
    assert "stopped after" in printed
    assert (log.parent / "checkpoints/checkpoint_last.safetensors").exists()
    # With this learning rate the loss is not finite from the first update on.
    bad = words(data, tmp_path / "bad", "--attentions softmax --lengths 16 --budget 9u",
                "--lr-scheduler fixed --lr 1e38")  # fmt: skip
    assert sweep.main(bad) == 0
    [cell, _] = records(tmp_path / "bad")
    assert cell["status"] == "diverged"
    assert "not finite" in cell["note"]
    assert "diverged" in (tmp_path / "bad/report.html").read_text("utf-8")
    capsys.readouterr()
    assert sweep.main(command[3:]) == 0
    text = log.read_text()
    assert text.count("$ relu-nmt-train") == 2
    assert "done training" in text
    cells = select(records(tmp_path), row="cell")
    assert column(cells, "length") == ["1", "16"] and "failed" not in column(cells, "status")
    assert column(cells, "updates") == ["100", "100"]


@pytest.mark.slow
def test_two_processes_train_a_model_and_memories_are_measured(data, tmp_path):
    flags = "--attentions softmax --lengths 1 --training-processes 2 --memory-stats --budget 2u"
    train = "--log-interval 1 --log-format json --telemetry-interval 1"
    assert sweep.main(words(data, tmp_path, flags, train)) == 0
    [cell, _] = records(tmp_path)
    assert cell["train_command"].startswith("torchrun --standalone --nproc-per-node 2 -m ")
    assert (cell["updates"], cell["feed_forward"]) == ("2", "relu")
    assert float(cell["memory_variance_ratio"]) > 0
    assert float(cell["attention_entropy"]) > 0
    # A mean of exp(entropy) lies between 1 and the number of visible keys.
    assert float(cell["encoder_exp_entropy"]) >= 1
    assert "Feed-forward networks as memories" in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.slow
def test_documents_start_from_a_sweep_of_sentences(data, tmp_path, capsys, monkeypatch):
    run_steps_in_forks(monkeypatch)
    sentences = tmp_path / "sentences"
    documents = tmp_path / "documents"
    flags = "--attentions softmax --budget 4u --lengths"
    assert sweep.main(words(data, sentences, f"{flags} 1", "--lr-scheduler fixed --lr 0.01")) == 0
    # With a rate of 0 the model does not change, and translates like the first one.
    start = f"{flags} 1,16 --doc-mixture 1,16 --start-from {sentences}"
    assert sweep.main(words(data, documents, start, "--lr-scheduler fixed --lr 0")) == 0
    first = sentences / "models/softmax-L1-seed1"
    second = documents / "models/softmax-mix1+16-seed1"
    assert f"start from the weights of {first}" in (second / "train.log").read_text()
    page = (documents / "report.html").read_text("utf-8")
    assert f"the sentence models of {sentences}, 4 updates per model" in page
    assert (second / "evaluate-1.txt").read_text() == (first / "evaluate-1.txt").read_text()
    state = (first / "train.json").read_text()
    (first / "train.json").write_text(state.replace('"done"', '"started"'))
    capsys.readouterr()
    assert sweep.main(words(data, tmp_path / "third", start)) == 2
    assert f"the training of {first} is not done, but started;" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "train", "message"),
    [
        ("--budget 4u --start-from none", "", "error: --start-from none: has no none/models/"),
        ("--budget 4u", "--finetune-from-model a", "behind the --: it is set by --start-from"),
        ("--budget 4u", "--seed 3", "--seed behind the --: it is set by --seeds"),
        ("--budget 4u", "--max-doc 9", "--max-doc-tokens behind the --: it is set by --lengths"),
        ("--budget 4u", "--max-update 9", "--max-update behind the --: it is set by --budget"),
        ("--budget 4m", "--stop-time-hours 9", "--stop-time-hours behind the --"),
        ("--budget 4u --lengths 128", "", "raise --max-tokens to 128"),
        (
            "--budget 4u --attentions softmax,reluformer:gama=2",
            "",
            "error: --attentions reluformer:gama=2: unknown option 'gama': did you mean ",
        ),
        ("--budget 4u", "--lr-scheduler fast", "--lr-scheduler fast: expected one of"),
        ("--budget 4u", "--disable-validation", "add --checkpoint last"),
        ("--budget 4u", "--no-save", "--no-save: there is no checkpoint to evaluate"),
        ("--budget 4u --variants 'a: --no-save'", "", "--no-save: there is no checkpoint to"),
        ("--budget 4u --checkpoint last", "--no-last-checkpoints", "there is no last checkpoint"),
        ("--budget 4u --checkpoint average:2", "", "add --save-interval-updates"),
        (
            "--budget 4u --checkpoint average:2",
            "--save-interval-updates 2 --keep-interval-updates 1",
            "raise --keep-interval-updates 1 to 2",
        ),
        (
            "--budget 9u --checkpoint average:4",
            "--save-interval-updates 3",
            "9 updates give 3 checkpoints with --save-interval-updates 3",
        ),
        (
            "--budget 4m --checkpoint average:2",
            "--save-interval-updates 2",
            "--checkpoint average:2: a --budget in time gives an unknown number of checkpoints",
        ),
        (
            "--budget 4u --generate-flags=--memory-stats=m.json",
            "",
            "--memory-stats in --generate-flags: it is set by --memory-stats before",
        ),
        (
            "--budget 4u --generate-flags=--score-reference",
            "",
            "--score-reference in --generate-flags: translations are scored",
        ),
        ("--budget 4u --generate-flags=--path=a", "", "--path in --generate-flags: it is set by"),
        ("--budget 4u --generate-flags=--beam=0", "", "--beam 0: expected 1 to 100000"),
        ("--budget 4u --generate-flags=--bean=2", "", "--generate-flags: unrecognized arguments"),
        ("", "", "--budget: say how long"),
        ("--budget 4u --gen-subset dev", "", "there is no split 'dev'"),
        ("--budget 4u --contrastive c", "", "error: --contrastive c: no such file"),
    ],
)
def test_mistakes_are_found_before_anything_runs(data, tmp_path, capsys, flags, train, message):
    flags = f"--lengths 32 --attentions softmax {flags}"
    try:
        code = sweep.main(words(data, tmp_path, flags, train))
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["report.html", "results.csv", "card.json"])
def test_a_foreign_report_is_not_overwritten(data, tmp_path, capsys, name):
    (tmp_path / name).write_text("mine")
    flags = "--lengths 32 --attentions softmax --budget 4u"
    assert sweep.main(words(data, tmp_path, flags)) == 2
    error = capsys.readouterr().err
    assert f"--save-dir {tmp_path}: holds {name}, but no sweep" in error and error.count("\n") == 1
    [file] = tmp_path.iterdir()
    assert file.read_text() == "mine"


def test_results_of_another_task_are_not_mixed(data, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "sweep"
    flags = "--lengths 32 --attentions softmax --budget 4u"
    monkeypatch.setattr(StepRunner, "run", lambda self, after_step: None)
    assert sweep.main(words(data, folder, flags)) == 0
    step = plan_steps(sweep_settings(data, folder, flags))[0]
    dataclasses.replace(step, status="done").write()
    before = (folder / "sweep.json").read_text()
    (tmp_path / "text").mkdir()
    other = make_data(tmp_path / "text", "\n\n", document_separator="blank", lowercase=True)
    moved = data.with_name("before")
    data.rename(moved)
    other.rename(data)  # made again under the same name
    try:
        for changes in ("", " --attentions softmax,reluformer"):
            assert sweep.main(words(data, folder, flags + changes)) == 2
            error = capsys.readouterr().err
            assert f"{data}: the source lower-casing is on, but in {folder} it is off;" in error
    finally:
        data.rename(other)
        moved.rename(data)
    assert (folder / "sweep.json").read_text() == before
    # A description of an earlier version lacks the task.
    values = json.loads(before)
    assert values.pop("task")["source language"] == "de"
    (folder / "sweep.json").write_text(json.dumps(values))
    assert sweep.main(words(data, folder, flags)) == 0


def sweep_settings(data, folder, flags):
    settings_seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "relu_nmt.jobs.sweep.job.run", lambda settings: settings_seen.append(settings) or 1 / 0
        )
        with pytest.raises(ZeroDivisionError):
            sweep.main(words(data, folder, flags))
    return settings_seen[0]


def test_a_slash_behind_the_data_folder_is_the_same_command(tmp_path, monkeypatch):
    received = []

    monkeypatch.setattr("relu_nmt.jobs.sweep.job.run", received.append)
    for data in ("data-bin", "data-bin/", "./data-bin"):
        assert sweep.main(words(data, tmp_path, "--budget 4u --lengths 32")) == 0
    first, *later = map(plan_steps, received)
    assert later == [first, first]
    for settings in received:
        assert settings.data == "data-bin"


def test_a_folder_without_documents_and_no_folder(data, tmp_path, capsys):
    flags = "--budget 4u --lengths 32 --attentions softmax"
    assert sweep.main(["--budget", "4u"]) == 2
    assert "DATA is missing" in capsys.readouterr().err
    assert sweep.main(["--report-only", "--save-dir", str(tmp_path)]) == 2
    assert "holds no sweep" in capsys.readouterr().err
    copy = tmp_path / "data"
    copy.mkdir()
    for path in data.iterdir():
        if path.name != "train.de-en.documents":
            (copy / path.name).write_bytes(path.read_bytes())
    assert sweep.main(words(copy, tmp_path / "out", flags)) == 2
    assert "train.de-en.documents: no such file" in capsys.readouterr().err


@pytest.mark.slow
def test_variants_are_compared_on_sentences_without_boundaries(tmp_path, capsys, monkeypatch):
    run_steps_in_forks(monkeypatch)
    folder = make_data(tmp_path, "\n")
    user = tmp_path / "mine.py"
    user.write_text(
        "from relu_nmt.attention import attentions\n"
        "from relu_nmt.attention.reluformer import ReLUFormerAttention\n"
        "attentions.register('mine')(ReLUFormerAttention)\n"
    )
    variant = "pre: --encoder-normalize-before --cross-attention mine"
    flags = f"--user-module {user} --lengths 1 --attentions softmax --budget 4u --variants"
    command = words(folder, tmp_path / "out", flags)
    position = command.index("--variants") + 1
    assert sweep.main([*command[:position], "fixed: --seed 3", *command[position:]]) == 2
    assert "--seed in --variants fixed: it is set by --seeds" in capsys.readouterr().err
    assert sweep.main([*command[:position], variant, *command[position:]]) == 0
    cells = select(records(tmp_path / "out"), row="cell")
    assert column(cells, "attention") == ["softmax", "pre"]
    lines = (folder / "test.de-en.de.raw").read_text("utf-8").splitlines()
    assert column(cells, "documents") == [str(len(lines))] * 2
    assert "cross mine" in (tmp_path / "out/models/pre-L1-seed1/train.log").read_text("utf-8")
