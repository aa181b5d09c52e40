r"""The quality of a first training: BLEU of this toolkit and its peers after the same time.

    python benchmarks/first_hour.py --text FOLDER --minutes 15

FOLDER holds the same text as for benchmarks/run.py, whose prepared text and environments of peers,
under --folder, are used. All programs read the same subwords and train in turn on the same cores:

relu_nmt             relu-nmt-train with --arch reluformer and --budget, and nothing else
fairseq              its recipe for IWSLT'14 German-English (examples/translation/README.md)
fairseq, small       3+3 layers of width 256, batches of 1,536 tokens, a warm-up of 400 updates
joeynmt              its recipe for IWSLT'14 (configs/iwslt14_deen_bpe.yaml), at a constant rate
joeynmt, small       the model and the batches of "fairseq, small"

fairseq counts --minutes from its first update, and the peers write their last checkpoint after
them. "training s" is the whole time. Each model translates the test set with beam 5. BLEU is
sacreBLEU's (13a, lower-cased) of detokenized translations. "ratio" is BLEU divided by BLEU of the
first row.
"""

import argparse
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import corpus
import report
import sacrebleu
from measuring import FailedCommand, Run, benchmark_parser, run
from peers import JoeyNMT
from programs import (
    PEER_ENVIRONMENT,
    ROOT,
    Command,
    Decoding,
    Fairseq,
    Ours,
    Program,
    Shape,
    Training,
    end_flags,
)
from run import Measurement
from sacremoses import MosesDetokenizer

from relu_nmt.io.text_lines import write_lines

ROWS = ("relu_nmt", "fairseq", "fairseq, small", "joeynmt", "joeynmt, small")
SMALL = Shape(layers=3, width=256, heads=4, ffn=1024)
SMALL_BATCH = 1536
ENDLESS = 1_000_000
"""Updates that no training reaches."""
MOST_LENGTH = 100
"""Tokens of a translation. JoeyNMT's recipe has this limit."""


class Budgeted(Ours):
    """This toolkit, which chooses all settings."""

    def train(self, task: Training, variant: str, destination: Path) -> Command:
        words = [str(self.data), "--arch", "reluformer", "--budget", f"{task.seconds}s"]
        return self.command("train", [*words, "--save-dir", str(destination)])

    def decode(self, task: Decoding, variant: str) -> Command:
        words = [str(self.data), "--path", str(self.models / "checkpoint_best.safetensors")]
        return self.command("generate", [*words, *self.generate_flags(task)])


class PublishedFairseq(Fairseq):
    """fairseq with its published recipe."""

    def train(self, task: Training, variant: str, destination: Path) -> Command:
        recipe = (
            "--arch transformer_iwslt_de_en --share-decoder-input-output-embed --optimizer adam "
            "--adam-betas (0.9,0.98) --clip-norm 0.0 --lr 5e-4 --lr-scheduler inverse_sqrt "
            "--warmup-updates 4000 --dropout 0.3 --weight-decay 0.0001 "
            "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 4096 "
            "--no-epoch-checkpoints --cpu --seed 1"
        )
        words = [str(self.bin / "fairseq-train"), str(self.data), *recipe.split()]
        words += [*end_flags(task), "--save-dir", str(destination)]
        return Command(words, PEER_ENVIRONMENT)


class FreeJoeyNMT(JoeyNMT):
    """JoeyNMT whose model decides how long translations are."""

    def settings(self, task: Training, folder: Path, decoding: Decoding | None) -> dict[str, Any]:
        settings = super().settings(task, folder, decoding)
        settings["testing"] |= {"min_output_length": 1, "max_output_length": MOST_LENGTH}
        return settings


class PublishedJoeyNMT(FreeJoeyNMT):
    """JoeyNMT with its published recipe."""

    def settings(self, task: Training, folder: Path, decoding: Decoding | None) -> dict[str, Any]:
        settings = super().settings(
            replace(task, shape=replace(task.shape, layers=6)), folder, decoding
        )
        for side in ("encoder", "decoder"):
            settings["model"][side] |= {"dropout": 0.3, "layer_norm": "pre"}
        settings["data"]["dev"] = str(self.text / "valid")
        settings["testing"]["eval_metrics"] = ["bleu"]
        training = settings["training"]
        # Keep the rate constant. The recipe's plateau scheduler, which fails with present versions
        # of PyTorch, also keeps the rate for at least 6,000 updates.
        training |= {"scheduling": "exponential", "decrease_factor": 1.0}
        del training["learning_rate_warmup"]
        training |= {
            "optimizer": "adamw",
            "adam_betas": [0.9, 0.999],
            "learning_rate": 0.0003,
            "batch_size": 4096,
            "early_stopping_metric": "bleu",
            "validation_freq": 1000,
        }
        return settings


class FirstHour:
    """The programs, their trainings and their scores.

    Args:
        arguments: arguments of the command line.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.folder = arguments.folder.resolve()
        text = self.folder / "text"
        data = self.folder / "data"
        self.ours = Budgeted("relu_nmt", self.folder / "relu_nmt", text, data, ROOT)
        fairseq = (self.folder / "fairseq", text, data)
        joeynmt = (self.folder / "joeynmt", text, data)
        self.programs: Sequence[Program] = (
            self.ours,
            PublishedFairseq("fairseq", *fairseq),
            Fairseq("fairseq, small", *fairseq),
            PublishedJoeyNMT("joeynmt", *joeynmt),
            FreeJoeyNMT("joeynmt, small", *joeynmt),
        )
        self.training = Training(
            SMALL, SMALL_BATCH, ENDLESS, ENDLESS, "cpu", seconds=round(60 * arguments.minutes)
        )
        self.decoding = Decoding("test", "test", 64, None, "cpu", arguments.threads, MOST_LENGTH)

    def call(self, command: Command, interrupt_after: float | None = None) -> Run:
        """Run a command of a program."""
        shared = {"OMP_NUM_THREADS": str(self.arguments.threads), "PYTHONUNBUFFERED": "1"}
        environment = {**shared, **command.environment}
        return run(command.words, environment, command.stdin, interrupt_after=interrupt_after)

    def prepare(self) -> None:
        """Write the text and the data folder (FailedCommand: there is no text)."""
        corpus.prepare(self.arguments, self.folder, self.ours.text)
        self.call(self.ours.preprocess(self.ours.data, self.arguments.threads))

    def measurement(self) -> Measurement:
        """Return the table with a row for each program."""
        rows = {}
        for program in self.programs:
            if program.name in self.arguments.rows:
                rows[program.name] = self._row(program)
        title = f"BLEU after a training of {self.arguments.minutes:g} minutes"
        return Measurement(title, ["BLEU", "training s", "CPU s", "peak MB"], rows)

    def _row(self, program: Program) -> Callable[[], dict[str, float]]:
        def measure() -> dict[str, float]:
            program.install()
            program.models = self.folder / "first-hour" / program.name.replace(", ", "-")
            shutil.rmtree(program.models, ignore_errors=True)
            training = program.train(self.training, "float32", program.models)
            assert training is not None
            # JoeyNMT has no limit of time, but writes a checkpoint when it is interrupted.
            has_end = not isinstance(program, JoeyNMT)
            trained = self.call(training, None if has_end else self.training.seconds)
            (program.models / "training.log").write_text(trained.text, "utf-8")
            decoding = program.decode(self.decoding, "float32")
            assert decoding is not None
            _, lines = program.translated(self.decoding, self.call(decoding))
            figures = {"BLEU": self.bleu(lines, program.models / "translations.en")}
            figures |= {"training s": trained.seconds, "CPU s": trained.cpu_seconds}
            if trained.peak_bytes:
                figures["peak MB"] = trained.peak_bytes / 1e6
            return figures

        return measure

    def bleu(self, lines: Sequence[str], path: Path) -> float:
        """Write translations of subwords as text, and return their BLEU."""
        detokenizer = MosesDetokenizer("en")
        sentences = []
        for line in lines:
            words = f"{line} ".replace("@@ ", "").split()
            sentences.append(detokenizer.detokenize(words))
        write_lines(path, sentences)
        references = []
        for _, target in corpus.raw_pairs(self.arguments.text, "test", self.arguments.sentences):
            references.append(target)
        return sacrebleu.corpus_bleu(sentences, [references], lowercase=True).score


def parse_arguments() -> argparse.Namespace:
    """Return the flags."""
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add("--folder", type=Path, default=Path("benchmark-run"), help="environments, data, models")
    add("--text", type=Path, required=True, help="folder of the text")
    add("--minutes", type=float, default=15, help="time of each training")
    rows_help = "only these rows, such as 'fairseq, small'"
    add("--rows", nargs="+", choices=ROWS, default=ROWS, metavar="NAME", help=rows_help)
    add("--pairs", type=int, default=100_000, help="sentence pairs to use of the training text")
    add("--sentences", type=int, default=1000, help="sentences of the test set to translate")
    add("--merges", type=int, default=8000, help="merges of the byte pair encoding")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads per program")
    parser.set_defaults(documents=0, lengths=[])
    return parser.parse_args()


def main() -> None:
    """Train, translate and print the table."""
    arguments = parse_arguments()
    machine = report.Machine(arguments.threads, "cpu")
    first_hour = FirstHour(arguments)
    try:
        first_hour.prepare()
    except FailedCommand as problem:
        raise SystemExit(f"no data to measure with: {problem}") from problem
    measurement = first_hour.measurement()
    measurement.measure(0)
    lines = [*machine.lines(), measurement.title, "", *report.table(measurement)]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
