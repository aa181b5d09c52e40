r"""Speed and memory of this toolkit beside its peers. Writes the table of docs/lab/benchmarks.md.

    python benchmarks/run.py --text FOLDER --output docs/lab/benchmarks.md

FOLDER holds ``train``, ``valid`` (or ``val``) and ``test`` (or ``test_2016_flickr``), each as .de
and .en, such as Multi30k. Without --text the script fetches the corpus of the examples, or makes
one. Each peer gets a virtual environment under --folder, from pip's package index. A peer that
cannot be installed, or fails, becomes a line of the table. CTranslate2 also needs the extra
``ctranslate2`` of this toolkit, which converts the model for it. With --revision, other checkouts
of this toolkit are peers as well, to show the effect of a change.

Programs take turns in every round, in reverse order each time, so that all meet the same state of
the machine. Figures are medians over rounds, and ratios are medians of the ratios within a round.
A small run to test everything in minutes:

    python benchmarks/run.py --folder scratch --pairs 2000 --sentences 20 --documents 2 \
        --updates 8 --model-updates 8 --rounds 1 --shape 1,32,2,64 --lengths 64
"""

import argparse
import filecmp
import itertools
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import corpus
import report
from measuring import FailedCommand, Run, benchmark_parser, run
from peers import PEERS
from programs import (
    ROOT,
    WORKERS,
    Command,
    Decoding,
    FairseqLike,
    Ours,
    Program,
    Shape,
    Training,
)

from relu_nmt.io.text_lines import read_lines

SECTIONS = ("preprocessing", "training", "sentences", "documents")
UPDATES_OF_OWN_MODELS = 8
"""Updates of the models of programs whose translations have a forced length."""
WARM_UP_SHARE = 0.2


@dataclass
class Measurement:
    """A table of measurements.

    Args:
        title: title of the table.
        columns: figures to show. The first one has a ratio to the first row.
        rows: functions by name that measure a row once and return its figures.
        rounds: figures of each round, by name.
        problems: reason of missing figures, by name.
    """

    title: str
    columns: list[str]
    rows: dict[str, Callable[[], dict[str, float]]]
    rounds: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def measure(self, round_number: int) -> None:
        """Run every row once. A failed row is left out of later rounds."""
        names = [name for name in self.rows if name not in self.problems]
        if round_number % 2:
            names.reverse()
        for name in names:
            try:
                figures = self.rows[name]()
            except FailedCommand as problem:
                self.problems[name] = str(problem)
                figures = {}
            self.rounds.setdefault(name, []).append(figures)
            text = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
            print(f"{self.title}: {name}: {text or self.problems[name]}", flush=True)


class Benchmark:
    """All programs and their measurements.

    Args:
        arguments: arguments of the command line.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.folder = arguments.folder.resolve()
        self.text = self.folder / "text"
        self.data = self.folder / "data"
        self.problems: dict[str, str] = {}
        self.ours = self._ours(ROOT, "relu_nmt")
        self.programs = self._programs()

    def _ours(self, checkout: Path, name: str) -> Ours:
        return Ours(name, self.folder / name.replace(" ", "-"), self.text, self.data, checkout)

    def _programs(self) -> list[Program]:
        """Install the requested programs. Note the programs that cannot be installed."""
        requested: list[Program] = [self.ours]
        for checkout in self.arguments.revision:
            requested.append(self._ours(checkout.resolve(), f"relu_nmt {checkout.resolve().name}"))
        for name in self.arguments.peers:
            requested.append(PEERS[name](name, self.folder / name, self.text, self.data))
        installed = []
        for program in requested:
            try:
                print(f"installing {program.name}", flush=True)
                program.install()
                installed.append(program)
            except FailedCommand as problem:
                self.problems[program.name] = f"does not install: {problem}"
                print(f"{program.name}: {self.problems[program.name]}", flush=True)
        return installed

    def versions(self) -> dict[str, str]:
        """Return the version of each installed program."""
        return {program.name: program.version() for program in self.programs}

    def call(self, command: Command) -> Run:
        """Run a command of a program."""
        shared = {"OMP_NUM_THREADS": str(self.arguments.threads), "PYTHONUNBUFFERED": "1"}
        return run(command.words, {**shared, **command.environment}, command.stdin)

    # ------------------------------------------------------------------------- measurements

    def preprocessing(self) -> Measurement:
        """Return the table of preprocessing."""
        rows = {}
        for program in self.programs:
            if program.preprocess(self.folder, 1) is not None:
                rows[program.name] = partial(self._preprocess, program)
        return Measurement("Preprocessing", ["pairs/s", "same %", "CPU s", "peak MB"], rows)

    def _preprocess(self, program: Program) -> dict[str, float]:
        destination = self.folder / "made-again"
        shutil.rmtree(destination, ignore_errors=True)
        command = program.preprocess(destination, self.arguments.threads)
        assert command is not None
        done = self.call(command)
        rate = len(read_lines(self.text / "train.de")) / done.seconds
        return {"pairs/s": rate, "same %": same_files(self.data, destination), **_used(done)}

    def training(self) -> Measurement:
        """Return the table of training: rate, start, checkpoints."""
        rows = {}
        for program in self.programs:
            for variant in self._chosen(program.training_variants):
                rows[f"{program.name}, {variant}"] = partial(self._train, program, variant)
        if self.arguments.processes > 1:
            for variant in self._chosen(self.ours.training_variants):
                variant += f", {self.arguments.processes} processes"
                rows[f"{self.ours.name}, {variant}"] = partial(self._train, self.ours, variant)
        columns = ["tokens/s", "first update s", "checkpoint s", "CPU s", "peak MB"]
        return Measurement("Training", columns, rows)

    def _train(self, program: Program, variant: str) -> dict[str, float]:
        destination = self.folder / "training"
        shutil.rmtree(destination, ignore_errors=True)
        command = program.train(self._training(self.arguments.updates), variant, destination)
        assert command is not None
        return training_figures(program, self.call(command))

    def _chosen(self, variants: Iterable[str]) -> list[str]:
        """Return the variants that have one of the words of --variants."""
        words = map(re.escape, self.arguments.variants or [""])
        return list(filter(re.compile("|".join(words)).search, variants))

    def decoding(self, title: str, task: Decoding) -> Measurement:
        """Return the table of a decoding."""
        rows = {}
        translations: dict[str, list[str]] = {}
        takes_workers = task.device == "cpu" and not task.tokens  # documents are one batch
        for program in self.programs:
            for variant in self._chosen(program.decoding_variants):
                if takes_workers or not variant.endswith(WORKERS):
                    row = partial(self._decode, program, variant, task, translations)
                    rows[f"{program.name}, {variant}"] = row
        columns = ["tokens/s", "sentences/s", "same %", "CPU s", "peak MB"]
        return Measurement(title, columns, rows)

    def _decode(
        self, program: Program, variant: str, task: Decoding, translations: dict[str, list[str]]
    ) -> dict[str, float]:
        """Return the figures of a decoding, and add its lines to the rows' translations."""
        command = program.decode(task, variant)
        assert command is not None
        done = self.call(command)
        seconds, lines = program.translated(task, done)
        tokens = len(" ".join(lines).split())
        translations[f"{program.name}, {variant}"] = lines
        figures = {"tokens/s": tokens / seconds, "sentences/s": len(lines) / seconds}
        base = translations.get(f"{self.ours.name}, {self.ours.decoding_variants[0]}")
        if shares_model(program, variant) and not task.tokens and base is not None:
            pairs = zip(lines, base, strict=True)
            same = sum(line == other for line, other in pairs)
            figures["same %"] = 100 * same / len(lines)
        return {**figures, **_used(done)}

    def measurements(self) -> Iterable[Measurement]:
        """Make the models, and return the tables, one section after the other."""
        arguments = self.arguments
        if "preprocessing" in arguments.only:
            yield self.preprocessing()
        if "training" in arguments.only:
            yield self.training()
        if {"sentences", "documents"} & set(arguments.only):
            self.make_models()
        if "sentences" in arguments.only:
            for size in arguments.batch_sizes:
                task = self._decoding("test", "test", size)
                yield self.decoding(f"Decoding sentences, batches of {size}", task)
        if "documents" in arguments.only:
            for number, length in enumerate(sorted(arguments.lengths), 1):
                split = corpus.document_split(length)
                task = self._decoding(split, f"test{number}", arguments.documents, length)
                yield self.decoding(f"Decoding documents of {length:,} tokens", task)

    def _decoding(
        self, split: str, subset: str, batch_size: int, tokens: int | None = None
    ) -> Decoding:
        arguments = self.arguments
        return Decoding(split, subset, batch_size, tokens, arguments.device, arguments.threads)

    # ---------------------------------------------------------------------------------- models

    def _training(self, updates: int) -> Training:
        arguments = self.arguments
        save_every = max(1, updates // 2)
        shape = Shape(*map(int, arguments.shape.split(",")))
        return Training(shape, arguments.max_tokens, updates, save_every, arguments.device)

    def make_models(self) -> None:
        """Train the models for the decoding, unless they exist.

        This toolkit imports fairseq's model and converts it for CTranslate2, so that all three
        have the same model. Without fairseq this toolkit trains its own.
        """
        by_name = {program.name: program for program in self.programs}
        for program in self.programs:
            program.models.mkdir(parents=True, exist_ok=True)
            if not isinstance(program, Ours) and program.training_variants:
                comparable = isinstance(program, FairseqLike)
                updates = self.arguments.model_updates if comparable else UPDATES_OF_OWN_MODELS
                self._make(
                    program.name,
                    program.models,
                    lambda p=program, n=updates: p.train(self._training(n), "float32", p.models),
                )
        fairseq = by_name.get("fairseq")
        trained = fairseq and fairseq.models / "checkpoint_last.pt"
        for program in self.programs:
            if isinstance(program, Ours):
                self._make_ours(program, trained)
        if "ctranslate2" in by_name:
            softmax = self.ours.models / "softmax/checkpoint_last.safetensors"
            folder = by_name["ctranslate2"].models
            words = [str(softmax), "--to", "ctranslate2", "--output", str(folder / "converted")]
            command = self.ours.command("convert", words)
            self._make("ctranslate2", folder, lambda: command)

    def _make_ours(self, program: Ours, fairseq: Path | None) -> None:
        softmax = program.models / "softmax"
        imported = False
        if fairseq and fairseq.is_file():
            softmax.mkdir(parents=True, exist_ok=True)
            output = ["--output", str(softmax / "checkpoint_last.safetensors")]
            words = [str(fairseq), "--data", str(self.data), *output, "--trust-pickle"]
            command = program.command("import_fairseq", words)
            imported = self._make(f"{program.name}, fairseq's model", softmax, lambda: command)
        shortlist = program.models / "shortlist"
        words = [str(self.data), "--output", str(shortlist / "shortlist.txt")]
        shortlist_command = program.command("shortlist", words)
        self._make(f"{program.name}, shortlist", shortlist, lambda: shortlist_command)
        task = self._training(self.arguments.model_updates)
        attentions = ["reluformer"]
        if not imported:
            attentions.append("softmax")
        for attention in attentions:
            model = program.models / attention
            trained = program.train(task, f"{attention}, float32", model)
            self._make(f"{program.name}, {attention}", model, lambda c=trained: c)

    def _make(self, name: str, folder: Path, command: Callable[[], Command | None]) -> bool:
        """Make a model by a command, unless its folder has a stamp. Return False on failure."""
        stamp = folder / f"made-{self.arguments.model_updates}"
        if stamp.exists():
            return True
        print(f"making the model of {name}", flush=True)
        try:
            making = command()
            assert making is not None
            self.call(making)
            stamp.touch()
            return True
        except FailedCommand as problem:
            self.problems[name] = f"no model: {problem}"
            print(f"{name}: {self.problems[name]}", flush=True)
            return False


def shares_model(program: Program, variant: str) -> bool:
    """Return whether a row translates with the model of the first row."""
    return program.name in ("fairseq", "ctranslate2") or variant.startswith("softmax")


def same_files(ours: Path, theirs: Path) -> float:
    """Return the percentage of binarized files and dictionaries that are the same in both."""
    names = [path.name for path in theirs.iterdir() if path.suffix in (".bin", ".idx", ".txt")]
    same, _, _ = filecmp.cmpfiles(ours, theirs, names, shallow=False)
    return 100 * len(same) / len(names)


def training_figures(program: Program, done: Run) -> dict[str, float]:
    """Return the figures of a training: medians over its updates without the first ones."""
    updates = program.updates(done)
    if len(updates) < 3:
        raise FailedCommand(f"{program.name} told of {len(updates)} updates, fewer than 3")
    rates = []
    for (start, _), (end, tokens) in itertools.pairwise(updates):
        rates.append(tokens / (end - start))
    rates = rates[int(WARM_UP_SHARE * len(rates)) :]
    figures = {"tokens/s": report.median(rates), "first update s": updates[0][0]}
    saving = program.saving_seconds(done)
    if saving:
        figures["checkpoint s"] = report.median(saving)
    return {**figures, **_used(done)}


def _used(done: Run) -> dict[str, float]:
    used = {"CPU s": done.cpu_seconds}
    if done.peak_bytes:
        used["peak MB"] = done.peak_bytes / 1e6
    return used


def parse_arguments() -> argparse.Namespace:
    """Return the flags."""
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add("--folder", type=Path, default=Path("benchmark-run"), help="environments, data, models")
    add("--text", type=Path, help="folder of the text; the examples' corpus by default")
    add("--pairs", type=int, default=100_000, help="sentence pairs to use of the training text")
    add("--sentences", type=int, default=1000, help="sentences of the test set to translate")
    add("--documents", type=int, default=8, help="documents to translate, all in one batch")
    add("--lengths", type=int, nargs="+", default=[512, 1024], help="tokens of a document")
    add("--batch-sizes", type=int, nargs="+", default=[1, 64], help="sentences in a batch")
    add("--merges", type=int, default=8000, help="merges of the byte pair encoding")
    add("--shape", default="3,256,4,1024", help="layers per side, width, heads, FFN width")
    add("--max-tokens", type=int, default=4096, help="target tokens of a training batch")
    add("--updates", type=int, default=60, help="updates of a measured training")
    add("--model-updates", type=int, default=2000, help="updates of the models that decode")
    add("--rounds", type=int, default=3, help="runs of each row")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads per program")
    add("--processes", type=int, default=1, help="also train in this many, by torchrun")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    add("--revision", type=Path, nargs="*", default=[], help="other checkouts of this toolkit")
    add("--variants", nargs="+", metavar="WORD", help="only rows with these words")
    add("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="sections to measure")
    add("--output", type=Path, help="Markdown file to write; printed in any case")
    return parser.parse_args()


def main() -> None:
    """Run the benchmark and write its tables."""
    arguments = parse_arguments()
    machine = report.Machine(arguments.threads, arguments.device)
    benchmark = Benchmark(arguments)
    try:
        corpus.prepare(arguments, benchmark.folder, benchmark.text)
        benchmark.call(benchmark.ours.preprocess(benchmark.data, arguments.threads))
    except FailedCommand as problem:
        raise SystemExit(f"no data to measure with: {problem}") from problem
    tables = []
    for measurement in benchmark.measurements():
        for number in range(arguments.rounds):
            measurement.measure(number)
        tables.append(measurement)
    text = report.page(machine, benchmark.versions(), benchmark.problems, tables, sys.argv[1:])
    print(text)
    if arguments.output:
        report.write(arguments.output, text)


if __name__ == "__main__":
    main()
