"""Count the operations of image models with SimA and with their own attention.

    python examples/vision_study/operations.py --out vision-study/operations.csv

The script counts the multiply-adds of all products and the exponentials of all attention weights
for one image. It builds models without allocating memory.

Reference: Koohpayegani and Pirsiavash 2024, "SimA", Table 1 and section 3: a block has H N^2
exponentials with softmax, H d^2 with cross-covariance attention, and none with SimA.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from relu_nmt.attention.base import Attention
from relu_nmt.cli.command import Command
from relu_nmt.config import option, settings
from relu_nmt.drawing.pages import csv_text
from relu_nmt.errors import reporting
from relu_nmt.io.safe_write import write_text
from relu_nmt.vision.base import build_vision_model
from relu_nmt.vision.config import VisionTransformerConfig, architectures

MODELS: dict[str, tuple[str, str, dict[str, int]]] = {
    "DeiT-S": ("deit_s", "softmax", {}),
    "XCiT-S12/16": ("xcit_small_12", "xca", {}),
    "XCiT-T24/16": ("xcit_tiny_24", "xca", {}),
    "XCiT-T20/16": ("xcit_tiny_24", "xca", {"layers": 20}),
    "XCiT-T12/8": ("xcit_tiny_12_p8_224", "xca", {}),
    "CvT-13": ("cvt_13", "softmax", {}),
}
"""Architecture, attention before SimA replaces it, and changed values of the paper's models."""
CLASSES = 1000


@settings
class CountSettings:
    """The size of the images, and the file of the table."""

    image_size: int = option(224, "pixels a side", least=32)
    out: str = option("vision-study/operations.csv", "file of the table", metavar="FILE")


def exponentials(attention: Attention, q: Tensor, k: Tensor) -> int:
    """Return the exponentials of the weights of a block.

    Args:
        attention: its mechanism.
        q: queries [B, H, Nq, d].
        k: keys [B, H, Nk, d].
    """
    images, heads, queries, width = q.shape
    sides = {"softmax": (queries, k.size(2)), "xca": (width, width), "sima": (0, 0)}
    rows, columns = sides[attention.name]
    return images * heads * rows * columns


def counts(arch: str, attention: str, image_size: int, **changes: int) -> dict[str, Any]:
    """Return parameters, multiply-adds and exponentials of a model for one image.

    Args:
        arch: name of the shape.
        attention: attention of all blocks. SimA is used in class attention, too.
        image_size: pixels a side.
        changes: further values of the shape, such as ``layers``.
    """
    values = {**architectures[arch], "attention": attention, "image_size": image_size, **changes}
    if attention == "sima" and values.get("family") == "xcit":
        values["class_attention"] = attention
    with torch.device("meta"):
        model = build_vision_model(VisionTransformerConfig.of(**values), CLASSES).eval()
        pixels = torch.empty(1, 3, image_size, image_size)
    num_exponentials = 0

    def count(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal num_exponentials
        assert isinstance(module, Attention)
        num_exponentials += exponentials(module, inputs[0], inputs[1])

    for module in model.modules():
        if isinstance(module, Attention):
            module.register_forward_hook(count)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(pixels)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "multiply_adds": counter.get_total_flops() // 2,
        "exponentials": num_exponentials,
    }


def run(settings: CountSettings) -> None:
    """Print the table of all models, and write it.

    Raises:
        ConfigError: a model cannot have images of this size.
        DataError: the table cannot be written.
    """
    rows = []
    for name, (arch, replaced, changes) in MODELS.items():
        for attention in (replaced, "sima"):
            row = counts(arch, attention, settings.image_size, **changes)
            rows.append({"model": name, "attention": attention, **row})
            print(
                f"{name:12} {attention:8} {row['parameters'] / 1e6:6.1f} M parameters "
                f"{row['multiply_adds'] / 1e9:6.2f} G multiply-adds "
                f"{row['exponentials'] / 1e6:6.2f} M exponentials",
                flush=True,
            )
    path = Path(settings.out)
    with reporting(f"{path}: cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, csv_text(list(rows[0]), rows))
    print(f"table: {path}")


main = Command("operations", __doc__, CountSettings, run, user_modules=False)

if __name__ == "__main__":
    sys.exit(main())
