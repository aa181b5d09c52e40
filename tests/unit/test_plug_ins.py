"""Layers' parts added from outside the package, each by one file given with ``--user-module``."""

import pytest
import torch

from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.config import add_settings, from_dict, read_settings, to_dict
from relu_nmt.modules import feed_forwards, norms, position_schemes
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.vision import vision_blocks, vision_models
from relu_nmt.vision.base import build_vision_model
from relu_nmt.vision.config import VisionTransformerConfig
from relu_nmt.vision.vision_transformer import VisionTransformer
from tests.stepping import Stepping, log_probs
from tests.tiny import gradients

FEED_FORWARD = """
from relu_nmt.modules import feed_forwards
from relu_nmt.modules.feed_forward import FeedForward

@feed_forwards.register("mine")
class SquaredReluFeedForward(FeedForward):
    def activate(self, hidden):
        return hidden.relu().square()
"""
NORM = """
import torch
from torch import nn
from relu_nmt.modules import norms

@norms.register("mine")
class LengthNorm(nn.Module):
    def __init__(self, embed_dim, eps):
        super().__init__()
        self.gain, self.eps = nn.Parameter(torch.ones(embed_dim)), eps

    def forward(self, x):
        return x / (x.norm(dim=-1, keepdim=True) + self.eps) * self.gain
"""
POSITIONS = """
from relu_nmt.modules import position_schemes
from relu_nmt.modules.positions import DistanceBias

@position_schemes.register("mine")
class LogDistance(DistanceBias):
    def of_offsets(self, offsets):
        return -(1 + offsets.abs()).double().log().float().expand(self.config.num_heads, -1)
"""
BLOCK = """
from torch import nn
from relu_nmt.vision import vision_blocks, vision_models
from relu_nmt.vision.vision_transformer import TransformerBlock

@vision_blocks.register("mine")
class LocalBlock(nn.Module):
    def __init__(self, config, index):
        super().__init__()
        self.attend = TransformerBlock(config, index)
        dim = config.embed_dim
        self.mix = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x, visibility, grid):
        x = self.attend(x, visibility, grid)
        patches = x[:, -grid.height * grid.width :]
        image = patches.transpose(1, 2).unflatten(2, grid)
        return x + self.mix(image).flatten(2).mean(2)[:, None]
"""
FAMILY = """
from torch import nn
from relu_nmt.vision import vision_models
from relu_nmt.vision.base import VisionModel, VisionOutput


@vision_models.register("mine")
class MeanColor(VisionModel):
    num_tokens = 1

    def __init__(self, config, num_classes):
        super().__init__(config)
        self.embed = nn.Linear(3, config.embed_dim)
        self.head = nn.Linear(config.embed_dim, num_classes)

    def forward(self, images, blocks=()):
        features = self.embed(images.mean((2, 3)))
        return VisionOutput(self.head(features), features, {})
"""


@pytest.fixture
def user_file(tmp_path):
    def write(text):
        path = tmp_path / "mine.py"
        path.write_text(text)
        return ["--user-module", str(path)]

    yield write
    for registry in (feed_forwards, norms, position_schemes, vision_blocks, vision_models):
        registry._entries.pop("mine", None)


def settings_of(config_class, flags):
    parser = make_parser("relu-nmt-x", "", user_modules=True)
    add_settings(parser, config_class)
    result = []
    run_command(parser, lambda typed: result.append(read_settings(config_class, typed)) or 0, flags)
    return result[0]


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        (FEED_FORWARD, "--feed-forward"),
        (FEED_FORWARD, "--activation-fn"),
        (FEED_FORWARD, "--ffn"),
        (NORM, "--norm"),
        (POSITIONS, "--positions"),
        (POSITIONS, "--decoder-positions"),
    ],
)
def test_parts_of_a_user_module_train_and_decode_in_translation(text, flag, user_file):
    shape = ["--encoder-layers", "1", "--decoder-layers", "1"]
    for side in ("encoder", "decoder"):
        shape += [f"--{side}-embed-dim", "16", f"--{side}-ffn-embed-dim", "16"]
        shape += [f"--{side}-attention-heads", "2"]
    config = settings_of(TransformerConfig, [flag, "mine", *shape, *user_file(text)])
    model = EncoderDecoder(config, 9, 9, 1).eval()
    source = torch.tensor([[4, 5, 6, 2]])
    target = torch.tensor([[2, 7, 8]])
    features = model(source, target)
    features.square().sum().backward()
    search = Stepping(model, source)
    for t in range(3):
        step_scores = search.step(target[:, t : t + 1]).log_probs
    torch.testing.assert_close(step_scores[:, 0], log_probs(model, source, target)[:, -1])


def test_fairseqs_spellings_of_positions_and_activation():
    flags = ["--encoder-learned-pos", "--no-token-positional-embeddings", "--activation-fn", "gelu"]
    config = settings_of(TransformerConfig, flags)
    assert (config.positions_of("encoder"), config.positions_of("decoder")) == ("learned", "none")
    assert config.feed_forward == "gelu"
    assert settings_of(TransformerConfig, ["--decoder-learned-pos"]).decoder_positions == "learned"


@pytest.mark.parametrize(
    ("text", "flag"), [(FEED_FORWARD, "--feed-forward"), (NORM, "--norm"), (BLOCK, "--block")]
)
def test_parts_of_a_user_module_train_in_vision(text, flag, user_file):
    shape = [
        "--image-size",
        "8",
        "--patch-size",
        "4",
        "--embed-dim",
        "16",
        "--layers",
        "2",
        "--heads",
        "2",
    ]
    config = settings_of(VisionTransformerConfig, [flag, "mine", *shape, *user_file(text)])
    model = VisionTransformer(config, 3)
    model(torch.randn(2, 3, 8, 8)).logits.sum().backward()
    assert None not in set(gradients(model).values())


def test_a_user_family_may_read_any_setting(user_file):
    flags = ["--family", "mine", "--embed-dim", "8", "--layers", "2", "--pooling", "mean"]
    config = settings_of(VisionTransformerConfig, [*flags, *user_file(FAMILY)])
    model = build_vision_model(config, 3)
    output = model(torch.randn(2, 3, 5, 7))
    assert type(model).__name__ == "MeanColor" and output.logits.shape == (2, 3)
    assert from_dict(VisionTransformerConfig, to_dict(config)) == config
