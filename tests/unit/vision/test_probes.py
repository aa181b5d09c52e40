"""k-NN against all pairs one by one, ridge regression against least squares."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from relu_nmt.vision.base import VisionOutput, build_vision_model
from relu_nmt.vision.config import PreprocessingConfig, VisionTransformerConfig, architectures
from relu_nmt.vision.probes import (
    choose_shots,
    joined_features,
    neighbor_scores,
    percent_right,
    ridge_scores,
)
from relu_nmt.vision.transforms import ImageTransform


def clusters(count, classes=4, dim=6, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=count)
    centers = np.random.default_rng(99).normal(size=(classes, dim))
    return torch.tensor(centers[labels] + rng.normal(size=(count, dim))), torch.tensor(labels)


def train_and_test(num_train, num_test, dim=6):
    """Return points of clusters, their labels, and other points."""
    train, labels = clusters(num_train, dim=dim)
    test, _ = clusters(num_test, dim=dim, seed=1)
    return train, labels, test


@pytest.mark.parametrize("neighbors", [1, 5, 500])
def test_neighbors_match_a_loop_over_all_pairs(neighbors):
    train, labels, test = train_and_test(60, 17)
    scores = neighbor_scores(train, labels, test, 4, neighbors, 0.07)
    for row, query in zip(scores.tolist(), test, strict=True):
        cosines = torch.cosine_similarity(query[None], train).tolist()
        best = sorted(range(60), key=cosines.__getitem__, reverse=True)[:neighbors]
        expected = [0.0] * 4
        for i in best:
            expected[labels[i]] += math.exp((cosines[i] - cosines[best[0]]) / 0.07)
        assert row == pytest.approx(expected, rel=1e-3)


def test_votes_at_a_small_temperature_are_finite():
    train, labels, test = train_and_test(60, 17)
    scores = neighbor_scores(train, labels, test, 4, neighbors=20, temperature=0.001)
    assert scores.isfinite().all()
    nearest = neighbor_scores(train, labels, test, 4, neighbors=1)
    assert torch.equal(scores.argmax(1), nearest.argmax(1))


def test_many_queries_are_computed_in_parts(monkeypatch):
    train, labels, test = train_and_test(60, 17)
    expected = neighbor_scores(train, labels, test, 4)
    monkeypatch.setattr("relu_nmt.vision.probes.QUERIES_AT_ONCE", 5)
    torch.testing.assert_close(neighbor_scores(train, labels, test, 4), expected)


@pytest.mark.parametrize(("count", "dim"), [(40, 6), (8, 30)])  # more images, more features
def test_ridge_regression_matches_numpys_least_squares(count, dim):
    train, labels, test = train_and_test(count, 9, dim)
    scores = ridge_scores(train.float().double(), labels, test, 4, l2=1024.0)
    # (X^T X + l I)^-1 X^T Y is the least-squares solution of X and sqrt(l) I over Y and 0.
    shots = train.numpy().astype(np.float32).astype(np.float64)
    mean = shots.mean(0)
    std = shots.std(0) + 1e-5
    x = np.column_stack([(shots - mean) / std, np.full(count, 100.0)])
    y = np.where(np.arange(4) == labels.numpy()[:, None], 1.0, -1.0)
    padded = np.vstack([x, 32.0 * np.eye(dim + 1)]), np.vstack([y, np.zeros((dim + 1, 4))])
    weights, *_ = np.linalg.lstsq(*padded, rcond=None)
    expected = np.column_stack([(test.numpy() - mean) / std, np.full(9, 100.0)]) @ weights
    np.testing.assert_allclose(scores.numpy(), expected, rtol=1e-8, atol=1e-10)


def test_constant_features_are_harmless():
    shots = torch.ones(6, 3)
    assert ridge_scores(shots, torch.tensor([0, 1] * 3), shots, 2).isfinite().all()


def test_shots_cover_each_class_and_depend_on_the_seed():
    labels = np.array([2, 0, 0, 2, 0, 1, 2, 0])
    indices = choose_shots(labels, 3, 2, seed=0)
    assert labels[indices].tolist() == [0, 0, 1, 2, 2]  # there is one of class 1
    assert len(set(indices.tolist())) == 5
    assert indices.tolist() == choose_shots(labels, 3, 2, seed=0).tolist()
    assert len({tuple(choose_shots(labels, 3, 2, seed)) for seed in range(20)}) > 5


def test_top_k_accuracy_in_percent():
    scores = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [3.0, 1.0, 2.0]])
    labels = torch.tensor([0, 1, 2, 1])
    assert percent_right(scores, labels) == [50.0, 100.0]
    scores = torch.arange(6.0).expand(4, 6)
    assert percent_right(scores, torch.tensor([5, 1, 0, 2])) == [25.0, 75.0]


def test_squeezing_takes_the_middle_of_the_squeezed_picture():
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (64, 128, 3), dtype=np.uint8))
    config = PreprocessingConfig(eval_crop_ratio=0.875, pixel_mean=(0.0,) * 3, pixel_std=(1.0,) * 3)
    pixels = ImageTransform(config, 28, squeeze=True).evaluation(image)
    square = np.asarray(image.resize((32, 32), Image.Resampling.BICUBIC))[2:30, 2:30]
    assert np.abs(255 * pixels - square.transpose(2, 0, 1)).mean() < 3  # the same but for rounding
    cropped = ImageTransform(config, 28).evaluation(image)
    assert np.abs(255 * cropped - square.transpose(2, 0, 1)).mean() > 20


def standardized(x):
    return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True, correction=0)


def test_joined_features_are_class_tokens_or_means_of_patches():
    torch.manual_seed(1)
    patches = torch.randn(2, 5, 3, 4)
    token = torch.randn(2, 6)
    output = VisionOutput(torch.zeros(2, 1), torch.zeros(2, 1), {4: patches}, {7: token})
    features = joined_features(output)
    expected = torch.cat([standardized(patches).mean((2, 3)), standardized(token)], 1)
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)
    output.intermediate[7] = torch.randn(2, 6, 3, 4)  # the class token goes before
    assert torch.equal(joined_features(output), features)


@pytest.mark.parametrize("arch", ["xcit_small_12", "vit_small"])
def test_the_models_of_the_paper_have_1536_joined_features(arch):
    config = VisionTransformerConfig.of(**architectures[arch], image_size=32)
    model = build_vision_model(config, 2).eval()
    last = range(config.num_blocks - 4, config.num_blocks)
    with torch.no_grad():
        assert joined_features(model(torch.zeros(1, 3, 32, 32), last)).shape == (1, 1536)
