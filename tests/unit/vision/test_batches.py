import numpy as np
import pytest
import torch

from relu_nmt.errors import DataError
from relu_nmt.vision.config import PreprocessingConfig
from relu_nmt.vision.images import ImageBatches, open_images, reporter_of_damaged
from relu_nmt.vision.transforms import ImageTransform
from tests.tiny import loaded_epoch
from tests.unit.vision.made_images import make_squares, zip_folder


@pytest.fixture
def images(tmp_path):
    [images] = open_images(make_squares(tmp_path / "squares", 5)).values()
    return images


def batches(images, seed):
    return ImageBatches(images, ImageTransform(PreprocessingConfig(), 8), 4, seed)


def same(first, second):
    """Tell whether batches have the same images, and the images the same values."""
    for a, b in zip(first, second, strict=True):
        if not torch.equal(a.images, b.images) or not torch.equal(a.ids, b.ids):
            return False
    return True


def joined(batches, field):
    """Return a field of all batches as one tensor."""
    return torch.cat([getattr(batch, field) for batch in batches])


def test_every_epoch_has_each_image_once_with_its_class(images):
    loaded = loaded_epoch(batches(images, 1))
    sizes = [len(batch.ids) for batch in loaded]
    assert sorted(sizes) == [3, 4, 4, 4]
    assert batches(images, 1).num_batches == 4
    ids = joined(loaded, "ids")
    assert ids.sort().values.tolist() == list(range(15))
    assert joined(loaded, "labels").tolist() == images.labels[ids.numpy()].tolist()
    assert [batch.num_tokens for batch in loaded] == sizes
    assert [batch.num_sentences for batch in loaded] == sizes


def test_epochs_and_seeds_give_different_batches_that_can_be_repeated(images, tmp_path):
    source = batches(images, 1)
    first = loaded_epoch(source)
    second = loaded_epoch(source, 2)
    assert not same(first[:1], second[:1])
    assert not same(first[:1], loaded_epoch(batches(images, 2))[:1])
    # A resumed training begins in the second epoch, and may load in any order.
    resumed = batches(images, 1)
    resumed.begin_epoch(2)
    assert same(second[::-1], map(resumed.load, (3, 2, 1, 0)))


def test_a_zip_gives_the_same_batches(images, tmp_path):
    [zipped] = open_images(zip_folder(tmp_path / "squares", tmp_path / "s.zip")).values()
    assert same(loaded_epoch(batches(images, 1)), loaded_epoch(batches(zipped, 1)))


def test_validation_keeps_the_order_and_changes_nothing(images):
    source = batches(images, None)
    loaded = loaded_epoch(source)
    assert joined(loaded, "ids").tolist() == list(range(15))
    assert same(loaded, loaded_epoch(source, 2))
    transform = ImageTransform(PreprocessingConfig(), 8)
    assert np.array_equal(loaded[0].images[1], transform.evaluation(images.read(1)))


def test_moving_a_batch_keeps_its_values(images):
    batch = loaded_epoch(batches(images, None))[0]
    moved = batch.to(torch.device("meta"))
    assert moved.images.is_meta and moved.labels.is_meta
    assert moved.ids.tolist() == batch.ids.tolist()


def test_a_set_of_damaged_images_is_read_once_before_the_error(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(b"no image")
    [images] = open_images(tmp_path).values()
    messages = []
    transform = ImageTransform(PreprocessingConfig(), 8)
    batches = ImageBatches(
        images, transform, 2, seed=1, report_damaged=reporter_of_damaged(messages.append)
    )
    batches.begin_epoch(1)
    with pytest.raises(DataError, match="2 images in a row are damaged"):
        batches.load(0)
    assert len(messages) == 2
