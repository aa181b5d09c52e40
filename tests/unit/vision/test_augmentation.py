"""RandAugment, color jitter and random erasing."""

from functools import partial

import numpy as np
import pytest
from PIL import Image

from relu_nmt.vision.config import AugmentationConfig, PreprocessingConfig
from relu_nmt.vision.transforms import (
    FORMS,
    ImageTransform,
    augmented,
    erased,
    operations,
    sample_generator,
)

GRAY = (0.5, 0.5, 0.5)
FILL = (128, 128, 128)


def noise(size=(16, 12), seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def values(image):
    return np.asarray(image).astype(int)


@pytest.mark.parametrize("form", FORMS)
def test_views_depend_only_on_the_generator_and_keep_size_and_mode(form):
    config = AugmentationConfig(rand_augment=2, rand_augment_form=form, color_jitter=0.4)
    image = noise()
    views = []
    for number in range(60):
        first = augmented(image, config, GRAY, sample_generator(1, 2, number))
        second = augmented(image, config, GRAY, sample_generator(1, 2, number))
        assert (first.size, first.mode) == (image.size, "RGB")
        assert first.tobytes() == second.tobytes()
        views.append(first.tobytes())
    assert len(set(views)) > 50
    assert image.tobytes() == noise().tobytes()  # the picture itself stays


def seen_operations(monkeypatch, form, count, **settings):
    """Return the arguments of each operation applied to many images, one tuple for each use."""
    applied = dict.fromkeys(FORMS[form].arguments, ())
    config = AugmentationConfig(rand_augment=2, rand_augment_form=form, **settings)

    def record(name, image, *arguments):
        applied[name] += (arguments,)
        return image

    recorders = {name: partial(record, name) for name in FORMS[form].arguments}
    monkeypatch.setattr("relu_nmt.vision.transforms.operations", lambda fill: recorders)
    for number in range(count):
        augmented(noise(), config, GRAY, sample_generator(0, 1, number))
    return applied


def test_the_increasing_form_applies_half_of_its_operations_around_the_magnitude(monkeypatch):
    by_name = seen_operations(monkeypatch, "increasing", 3000)
    uses = list(map(len, by_name.values()))
    assert sum(uses) == pytest.approx(3000, abs=5 * (6000 / 4) ** 0.5)  # 2 a picture, half done
    assert len(uses) == 15 and min(uses) > 150 and max(uses) < 260  # 200 of each
    angles = np.array(by_name["rotate"])
    assert np.abs(angles).mean() == pytest.approx(27, abs=0.5)
    assert np.abs(angles).std() == pytest.approx(1.5, rel=0.35)  # 30 * .5 / 10, cut off at 30
    assert np.abs(angles).max() <= 30
    assert 0.35 < (angles > 0).mean() < 0.65
    factors = np.array(by_name["color"])
    assert set(np.round(factors[:, 0], 1)) <= {0.1, 0.2, 0.3, 1.7, 1.8, 1.9}
    assert set(by_name["posterize"]) <= {(0,), (1,)}
    assert set(by_name["invert"]) == {()}


def test_the_original_form_applies_all_operations_and_allows_magnitudes_above_10(monkeypatch):
    by_name = seen_operations(
        monkeypatch, "original", 1600, rand_augment_magnitude=15, rand_augment_std=0
    )
    assert sum(map(len, by_name.values())) == 3200
    assert set(by_name["rotate"]) == {(45.0,), (-45.0,)}
    assert np.array(by_name["brightness"]) == pytest.approx(2.8)
    assert set(by_name["posterize"]) == {(6,)}
    assert set(by_name["solarize"]) == {(384,)}
    assert set(by_name["solarize_add"]) == {(165,)}
    sizes, positions = zip(*(hole for [hole] in by_name["cutout"]), strict=True)
    assert np.array(sizes) == pytest.approx(60 / 224, abs=5e-4)
    assert len(np.unique(positions, axis=0)) > 100
    assert np.min(positions) >= 0 and (np.max(positions, axis=0) < [16, 12]).all()


def test_color_operations_match_their_definitions():
    image = noise()
    done = operations(FILL)
    v = values(image)
    assert np.array_equal(values(done["invert"](image)), 255 - v)
    assert np.array_equal(values(done["solarize"](image, 100)), np.where(v >= 100, 255 - v, v))
    assert np.array_equal(values(done["solarize"](image, 384)), v)
    added = np.where(v < 128, np.minimum(v + 60, 255), v)
    assert np.array_equal(values(done["solarize_add"](image, 60)), added)
    for bits in (0, 1, 4, 7):
        assert np.array_equal(values(done["posterize"](image, bits)), v >> (8 - bits) << (8 - bits))
    assert np.array_equal(values(done["posterize"](image, 8)), v)
    for factor in (0.1, 0.6, 1.9):
        assert (
            np.abs(values(done["brightness"](image, factor)) - np.clip(v * factor, 0, 255)).max()
            <= 1
        )
        gray = (v @ [0.299, 0.587, 0.114])[..., None]
        expected = np.clip(gray + factor * (v - gray), 0, 255)
        assert np.abs(values(done["color"](image, factor)) - expected).max() <= 2
        mean = round(gray.mean())
        expected = np.clip(mean + factor * (v - mean), 0, 255)
        assert np.abs(values(done["contrast"](image, factor)) - expected).max() <= 2


def test_geometric_operations_match_their_definitions():
    image = noise()
    done = operations(FILL)
    v = values(image)
    right = values(done["translate_x"](image, 0.25))  # of 16 pixels
    assert np.array_equal(right[:, :12], v[:, 4:]) and (right[:, 12:] == 128).all()
    down = values(done["translate_y"](image, -0.25))  # of 12 pixels
    assert np.array_equal(down[3:], v[:9]) and (down[:3] == 128).all()
    sheared = values(done["shear_x"](image, 1.0))  # row y moves by y (and by half a pixel)
    assert (sheared[10, 10:] == 128).all()
    turned = values(done["rotate"](image, 180))
    assert np.array_equal(turned, v[::-1, ::-1])
    hole = values(done["cutout"](image, (2 / 16, np.array([15, 1]))))
    inside = np.zeros((12, 16), bool)
    inside[0:3, 13:16] = True
    assert (hole[inside] == 128).all() and np.array_equal(hole[~inside], v[~inside])


def test_color_jitter_stays_within_its_share():
    config = AugmentationConfig(color_jitter=0.3)
    plain = Image.new("RGB", (4, 4), (100, 100, 100))  # contrast and saturation leave it alone
    grays = []
    for number in range(300):
        jittered = augmented(plain, config, GRAY, sample_generator(0, 1, number))
        grays.append(values(jittered)[0, 0, 0])
    assert 70 <= min(grays) < 75 and 125 < max(grays) <= 130


def test_random_erasing_puts_noise_on_2_to_33_percent_of_some_images():
    pixels = np.full((3, 40, 30), 9.0, dtype=np.float32)
    shares = []
    ratios = []
    for number in range(1000):
        result = erased(pixels, 0.25, sample_generator(0, 1, number))
        changed = (result != 9).any(0)
        if not changed.any():
            continue
        height = np.ptp(np.flatnonzero(changed.any(1))) + 1
        width = np.ptp(np.flatnonzero(changed.any(0))) + 1
        assert changed.sum() == height * width  # one box
        shares.append(height * width / (40 * 30))
        ratios.append(height / width)
    assert (pixels == 9).all()
    assert 180 < len(shares) < 320
    assert 0.015 < min(shares) < 0.05 and 0.25 < max(shares) < 0.35
    assert 0.25 < min(ratios) < 0.5 and 2 < max(ratios) < 4


def test_augmentation_changes_only_training_views_and_none_if_off():
    image = noise((20, 20))
    preprocessing = PreprocessingConfig()
    plain = ImageTransform(preprocessing, 16)
    off = ImageTransform(preprocessing, 16, AugmentationConfig())
    on = ImageTransform(preprocessing, 16, AugmentationConfig(random_erasing=0.9))
    num_changed = 0
    for number in range(20):
        views = [t.training(image, sample_generator(1, 1, number)) for t in (plain, off, on)]
        assert np.array_equal(views[0], views[1])
        # The crop is drawn first, so pixels that are not erased are the same.
        same = (views[0] == views[2]).all(0)
        assert same.mean() > 0.6
        num_changed += not same.all()
    assert num_changed > 12
    assert np.array_equal(plain.evaluation(image), on.evaluation(image))
