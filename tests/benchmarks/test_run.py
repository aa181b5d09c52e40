"""The benchmark beside peers: their output, the tables, and a failing peer."""

import argparse
import json
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.example_modules import example_modules

NAMES = ("measuring", "programs", "peers", "corpus", "report", "run")


@pytest.fixture
def modules():
    with example_modules("../benchmarks", NAMES) as loaded:
        yield loaded


def printed(modules, lines):
    return modules.measuring.Run(lines, lines[-1][0], 1.0, 50_000_000)


def program(modules, name, tmp_path):
    return modules.peers.PEERS[name](name, tmp_path, tmp_path, tmp_path)


def test_rates_of_updates_as_the_programs_print_them(modules, tmp_path):
    lines = {
        "fairseq": '2026 | INFO | train_inner | {"epoch": 1, "wpb": "300", "num_updates": "%d"}',
        "opennmt-py": "[2026 INFO] Step %d/ 8; acc: 1.1; ppl: 9.2; xent: 9.1; lr: 0.0; "
        "sents: 20; bsz:  280/ 300/20; 543/534 tok/s;  7 sec;",
        "joeynmt": "INFO - Epoch 1, Step: %8d, Batch Loss: 9.1, Batch Acc: 0.0, "
        "Tokens per Sec: 150, Lr: 0.001",
    }
    for name, line in lines.items():
        run = printed(modules, [(3.0 + 2 * n, line % n) for n in range(1, 8)])
        figures = modules.run.training_figures(program(modules, name, tmp_path), run)
        assert figures["first update s"] == 5.0, name
        assert figures["tokens/s"] == pytest.approx(150), name
        assert figures["peak MB"] == 50
        assert "checkpoint s" not in figures


def test_seconds_of_checkpoints(modules, tmp_path):
    saved = "Saved checkpoint x.pt (epoch 1 @ 4 updates, score None) (writing took %s seconds)"
    update = '{"wpb": "10", "num_updates": "1"}'
    lines = [(1.0 + n, update) for n in range(3)] + [(5.0, saved % 0.5), (6.0, saved % 0.7)]
    run = printed(modules, lines)
    figures = modules.run.training_figures(program(modules, "fairseq", tmp_path), run)
    assert figures["checkpoint s"] == pytest.approx(0.6)


def test_translations_in_the_order_of_the_input(modules, tmp_path):
    task = modules.programs.Decoding("test", "test", 2, None, "cpu", 1)
    lines = [
        "S-1\tein haus",
        "H-1\t-0.5\ta hou@@ se",
        "D-1\t-0.5\ta house",
        "H-0\t-0.1\tyes",
        "2026 | Translated 2 sentences (7 tokens) in 0.2s (8.00 sentences/s, 28.00 tokens/s)",
    ]
    run = printed(modules, [(1.0, line) for line in lines])
    fairseq = program(modules, "fairseq", tmp_path)
    assert fairseq.translated(task, run) == (0.25, ["yes", "a hou@@ se"])
    (tmp_path / "translations").write_text("yes\nno\n")
    for name, line in (
        ("opennmt-py", "Total translation time (s): 4.5"),
        ("ctranslate2", "Translated 2 sentences (2 tokens) in 4.500s"),
    ):
        run = printed(modules, [(1.0, line)])
        assert program(modules, name, tmp_path).translated(task, run) == (4.5, ["yes", "no"])
    (tmp_path / "test.de").write_text("ja\nnein\n")
    lines = ("INFO - Generation took 4.5000[sec].", "yes", "no")
    run = printed(modules, [(1.0, line) for line in lines])
    assert program(modules, "joeynmt", tmp_path).translated(task, run) == (4.5, ["yes", "no"])


def test_a_run_has_the_times_of_its_lines_and_its_error(modules, tmp_path, monkeypatch):
    python = [sys.executable, "-c"]
    run = modules.measuring.run
    program = (
        "import os, time\nprint('a', flush=True)\nx = bytearray(30 << 20)\n"
        "while not os.path.exists('go'):\n    time.sleep(0.01)\nprint('b')"
    )
    results = []

    class Noted(modules.measuring.Run):
        def __init__(self):
            super().__init__()
            results.append(self)

    def let_it_go():
        while not (results and results[0].lines and (results[0].peak_bytes or 0) > 30e6):
            time.sleep(0.01)
        time.sleep(0.5)
        (tmp_path / "go").touch()

    with monkeypatch.context() as patch:
        patch.setattr(modules.measuring, "Run", Noted)
        threading.Thread(target=let_it_go, daemon=True).start()
        done = run([*python, program], folder=tmp_path)
    (first, a), (second, b) = done.lines
    assert (a, b) == ("a", "b") and second - first > 0.4
    assert done.seconds > second and done.cpu_seconds > 0
    assert done.peak_bytes > 30e6
    with pytest.raises(modules.measuring.FailedCommand, match=r"ended with 3: not$"):
        run([*python, "print('why'); print('not'); raise SystemExit(3)"])
    with pytest.raises(modules.measuring.FailedCommand, match="no-such-program"):
        run(["/no-such-program"])


def test_medians_and_ratios_of_rows_that_take_turns(modules):
    order = []

    def row(name, *rates):
        values = iter(rates)

        def measure():
            order.append(name)
            value = next(values)
            if value is None:
                raise modules.measuring.FailedCommand("no | memory in /home/someone/x")
            return {"tokens/s": value, "peak MB": 10.0}

        return measure

    rows = {"ours": row("ours", 10, 40, 20), "theirs": row("theirs", 5, 10, 20)}
    rows["broken"] = row("broken", 1, None)
    table = modules.run.Measurement("Speed", ["tokens/s", "checkpoint s", "peak MB"], rows)
    for number in range(3):
        table.measure(number)
    assert order == ["ours", "theirs", "broken", "broken", "theirs", "ours", "ours", "theirs"]
    machine = modules.report.Machine(2, "cpu")
    flags = ["--text", "/home/someone/m30k", "--rounds", "3"]
    page = modules.report.page(
        machine, {"ours": "1.0"}, {"x": "does not install: no"}, [table], flags
    )
    assert "| | tokens/s | ratio | peak MB |" in page
    assert "| ours | 20 | 1.00 | 10 |" in page
    assert "| theirs | 10 | 0.50 | 10 |" in page
    assert "| broken | failed: no / memory in x |" in page
    assert "* **x**: does not install: no" in page
    assert "--text m30k --rounds 3" in page and "someone" not in page


def test_a_peer_that_does_not_install_is_reported_and_left_out(
    modules, tmp_path, monkeypatch, capsys
):
    class Absent(modules.peers.JoeyNMT):
        packages = ("--no-index no-such-package",)

    calls = []

    def call(words):
        calls.append(words)
        if "no-such-package" in words:
            raise modules.measuring.FailedCommand("no matching distribution")
        return ""

    monkeypatch.setattr(modules.programs, "_call", call)
    monkeypatch.setitem(modules.peers.PEERS, "joeynmt", Absent)
    arguments = argparse.Namespace(
        folder=tmp_path, revision=[tmp_path / "gone"], peers=["joeynmt"], threads=1
    )
    benchmark = modules.run.Benchmark(arguments)
    assert [peer.name for peer in benchmark.programs] == ["relu_nmt"]
    assert benchmark.problems["joeynmt"] == "does not install: no matching distribution"
    assert "no checkout" in benchmark.problems["relu_nmt gone"]
    assert not (tmp_path / "joeynmt/installed").exists()
    assert calls[0][1:3] == ["-m", "venv"]


def test_text_is_split_into_subwords_and_documents_have_their_length(modules, tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    for split, name, count in (("train", "train", 50), ("valid", "val", 9), ("test", "test", 9)):
        for language in ("de", "en"):
            lines = [f"Das Haus {split} Nummer {n}." for n in range(count)]
            lines.insert(3, "")  # the end of a document
            (raw / f"{name}.{language}").write_text("\n".join(lines) + "\n")
    arguments = argparse.Namespace(
        text=raw, pairs=40, sentences=5, documents=3, merges=30, lengths=[16, 100]
    )
    text = tmp_path / "text"
    modules.corpus.prepare(arguments, tmp_path, text)
    assert len((text / "train.de").read_text().splitlines()) == 40
    tests = (text / "test.en").read_text().splitlines()
    assert len(tests) == 5
    for line in tests:
        assert line.replace("@@ ", "").endswith(" .")
    for length in arguments.lengths:
        lines = (text / f"{modules.corpus.document_split(length)}.de").read_text().splitlines()
        assert list(map(len, map(str.split, lines))) == [length] * 3
    # The same arguments change nothing. Others make the text again.
    stamp = (text / "train.de").stat().st_mtime_ns
    modules.corpus.prepare(arguments, tmp_path, text)
    assert (text / "train.de").stat().st_mtime_ns == stamp
    arguments.pairs = 30
    modules.corpus.prepare(arguments, tmp_path, text)
    assert len((text / "train.de").read_text().splitlines()) == 30
    arguments.text = text / "gone"
    with pytest.raises(modules.measuring.FailedCommand, match=r"gone: no train with \.de and \.en"):
        modules.corpus.prepare(arguments, tmp_path, text)


def test_models_of_the_peers_have_the_shape_and_the_vocabulary(modules, tmp_path):
    for split in ("train", "valid"):
        for language in ("de", "en"):
            (tmp_path / f"{split}.{language}").write_text("b a b\n" * 20)
    task = modules.programs.Training(modules.programs.Shape(3, 256, 4, 1024), 4096, 6, 2, "cpu")
    import yaml

    onmt = program(modules, "opennmt-py", tmp_path).train(task, "float32", tmp_path / "o")
    settings = yaml.safe_load(Path(onmt.words[-1]).read_text())
    assert (settings["enc_layers"], settings["transformer_ff"], settings["heads"]) == (3, 1024, 4)
    assert Path(settings["tgt_vocab"]).read_text() == "b\na\n"
    joey = program(modules, "joeynmt", tmp_path)
    trained = joey.train(task, "float32", joey.models)
    settings = yaml.safe_load(Path(trained.words[-2]).read_text())
    assert settings["model"]["encoder"]["num_layers"] == 3
    (tmp_path / "test.en").write_text("a b c\na b c d e\n")
    decoding = modules.programs.Decoding("test", "test", 7, None, "cpu", 3)
    command = joey.decode(decoding, "float32")
    settings = yaml.safe_load(Path(command.words[4]).read_text())["testing"]
    assert (settings["min_output_length"], settings["max_output_length"]) == (4, 4)
    assert settings["batch_size"] == 7
    assert json.loads((joey.models / "task.json").read_text())["shape"]["width"] == 256


def test_workers_share_the_threads(modules, tmp_path):
    task = modules.programs.Decoding("test", "test", 64, None, "cpu", 3)
    ours = modules.programs.Ours("ours", *[tmp_path] * 4)
    theirs = modules.programs.CTranslate2("ctranslate2", *[tmp_path] * 3)
    for variant in ours.decoding_variants:
        words = ours.decode(task, variant).words
        number = words[words.index("--workers") + 1]
        assert number == ("3" if variant.endswith("workers") else "1")
    for variant in theirs.decoding_variants:
        workers, threads = theirs.decode(task, variant).words[7:9]
        assert (workers, threads) == (("3", "1") if variant.endswith("workers") else ("1", "3"))
