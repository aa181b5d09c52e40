r"""Time and peak memory of pointwise attention by length, beside softmax's fused kernel.

    python benchmarks/attention.py --plot attention.png
    python benchmarks/attention.py --device cuda --lengths 2048 4096 8192 16384 --causal
    python benchmarks/attention.py --regularizer

The back ends compute ReLUFormer attention. ``sdpa`` is softmax by PyTorch's
scaled_dot_product_attention. Each round runs all back ends in turn, so that all meet the same state
of the machine. Times are medians over rounds. Memory does not count the inputs. On a CPU it is the
growth of the peak resident set, with a process for each figure. On a GPU it is the allocator's
peak. ``x sdpa`` and ``x ref`` are times divided by the times of sdpa and reference.

--regularizer also computes sums and entropies of the rows, and their gradients, except for
``sdpa``. benchmarks/lengths.py measures whole models.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from measuring import benchmark_parser, peak_resident

BACKENDS = ("reference", "blockwise", "triton", "sdpa")
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
MEGABYTE = 1e6
WARM_UP_TOKENS = 64


@dataclass(frozen=True)
class Cell:
    """The settings of one figure. ``threads`` 0 keeps PyTorch's choice."""

    backend: str
    length: int
    dtype: str
    backward: bool
    heads: int
    head_dim: int
    causal: bool
    regularizer: bool
    device: str
    threads: int


def make_run(cell: Cell) -> Callable[[], None]:
    """Return a function that computes the cell once."""
    import torch
    import torch.nn.functional as F

    from relu_nmt.attention.base import Need, build_attention, use_backend
    from relu_nmt.attention.masks import Visibility
    from relu_nmt.config.registry import Spec

    if cell.threads:
        torch.set_num_threads(cell.threads)
    width = cell.heads * cell.head_dim
    dtype = getattr(torch, DTYPES[cell.dtype])
    q, k, v = (
        torch.randn(1, cell.length, width, device=cell.device, dtype=dtype)
        .unflatten(-1, (cell.heads, cell.head_dim))
        .transpose(1, 2)
        .requires_grad_(cell.backward)
        for _ in range(3)
    )
    spec = Spec.parse("reluformer")
    attend = build_attention(spec, "decoder", 0, cell.heads, cell.head_dim, 0.0)
    use_backend(attend, "auto" if cell.backend == "sdpa" else cell.backend)
    grad = torch.randn_like(v)

    def run() -> None:
        if cell.backend == "sdpa":
            outputs = [F.scaled_dot_product_attention(q, k, v, is_causal=cell.causal)]
        else:
            visibility = Visibility(
                cell.length, cell.length, causal=cell.causal, device=torch.device(cell.device)
            )
            answer = attend(q, k, v, visibility, need=Need(statistics=cell.regularizer))
            outputs = [answer.values]
            if answer.statistics is not None:
                outputs += [answer.statistics.total, answer.statistics.entropy]
        if cell.backward:
            torch.autograd.grad(outputs, (q, k, v), [grad, *map(torch.ones_like, outputs[1:])])
        if cell.device == "cuda":
            torch.cuda.synchronize()

    return run


def peak_bytes(run: Callable[[], None], device: str) -> int:
    """Return the additional bytes that ``run`` needs at its peak."""
    import torch

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    before = peak_resident()
    run()
    return peak_resident() - before


def measure_memory(cell: Cell) -> int | None:
    """Return the peak bytes of a cell, or ``None`` if memory ran out.

    On a CPU each figure comes from a separate process. On a GPU the allocator is reset before it.
    """
    if cell.device == "cuda":
        try:
            return own_peak(cell)
        except RuntimeError:
            return None
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[2]); import attention; "
        "print(attention.own_peak(attention.Cell(**json.loads(sys.argv[1]))))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, json.dumps(vars(cell)), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
    )
    return int(answer.stdout.split()[-1]) if answer.returncode == 0 else None


def own_peak(cell: Cell) -> int:
    """Return the peak bytes of a cell. On a CPU call it once per process."""
    # Run briefly first, to load libraries and make their buffers.
    make_run(Cell(**{**vars(cell), "length": WARM_UP_TOKENS}))()
    return peak_bytes(make_run(cell), cell.device)


def measure_times(cells: list[Cell], rounds: int) -> dict[Cell, float]:
    """Return the median seconds of each cell that does not run out of memory."""
    runs = {cell: make_run(cell) for cell in cells}
    times = {cell: [] for cell in cells}
    for round_number in range(rounds + 1):
        for cell, run in list(runs.items()):
            start = time.perf_counter()
            try:
                run()
            except RuntimeError as error:
                print(f"{cell.backend} at {cell.length}: {str(error).splitlines()[0]}")
                del runs[cell]
                continue
            if round_number:  # the first round warms up
                times[cell].append(time.perf_counter() - start)
    return {cell: statistics.median(seconds) for cell, seconds in times.items() if seconds}


def table(arguments: argparse.Namespace) -> list[dict]:
    """Measure all cells and print the table. Return its rows."""
    rows = []
    print(
        "dtype  pass       length  backend            ms   x sdpa    x ref    peak MB", flush=True
    )
    for dtype in arguments.dtypes:
        for backward in (False, True):
            for length in arguments.lengths:
                cells = [
                    Cell(
                        backend, length, dtype, backward, arguments.heads, arguments.head_dim,
                        arguments.causal, arguments.regularizer, arguments.device,
                        arguments.threads,
                    )
                    for backend in arguments.backends
                ]  # fmt: skip
                times = measure_times(cells, arguments.rounds)
                by_backend = {cell.backend: seconds for cell, seconds in times.items()}
                for cell in cells:
                    row = {**vars(cell), "seconds": by_backend.get(cell.backend)}
                    row["peak_bytes"] = measure_memory(cell) if cell in times else None
                    _print_row(row, by_backend)
                    rows.append(row)
    return rows


def _print_row(row: dict, by_backend: dict[str, float]) -> None:
    """Print a cell's figures, with the ratios of the seconds to other back ends."""
    pass_name = "fwd+bwd" if row["backward"] else "fwd"
    texts = [f"{row['dtype']:6} {pass_name:8} {row['length']:8}  {row['backend']:10}"]
    texts.append(_aligned(row["seconds"], 1e-3, 10, 2))
    for backend in ("sdpa", "reference"):
        base = by_backend.get(backend)
        texts.append(_aligned(row["seconds"], base, 8, 2))
    texts.append(_aligned(row["peak_bytes"], MEGABYTE, 10, 1))
    print(*texts, flush=True)


def _aligned(value: float | None, unit: float | None, width: int, digits: int) -> str:
    """Return a value in a unit as text of this width, or a dash without a value."""
    if value is None or unit is None:
        return f"{'-':>{width}}"
    return f"{value / unit:{width}.{digits}f}"


def plot(rows: list[dict], path: Path) -> None:
    """Draw time and memory by length, with a line for each back end."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = sorted({(row["dtype"], row["backward"]) for row in rows}, reverse=True)
    figure, axes = plt.subplots(2, len(panels), figsize=(4 * len(panels), 7), squeeze=False)
    quantities = (("seconds", 1e3, "ms"), ("peak_bytes", 1 / MEGABYTE, "peak memory, MB"))
    for column, (dtype, backward) in enumerate(panels):
        for axis, (name, factor, label) in zip(axes[:, column], quantities, strict=True):
            points: dict[str, dict[int, float]] = {}
            for row in rows:
                if (row["dtype"], row["backward"]) == (dtype, backward) and row[name]:
                    points.setdefault(row["backend"], {})[row["length"]] = row[name] * factor
            for backend, values in points.items():
                title = "softmax (sdpa)" if backend == "sdpa" else backend
                axis.loglog(list(values), list(values.values()), "o-", base=2, label=title)
            axis.set_title(f"{dtype}, {'forward + backward' if backward else 'forward'}")
            axis.set_xlabel("tokens")
            axis.set_ylabel(label)
            axis.set_yscale("log", base=10)
            axis.grid(alpha=0.3)
    axes[0, 0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def parse_arguments() -> argparse.Namespace:
    """Return the flags."""
    parser = benchmark_parser(__doc__)
    lengths = [512, 1024, 2048, 4096, 8192]
    parser.add_argument("--lengths", type=int, nargs="+", default=lengths, help="tokens")
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, help="default: all")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--regularizer", action="store_true", help="also sums and entropies")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="0: PyTorch's choice")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plot", type=Path, metavar="PNG")
    arguments = parser.parse_args()
    if arguments.backends is None:
        arguments.backends = list(BACKENDS)
        if arguments.device == "cpu":
            arguments.backends.remove("triton")
    return arguments


def main() -> None:
    """Run the benchmark."""
    arguments = parse_arguments()
    rows = table(arguments)
    if arguments.plot:
        plot(rows, arguments.plot)


if __name__ == "__main__":
    main()
