r"""Measure products of decoding on CPUs: kernels, oneDNN's packed products, and plain PyTorch.

    python benchmarks/products.py --shapes 256x256 256x1024 --rows 1 5 48 250

Each figure is the processor time of one thread for x W^T + b with the given rows of x. The sides
take turns. Figures are medians over rounds. The time of 8-bit integers includes the conversion from
float32. Plain PyTorch has no such product.
"""

import copy
import statistics
import time
from collections.abc import Callable

import torch
from measuring import benchmark_parser
from torch import Tensor, nn

from relu_nmt.engine import native
from relu_nmt.engine.linear import Int8Linear, PackedLinear, can_pack

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.float32}
KERNELS = {"float32": "linear_float", "bfloat16": "linear_bfloat16", "int8": "linear_int8"}
SECONDS_OF_ROUND = 0.02


def sides(name: str, linear: nn.Linear) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return functions that compute the map in a dtype, by name."""
    if name == "int8":
        int8 = Int8Linear(linear)
        return {"kernel": int8.by_kernel, "oneDNN": int8._by_onednn}
    packed = PackedLinear(linear, TYPES[name])
    weights, bias = packed._pack_for_onednn()
    plain = copy.deepcopy(linear).to(TYPES[name])

    def onednn(x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, weights, bias, "none", [], "")

    return {"kernel": packed.by_kernel, "oneDNN": onednn, "PyTorch": plain}


def microseconds(functions: dict[str, Callable[[Tensor], Tensor]], x: Tensor, rounds: int) -> dict:
    """Return the median time of a call of each function."""
    started = time.process_time()
    for function in functions.values():  # warm up
        function(x)
        function(x)
    seconds_of_call = (time.process_time() - started) / (2 * len(functions))
    calls = max(1, int(SECONDS_OF_ROUND / max(seconds_of_call, 1e-7)))
    times: dict[str, list[float]] = {side: [] for side in functions}
    for _ in range(rounds):
        for side, function in functions.items():
            started = time.process_time()
            for _ in range(calls):
                function(x)
            times[side].append((time.process_time() - started) / calls * 1e6)
    return {side: statistics.median(values) for side, values in times.items()}


@torch.no_grad()
def main() -> None:
    """Run the benchmark and print its table."""
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add("--types", nargs="+", choices=list(TYPES), default=list(TYPES), help="number types")
    shapes = ["256x256", "256x768", "256x1024", "1024x256", "256x7880"]
    add("--shapes", nargs="+", default=shapes, metavar="DxD'", help="inputs and outputs")
    add("--rows", type=int, nargs="+", default=[1, 5, 16, 48, 100, 250], help="rows of x")
    add("--rounds", type=int, default=7, help="rounds per figure")
    arguments = parser.parse_args()
    for name in arguments.types:
        if not (can_pack() and native.has_kernel(KERNELS[name])):
            parser.error(f"--types: no kernel for {name} here; leave it out")
    torch.set_num_threads(1)
    print("| numbers | inputs, outputs, rows | kernel, µs | of oneDNN | of PyTorch |")
    print("| --- | --- | --- | --- | --- |")
    for name in arguments.types:
        for shape in arguments.shapes:
            inputs, outputs = map(int, shape.split("x"))
            linear = nn.Linear(inputs, outputs)
            for rows in arguments.rows:
                x = torch.randn(rows, inputs, dtype=TYPES[name])
                times = microseconds(sides(name, linear), x, arguments.rounds)
                cells = [name, f"{inputs}, {outputs}, {rows}", f"{times['kernel']:.0f}"]
                for side in ("oneDNN", "PyTorch"):
                    cells.append(f"{times['kernel'] / times[side]:.2f}" if side in times else "-")
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
