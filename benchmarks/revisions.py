"""Speed and memory of two checkouts of this package, run in turn on the same data.

    python benchmarks/revisions.py OLD_FOLDER NEW_FOLDER

Every measurement runs the old and the new code one after the other, and the other way round the
next time, so that both meet the same state of the machine. Printed are the medians of each, and
the median of the ratios new / old of the pairs. Rates are those of the work itself, start of the
program left out: target tokens per second of a training update, tokens per second of the search,
sentence pairs per second. CPU seconds are those of the whole program; on a machine that is shared
they tell more than the rates. Data are generated; both decode with the checkpoint that the old
code trained. One thread each, unless told otherwise.
"""

import argparse
import os
import resource
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import decoding
import preprocess
import training

WORDS_SHOWN = ("rate", "CPU s", "MB")
SMALLEST_UPDATES = training.WARM_UP_UPDATES + 5
TEST_PAIRS = 300


@dataclass
class Run:
    """One run: units of work per second, CPU seconds, peak memory in bytes."""

    rate: float
    cpu_seconds: float
    peak_bytes: float


Measurement = Callable[[Path], Run]
"""Runs a program with the package of a checkout."""


class Revisions:
    """The measurements, on data made once.

    Args:
        scratch: folder for data and checkpoints.
        old: the checkout that makes what both read.
        pairs: sentence pairs to preprocess and to train on.
        updates: of a training.
        threads: of each program.
    """

    def __init__(self, scratch: Path, old: Path, pairs: int, updates: int, threads: int) -> None:
        self._scratch = scratch
        self._pairs = pairs
        self._updates = updates
        self._threads = threads
        for split, count in (("train", pairs), ("test", TEST_PAIRS)):
            preprocess.generate_text(scratch / split, ("de", "en"), count)
        self._data = scratch / "data"
        self._checkpoint = scratch / "saved/checkpoint_last.safetensors"
        self._preprocess(old, self._data)
        flags = ["--max-update", str(SMALLEST_UPDATES), "--save-dir", str(scratch / "saved")]
        shape = [flag for flag in training.SHAPE.split() if flag != "--no-save"]
        train = ["relu_nmt.cli.train", str(self._data), *shape, "--cpu", "--arch"]
        training.run(self._program(old, *train, "reluformer_tiny", *flags), self._environment(old))

    def measurements(self) -> dict[str, Measurement]:
        """Return what is measured, by name and unit."""
        found: dict[str, Measurement] = {"preprocess, pairs/s": self._measure_preprocessing}
        for arch in ("transformer_tiny", "reluformer_tiny"):
            for precision in ((), ("--bf16",)):
                name = {"transformer_tiny": "softmax", "reluformer_tiny": "reluformer"}[arch]
                kind = "bfloat16" if precision else "float32"
                found[f"train {name} {kind}, tokens/s"] = self._training(arch, *precision)
        found["decode, beam 5, tokens/s"] = self._measure_decoding
        return found

    def _environment(self, checkout: Path) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(checkout),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": str(self._threads),
        }

    def _program(self, checkout: Path, *command: str) -> list[str]:
        """Return the command line; what runs it may have no say in the environment."""
        settings = [f"{k}={v}" for k, v in self._environment(checkout).items() if "OMP" in k]
        return ["env", f"PYTHONPATH={checkout}", *settings, sys.executable, "-m", *command]

    def _preprocess(self, checkout: Path, destination: Path) -> preprocess.Run:
        prefixes = []
        for split in ("train", "test"):
            prefixes += [f"--{split}pref", str(self._scratch / split)]
        flags = ["-s", "de", "-t", "en", "--joined-dictionary", "--workers", str(self._threads)]
        flags += [*prefixes, "--validpref", str(self._scratch / "test"), "--overwrite"]
        command = ["relu_nmt.cli.preprocess", *flags, "--destdir", str(destination)]
        return preprocess.run(self._program(checkout, *command), self._scratch / "log")

    def _measure_preprocessing(self, checkout: Path) -> Run:
        before = _cpu_seconds()
        done = self._preprocess(checkout, self._scratch / "made-again")
        return Run(self._pairs / done.seconds, _cpu_seconds() - before, done.peak_bytes or 0)

    def _training(self, arch: str, *flags: str) -> Measurement:
        def measure(checkout: Path) -> Run:
            before = _cpu_seconds()
            limit = ["--max-update", str(self._updates), "--save-dir", str(self._scratch / "none")]
            command = ["relu_nmt.cli.train", str(self._data), *training.SHAPE.split(), "--cpu"]
            command = [*command, "--arch", arch, *flags, *limit]
            program = self._program(checkout, *command)
            done = training.run(program, self._environment(checkout))
            return Run(done.tokens_per_second, _cpu_seconds() - before, done.peak_bytes)

        return measure

    def _measure_decoding(self, checkout: Path) -> Run:
        before = _cpu_seconds()
        command = ["relu_nmt.cli.generate", str(self._data), "--path", str(self._checkpoint)]
        command += ["--cpu", "--beam", "5", "--max-len-a", "1", "--max-len-b", "5"]
        done = decoding.measure(self._program(checkout, *command), self._scratch / "log")
        return Run(done.tokens_per_second, _cpu_seconds() - before, done.peak_bytes or 0)


def _cpu_seconds() -> float:
    """Return user and system seconds of all programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _row(name: str, pairs: list[tuple[Run, Run]]) -> str:
    """Return the line of a measurement: medians of both, and of the ratios new / old."""
    cells = []
    for value in ("rate", "cpu_seconds", "peak_bytes"):
        old, new = ([getattr(run, value) for run in runs] for runs in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in zip(old, new, strict=True) if a)
        scale, digits = (1e6, 0) if value == "peak_bytes" else (1, 1 if value != "rate" else 0)
        both = [statistics.median(values) / scale for values in (old, new)]
        cells += [*(f"{number:,.{digits}f}" for number in both), f"{ratio:.3f}"]
    return f"{name:<36}" + "".join(f"{cell:>11}" for cell in cells)


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, help="checkout of the older revision")
    parser.add_argument("new", type=Path, help="checkout of the newer revision")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs")
    parser.add_argument("--updates", type=int, default=40, help="updates of a training")
    parser.add_argument("--pairs", type=int, default=50_000, help="sentence pairs to preprocess")
    parser.add_argument("--threads", type=int, default=1, help="of each program")
    parser.add_argument("--only", default="", help="measure only what has this in its name")
    arguments = parser.parse_args()
    if arguments.updates < SMALLEST_UPDATES:
        parser.error(f"--updates {arguments.updates}: expected {SMALLEST_UPDATES} or more")
    old, new = arguments.old.resolve(), arguments.new.resolve()
    for folder in (old, new):
        if not (folder / "relu_nmt/__init__.py").is_file():
            parser.error(f"{folder}: no checkout of relu_nmt")
    titles = [f"{which} {title}" for title in WORDS_SHOWN for which in ("old", "new", "ratio")]
    with tempfile.TemporaryDirectory() as scratch:
        revisions = Revisions(
            Path(scratch), old, arguments.pairs, arguments.updates, arguments.threads
        )
        print(f"{'':36}" + "".join(f"{title:>11}" for title in titles))
        for name, measure in revisions.measurements().items():
            if arguments.only not in name:
                continue
            pairs = []
            for repeat in range(arguments.repeats):
                order = (old, new) if repeat % 2 == 0 else (new, old)
                runs = {folder: measure(folder) for folder in order}
                pairs.append((runs[old], runs[new]))
            print(_row(name, pairs), flush=True)


if __name__ == "__main__":
    main()
