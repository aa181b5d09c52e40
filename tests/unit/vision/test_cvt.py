import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from relu_nmt.attention.base import Need
from relu_nmt.attention.records import record_attention
from relu_nmt.errors import ConfigError
from relu_nmt.vision.base import Grid, build_vision_model
from relu_nmt.vision.config import VisionTransformerConfig, architectures
from tests.tiny import num_parameters
from tests.unit.vision.families import UNFIT, without_decay

SMALL = {
    "family": "cvt",
    "image_size": 32,
    "embed_dim": 8,
    "stage_layers": (1, 2, 2),
    "stage_heads": (1, 2, 4),
    "feed_forward": "quick-gelu",
}


def small_model(**settings):
    torch.manual_seed(0)
    return build_vision_model(VisionTransformerConfig.of(**{**SMALL, **settings}), 5)


def randomized(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
    return model.eval()


def test_parameter_counts_and_map_sizes_match_the_paper():
    config = VisionTransformerConfig.of(**architectures["cvt_13_224"])
    with torch.device("meta"):
        model = build_vision_model(config, 1000)
        output = model.eval()(torch.zeros(1, 3, 224, 224), blocks=range(13))
    assert num_parameters(model) == 19_997_480
    shapes = [tuple(picture.shape[1:]) for picture in output.intermediate.values()]
    assert shapes == [(64, 56, 56)] + [(192, 28, 28)] * 2 + [(384, 14, 14)] * 10
    assert output.features.shape == (1, 384)
    assert model.num_tokens == 56**2
    for stage, dim in zip(model.stages, (64, 192, 384), strict=True):
        for block in stage:
            assert num_parameters(block) == 12 * dim**2 + 46 * dim
    rates = [block.feed_forward_residual.drop_path for block in itertools.chain(*model.stages)]
    assert rates == pytest.approx([0.0, 0.0, 0.0, *np.linspace(0, 0.1, 10)])


class Published(nn.Module):
    """CvT as its paper and public code describe it, with the weights of one of our models."""

    def __init__(self, weights, layers, heads):
        super().__init__()
        self.weights = weights
        self.layers = layers
        self.heads = heads

    def norm(self, x, name):
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def linear(self, x, name):
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def projected(self, x, height, width, block, part, stride):
        """Convolve the patches, leave the class token, and map both."""
        name = f"{block}.attention.{part}_convolution"
        num_extra = x.shape[1] - height * width
        image = x[:, num_extra:].transpose(1, 2).reshape(len(x), -1, height, width)
        kernel = self.weights[f"{name}.0.weight"]
        image = F.conv2d(image, kernel, stride=stride, padding=1, groups=len(kernel))
        image = F.batch_norm(
            image,
            self.weights[f"{name}.1.running_mean"],
            self.weights[f"{name}.1.running_var"],
            self.weights[f"{name}.1.weight"],
            self.weights[f"{name}.1.bias"],
        )
        tokens = torch.cat([x[:, :num_extra], image.flatten(2).transpose(1, 2)], 1)
        return self.linear(tokens, f"{block}.attention.{part}")

    def attention(self, x, height, width, block, heads):
        q = self.projected(x, height, width, block, "q", stride=1)
        k = self.projected(x, height, width, block, "k", stride=2)
        v = self.projected(x, height, width, block, "v", stride=2)
        dim = q.shape[-1]
        joined = []
        for channels in torch.arange(dim).chunk(heads):
            scores = q[..., channels] @ k[..., channels].transpose(1, 2) / dim**0.5
            weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
            joined.append(weights @ v[..., channels])
        return self.linear(torch.cat(joined, -1), f"{block}.attention.out_proj")

    def forward(self, image):
        for stage, (layers, heads) in enumerate(zip(self.layers, self.heads, strict=True)):
            name = f"embeddings.{stage}"
            kernel = self.weights[f"{name}.convolution.weight"]
            bias = self.weights[f"{name}.convolution.bias"]
            stride, padding = (2, 1) if stage else (4, 2)
            image = F.conv2d(image, kernel, bias, stride=stride, padding=padding)
            height, width = image.shape[2:]
            x = self.norm(image.flatten(2).transpose(1, 2), f"{name}.norm")
            if stage == len(self.layers) - 1:
                x = torch.cat([self.weights["class_token"].expand(len(x), 1, -1), x], 1)
            for index in range(layers):
                block = f"stages.{stage}.{index}"
                y = self.norm(x, f"{block}.attention_residual.norm")
                x = x + self.attention(y, height, width, block, heads)
                y = self.norm(x, f"{block}.feed_forward_residual.norm")
                y = self.linear(y, f"{block}.feed_forward.inner")
                y = y / (1 + (-1.702 * y).exp())
                x = x + self.linear(y, f"{block}.feed_forward.outer")
            patches = x[:, -height * width :]
            image = patches.transpose(1, 2).reshape(len(x), -1, height, width)
        return self.linear(self.norm(x[:, 0], "norm"), "head")


@pytest.mark.parametrize(("height", "width"), [(32, 32), (29, 50)])
def test_the_forward_pass_matches_the_formula(height, width):
    model = randomized(small_model()).double()
    published = Published(model.state_dict(), SMALL["stage_layers"], SMALL["stage_heads"])
    images = torch.randn(2, 3, height, width, dtype=torch.float64)
    torch.testing.assert_close(model(images).logits, published(images).float())


@pytest.mark.parametrize("name", ["reluformer", "polynomial:power=3", "pointwise:qk_norm=true"])
def test_scores_are_divided_by_the_square_root_of_the_width(name):
    attend = randomized(small_model(attention=name)).stages[2][0].attention.double()
    call = {}
    attend.attention.register_forward_hook(
        lambda module, args, kwargs, output: call.update(args=args, values=output.values),
        with_kwargs=True,
    )
    attend(torch.randn(2, 7, 32, dtype=torch.float64), Grid(2, 3))
    q, k, v, visibility = call["args"]
    assert (q.shape[2], k.shape[2], visibility.counts.item()) == (7, 3, 3)
    # The queries are divided by sqrt(H) before the mechanism divides scores by sqrt(D / H).
    scores = (q * 4**0.5) @ k.transpose(-1, -2) / 32**0.5
    if name == "reluformer":
        weights = scores.relu() / 1.5**0.5
    elif name.startswith("polynomial"):
        weights = scores**3 / 3**0.5
    else:
        weights = scores.relu() / 3
    torch.testing.assert_close(call["values"], weights @ v)


def test_sima_normalizes_queries_and_keys_over_their_own_tokens():
    attend = randomized(small_model(attention="sima")).stages[1][0].attention.double()
    captured = {}
    attend.attention.register_forward_hook(
        lambda module, args, kwargs, output: captured.update(args=args, values=output.values),
        with_kwargs=True,
    )
    attend(torch.randn(2, 30, 16, dtype=torch.float64), Grid(5, 6))
    q, k, v, _ = captured["args"]
    q = q / q.abs().sum(2, keepdim=True)
    k = k / k.abs().sum(2, keepdim=True)
    assert (q.shape[2], k.shape[2]) == (30, 9)
    torch.testing.assert_close(captured["values"], q @ k.transpose(-1, -2) @ v)


@pytest.mark.parametrize("name", sorted(UNFIT["cvt"]))
def test_an_attention_that_needs_as_many_keys_as_queries_is_refused(name):
    with pytest.raises(ConfigError, match=f"--attention {name}: it needs as many keys .* softmax"):
        small_model(attention=name)


@pytest.mark.parametrize(
    ("size", "of_first", "of_last"),
    [((3, 3), (1, 1), (1, 1)), ((4, 17), (1, 4), (1, 1)), ((37, 61), (9, 15), (3, 4))],
)
def test_cvt_takes_images_of_any_size(size, of_first, of_last):
    output = small_model().eval()(torch.randn((2, 3, *size)), blocks=[0, 4])
    assert torch.isfinite(output.logits).all()
    assert output.intermediate[0].shape[2:] == of_first
    assert output.intermediate[4].shape[2:] == of_last


def test_an_image_below_3_pixels_is_an_error():
    with pytest.raises(ConfigError, match="--image-size 2: CvT needs 3 or more"):
        small_model(image_size=2)
    with pytest.raises(ConfigError, match="--image-size 5x2: CvT needs 3 or more"):
        small_model()(torch.randn(1, 3, 5, 2))


@pytest.mark.parametrize("name", ["softmax", "reluformer", "sima"])
def test_bfloat16_is_close_to_float32(name):
    model = randomized(small_model(attention=name))
    images = torch.randn(2, 3, 33, 31)
    expected = model(images).logits
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(images).logits
    assert logits.dtype == torch.float32
    # bfloat16 has 8 bits. Errors of some roundings in five blocks.
    assert (logits - expected).norm() < 0.1 * expected.norm()


@pytest.mark.parametrize(
    ("family", "height", "width"), [("cvt", 3, 3), ("cvt", 17, 5), ("xcit", 9, 1)]
)
def test_kernels_wider_than_the_map_have_a_finite_gradient_in_bfloat16(family, height, width):
    # oneDNN leaves entries that see only padding as they were in memory, here not a number.
    shape = {"cvt": {**SMALL, "embed_dim": 16}, "xcit": {"family": "xcit"}}[family]
    config = VisionTransformerConfig.of(**{**shape, "attention": "softmax"})
    model = build_vision_model(config, 5)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    for seed in range(5):
        torch.manual_seed(seed)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(torch.randn(4, 3, height, width)).logits
        # Fill memory of the size of each gradient, and give it back.
        for module in convolutions:
            shape = module.weight.shape
            garbage = [torch.full(shape, torch.nan, dtype=torch.bfloat16) for _ in range(9)]
            del garbage
        model.zero_grad()
        logits.square().sum().backward()
        assert all(module.weight.grad.isfinite().all() for module in convolutions)


def test_only_the_last_stage_has_a_class_token_outside_the_convolutions():
    model = randomized(small_model())
    with record_attention(model, Need(telemetry=True)) as records:
        model(torch.randn(2, 3, 32, 32))
    visibilities = [record.visibility for record in records]
    assert [v.num_queries for v in visibilities] == [64, 16, 16, 4 + 1, 4 + 1]
    assert [v.counts.item() for v in visibilities] == [16, 4, 4, 1 + 1, 1 + 1]
    convolved = []
    convolution = model.stages[2][0].attention.q_convolution
    convolution.register_forward_pre_hook(lambda module, args: convolved.append(args[0]))
    model(torch.randn(2, 3, 32, 32))
    assert convolved[0].shape == (2, 32, 2, 2)


def test_weight_decay_spares_norms_biases_and_the_class_token():
    exempt = without_decay(small_model())
    norms = {"stages.0.0.attention.q_convolution.1.weight", "embeddings.0.norm.weight"}
    assert {"class_token", *norms} <= exempt
    assert not {"embeddings.0.convolution.weight", "stages.0.0.attention.q.weight"} & exempt
