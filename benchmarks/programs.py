"""The toolkits that benchmarks/run.py compares: their installation, commands and output.

A peer gets a separate virtual environment and runs by the peer's commands. The dependencies of
fairseq and OpenNMT-py are listed here, because a build of fairseq in isolation fetches a second
PyTorch, and OpenNMT-py requires PyTorch before 2.3.
"""

import json
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from measuring import FailedCommand, Run

from relu_nmt.io.text_lines import read_lines

ROOT = Path(__file__).resolve().parents[1]
TORCH = "torch==" + torch.__version__.split("+")[0]
BEAM = 5
MOST_TOKENS = 200
DEVICE_FLAGS = {"cpu": ["--cpu"], "cuda": []}
WORKERS = "workers"
"""Ending of the names of decodings with one worker per thread, each with one thread."""
TRANSLATED = re.compile(
    r"Translated ([\d,]+) (?:sentences|groups|documents) .*? in ([\d.]+)s(?: \(([\d.]+) )?"
)


@dataclass(frozen=True)
class Shape:
    """Sizes of the trained model: layers on each side, width, heads, inner width."""

    layers: int
    width: int
    heads: int
    ffn: int


@dataclass(frozen=True)
class Training:
    """A training to measure.

    Args:
        shape: sizes of the model.
        max_tokens: target tokens of a batch.
        updates: number of updates.
        save_every: updates between two checkpoints.
        device: ``cpu`` or ``cuda``.
        seconds: time after which the training ends, or ``None`` without such an end.
    """

    shape: Shape
    max_tokens: int
    updates: int
    save_every: int
    device: str
    seconds: float | None = None


@dataclass(frozen=True)
class Decoding:
    """Text to translate.

    Args:
        split: name of the text, and of its part of the binarized data.
        subset: name of that part for ``--gen-subset``.
        batch_size: sentences or documents in a batch.
        tokens: forced length of every translation, or ``None`` if the model decides.
        device: ``cpu`` or ``cuda``.
        threads: threads of the program, or of all its workers.
        most_tokens: longest translation of a model that decides the length.
    """

    split: str
    subset: str
    batch_size: int
    tokens: int | None
    device: str
    threads: int
    most_tokens: int = MOST_TOKENS


@dataclass(frozen=True)
class Command:
    """A command line with its environment and its input."""

    words: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)
    stdin: Path | None = None


class Program(ABC):
    """A toolkit.

    Args:
        name: name of its rows.
        folder: folder of its environment and its output.
        text: folder of the prepared text, ``train.de``, ``train.en`` and so on, with spaces between
            tokens.
        data: folder of the binarized text, for this toolkit and fairseq.

    Attributes:
        packages: arguments of successive ``pip install`` commands.
        distribution: the package whose version is printed.
    """

    packages: Sequence[str] = ()
    distribution = ""
    training_variants: Sequence[str] = ("float32",)
    decoding_variants: Sequence[str] = ("float32",)

    def __init__(self, name: str, folder: Path, text: Path, data: Path) -> None:
        self.name = name
        self.folder = folder
        self.text = text
        self.data = data
        self.models = folder / "models"

    @property
    def bin(self) -> Path:
        """The folder of the environment's programs."""
        return self.folder / "environment/bin"

    def install(self) -> None:
        """Make the environment, unless it exists.

        Raises:
            FailedCommand: a package cannot be installed.
        """
        stamp = self.folder / "installed"
        if stamp.is_file() and stamp.read_text("utf-8") == "\n".join(self.packages):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        pip = [str(self.bin / "python"), "-m", "pip", "install", "--quiet"]
        _call([sys.executable, "-m", "venv", "--clear", str(self.folder / "environment")])
        for arguments in ("setuptools<81 wheel packaging", *self.packages):
            _call([*pip, *arguments.split()])
        stamp.write_text("\n".join(self.packages), "utf-8")

    def version(self) -> str:
        """Return the installed version."""
        code = f"import importlib.metadata as m; print(m.version('{self.distribution}'))"
        return _call([str(self.bin / "python"), "-c", code]).strip()

    def preprocess(self, destination: Path, workers: int) -> Command | None:
        """Return the command that makes a data folder, or ``None`` without such a step."""
        return None

    def train(self, task: Training, variant: str, destination: Path) -> Command | None:
        """Return the command that trains a model into a folder, or ``None`` without training."""
        return None

    def updates(self, run: Run) -> list[tuple[float, float]]:
        """Return (seconds since the start, target tokens) of each update of a training."""
        return []

    def saving_seconds(self, run: Run) -> list[float]:
        """Return the seconds for writing each checkpoint, if the program prints them."""
        return [float(s) for s in re.findall(r"writing took ([\d.]+) seconds", run.text)]

    @abstractmethod
    def decode(self, task: Decoding, variant: str) -> Command | None:
        """Return the command that translates with a model in ``models``, or ``None``."""

    @abstractmethod
    def translated(self, task: Decoding, run: Run) -> tuple[float, list[str]]:
        """Return the seconds of the search, and the translations in order as tokens."""


def _call(words: Sequence[str]) -> str:
    """Run a command and return its output. Raise FailedCommand with the last line on error."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in lines if "rror" in line]
        raise FailedCommand((errors or lines or ["no word why"])[-1].strip())
    return done.stdout


class FairseqLike(Program):
    """The common base of fairseq and this toolkit, which share flags and forms of output."""

    def flags(self, task: Training, destination: Path) -> list[str]:
        """Return the flags of a training."""
        shape = task.shape
        sides = []
        for side in ("encoder", "decoder"):
            sides += [f"--{side}-layers", str(shape.layers)]
            sides += [f"--{side}-embed-dim", str(shape.width)]
            sides += [f"--{side}-ffn-embed-dim", str(shape.ffn)]
            sides += [f"--{side}-attention-heads", str(shape.heads)]
        flags = (
            "--share-all-embeddings --dropout 0.1 --label-smoothing 0.1 --optimizer adam "
            "--adam-betas (0.9,0.98) --lr 1e-3 --lr-scheduler inverse_sqrt --warmup-updates 400 "
            f"--seed 1 --log-format json --log-interval 1 --max-tokens {task.max_tokens} "
            f"--max-update {task.updates} --disable-validation --no-epoch-checkpoints "
            f"--save-interval-updates {task.save_every} --keep-interval-updates 1 "
            "--max-source-positions 16384 --max-target-positions 16384"
        )
        device = DEVICE_FLAGS[task.device]
        return [*sides, *flags.split(), *device, *end_flags(task), "--save-dir", str(destination)]

    def updates(self, run: Run) -> list[tuple[float, float]]:
        """Read the updates, each of which is a line of JSON."""
        updates = []
        for seconds, line in run.lines:
            start = line.find("{")
            if '"wpb"' in line and '"num_updates"' in line and start >= 0:
                updates.append((seconds, float(json.loads(line[start:])["wpb"])))
        return updates

    def generate_flags(self, task: Decoding) -> list[str]:
        """Return the flags of a decoding."""
        flags = ["--gen-subset", task.subset, "--beam", str(BEAM), "--lenpen", "1"]
        flags += ["--batch-size", str(task.batch_size), "--max-tokens", "1000000"]
        if task.tokens:
            flags += ["--min-len", str(task.tokens)]
        flags += ["--max-len-a", "0", "--max-len-b", str(task.tokens or task.most_tokens)]
        return [*flags, *DEVICE_FLAGS[task.device]]

    def translated(self, task: Decoding, run: Run) -> tuple[float, list[str]]:
        """Read the lines ``Translated`` and ``H-``."""
        seconds = _seconds_told(self.name, run)
        lines = re.findall(r"^H-(\d+)\t\S+\t(.*)$", run.text, re.MULTILINE)
        hypotheses = {int(number): text for number, text in lines}
        return seconds, [hypotheses[number] for number in sorted(hypotheses)]


class Ours(FairseqLike):
    """This toolkit, of this checkout or another.

    Args:
        checkout: the folder whose package runs, with this interpreter.
    """

    training_variants = (
        "softmax, float32",
        "softmax, bfloat16",
        "reluformer, float32",
        "reluformer, bfloat16",
    )
    decoding_variants = (
        *training_variants,
        "softmax, int8",
        "softmax, int8 and shortlist",
        f"softmax, float32, {WORKERS}",
        f"softmax, bfloat16, {WORKERS}",
        f"softmax, bfloat16 and shortlist, {WORKERS}",
        f"softmax, int8, {WORKERS}",
        f"softmax, int8 and shortlist, {WORKERS}",
        f"softmax, float32 and threshold, {WORKERS}",
        f"softmax, int8 and threshold, {WORKERS}",
        f"softmax, bfloat16 and shortlist and threshold, {WORKERS}",
        f"softmax, int8 and shortlist and threshold, {WORKERS}",
        f"reluformer, bfloat16 and shortlist, {WORKERS}",
    )

    def __init__(self, name: str, folder: Path, text: Path, data: Path, checkout: Path) -> None:
        super().__init__(name, folder, text, data)
        self.checkout = checkout

    def install(self) -> None:
        """Only check that the checkout exists."""
        if not (self.checkout / "relu_nmt/__init__.py").is_file():
            raise FailedCommand(f"{self.checkout}: no checkout of relu_nmt")

    def version(self) -> str:
        """Return the revision of the checkout."""
        git = ["git", "-C", str(self.checkout), "describe", "--always", "--dirty"]
        try:
            return f"revision {_call(git).strip()}"
        except (FailedCommand, OSError):
            return "unknown revision"

    def command(self, name: str, words: Sequence[str], processes: int = 1) -> Command:
        """Return a command of the package, perhaps in several processes."""
        python = [sys.executable]
        if processes > 1:
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
            python += [*torchrun, str(processes)]
        program = [*python, "-m", f"relu_nmt.cli.{name}"]
        return Command([*program, *words], {"PYTHONPATH": str(self.checkout)})

    def preprocess(self, destination: Path, workers: int) -> Command:
        flags = ["--overwrite", *_preprocess_flags(self.text, destination, workers)]
        return self.command("preprocess", flags)

    def train(self, task: Training, variant: str, destination: Path) -> Command:
        """Return the command. The variant may end with a number of processes."""
        attention, dtype, *in_processes = variant.split(", ")
        arch = {"softmax": "transformer", "reluformer": "reluformer"}[attention]
        words = [str(self.data), *self.flags(task, destination), "--arch", f"{arch}_tiny"]
        if dtype == "bfloat16":
            words.append("--bf16")
        processes = int(in_processes[0].split()[0]) if in_processes else 1
        return self.command("train", words, processes)

    def decode(self, task: Decoding, variant: str) -> Command:
        attention, options, *with_workers = variant.split(", ")
        model = self.models / attention / "checkpoint_last.safetensors"
        flags_of = {
            "float32": [],
            "bfloat16": ["--bf16"],
            "int8": ["--int8"],
            "shortlist": ["--shortlist", str(self.models / "shortlist/shortlist.txt")],
            "threshold": ["--beam-threshold", "2"],
        }
        workers = task.threads if with_workers else 1
        words = [str(self.data), "--path", str(model), *self.generate_flags(task)]
        words += ["--workers", str(workers)]
        for option in options.split(" and "):
            words += flags_of[option]
        return self.command("generate", words)


# Allow the peers' pickled checkpoints. PyTorch 2.6 and later refuse them by default.
PEER_ENVIRONMENT = {"PYTHONPATH": "", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}


class Fairseq(FairseqLike):
    """fairseq."""

    packages = (
        f"{TORCH} numpy cython",
        "--no-build-isolation --no-deps fairseq-fixed==0.12.3.1",
        "cffi regex sacrebleu>=1.4.12 tqdm bitarray scikit-learn antlr4-python3-runtime PyYAML "
        "hydra-core==1.3.2 omegaconf==2.3.0",
    )
    distribution = "fairseq-fixed"

    def preprocess(self, destination: Path, workers: int) -> Command:
        flags = _preprocess_flags(self.text, destination, workers)
        return Command([str(self.bin / "fairseq-preprocess"), *flags], PEER_ENVIRONMENT)

    def train(self, task: Training, variant: str, destination: Path) -> Command:
        flags = [*self.flags(task, destination), "--arch", "transformer"]
        flags += ["--criterion", "label_smoothed_cross_entropy", "--required-batch-size-multiple"]
        words = [str(self.bin / "fairseq-train"), str(self.data), *flags, "1"]
        return Command(words, PEER_ENVIRONMENT)

    def decode(self, task: Decoding, variant: str) -> Command:
        model = str(self.models / "checkpoint_last.pt")
        flags = self.generate_flags(task)
        # Lift fairseq's limits. It refuses more than 1,024 tokens, and drops a last batch that is
        # no multiple of 8 sentences.
        flags += ["--max-source-positions", "16384", "--max-target-positions", "16384"]
        flags += ["--required-batch-size-multiple", "1"]
        words = [str(self.bin / "fairseq-generate"), str(self.data), "--path", model, *flags]
        return Command(words, PEER_ENVIRONMENT)


class CTranslate2(Program):
    """CTranslate2, for decoding only, with the model of this toolkit."""

    packages = ("ctranslate2==4.8.5 numpy",)
    distribution = "ctranslate2"
    training_variants = ()
    decoding_variants = ("float32", "int8", f"float32, {WORKERS}", f"int8, {WORKERS}")

    def decode(self, task: Decoding, variant: str) -> Command:
        source = self.text / f"{task.split}.de"
        output = self.folder / "translations"
        words = [str(self.bin / "python"), str(ROOT / "benchmarks/ctranslate2_decoding.py")]
        dtype, *with_workers = variant.split(", ")
        workers_and_threads = [1, task.threads]
        if with_workers:
            workers_and_threads.reverse()
        words += [str(self.models / "converted"), str(source), str(output), dtype, task.device]
        sizes = (*workers_and_threads, task.batch_size, BEAM, task.tokens or 0, MOST_TOKENS)
        return Command([*words, *map(str, sizes)], {"PYTHONPATH": ""})

    def translated(self, task: Decoding, run: Run) -> tuple[float, list[str]]:
        return _seconds_told(self.name, run), read_lines(self.folder / "translations")


def end_flags(task: Training) -> list[str]:
    """Return the flags that end a training of fairseq after the seconds of the task."""
    return ["--stop-time-hours", str(task.seconds / 3600)] if task.seconds else []


def _seconds_told(name: str, run: Run) -> float:
    """Return the seconds of the line ``Translated``."""
    match = TRANSLATED.search(run.text)
    if match is None:
        raise FailedCommand(f"{name} printed no line 'Translated ...'")
    number, seconds, rate = match.groups()
    # Use the rate: fairseq prints seconds to a tenth, but sentences per second to a hundredth.
    return int(number.replace(",", "")) / float(rate) if rate else float(seconds)


def _preprocess_flags(text: Path, destination: Path, workers: int) -> list[str]:
    tests = sorted(str(path.with_suffix("")) for path in text.glob("test*.en"))
    flags = ["-s", "de", "-t", "en", "--joined-dictionary", "--workers", str(workers)]
    flags += ["--trainpref", str(text / "train"), "--validpref", str(text / "valid")]
    flags += ["--testpref", ",".join(tests), "--destdir", str(destination)]
    return flags


def words_of(text: Path) -> list[str]:
    """Return the words of the training text, most common first."""
    counts: Counter[str] = Counter()
    for language in ("de", "en"):
        counts.update((text / f"train.{language}").read_text("utf-8").split())
    return [word for word, _ in counts.most_common()]
