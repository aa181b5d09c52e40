"""Sentence pairs per second and memory of relu-nmt-preprocess, beside fairseq-preprocess.

    python benchmarks/preprocess.py --fairseq-bin /path/to/fairseq/venv/bin
    python benchmarks/preprocess.py --trainpref corpus/train.bpe -s de -t en --workers 2 ...

Both programs get as many workers. The text is prepared (tokens between spaces), generated unless
given. Runs alternate between the programs, so that both meet the same state of the machine; medians
of the wall time are compared, program start included. Memory is the largest sum over all processes
of the command (proportional set size; Linux only). Without fairseq only ours are printed.
"""

import argparse
import filecmp
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

GENERATED_WORDS = 8000
GENERATED_LENGTH = (5, 25)
SECONDS_BETWEEN_SAMPLES = 0.05


@dataclass
class Run:
    """One run of a command: wall time in seconds, peak memory in bytes (None if unknown)."""

    seconds: float
    peak_bytes: int | None


def generate_text(prefix: Path, languages: tuple[str, str], pairs: int) -> None:
    """Write ``pairs`` lines per language of words drawn by Zipf's law."""
    generator = random.Random(1)
    weights = list(accumulate(1 / rank for rank in range(1, GENERATED_WORDS + 1)))
    for language in languages:
        numbers = range(GENERATED_WORDS)
        words = [f"{language}{i:x}@@" if i % 3 == 0 else f"{language}{i:x}" for i in numbers]
        with open(f"{prefix}.{language}", "w", encoding="utf-8") as file:
            for _ in range(pairs):
                length = generator.randint(*GENERATED_LENGTH)
                file.write(" ".join(generator.choices(words, cum_weights=weights, k=length)) + "\n")


def _memory_of_tree(root: int) -> int:
    """Return the proportional set size of a process and all its descendants, in bytes."""
    total, todo = 0, [root]
    while todo:
        process = todo.pop()
        try:
            for task in os.listdir(f"/proc/{process}/task"):
                children = Path(f"/proc/{process}/task/{task}/children").read_text()
                todo += map(int, children.split())
            for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except (OSError, ValueError):
            continue  # It has ended meanwhile.
    return total


def run(command: list[str], log: Path) -> Run:
    """Run a command; stop the benchmark with its last lines if it fails."""
    started = time.perf_counter()
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        peak, ended = [0], threading.Event()

        def watch() -> None:
            while not ended.wait(SECONDS_BETWEEN_SAMPLES):
                peak[0] = max(peak[0], _memory_of_tree(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        code = process.wait()
        seconds = time.perf_counter() - started
        ended.set()
        watcher.join()
    if code:
        tail = log.read_text(errors="replace").splitlines()[-5:]
        raise SystemExit(f"{command[0]} failed ({code}):\n" + "\n".join(tail))
    return Run(seconds, peak[0] or None)


def parse_arguments() -> argparse.Namespace:
    """Return the flags."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fairseq-bin", type=Path, help="folder that holds fairseq-preprocess")
    parser.add_argument("--trainpref", help="prepared text; generated if not given")
    parser.add_argument("-s", "--source-lang", default="de")
    parser.add_argument("-t", "--target-lang", default="en")
    parser.add_argument("--pairs", type=int, default=200_000, help="sentence pairs to generate")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each program")
    parser.add_argument("--workers", type=int, default=1, help="processes of either program")
    return parser.parse_args()


def different_files(ours: Path, theirs: Path) -> list[str]:
    """Return the dictionaries and binarised files that are not the same byte by byte."""
    names = [path.name for path in theirs.iterdir() if path.suffix in (".bin", ".idx", ".txt")]
    _, mismatch, errors = filecmp.cmpfiles(ours, theirs, names, shallow=False)
    return sorted([*mismatch, *errors])


def main() -> None:
    """Run the benchmark and print its table."""
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prefix = arguments.trainpref
        if prefix is None:
            prefix = str(folder / "train")
            languages = (arguments.source_lang, arguments.target_lang)
            generate_text(Path(prefix), languages, arguments.pairs)
        with open(f"{prefix}.{arguments.source_lang}", "rb") as file:
            pairs = sum(1 for _ in file)
        flags = ["-s", arguments.source_lang, "-t", arguments.target_lang]
        flags += ["--trainpref", prefix, "--joined-dictionary", "--destdir"]
        ours = [sys.executable, "-m", "relu_nmt.cli.preprocess"]
        workers = ["--workers", str(arguments.workers)]
        commands = {"relu-nmt-preprocess": [*ours, *workers, *flags]}
        if arguments.fairseq_bin:
            theirs = [str(arguments.fairseq_bin / "fairseq-preprocess")]
            commands["fairseq-preprocess"] = [*theirs, *workers, *flags]
        runs: dict[str, list[Run]] = {program: [] for program in commands}
        for repeat in range(arguments.repeats):
            for program, command in commands.items():
                destination = folder / f"{program}.{repeat}"
                runs[program].append(run([*command, str(destination)], folder / "log"))
        report(runs, pairs)
        if arguments.fairseq_bin:
            last = arguments.repeats - 1
            different = different_files(*(folder / f"{program}.{last}" for program in commands))
            print("files differ: " + " ".join(different) if different else "files are identical")


def report(runs: dict[str, list[Run]], pairs: int) -> None:
    """Print one line per program and the ratio of their speeds."""
    rates = []
    for program, of_program in runs.items():
        seconds = statistics.median(run.seconds for run in of_program)
        rates.append(pairs / seconds)
        spread = " ".join(f"{run.seconds:.2f}" for run in of_program)
        peaks = [run.peak_bytes for run in of_program if run.peak_bytes is not None]
        memory = f"{statistics.median(peaks) / 1e6:,.0f} MB" if peaks else "memory unknown"
        print(
            f"{program}: {pairs:,} pairs, {seconds:.2f} s ({spread}), "
            f"{pairs / seconds:,.0f} pairs/s, {memory}"
        )
    if len(rates) == 2:
        print(f"ratio: {rates[0] / rates[1]:.1f}")


if __name__ == "__main__":
    main()
