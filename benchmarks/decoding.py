r"""Sentences per second and memory of relu-nmt-generate, beside fairseq-generate.

    python benchmarks/decoding.py --data data-bin/m30k --path checkpoint_best.safetensors \
        --fairseq-bin /path/to/fairseq/venv/bin --fairseq-path fairseq/checkpoint_best.pt

Each program translates the same split with a model of its own, so the models should have one
shape and have been trained alike: the length of the translations matters as much as the program.
Runs alternate, so that both meet the same state of the machine; medians are compared. The seconds
are those that the programs report for the search itself; the wall time holds program start,
loading and scoring too. Memory is the largest proportional set size (Linux only).
"""

import argparse
import os
import re
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from preprocess import run

TRANSLATED = re.compile(r"Translated ([\d,]+) sentences \(([\d,]+) tokens\) in ([\d.]+)s")
SCORE = re.compile(r"Generate \S+ with beam=\d+: (.*)")


@dataclass
class Result:
    """One run: sentences and tokens per second of search, wall seconds, peak memory in bytes."""

    sentences_per_second: float
    tokens_per_second: float
    seconds: float
    peak_bytes: int | None
    score: str


def parse_arguments() -> argparse.Namespace:
    """Return the flags."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="our data folder")
    parser.add_argument("--path", required=True, help="our checkpoint")
    parser.add_argument("--flags", default="", help="further flags of relu-nmt-generate")
    parser.add_argument("--fairseq-bin", type=Path, help="folder that holds fairseq-generate")
    parser.add_argument("--fairseq-path", help="fairseq's checkpoint")
    parser.add_argument("--fairseq-data", help="fairseq's data folder; ours by default")
    parser.add_argument(
        "--fairseq-flags", default="--max-tokens 4096", help="further flags of fairseq-generate"
    )
    parser.add_argument("--gen-subset", default="test")
    parser.add_argument("--beam", default="5")
    parser.add_argument("--lenpen", default="1.0")
    parser.add_argument("--threads", default="2", help="threads of both programs")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each program")
    arguments = parser.parse_args()
    if arguments.fairseq_bin and not arguments.fairseq_path:
        parser.error("--fairseq-bin needs --fairseq-path")
    return arguments


def commands(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Return the command of each program."""
    shared = ["--cpu", "--gen-subset", arguments.gen_subset]
    shared += ["--beam", arguments.beam, "--lenpen", arguments.lenpen]
    ours = [sys.executable, "-m", "relu_nmt.cli.generate", arguments.data]
    found = {"relu_nmt": [*ours, "--path", arguments.path, *shared, *arguments.flags.split()]}
    if arguments.fairseq_bin:
        theirs = [str(arguments.fairseq_bin / "fairseq-generate")]
        theirs += [arguments.fairseq_data or arguments.data, "--path", arguments.fairseq_path]
        # It would leave out the last batch unless that is a multiple of 8 sentences.
        theirs += ["--required-batch-size-multiple", "1"]
        found["fairseq"] = [*theirs, *shared, *arguments.fairseq_flags.split()]
    return found


def measure(command: list[str], log: Path) -> Result:
    """Run a command and read its figures from what it printed."""
    done = run(command, log)
    output = log.read_text(encoding="utf-8", errors="replace")
    match = TRANSLATED.search(output)
    if match is None:
        raise SystemExit(f"{command[0]} printed no line 'Translated ...':\n{output[-500:]}")
    sentences, tokens = (int(field.replace(",", "")) for field in match.groups()[:2])
    seconds = float(match[3])
    score = SCORE.search(output)
    return Result(
        sentences / seconds,
        tokens / seconds,
        done.seconds,
        done.peak_bytes,
        score[1] if score else "",
    )


def main() -> None:
    """Run the benchmark and print its table."""
    arguments = parse_arguments()
    os.environ["OMP_NUM_THREADS"] = arguments.threads
    # fairseq's own checkpoints are pickled, which PyTorch 2.6 and later refuse by default.
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
    results: dict[str, list[Result]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.repeats):
            for name, command in commands(arguments).items():
                log = Path(folder) / f"{name}.log"
                results.setdefault(name, []).append(measure(command, log))
    print(f"{arguments.threads} threads, beam {arguments.beam}, {arguments.repeats} runs, medians")
    print(f"{'':10}{'sentences/s':>12}{'tokens/s':>12}{'wall s':>10}{'peak GB':>10}  score")
    medians = {}
    for name, runs in results.items():
        speed = medians[name] = statistics.median(r.sentences_per_second for r in runs)
        tokens = statistics.median(r.tokens_per_second for r in runs)
        wall = statistics.median(r.seconds for r in runs)
        peak = statistics.median((r.peak_bytes or 0) / 1e9 for r in runs)
        print(f"{name:10}{speed:12.1f}{tokens:12.0f}{wall:10.1f}{peak:10.2f}  {runs[0].score}")
    if len(medians) == 2:
        print(f"ratio of sentences/s: {medians['relu_nmt'] / medians['fairseq']:.2f}")


if __name__ == "__main__":
    main()
