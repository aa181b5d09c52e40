#!/usr/bin/env python3
"""Learn to translate, from a corpus to a score, in about ten minutes on two CPU cores.

    make demo                                       German help pages into English
    make demo DEMO_MINUTES=30                       go on training, up to 30 minutes in all
    make demo DEMO_LANG=fr                          another language of the LibreOffice help
    make demo CORPUS=grammar                        sentences of our own grammar, no network needed
    make demo SRC=mine.de TGT=mine.en               a parallel text of your own

Every command is shown before it runs, so that it can be run by hand with other flags. A step that
is done does not run again. Training continues from its last checkpoint. ``make`` runs this script
in a virtual environment. Without make: ``python examples/demo/run.py --help``.
"""

import argparse
import dataclasses
import hashlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from translations import Example, choose_examples, lay_out, read_translations

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path("data_prep")
# Python of the environment of this script, as a short path inside the repository.
PYTHON = Path(os.path.relpath(sys.executable, ROOT))
PYTHON = Path(sys.executable) if ".." in PYTHON.parts else PYTHON

# ------------------------------------------------------------------------------- the settings

MINUTES = 8.0
"""Minutes of training. Installation, corpus and translation take about four more."""

SEARCH = "--beam 5 --lenpen 1.0 --max-len-a 1.2 --max-len-b 10"

MOST_PIECES = 8000
"""Largest size of the joint subword vocabulary, see :func:`subword_size`."""

COMMAND_WIDTH = 88
DRY_RUN = "DRY_RUN"
"""Variable that makes the examples print their commands and run none, as --dry-run does."""
USUAL_PAIRS = 48_665
"""Sentence pairs of the LibreOffice help, for a dry run."""


class DemoError(Exception):
    """An error: a step has failed or cannot run. The message names the remedy."""


# ------------------------------------------------------------------------------------ the steps


def say(text: str = "") -> None:
    """Print at once, even into a pipe."""
    print(text, flush=True)


def format_command(command: Sequence[str]) -> str:
    """Return a command in lines to copy. A flag and its values stay on one line."""
    groups: list[list[str]] = [[]]
    for word in command:
        if word.startswith("--") and groups[-1]:
            groups.append([])
        groups[-1].append(shlex.quote(word))
    lines = [""]
    for text in map(" ".join, groups):
        if lines[-1] and len(lines[-1]) + len(text) > COMMAND_WIDTH:
            lines.append("")
        lines[-1] += f" {text}" if lines[-1] else text
    return " \\\n      ".join(lines)


@dataclasses.dataclass
class Run:
    """The folder of one corpus, and the steps that are done in it.

    Attributes:
        folder: folder of all files, relative to the repository.
        source_lang: source language.
        target_lang: target language.
    """

    folder: Path
    source_lang: str
    target_lang: str

    def __post_init__(self) -> None:
        self._number = 0
        self._recipe = ""
        self.started = time.monotonic()

    @property
    def checkpoint(self) -> Path:
        """The checkpoint for the translations of the demo."""
        return self.folder / "checkpoints" / "checkpoint_best.safetensors"

    def is_done(self, name: str) -> bool:
        """Return whether the step was done at some time, with any command."""
        return (ROOT / self.folder / "steps" / f"{name}.done").is_file()

    def step(self, name: str, title: str, command: Sequence[str]) -> None:
        """Run a command, unless it and the commands before it have already run unchanged.

        Args:
            name: name of its stamp, a file written after success.
            title: title of the step, for the reader.
            command: program and arguments.

        Raises:
            DemoError: the command failed.
        """
        self._number += 1
        self._recipe += shlex.join(command) + "\n"
        stamp = ROOT / self.folder / "steps" / f"{name}.done"
        say(f"\n[{self._number}/4] {title}")
        if os.environ.get(DRY_RUN):
            say(f"  $ {format_command(command)}")
            return
        if stamp.is_file() and stamp.read_text("utf-8") == self._recipe:
            say("  done before; skipped")
            return
        stamp.unlink(missing_ok=True)
        say(f"  $ {format_command(command)}")
        began = time.monotonic()
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if code != 0:
            raise DemoError(f"the command above failed (exit code {code})")
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(self._recipe, "utf-8")
        say(f"  took {time.monotonic() - began:.0f} s")


def script(name: str, *arguments: object) -> list[str]:
    """Return the command that runs a corpus script."""
    return [str(PYTHON), str(SCRIPTS / name), *map(str, arguments)]


def tool(name: str, *arguments: object) -> list[str]:
    """Return the command that runs one of the toolkit's commands."""
    return [str(PYTHON.with_name(name)), *map(str, arguments)]


# ----------------------------------------------------------------------------------- the corpus


def own_text_run(runs: Path, source: Path, target: Path) -> Run:
    """Make the corpus from the user's files."""
    source_lang = source.suffix[1:] or "src"
    target_lang = target.suffix[1:] or "tgt"
    if source_lang == target_lang:
        source_lang = "src"
        target_lang = "tgt"
    # Use a new folder for other files and for changed files.
    digest = hashlib.sha256()
    for path in (source, target):
        try:
            digest.update(str(path).encode() + path.read_bytes())
        except OSError as error:
            raise DemoError(f"{path}: {error.strerror}") from error
    folder = runs / f"text-{source_lang}-{target_lang}-{digest.hexdigest()[:8]}"
    run = Run(folder, source_lang, target_lang)
    command = script("own_text.py", "--src", source, "--tgt", target, "--source-lang", source_lang)
    command += ["--target-lang", target_lang, "--out", str(run.folder / "corpus")]
    run.step("corpus", "Divide the text", command)
    return run


def libreoffice_run(runs: Path, language: str) -> Run:
    """Make the corpus from the LibreOffice help."""
    run = Run(runs / f"libreoffice-{language}", language, "en")
    command = script("libreoffice_help.py", "--lang", language, "--out", run.folder / "corpus")
    run.step(
        "corpus",
        f"Fetch the LibreOffice help in English and '{language}', align its paragraphs",
        [*command, "--scratch", str(runs / "packages")],
    )
    return run


def grammar_run(runs: Path) -> Run:
    """Make the corpus from the embedded grammar."""
    run = Run(runs / "grammar", "de", "en")
    run.step(
        "corpus",
        "Write German-English documents with the embedded grammar",
        script("grammar_corpus.py", "--out", run.folder / "corpus"),
    )
    return run


def corpus_run(arguments: argparse.Namespace) -> Run:
    """Make the corpus named by the arguments."""
    runs = arguments.runs
    language = arguments.lang.lower()
    if arguments.src or arguments.tgt:
        if not (arguments.src and arguments.tgt):
            raise DemoError("give both --src FILE and --tgt FILE (make demo SRC=... TGT=...)")
        return own_text_run(runs, arguments.src.resolve(), arguments.tgt.resolve())
    if arguments.corpus == "grammar":
        return grammar_run(runs)
    if arguments.corpus == "libreoffice":
        return libreoffice_run(runs, language)
    fetched = Run(runs / f"libreoffice-{language}", language, "en")
    written = Run(runs / "grammar", "de", "en")
    if language == "de" and written.is_done("corpus") and not fetched.is_done("corpus"):
        say("going on with the embedded corpus; CORPUS=libreoffice tries to fetch the other again")
        return grammar_run(runs)
    try:
        return libreoffice_run(runs, language)
    except DemoError as error:
        if language != "de":
            raise
        say(f"\n{error}: the LibreOffice help cannot be had here, for the reason above.")
        say("Going on with the embedded corpus, which a small grammar of our own writes.")
        return grammar_run(runs)


# ------------------------------------------------------------------- preprocess, train, translate


def subword_size(pairs: int) -> int:
    """Return the number of subwords: a fifth of the number of sentence pairs, within bounds."""
    return max(500, min(MOST_PIECES, pairs // 5))


def preprocess(run: Run) -> None:
    """Learn subwords and binarize."""
    corpus = run.folder / "corpus"
    text = ROOT / corpus / f"train.{run.source_lang}"
    pairs = USUAL_PAIRS
    if text.exists() or not os.environ.get(DRY_RUN):
        with open(text, "rb") as file:
            pairs = sum(1 for line in file if line.strip())
    run.step(
        "data",
        "Learn subwords, binarize",
        tool(
            "relu-nmt-preprocess",
            *("--source-lang", run.source_lang, "--target-lang", run.target_lang),
            *("--trainpref", corpus / "train", "--validpref", corpus / "valid"),
            *("--testpref", corpus / "test", "--destdir", run.folder / "data", "--overwrite"),
            *("--joined-dictionary", "--subword", "sentencepiece"),
            *("--subword-size", subword_size(pairs), "--document-separator", "blank"),
        ),
    )


def train(run: Run, minutes: float) -> None:
    """Train, or continue a training, until it has taken the given minutes in all."""
    run.step(
        "train",
        f"Train a ReLUFormer for {minutes:g} minutes",
        tool(
            "relu-nmt-train",
            run.folder / "data",
            *("--arch", "reluformer", "--budget", f"{minutes:g}m"),
            *("--save-dir", run.folder / "checkpoints"),
            *("--tensorboard-logdir", run.folder / "tensorboard"),
        ),
    )


def translate(run: Run) -> None:
    """Translate the test set."""
    command = tool("relu-nmt-generate", run.folder / "data", "--path", run.checkpoint)
    results = ["--results-path", str(run.folder / "translations")]
    run.step(
        "translate",
        "Translate the held-out test set and score it",
        [*command, *SEARCH.split(), *results],
    )


# ----------------------------------------------------------------------------------- the report


def read_examples(run: Run) -> tuple[list[Example], str]:
    """Return all translations with source and reference, and the line with the score."""
    from relu_nmt.io.text_lines import read_lines

    hypotheses, score = read_translations(ROOT / run.folder / "translations/generate-test.txt")
    texts = []
    for language in (run.source_lang, run.target_lang):
        lines = read_lines(ROOT / run.folder / "corpus" / f"test.{language}")
        texts.append([line for line in lines if line.strip()])
    sources, references = texts
    examples = []
    for source, reference, hypothesis in zip(sources, references, hypotheses, strict=True):
        examples.append(Example(source, reference, hypothesis))
    return examples, score


def report(run: Run, minutes: float) -> None:
    """Print the examples, the score, the paths of all files, and commands to continue with."""
    examples, score = read_examples(run)
    say("\nSentences of documents that training has not seen")
    for number, example in enumerate(choose_examples(examples), 1):
        say("\n" + lay_out(number, example))
    say(f"\n{score}")
    say(f"  {len(examples):,} test sentences; {minutes:g} minutes of training")
    say("\nWhere things are")
    for title, path in (
        ("checkpoint", run.checkpoint),
        ("TensorBoard log", run.folder / "tensorboard"),
        ("translations", run.folder / "translations/generate-test.txt"),
        ("corpus", run.folder / "corpus"),
    ):
        say(f"  {title:<16} {path}")
    say("\nTo go on")
    interactive = PYTHON.with_name("relu-nmt-interactive")
    board = PYTHON.with_name("tensorboard")
    for title, command in (
        ("translate what you type", f"{interactive} --path {run.checkpoint}"),
        ("watch losses and attention", f"{board} --logdir {run.folder}/tensorboard"),
        ("train longer", f"make demo DEMO_MINUTES={2 * minutes:g}"),
    ):
        say(f"  {title:<27} {command}")
    compared = ["--arch", "transformer", "--budget", f"{minutes:g}m"]
    compared += ["--save-dir", str(run.folder / "softmax")]
    say("  compare with softmax")
    say("      " + format_command(tool("relu-nmt-train", run.folder / "data", *compared)))


# ------------------------------------------------------------------------------------ the command


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help=f"of training in all (default: {MINUTES:g})"
    )
    parser.add_argument("--lang", default="de", help="language to translate from (default: de)")
    parser.add_argument("--corpus", choices=("auto", "libreoffice", "grammar"), default="auto")
    parser.add_argument("--src", type=Path, help="a text of your own, one sentence a line")
    parser.add_argument("--tgt", type=Path, help="its translation, line by line")
    parser.add_argument(
        "--runs", type=Path, default=Path("demo-run"), help="where runs go (default: demo-run)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the commands, and run none of them"
    )
    arguments = parser.parse_args(argv)
    if not arguments.minutes > 0:
        parser.error(f"--minutes {arguments.minutes}: expected more than 0")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Do all steps. Return the exit code."""
    arguments = parse_arguments(argv)
    if arguments.dry_run:
        os.environ[DRY_RUN] = "1"
    began = time.monotonic()
    try:
        run = corpus_run(arguments)
        preprocess(run)
        train(run, arguments.minutes)
        translate(run)
        if os.environ.get(DRY_RUN):
            return 0
        report(run, arguments.minutes)
    except DemoError as error:
        say(f"\ndemo: {error}")
        return 2
    except KeyboardInterrupt:
        say("\ndemo: interrupted; the same command goes on where this one stopped")
        return 130
    say(f"\nThe demo took {(time.monotonic() - began) / 60:.1f} minutes.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
