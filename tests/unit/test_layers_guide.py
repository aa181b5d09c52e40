"""docs/reference/layers.md lists the entries of the registries, and its code runs."""

import re
from pathlib import Path

import pytest
import torch

from relu_nmt.modules import feed_forwards, norms, position_schemes
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.vision import vision_blocks
from relu_nmt.vision.config import VisionTransformerConfig
from relu_nmt.vision.vision_transformer import VisionTransformer
from tests.markdown import code_blocks

GUIDE = (Path(__file__).parents[2] / "docs/reference/layers.md").read_text("utf-8")
REGISTRIES = {
    "feed-forward network": feed_forwards,
    "norm": norms,
    "positions": position_schemes,
    "vision block": vision_blocks,
}


def test_the_guide_names_every_part():
    rows = {}
    for line in GUIDE.splitlines():
        if line.startswith("| "):
            _, part, _, names, *_ = line.split("|")
            rows[part.strip()] = names
    for part, registry in REGISTRIES.items():
        assert sorted(re.findall("`(.*?)`", rows[part])) == registry.names(), part


@pytest.fixture
def forgotten():
    """Forget the parts that a test registers, but none that it is the first to import."""
    before = {part: set(registry.names()) for part, registry in REGISTRIES.items()}
    yield
    for part, registry in REGISTRIES.items():
        for name in set(registry.names()) - before[part]:
            del registry._entries[name]


def test_the_code_of_the_guide_runs(forgotten):
    namespace: dict = {"__name__": __name__}
    for block in code_blocks(GUIDE, "python"):
        exec(block.text, namespace)
    shape = {"image_size": 8, "patch_size": 4, "embed_dim": 16, "layers": 1, "heads": 2}
    vision = VisionTransformerConfig(
        block="local", feed_forward="relu2", norm="rms", pooling="mean", **shape
    )
    VisionTransformer(vision, 3)(torch.zeros(1, 3, 8, 8)).logits.sum().backward()
    config = TransformerConfig(encoder_layers=1, decoder_layers=1, positions="log_distance")
    EncoderDecoder(config, 9, 9, 1)(torch.tensor([[4, 2]]), torch.tensor([[2, 5]]))
