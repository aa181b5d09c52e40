import math

import pytest
import torch

from relu_nmt.attention.base import Need
from relu_nmt.attention.records import record_attention
from relu_nmt.attention.regularizer import regularizer_terms
from relu_nmt.errors import ConfigError
from relu_nmt.modules.config import AttentionRegularizerConfig
from relu_nmt.vision.base import ImageObjective
from relu_nmt.vision.config import VisionTransformerConfig
from relu_nmt.vision.images import ImageBatch
from relu_nmt.vision.vision_transformer import VisionTransformer

OFF = AttentionRegularizerConfig()


def objective(smoothing=0.0, regularizer=OFF, attention="reluformer"):
    torch.manual_seed(0)
    config = VisionTransformerConfig(
        attention=attention, image_size=8, patch_size=4, embed_dim=16, layers=2, heads=2
    )
    return ImageObjective(VisionTransformer(config, 3).double(), smoothing, regularizer)


def batch(size=4):
    torch.manual_seed(1)
    images = torch.randn(size, 3, 8, 8, dtype=torch.float64)
    return ImageBatch(torch.arange(size), images, torch.arange(size) % 3)


def test_loss_is_the_sum_over_images_plus_the_mean_regularizer():
    criterion = objective(0.1, AttentionRegularizerConfig(0.3, 0.2, 0.1)).train()
    b = batch()
    with record_attention(criterion.model, Need(statistics=True)) as records:
        output = criterion.model(b.images)
    log_probs = output.logits.double().log_softmax(-1)
    expected = 0.0
    for scores, label in zip(log_probs, b.labels, strict=True):
        expected -= 0.9 * scores[label] + 0.1 / 3 * scores.sum()
    terms = [regularizer_terms(r.statistics, r.visibility, 0.1) for r in records]
    assert len(terms) == 2
    penalty = sum(0.3 * norm + 0.2 * entropy for norm, entropy in terms) / 2
    result = criterion(b)
    assert result.sample_size == 4
    # The logits are float32.
    torch.testing.assert_close(
        result.loss.double(), (expected + 4 * penalty).double(), rtol=1e-5, atol=0
    )
    assert result.metrics["loss"][0].item() == pytest.approx(expected.item(), rel=1e-5)
    assert {"attention_norm", "attention_entropy"} < result.metrics.keys()


def test_validation_is_plain_cross_entropy_with_accuracy_in_percent():
    criterion = objective(0.5, AttentionRegularizerConfig(1.0, 1.0)).eval()
    b = batch(5)
    result = criterion(b)
    logits = criterion.model(b.images).logits
    expected = torch.nn.functional.cross_entropy(logits, b.labels, reduction="sum")
    torch.testing.assert_close(result.loss, expected)
    accuracy, count = result.metrics["accuracy"]
    right = (logits.argmax(1) == b.labels).sum()
    assert accuracy / count == pytest.approx(float(100 * right / 5))
    assert result.metrics.keys() == {"loss", "accuracy"}


def test_telemetry_names_every_block_and_head():
    result = objective()(batch(), telemetry=True)
    blocks = {name.split("/")[1] for name in result.telemetry}
    assert blocks == {"encoder.0.0", "encoder.0.1", "encoder.1.0", "encoder.1.1"}
    assert 0 < result.telemetry["attention/encoder.0.0/entropy"] < math.log(5)
    assert objective()(batch()).telemetry == {}


def test_the_regularizer_refuses_signed_attention():
    with pytest.raises(ConfigError, match="never negative"):
        objective(0.0, AttentionRegularizerConfig(0.1), "polynomial:power=3")
