r"""Time and memory of translating documents of 1024 tokens, beside fairseq-generate.

    python benchmarks/document_decoding.py --fairseq-bin /path/to/fairseq/venv/bin
    python benchmarks/document_decoding.py --fairseq-bin ... --data data-bin/documents \
        --our-path checkpoint_best.safetensors --fairseq-path fairseq/checkpoint_best.pt

Without ``--data`` the documents are random words and the models (3 + 3 layers, width 256, 4 heads,
FFN 1024, 8000 words) are untrained. Every translation is forced to the same number of tokens, so
that both programs do the same work; ``--length 0`` lets trained models end when they like, and then
only tokens per second may be compared. Batches, beams and threads are the same. Runs alternate, so
that both programs meet the same state of the machine, and medians are compared. The seconds are
those that the programs report for the search; the wall time and the processor time, which other
work on the machine hardly changes, hold program start and loading too. Memory is the peak resident
set.
"""

import argparse
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

WORDS = 8000
TRANSLATED = re.compile(r"Translated ([\d,]+) sentences \(([\d,]+) tokens\) in ([\d.]+)s")
MODEL = (
    "--encoder-layers 3 --decoder-layers 3 --encoder-embed-dim 256 --decoder-embed-dim 256 "
    "--encoder-ffn-embed-dim 1024 --decoder-ffn-embed-dim 1024 --encoder-attention-heads 4 "
    "--decoder-attention-heads 4 --share-all-embeddings --max-source-positions 8192 "
    "--max-target-positions 8192 --optimizer adam --lr 1e-9 --max-update 1 --max-tokens 2000 "
    "--disable-validation --seed 1 --cpu"
)


@dataclass
class Run:
    """One run: target tokens, seconds of search; seconds and memory (bytes) of the process."""

    tokens: int
    search_seconds: float
    wall_seconds: float
    processor_seconds: float
    peak_bytes: int


def parse_arguments() -> argparse.Namespace:
    """Return the flags."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fairseq-bin", type=Path, help="folder that holds fairseq-generate")
    parser.add_argument("--data", help="data folder whose sentences are documents")
    parser.add_argument("--our-path", nargs="+", help="our checkpoints, each a row of the table")
    parser.add_argument("--fairseq-path", help="fairseq's checkpoint")
    parser.add_argument("--gen-subset", default="test")
    parser.add_argument("--documents", type=int, default=8, help="random documents")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a translation; 0: free")
    parser.add_argument("--batch-size", default="8", help="documents in a batch")
    parser.add_argument("--beam", default="5")
    parser.add_argument("--threads", default="2", help="threads of each program")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each program")
    parser.add_argument("--flags", default="", help="further flags of both programs")
    arguments = parser.parse_args()
    if arguments.data is None and not arguments.length:
        parser.error("random documents need a --length")
    if arguments.data and not arguments.our_path:
        parser.error("--data needs --our-path")
    if arguments.data and arguments.fairseq_bin and not arguments.fairseq_path:
        parser.error("--data with --fairseq-bin needs --fairseq-path")
    return arguments


def run(command: list[str]) -> tuple[str, float, resource.struct_rusage]:
    """Run a command; return what it printed, its wall seconds and what it used."""
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode:
        tail = "\n".join(text.splitlines()[-5:])
        raise SystemExit(f"{' '.join(command)} failed ({process.returncode}):\n{tail}")
    return text, seconds, usage


def make_text(prefix: Path, documents: int, length: int) -> None:
    """Write documents of ``length`` random words in two languages; length 0: every word once."""
    generator = random.Random(1)
    for language in ("de", "en"):
        with open(f"{prefix}.{language}", "w", encoding="utf-8") as file:
            words = [f"w{i}" for i in range(WORDS)]
            if not length:
                file.writelines(f"{word}\n" for word in words)
            for _ in range(documents):
                file.write(" ".join(generator.choices(words, k=length)) + "\n")


def prepare(arguments: argparse.Namespace, folder: Path) -> None:
    """Make random documents and untrained models; note them in ``arguments``."""
    make_text(folder / "train", 0, 0)
    make_text(folder / "test", arguments.documents, arguments.length)
    arguments.data = str(folder / "data-bin")
    arguments.gen_subset = "test"
    ours = [sys.executable, "-m"]
    flags = ["-s", "de", "-t", "en", "--joined-dictionary", "--destdir", arguments.data]
    flags += ["--trainpref", str(folder / "train"), "--testpref", str(folder / "test")]
    run([*ours, "relu_nmt.cli.preprocess", *flags])
    arguments.our_path = []
    for arch in ("transformer_tiny", "reluformer_tiny"):
        saved = folder / arch.removesuffix("_tiny")
        train = [*ours, "relu_nmt.cli.train", arguments.data, "--arch", arch, *MODEL.split()]
        run([*train, "--save-dir", str(saved)])
        arguments.our_path.append(str(saved / "checkpoint_last.safetensors"))
    if arguments.fairseq_bin:
        train = [str(arguments.fairseq_bin / "fairseq-train"), arguments.data, *MODEL.split()]
        run([*train, "--arch", "transformer", "--save-dir", str(folder / "fairseq")])
        arguments.fairseq_path = str(folder / "fairseq/checkpoint_last.pt")


def commands(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Return the command of each row of the table."""
    shared = f"--cpu --gen-subset {arguments.gen_subset} --beam {arguments.beam} "
    shared += f"--batch-size {arguments.batch_size} --quiet {arguments.flags}"
    if arguments.length:
        shared += f" --min-len {arguments.length} --max-len-a 0 --max-len-b {arguments.length}"
    table = {}
    for path in arguments.our_path:
        name = "relu_nmt " + Path(path).parent.name
        ours = [sys.executable, "-m", "relu_nmt.cli.generate", arguments.data, "--path", path]
        table[name] = [*ours, *shared.split()]
    if arguments.fairseq_bin:
        program = str(arguments.fairseq_bin / "fairseq-generate")
        theirs = [program, arguments.data, "--path", arguments.fairseq_path]
        # It would refuse more than 1024 tokens with the end symbol, and leave out the last batch
        # unless that is a multiple of 8 sentences.
        limits = "--max-source-positions 8192 --max-target-positions 8192"
        theirs += [*limits.split(), "--required-batch-size-multiple", "1"]
        table["fairseq"] = [*theirs, *shared.split()]
    return table


def measure(command: list[str]) -> Run:
    """Run a command and read its figures from what it printed."""
    output, seconds, usage = run(command)
    match = TRANSLATED.search(output)
    if match is None:
        raise SystemExit(f"{command[0]} printed no line 'Translated ...':\n{output[-500:]}")
    tokens = int(match[2].replace(",", ""))
    processor = usage.ru_utime + usage.ru_stime
    return Run(tokens, float(match[3]), seconds, processor, usage.ru_maxrss * 1024)


def report(runs: dict[str, list[Run]]) -> None:
    """Print the medians of every program and how they compare with fairseq's."""
    header = f"{'':24}{'tokens':>8}{'search s':>10}{'tokens/s':>10}{'wall s':>8}{'CPU s':>8}"
    header += f"{'peak MB':>9}"
    print(header + ("  times fairseq's speed, memory" if "fairseq" in runs else ""))

    def median(name: str, figure: str) -> float:
        return statistics.median(getattr(run, figure) for run in runs[name])

    def speed(name: str) -> float:
        return median(name, "tokens") / median(name, "search_seconds")

    for name in runs:
        peak, search = median(name, "peak_bytes"), median(name, "search_seconds")
        line = f"{name:24}{median(name, 'tokens'):8.0f}{search:10.1f}{speed(name):10.1f}"
        line += f"{median(name, 'wall_seconds'):8.1f}{median(name, 'processor_seconds'):8.1f}"
        line += f"{peak / 1e6:9.0f}"
        if "fairseq" in runs:
            memory = peak / median("fairseq", "peak_bytes")
            line += f"  {speed(name) / speed('fairseq'):.2f}, {memory:.2f}"
        print(line)


def main() -> None:
    """Run the benchmark and print its table."""
    arguments = parse_arguments()
    os.environ["OMP_NUM_THREADS"] = arguments.threads
    # fairseq's own checkpoints are pickled, which PyTorch 2.6 and later refuse by default.
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        if arguments.data is None:
            prepare(arguments, Path(folder))
        runs: dict[str, list[Run]] = {}
        for _ in range(arguments.repeats):
            for name, command in commands(arguments).items():
                runs.setdefault(name, []).append(measure(command))
    print(
        f"{arguments.threads} threads, beam {arguments.beam}, batches of {arguments.batch_size} "
        f"documents, medians of {arguments.repeats} runs"
    )
    report(runs)


if __name__ == "__main__":
    main()
