"""Mixup, cutmix, repeated views, and the losses of mixed classes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from relu_nmt.vision.base import cross_entropy, sigmoid_cross_entropy
from relu_nmt.vision.config import AugmentationConfig, PreprocessingConfig
from relu_nmt.vision.images import ImageBatch, ImageBatches, open_images
from relu_nmt.vision.transforms import ImageTransform, mix_images, sample_generator
from tests.tiny import loaded_epoch
from tests.unit.vision.made_images import make_squares


def batch(size=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(size, 3, 12, 10, generator=generator)
    return ImageBatch(torch.arange(size), images, torch.arange(size) % 3)


def mixes(mixup, cutmix, count=400):
    """Return a batch, its mixes with other generators, and their shares."""
    original = batch()
    mixed = [mix_images(original, mixup, cutmix, sample_generator(0, 1, i)) for i in range(count)]
    return original, mixed, np.array([mix.share for mix in mixed])


def is_cutmix(mix, b):
    same = mix.images == b.images
    return bool((same | (mix.images == b.images.flip(0))).all())


def test_mixup_weights_images_and_labels_alike():
    b, mixed, shares = mixes(0.8, 0.0)
    for mix in mixed:
        expected = mix.share * b.images + (1 - mix.share) * b.images.flip(0)
        torch.testing.assert_close(mix.images, expected)
        assert mix.labels.tolist() == b.labels.tolist()
        assert mix.other_labels.tolist() == b.labels.flip(0).tolist()
    # Beta(a, a) has mean 1/2 and variance 1 / (4 (2 a + 1)).
    assert shares.mean() == pytest.approx(0.5, abs=0.08)
    assert shares.var() == pytest.approx(1 / (4 * 2.6), rel=0.25)


def test_cutmix_keeps_its_share_of_the_pixels():
    b, mixed, shares = mixes(0.0, 1.0)
    for mix in mixed:
        unchanged = (mix.images == b.images).all(1)  # [B, height, width]
        assert is_cutmix(mix, b)
        for number in (0, 1, 3, 4):  # the middle one is mixed with itself
            assert unchanged[number].float().mean().item() == pytest.approx(mix.share, abs=1e-6)
        mixed_rows = (~unchanged[0]).any(1).sum()
        assert (~unchanged[0]).sum() == mixed_rows * (~unchanged[0]).any(0).sum()  # a box
    assert shares.min() < 0.2 and shares.max() > 0.9
    # Shares are uniform, plus the part of the box outside of the image.
    assert 0.5 < shares.mean() < 0.8


def test_mixup_and_cutmix_together_get_half_of_the_batches_each():
    b, mixed, _ = mixes(0.8, 1.0)
    assert 150 < sum(is_cutmix(mix, b) for mix in mixed) < 250
    again = mix_images(b, 0.8, 1.0, sample_generator(0, 1, 7))
    assert torch.equal(again.images, mixed[7].images) and again.share == mixed[7].share
    moved = again.to("meta")
    assert moved.images.is_meta and moved.other_labels.is_meta and moved.share == again.share


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_losses_match_those_of_dense_targets(smoothing, share):
    torch.manual_seed(0)
    logits = torch.randn(6, 4, dtype=torch.float64)
    labels, paired = torch.randint(4, (2, 6))
    hot = share * F.one_hot(labels, 4) + (1 - share) * F.one_hot(paired, 4)
    targets = (1 - smoothing) * hot.double() + smoothing / 4
    assert torch.allclose(targets.sum(1), torch.ones(6, dtype=torch.float64))
    dense = {
        cross_entropy: -(targets * logits.log_softmax(1)).sum(),
        sigmoid_cross_entropy: F.binary_cross_entropy_with_logits(logits, targets, reduction="sum"),
    }
    for loss, expected in dense.items():
        first = loss(logits, labels, smoothing)
        second = loss(logits, paired, smoothing)
        torch.testing.assert_close(share * first + (1 - share) * second, expected)


@pytest.fixture
def images(tmp_path):
    [images] = open_images(make_squares(tmp_path / "squares", 5)).values()
    return images


def batches(images, **settings):
    config = AugmentationConfig(**settings)
    transform = ImageTransform(PreprocessingConfig(), 8, config)
    return ImageBatches(images, transform, 4, 1, config)


def test_mixed_batches_can_be_repeated_and_validation_does_not_mix(images):
    source = batches(images, mixup=0.8, cutmix=1.0, rand_augment=2, random_erasing=0.2)
    first = loaded_epoch(source, 3)
    source = batches(images, mixup=0.8, cutmix=1.0, rand_augment=2, random_erasing=0.2)
    source.begin_epoch(3)
    for again, other in zip(map(source.load, (3, 2, 1, 0)), first[::-1], strict=True):
        assert torch.equal(again.images, other.images) and again.share == other.share
        assert torch.equal(again.labels, other.labels)
    assert len({mix.share for mix in first}) == 4
    config = AugmentationConfig(mixup=0.8)
    plain = ImageBatches(images, ImageTransform(PreprocessingConfig(), 8), 4, None, config)
    plain.begin_epoch(1)
    assert plain.load(0).other_labels is None


def test_repeated_augmentation_gives_several_views_of_fewer_images(images):
    source = batches(images, repeated_augmentation=3)
    loaded = loaded_epoch(source)
    assert len(loaded) == source.num_batches == 4
    assert [len(mix.ids) for mix in loaded] == [4, 4, 4, 3]
    ids = torch.cat([mix.ids for mix in loaded])
    assert ids.unique(return_counts=True)[1].tolist() == [3] * 5
    views = torch.cat([mix.images for mix in loaded])
    labels = torch.cat([mix.labels for mix in loaded])
    assert labels.tolist() == images.labels[ids.numpy()].tolist()
    assert ids[0] == ids[1] == ids[2]
    assert not torch.equal(views[::3], views[1::3])
    assert torch.cat([mix.ids for mix in loaded_epoch(source, 2)]).tolist() != ids.tolist()


def test_the_first_view_is_the_same_without_repetition(images):
    single = batches(images)
    triple = batches(images, repeated_augmentation=3)
    views = {}
    for source in (single, triple):
        for index in range(source.begin_epoch(1)):
            loaded = source.load(index)
            for number, view in zip(loaded.ids.tolist(), loaded.images, strict=True):
                views.setdefault((source is single, number), view)
    for (is_once, number), view in views.items():
        assert is_once or torch.equal(view, views[True, number])
