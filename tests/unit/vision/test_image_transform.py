import itertools
from functools import partial

import numpy as np
import pytest
from PIL import Image

from relu_nmt.errors import ConfigError
from relu_nmt.jobs.vision_train.settings import ImageTrainingSettings
from relu_nmt.vision.config import PreprocessingConfig
from relu_nmt.vision.transforms import ImageTransform, sample_generator

PLAIN = {"pixel_mean": (0.0, 0.0, 0.0), "pixel_std": (1.0, 1.0, 1.0), "flip": False}


def noise(width, height, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def pixels_of(image):
    return np.asarray(image).transpose(2, 0, 1) / np.float32(255)


@pytest.mark.parametrize("crop", ["padded", "resized", "none"])
def test_a_view_depends_only_on_seed_epoch_and_index(crop):
    transform = ImageTransform(PreprocessingConfig(train_crop=crop), 8)
    image = noise(11, 9)

    def view(*key):
        return transform.training(image, sample_generator(*key))

    first = view(1, 2, 3)
    assert first.shape == (3, 8, 8) and first.dtype == np.float32
    assert np.array_equal(first, view(1, 2, 3))
    for position in range(3):  # another seed, epoch or number changes some view
        views = []
        for step in range(20):
            key = [1, 2, 3]
            key[position] += step
            views.append(view(*key).tobytes())
        assert len(set(views)) > 1


def test_the_padded_crop_moves_the_image_by_up_to_the_padding():
    transform = ImageTransform(PreprocessingConfig(**PLAIN, train_crop="padded"), 8)
    image = noise(8, 8)
    padded = np.pad(np.asarray(image).transpose(2, 0, 1), ((0, 0), (4, 4), (4, 4)))
    windows = {}
    for y, x in itertools.product(range(9), range(9)):
        windows[padded[:, y : y + 8, x : x + 8].tobytes()] = (y, x)
    views = set()
    for number in range(2000):
        view = transform.training(image, sample_generator(0, 1, number))
        views.add(np.rint(255 * view).astype(np.uint8).tobytes())
    # Each of 81 places is missed with probability (80/81)^2000 = 2e-11.
    assert len(windows) == 81 and views == windows.keys()


def test_half_of_the_images_are_mirrored():
    transform = ImageTransform(PreprocessingConfig(**{**PLAIN, "flip": True}, train_crop="none"), 8)
    image = noise(8, 8)
    plain = pixels_of(image)
    mirrored = 0
    for i in range(400):
        view = transform.training(image, sample_generator(0, 1, i))
        assert np.allclose(view, plain) or np.allclose(view, plain[:, :, ::-1])
        mirrored += not np.allclose(view, plain)
    assert 150 < mirrored < 250  # five standard deviations


def test_resized_crops_have_random_areas_inside_the_picture():
    """Every picture row and column is constant in one channel, so a view tells its place."""
    x, y = np.meshgrid(np.arange(200), np.arange(100))
    image = Image.fromarray(np.stack([x, 2 * y, 0 * x], 2).astype(np.uint8))
    transform = ImageTransform(PreprocessingConfig(**PLAIN, train_crop="resized"), 10)
    areas = []
    ratios = []
    for i in range(300):
        view = 255 * transform.training(image, sample_generator(0, 1, i))
        width = (view[0, 0, -2] - view[0, 0, 1]) / 7 * 10
        height = (view[1, -2, 0] - view[1, 1, 0]) / 7 * 10 / 2
        areas.append(width * height / (200 * 100))
        ratios.append(width / height)
    assert 0.06 < min(areas) < 0.15
    assert 0.4 < max(areas) <= 0.72  # a picture twice as wide as high has no larger legal crop
    assert 0.7 < min(ratios) < 0.85
    assert 1.2 < max(ratios) < 1.45


def test_validation_crops_the_middle():
    config = PreprocessingConfig(**PLAIN)
    image = noise(8, 8)
    transform = ImageTransform(config, 8)
    assert np.allclose(transform.evaluation(image), pixels_of(image))
    wide = Image.new("RGB", (24, 8))
    wide.paste(image, (8, 0))
    assert np.allclose(transform.evaluation(wide), pixels_of(image))
    large = Image.new("RGB", (16, 16))
    large.paste(image, (4, 4))
    half = ImageTransform(PreprocessingConfig(**PLAIN, eval_crop_ratio=0.5), 8)
    assert np.allclose(half.evaluation(large), pixels_of(image))


@pytest.mark.parametrize("size", [(1, 1), (3, 500), (500, 3), (7, 7)])
@pytest.mark.parametrize("crop", ["padded", "resized", "none"])
def test_pictures_of_any_shape_become_squares(size, crop):
    transform = ImageTransform(PreprocessingConfig(train_crop=crop), 8)
    image = noise(*size)
    assert transform.evaluation(image).shape == (3, 8, 8)
    for i in range(20):
        assert transform.training(image, sample_generator(0, 1, i)).shape == (3, 8, 8)


def test_pixels_are_normalized():
    config = PreprocessingConfig(pixel_mean=(0.5, 0.25, 0.0), pixel_std=(0.5, 0.25, 2.0))
    view = ImageTransform(config, 2).evaluation(Image.new("RGB", (2, 2), (255, 0, 51)))
    assert np.allclose(view[:, 0, 0], [1.0, -1.0, 0.1])


def test_the_defaults_follow_the_image_size():
    config = PreprocessingConfig()
    assert (config.crop_of(32), config.eval_ratio_of(32)) == ("padded", 1.0)
    assert (config.crop_of(224), config.eval_ratio_of(224)) == ("resized", 0.875)


def test_a_warm_up_in_epochs_takes_the_place_of_a_recipe_s_warm_up_in_updates():
    settings = partial(ImageTrainingSettings.of, data="photos", recipe="bigvision_i1k")
    assert settings().trainer.schedule.warmup_updates == 10_000
    assert settings(warmup_epochs=0.0).trainer.schedule.warmup_updates == 10_000
    trainer = settings(warmup_epochs=5.0).trainer
    assert (trainer.warmup_epochs, trainer.schedule.warmup_updates) == (5.0, None)
    with pytest.raises(ConfigError, match=r"--warmup-updates"):
        settings(warmup_epochs=5.0, warmup_updates=100)


def test_a_recipe_may_set_options_that_another_size_does_not_use():
    settings = partial(ImageTrainingSettings.of, data="photos", recipe="bigvision_i1k")
    assert settings(image_size=64).preprocessing.crop_min_area == 0.05
    assert settings(image_size=(64, 97), crop_min_area=0.5)
    with pytest.raises(ConfigError, match=r"--crop-min-area 0\.5 does nothing at --image-size 64"):
        settings(image_size=64, crop_min_area=0.5)


@pytest.mark.parametrize(
    "settings",
    [
        {"crop_min_area": 0.0},
        {"eval_crop_ratio": 1.5},
        {"crop_padding": -1},
        {"pixel_std": (0,) * 3},
        {"pixel_std": "0.5,0.5"},
        {"pixel_mean": (0.5, float("nan"), 0.5)},
    ],
)
def test_values_out_of_range_are_errors(settings):
    with pytest.raises(ConfigError, match="expected"):
        PreprocessingConfig(**settings)


def test_non_square_sizes_crop_a_middle_of_their_shape():
    transform = ImageTransform(PreprocessingConfig(**PLAIN, eval_crop_ratio=1.0), (4, 6))
    image = noise(12, 20)
    middle = (0, 6, 12, 14)  # 12 x 8 is the largest part of 6 : 4
    expected = image.resize((6, 4), Image.Resampling.BICUBIC, box=middle)
    np.testing.assert_allclose(transform.evaluation(image), pixels_of(expected), rtol=1e-6)
    np.testing.assert_allclose(transform.evaluation(expected), pixels_of(expected), rtol=1e-6)


def test_resized_crops_vary_around_the_aspect_ratio_of_the_result(monkeypatch):
    boxes = []

    def resized_part(image, box, sides):
        boxes.append(box)
        return Image.new("RGB", sides[::-1])

    monkeypatch.setattr("relu_nmt.vision.transforms.resized_part", resized_part)
    transform = ImageTransform(PreprocessingConfig(**PLAIN, train_crop="resized"), (100, 200))
    for number in range(300):
        transform.training(noise(40, 30), sample_generator(0, 1, number))
    left, top, right, bottom = np.transpose(boxes)
    shapes = (right - left) / (bottom - top)
    assert 1.5 <= min(shapes) < 1.6 and 2.5 < max(shapes) <= 8 / 3
    assert np.median(shapes) == pytest.approx(2, abs=0.15)
