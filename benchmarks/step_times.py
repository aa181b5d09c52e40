r"""Compare the times of a training step with several attentions.

    python benchmarks/step_times.py softmax sparsemax entmax15 rela:gated=true reluformer \
        --regularized reluformer
    python benchmarks/step_times.py --images pointwise:h=relu,alpha=1,qk_norm=true \
        pointwise:h=relu,alpha=1,qk_norm=true,gate=silu

Steps take turns on one batch of random tokens or pixels, so that all meet the same state of the
machine. On a CPU a time is the processor time of all threads, which other programs disturb least.
The table has medians, and the median ratio to the first attention in the same turn, with its 95 %
interval of resampled turns.
"""

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from measuring import benchmark_parser
from telemetry import VOCABULARY, made_batch, made_objective
from torch import Tensor, nn

from relu_nmt.vision.base import build_vision_model
from relu_nmt.vision.config import VisionTransformerConfig, architectures

CLASSES = 10
RESAMPLED = 1000
COLUMNS = ("attention", "ms", "ratio", "low", "high")


def translation_step(attention: str, arguments: argparse.Namespace) -> Callable[[], Tensor]:
    """Return a function that computes the loss of a translation model on one batch."""
    values = {**vars(arguments), "attention": attention}
    values["regularizer"] = attention in arguments.regularized
    objective = made_objective(argparse.Namespace(**values)).to(arguments.device).train()
    batch = made_batch(arguments.sentences, arguments.length).to(arguments.device)

    def loss() -> Tensor:
        output = objective(batch)
        return output.loss / output.sample_size

    return with_updates(loss, objective)


def image_step(attention: str, arguments: argparse.Namespace) -> Callable[[], Tensor]:
    """Return a function that computes the loss of an image model on one batch."""
    values = {**architectures["vit_ti"], "attention": attention, "image_size": arguments.image_size}
    values |= {"patch_size": arguments.patch_size, "layers": arguments.layers}
    model = build_vision_model(VisionTransformerConfig.of(**values), CLASSES)
    model = model.to(arguments.device).train()
    size = (arguments.images_at_once, 3, arguments.image_size, arguments.image_size)
    pixels = torch.randn(size, device=arguments.device)
    labels = torch.randint(CLASSES, size[:1], device=arguments.device)
    return with_updates(lambda: F.cross_entropy(model(pixels).logits, labels), model)


def with_updates(loss: Callable[[], Tensor], model: nn.Module) -> Callable[[], Tensor]:
    """Return a function that takes a whole step: loss, gradients and update."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        value = loss()
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def times(steps: dict[str, Callable[[], Tensor]], count: int, device: str) -> dict[str, np.ndarray]:
    """Return the seconds of each step, measured ``count`` times after a first time to warm up."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for index in range(count + 1):
        for name, step in steps.items():
            started = clock()
            step()
            if device != "cpu":
                torch.cuda.synchronize()
            if index > 0:
                seconds[name].append(clock() - started)
    return {name: np.array(values) for name, values in seconds.items()}


def table(seconds: dict[str, np.ndarray]) -> list[dict[str, str]]:
    """Return a row for each attention, with the ratio of times to the first attention."""
    first = next(iter(seconds.values()))
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(first), size=(RESAMPLED, len(first)))
    rows = []
    for name, values in seconds.items():
        ratios = values / first
        low, high = np.percentile(np.median(ratios[drawn], 1), (2.5, 97.5))
        rows.append(
            {
                "attention": name,
                "ms": f"{1e3 * np.median(values):.1f}",
                "ratio": f"{np.median(ratios):.3f}",
                "low": f"{low:.3f}",
                "high": f"{high:.3f}",
            }
        )
    return rows


def main() -> None:
    """Run the benchmark, print its table and write it."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("attentions", nargs="+", metavar="ATTENTION")
    parser.add_argument("--images", action="store_true", help="ViT-Ti in place of a translator")
    parser.add_argument(
        "--regularized",
        nargs="*",
        default=[],
        metavar="ATTENTION",
        help="attentions trained with the regularizer of their weights",
    )
    parser.add_argument("--layers", type=int, default=3, help="layers per side")
    parser.add_argument("--sentences", type=int, default=24, help="sentences per batch")
    parser.add_argument("--length", type=int, default=32, help="most tokens of a sentence")
    parser.add_argument("--image-size", type=int, default=32, help="pixels per side")
    parser.add_argument("--patch-size", type=int, default=4, help="pixels per side of a patch")
    parser.add_argument("--images-at-once", type=int, default=16, help="images in the batch")
    parser.add_argument("--turns", type=int, default=20, help="steps of each attention")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("step-times.csv"), help="table to write")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    make = image_step if arguments.images else translation_step
    steps = {name: make(name, arguments) for name in arguments.attentions}
    rows = table(times(steps, arguments.turns, arguments.device))
    if arguments.images:
        print(f"{arguments.images_at_once} images")
    else:
        print(f"{arguments.sentences} sentences of {VOCABULARY:,} kinds of tokens")
    for row in rows:
        print(f"{row['ms']:>9} ms {row['ratio']} [{row['low']}, {row['high']}] {row['attention']}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
