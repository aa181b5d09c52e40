"""The demo's own logic. The whole of it runs in continuous integration (make demo)."""

import importlib.util
import shlex
import sys
from pathlib import Path

import pytest

from tests.commands import command_line

ROOT = Path(__file__).parents[2]


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples/demo")
    spec = importlib.util.spec_from_file_location("demo_run", ROOT / "examples/demo/run.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    for name in (spec.name, "translations"):
        del sys.modules[name]


def write_command(path, text="x"):
    return [sys.executable, "-c", f"open({str(path)!r}, 'a').write({text!r})"]


def test_a_step_that_is_done_is_skipped(demo, tmp_path, capsys):
    for _ in range(2):
        demo.Run(tmp_path, "de", "en").step("corpus", "Write", write_command(tmp_path / "out"))
    assert (tmp_path / "out").read_text() == "x"
    assert "done before; skipped" in capsys.readouterr().out


def test_a_step_is_repeated_when_an_earlier_one_changes(demo, tmp_path):
    for text in ("a", "b"):
        run = demo.Run(tmp_path, "de", "en")
        run.step("corpus", "Write", write_command(tmp_path / "first", text))
        run.step("data", "Write", write_command(tmp_path / "second"))
    assert (tmp_path / "second").read_text() == "xx"


def test_a_step_that_fails_is_not_done(demo, tmp_path):
    run = demo.Run(tmp_path, "de", "en")
    with pytest.raises(demo.DemoError, match="exit code 3"):
        run.step("corpus", "Fail", [sys.executable, "-c", "raise SystemExit(3)"])
    assert not run.is_done("corpus")


def test_a_shown_command_can_be_copied_and_keeps_flags_with_values(demo):
    command = ["relu-nmt-train", "a folder", "--adam-betas", "(0.9,0.98)", "--bf16"]
    command += [f"--flag-number-{n}={n}" for n in range(9)] + ["--lr", "1e-3"] * 9
    text = demo.format_command(command)
    assert shlex.split(text.replace("\\\n", " ")) == command
    for line in text.split("\n"):
        assert len(line) < 110 and not line.rstrip(" \\").endswith("--lr")


@pytest.mark.parametrize(("pairs", "size"), [(100, 500), (10_000, 2_000), (48_000, 8_000)])
def test_the_vocabulary_fits_the_corpus(demo, pairs, size):
    assert demo.subword_size(pairs) == size


def fake_steps(demo, monkeypatch, failing):
    """Let steps succeed at once, or fail if their title contains ``failing``."""
    titles = []

    def step(self, name, title, command):
        titles.append(title)
        if failing in title:
            raise demo.DemoError("the command above failed (exit code 2)")
        stamp = self.folder / "steps" / f"{name}.done"
        stamp.parent.mkdir(parents=True)
        stamp.write_text("done")

    monkeypatch.setattr(demo.Run, "step", step)
    return titles


def arguments(demo, runs, *flags):
    return demo.parse_arguments(command_line(["--runs", runs, flags]))


def test_the_embedded_corpus_replaces_a_missing_download(demo, tmp_path, monkeypatch, capsys):
    titles = fake_steps(demo, monkeypatch, failing="LibreOffice")
    run = demo.corpus_run(arguments(demo, tmp_path))
    assert run.folder == tmp_path / "grammar"
    assert ["LibreOffice" in title for title in titles] == [True, False]
    assert "cannot be had here" in capsys.readouterr().out


def test_a_second_start_keeps_to_the_embedded_corpus(demo, tmp_path, monkeypatch):
    (tmp_path / "grammar/steps").mkdir(parents=True)
    (tmp_path / "grammar/steps/corpus.done").write_text("done")
    monkeypatch.setattr(demo.Run, "step", lambda *_: None)
    assert demo.corpus_run(arguments(demo, tmp_path)).folder.name == "grammar"


@pytest.mark.parametrize("flags", [("--corpus", "libreoffice"), ("--lang", "fr")])
def test_options_of_the_downloaded_corpus_do_not_fall_back(demo, flags, tmp_path, monkeypatch):
    fake_steps(demo, monkeypatch, failing="LibreOffice")
    with pytest.raises(demo.DemoError):
        demo.corpus_run(arguments(demo, tmp_path, flags))


def test_corpora_do_not_share_a_folder(demo, tmp_path, monkeypatch):
    fake_steps(demo, monkeypatch, failing="nothing")
    (tmp_path / "a.de").write_text("ein Haus\n")
    (tmp_path / "a.en").write_text("a house\n")
    files = ("--src", str(tmp_path / "a.de"), "--tgt", str(tmp_path / "a.en"))
    choices = [(), ("--lang", "fr"), ("--corpus", "grammar"), files]
    runs = [demo.corpus_run(arguments(demo, tmp_path / "runs", choice)) for choice in choices]
    (tmp_path / "a.en").write_text("another house\n")
    runs.append(demo.corpus_run(arguments(demo, tmp_path / "runs", files)))
    assert len({run.folder for run in runs}) == 5
    assert (runs[3].source_lang, runs[3].target_lang) == ("de", "en")


@pytest.mark.parametrize("flags", [("--src", "a.de"), ("--src", "no.de", "--tgt", "no.en")])
def test_a_missing_text_is_an_error(demo, flags, tmp_path):
    with pytest.raises(demo.DemoError, match=r"--tgt FILE|No such file"):
        demo.corpus_run(arguments(demo, tmp_path, flags))


def test_examples_are_spread_and_of_handy_length(demo):
    examples = [demo.Example("w" * (n % 200), "r", "h") for n in range(1000)]
    chosen = demo.choose_examples(examples)
    assert len(chosen) == 10
    assert all(30 <= len(example.source) < 140 for example in chosen)
    assert demo.choose_examples(examples[:3]) == examples[:3]


def test_the_report_shows_text_score_and_what_to_do_next(demo, tmp_path, capsys):
    for folder in ("corpus", "translations"):
        (tmp_path / folder).mkdir()
    (tmp_path / "corpus/test.de").write_text("Ein Haus.\n\nZwei Häuser.\n", "utf-8")
    (tmp_path / "corpus/test.en").write_text("A house.\n\nTwo houses.\n", "utf-8")
    lines = ["S-0\t▁Ein", "D-0\t-0.5\tThe house.", "D-1\t-0.2\tTwo houses.", "NOTE: base 2"]
    lines.append("Generate test with beam=5: BLEU = 55.5")
    (tmp_path / "translations/generate-test.txt").write_text("\n".join(lines), "utf-8")
    demo.report(demo.Run(tmp_path, "de", "en"), 6)
    printed = capsys.readouterr().out
    for text in ("Zwei Häuser.", "The house.", "BLEU = 55.5", "make demo DEMO_MINUTES=12"):
        assert text in printed
    assert str(tmp_path / "checkpoints/checkpoint_best.safetensors") in printed
    compared = printed.partition("compare with softmax")[2]
    assert "as above" not in printed and "reluformer" not in compared
    for flag in ("--arch transformer", "--budget 6m", f"--save-dir {tmp_path}/softmax"):
        assert flag in compared


def test_the_report_reads_lines_as_the_toolkit_does(demo, tmp_path):
    for folder in ("corpus", "translations"):
        (tmp_path / folder).mkdir()
    (tmp_path / "corpus/test.de").write_bytes("Ein\rHaus.\r\nZwei\x0cHäuser.\n".encode())
    (tmp_path / "corpus/test.en").write_bytes("A\u2028house.\nTwo houses.\n".encode())
    lines = "D-0\t-0.5\tThe\x85house.\nD-1\t-0.2\tTwo houses.\n"
    (tmp_path / "translations/generate-test.txt").write_text(lines, "utf-8")
    examples, _ = demo.read_examples(demo.Run(tmp_path, "de", "en"))
    assert examples[0] == demo.Example("Ein\rHaus.", "A\u2028house.", "The\x85house.")
    assert examples[1] == demo.Example("Zwei\x0cHäuser.", "Two houses.", "Two houses.")


def test_a_dry_run_writes_nothing(demo, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(demo.DRY_RUN, "")  # so that it is as before afterwards
    assert demo.main(["--dry-run", "--runs", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "libreoffice_help.py --lang de" in output and "relu-nmt-generate" in output
    assert not list(tmp_path.iterdir())
