"""Training speed and memory of relu-nmt-train, beside fairseq-train, on one data folder.

    python benchmarks/training.py DATA --fairseq-bin /path/to/fairseq/venv/bin

The model is the one of docs/results.md (3 + 3 layers, width 256, 4 heads, FFN 1024); batches have
at most 1,536 tokens. Runs alternate between the programs, so that both meet the same state of the
machine. Target tokens per second are taken from each program's own log lines, one an update, the
first ones left out as warm-up; medians over updates, then over runs. Memory is the peak resident
set of the process. fairseq computes in float32, which is all that it offers on a CPU.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

WARM_UP_UPDATES = 10
SHAPE = (
    "--encoder-layers 3 --decoder-layers 3 --encoder-embed-dim 256 --decoder-embed-dim 256 "
    "--encoder-ffn-embed-dim 1024 --decoder-ffn-embed-dim 1024 --encoder-attention-heads 4 "
    "--decoder-attention-heads 4 --share-all-embeddings --dropout 0.1 --label-smoothing 0.1 "
    "--optimizer adam --lr 1e-3 --lr-scheduler inverse_sqrt --warmup-updates 400 "
    "--max-tokens 1536 --seed 1 --log-format json --log-interval 1 --no-save --disable-validation"
)


@dataclass
class Run:
    """One run: target tokens per second, and peak resident memory in bytes."""

    tokens_per_second: float
    peak_bytes: int


def run(command: list[str], environment: dict[str, str]) -> Run:
    """Run a training; stop the benchmark with its last lines if it fails."""
    lines, rates, previous = [], [], None
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    for line in process.stdout:
        now = time.perf_counter()
        lines.append(line)
        start = line.find("{")
        if '"wpb"' not in line or '"num_updates"' not in line or start < 0:
            continue
        tokens = float(json.loads(line[start:])["wpb"])
        if previous is not None:
            rates.append(tokens / (now - previous))
        previous = now
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or len(rates) <= WARM_UP_UPDATES:
        raise SystemExit(f"{command[0]} failed:\n" + "".join(lines[-5:]))
    return Run(statistics.median(rates[WARM_UP_UPDATES:]), usage.ru_maxrss * 1024)


def commands(arguments: argparse.Namespace, scratch: Path) -> dict[str, list[str]]:
    """Return the command of each program and precision."""
    common = [*SHAPE.split(), "--max-update", str(arguments.updates)]
    ours = [sys.executable, "-m", "relu_nmt.cli.train", arguments.data, *common, "--cpu"]
    table = {}
    for arch in ("reluformer_tiny", "transformer_tiny"):
        for precision in ((), ("--bf16",)):
            name = " ".join((arch.removesuffix("_tiny"), *(p.strip("-") for p in precision)))
            folder = ["--save-dir", str(scratch / name.replace(" ", "-"))]
            table[name] = [*ours, "--arch", arch, *precision, *folder]
    if arguments.fairseq_bin:
        program = str(arguments.fairseq_bin / "fairseq-train")
        table["fairseq"] = [
            program, arguments.data, *common, "--cpu", "--arch", "transformer",
            "--criterion", "label_smoothed_cross_entropy", "--save-dir", str(scratch / "fairseq"),
        ]  # fmt: skip
    return table


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="data folder with a joined dictionary")
    parser.add_argument("--fairseq-bin", type=Path, help="folder that holds fairseq-train")
    parser.add_argument("--updates", type=int, default=60, help="updates of a run")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each program")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each program")
    arguments = parser.parse_args()
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(arguments.threads),
        "PYTHONUNBUFFERED": "1",
    }
    runs: dict[str, list[Run]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.repeats):
            for name, command in commands(arguments, Path(folder)).items():
                runs.setdefault(name, []).append(run(command, environment))
    base = runs.get("fairseq", runs["transformer"])
    base_rate = statistics.median(r.tokens_per_second for r in base)
    print("program | target tokens/s | ratio | peak memory")
    for name, of_program in runs.items():
        rate = statistics.median(r.tokens_per_second for r in of_program)
        peak = statistics.median(r.peak_bytes for r in of_program)
        print(f"{name} | {rate:,.0f} | {rate / base_rate:.2f} | {peak / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
