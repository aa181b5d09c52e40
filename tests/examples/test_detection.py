"""examples/detection: data in COCO's format, Mask R-CNN on our backbones, average precision."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from relu_nmt.cli import vision_train
from relu_nmt.config import read_settings
from relu_nmt.errors import DataError
from relu_nmt.training.checkpoint import load_checkpoint
from relu_nmt.vision.config import VisionTransformerConfig, architectures
from tests.example_modules import example_modules
from tests.outputs import assert_same_tensors
from tests.tiny import loaded_epoch, num_parameters
from tests.unit.vision.families import without_decay
from tests.unit.vision.made_images import make_squares

pytest.importorskip("pycocotools", reason="pycocotools is not installed")
MODULES = ("boxes", "proposals", "mask_rcnn", "coco", "detector", "train", "evaluate", "shapes")
SHAPE = "--arch vit_ti_p16_64 --layers 1 --embed-dim 16 --heads 2"
TINY = (
    f"--cpu {SHAPE} --min-size 64 --proposals 16 --sampled-boxes 8 --batch-size 2 --lr 1e-3 "
    "--lr-period-updates 9 --log-format none --no-epoch-checkpoints"
)


@pytest.fixture(scope="module")
def example():
    with example_modules("detection", MODULES) as modules:
        yield modules


@pytest.fixture(scope="module")
def data(example, tmp_path_factory):
    """A folder with 6 and 3 images of 64 pixels."""
    folder = tmp_path_factory.mktemp("shapes")
    words = [str(folder), "--train", "6", "--val", "3", "--size", "64"]
    assert example.shapes.main(words) == 0
    return folder


def test_generated_annotations_match_the_pictures(example, data):
    coco_set = example.coco.CocoSet(str(data), "val")
    assert (coco_set.numbers, coco_set.names) == ([1, 2, 3], ["disc", "square", "triangle"])
    for number in coco_set.numbers:
        image = coco_set.read(number)
        target = coco_set.target(number)
        assert image.shape == (3, 64, 64) and image.min() >= 0 and image.max() <= 1
        assert 1 <= len(target["boxes"]) <= 4
        # The background is darker than any shape in some color.
        bright = image.amax(0) > 80 / 255
        union = target["masks"].amax(0).bool()
        assert (bright & union).sum() > 0.85 * (bright | union).sum()
        for box, mask in zip(target["boxes"], target["masks"], strict=True):
            ys, xs = np.nonzero(mask.numpy())
            inside = torch.tensor([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
            assert (box - inside).abs().max() <= 1.5


def test_crowds_thin_boxes_and_ids_of_categories(example, tmp_path):
    """COCO's category ids have gaps. Boxes may leave the image."""
    (tmp_path / "annotations").mkdir()
    (tmp_path / "t").mkdir()
    Image.new("RGB", (20, 10)).save(tmp_path / "t/a.png")
    square = [2, 2, 6, 2, 6, 6, 2, 6]
    common = {"image_id": 7, "iscrowd": 0, "segmentation": [square], "area": 16}
    entries = [
        {**common, "id": 1, "category_id": 90, "bbox": [15, -2, 9, 8]},
        {**common, "id": 2, "category_id": 3, "bbox": [2, 2, 0.5, 4]},
        {**common, "id": 3, "category_id": 3, "bbox": [2, 2, 4, 4], "iscrowd": 1},
    ]
    image = {"file_name": "a.png", "width": 20, "height": 10}
    images = [{**image, "id": 7}, {**image, "id": 9}]
    categories = [{"id": 90, "name": "b"}, {"id": 3, "name": "a"}]
    text = json.dumps({"images": images, "annotations": entries, "categories": categories})
    (tmp_path / "annotations/instances_t.json").write_text(text)
    coco_set = example.coco.CocoSet(str(tmp_path), "t")
    target = coco_set.target(7)
    assert target["boxes"].tolist() == [[15, 0, 20, 6]]
    assert target["labels"].tolist() == [2] and target["masks"].shape == (1, 10, 20)
    assert coco_set.target(9)["masks"].shape == (0, 10, 20)
    batches = example.coco.DetectionBatches(coco_set, 2, seed=1)
    assert batches.numbers == [7]  # the other image has no object
    turned, other = example.coco.mirrored(coco_set.read(7), target)
    assert other["boxes"].tolist() == [[0, 0, 5, 6]]
    again, same = example.coco.mirrored(turned, other)
    assert torch.equal(again, coco_set.read(7)) and torch.equal(same["masks"], target["masks"])


def test_images_are_read_as_stored_and_have_the_size_of_their_annotation(example, tmp_path):
    (tmp_path / "annotations").mkdir()
    (tmp_path / "t").mkdir()
    picture = Image.new("RGB", (20, 10))
    exif = Image.Exif()
    picture.paste((255, 0, 0), (0, 0, 10, 10))
    exif[274] = 6  # the orientation: to be turned by a quarter
    picture.save(tmp_path / "t/a.png", exif=exif)
    wide = {"id": 1, "file_name": "a.png", "width": 20, "height": 10}
    images = [wide, {"id": 2, "file_name": "a.png", "width": 10, "height": 20}]
    categories = [{"id": 1, "name": "a"}]
    text = json.dumps({"images": images, "annotations": [], "categories": categories})
    (tmp_path / "annotations/instances_t.json").write_text(text)
    coco_set = example.coco.CocoSet(str(tmp_path), "t")
    image = coco_set.read(1)
    assert image.shape == (3, 10, 20) == (3, *coco_set.target(1)["masks"].shape[1:])
    assert image[0, :, :10].min() == 1 and not image[0, :, 10:].any()
    with pytest.raises(DataError, match=r"a\.png: has 20 x 10 pixels .* annotated as 10 x 20"):
        coco_set.read(2)


def test_batches_depend_on_seed_and_epoch_only(example, data):
    coco_set = example.coco.CocoSet(str(data), "train")

    def loaded(seed, epoch):
        batches = example.coco.DetectionBatches(coco_set, 4, seed)
        return loaded_epoch(batches, epoch)

    batches_of_first, batches_of_second = loaded(1, 2), loaded(1, 2)
    assert [batch.num_sentences for batch in batches_of_first] == [4, 2]
    for first, second in zip(batches_of_first, batches_of_second, strict=True):
        assert torch.equal(first.ids, second.ids)
        torch.testing.assert_close(first.images, second.images, rtol=0, atol=0)

    def ids(seed, epoch):
        return torch.cat([batch.ids for batch in loaded(seed, epoch)]).tolist()

    assert sorted(ids(1, 2)) == sorted(ids(1, 3)) == [1, 2, 3, 4, 5, 6]
    assert ids(1, 2) != ids(1, 3) or ids(1, 2) != ids(2, 2)


def test_the_average_precision_of_the_true_objects_is_100(example, data):
    from pycocotools import mask

    coco_set = example.coco.CocoSet(str(data), "val")
    perfect = []
    for number in coco_set.numbers:
        for annotation in coco_set.annotations.loadAnns(coco_set.annotations.getAnnIds([number])):
            pixels = np.asfortranarray(coco_set.annotations.annToMask(annotation))
            fields = {name: annotation[name] for name in ("image_id", "category_id", "bbox")}
            perfect.append({**fields, "score": 0.9, "segmentation": mask.encode(pixels)})
    scores = example.evaluate.average_precision(coco_set, perfect)
    all_found = dict.fromkeys(("AP", "AP50", "AP75"), pytest.approx(100))
    assert scores == {"boxes": all_found, "masks": all_found}
    # Boxes and masks have separate scores.
    moved = []
    for result in perfect:
        moved.append({**result, "bbox": (np.array(result["bbox"]) + 9).tolist()})
    scores = example.evaluate.average_precision(coco_set, moved)
    assert scores["boxes"]["AP"] < 50 and scores["masks"]["AP"] == pytest.approx(100)
    scores = example.evaluate.average_precision(coco_set, perfect[1:])
    assert 0 < scores["boxes"]["AP"] < 100
    assert example.evaluate.average_precision(coco_set, [])["masks"]["AP"] == 0


def test_the_papers_settings(example):
    words = example.train.main.parser().parse_intermixed_args(
        ["coco", "--setting", "paper", "--attention", "sima"]
    )
    paper = read_settings(example.train.DetectionSettings, words)
    assert (paper.model.family, paper.model.attention) == ("xcit", "sima")
    assert (paper.task.batch_size, paper.trainer.max_epoch) == (16, 36)
    rates = paper.trainer.schedule.lr
    assert len(rates) == 36 and [rates[i] for i in (26, 27, 32, 33)] == [1e-4, 1e-5, 1e-5, 1e-6]
    assert (paper.detector.min_size[0], paper.detector.min_size[-1]) == (480, 800)
    assert (paper.detector.max_size, paper.trainer.optimizer.weight_decay) == (1333, 0.05)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train-set", "none"], "instances_none.json: no annotations in COCO's format"),
        (["--no-disable-validation"], "there is no validation in training"),
        (["--max-size", "63"], "--max-size 63: expected 64, the largest of --min-size, or more"),
        (["--pixel-mean", "1,2"], "expected three numbers"),
        (["--head-bias", "3"], "--head-bias: a detector has no classifier; leave it out"),
        (["--tanh-layer"], "--tanh-layer: a detector has no classifier; leave it out"),
    ],
)
def test_errors_are_one_line(example, data, tmp_path, capsys, words, message):
    words = [str(data), *TINY.split(), "--save-dir", str(tmp_path), *words]
    assert example.train.main(words) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_settings_of_xcits_classifier_are_refused(example, data, tmp_path, capsys):
    words = [str(data), "--cpu", "--class-layers", "5", "--save-dir", str(tmp_path)]
    assert example.train.main(words) == 2
    expected = "--class-layers: a detector has no classifier; leave it out"
    assert expected in capsys.readouterr().err.splitlines()[-1]


def test_results_that_cannot_be_written_are_an_error_before_the_detection(
    example, tmp_path, capsys
):
    assert example.evaluate.main(["none", "none", "--results", str(tmp_path)]) == 2
    assert f"--results {tmp_path}: is a folder" in capsys.readouterr().err


def test_no_annotations_is_an_error(example, tmp_path):
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations/instances_x.json").write_text("[1")
    with pytest.raises(DataError, match="no annotations in COCO's format"):
        example.coco.CocoSet(str(tmp_path), "x")


@pytest.mark.parametrize(("attention", "less"), [("xca", 0), ("sima", 96)])
def test_the_size_is_the_published_one(example, attention, less):
    """The papers print 44.3 million. Our heads also count the background, as torchvision's do.

    So there are a box (4 numbers) and a mask more than categories, of 1,025 and 257 weights.
    """
    shape = {**architectures["xcit_small_12_p16_224"], "attention": attention}
    with torch.device("meta"):
        model = example.detector.build_detector(
            example.detector.DetectorConfig(), VisionTransformerConfig.of(**shape), 80
        )
    count = num_parameters(model)
    assert count - 4 * 1025 - 257 == 44_386_560 - less


def test_weight_decay_spares_norms_and_biases(example):
    config = VisionTransformerConfig.of(**{**architectures["xcit_nano_12_p8_128"], "layers": 3})
    model = example.detector.build_detector(example.detector.DetectorConfig(), config, 3)
    exempt = without_decay(model)
    for name, parameter in model.named_parameters():
        assert parameter.dim() > 1 or name in exempt
    assert exempt >= {"rpn.head.cls_logits.bias", "backbone.pyramid.inner_blocks.0.0.bias"}
    assert not exempt & {"rpn.head.cls_logits.weight", "roi_heads.box_head.fc6.weight"}


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]
)
def test_images_without_objects_train_and_give_empty_results(example, dtype):
    torch.manual_seed(1)
    shape = {**architectures["vit_ti_p16_64"], "layers": 1, "embed_dim": 16, "heads": 2}
    detector = example.detector.DetectorConfig(proposals=16, sampled_boxes=8, min_size=(64,))
    model = example.detector.build_detector(detector, VisionTransformerConfig.of(**shape), 3)
    images = [torch.rand(3, 64, 48), torch.rand(3, 40, 64)]
    nothing = {
        "boxes": torch.zeros(0, 4),
        "labels": torch.zeros(0, dtype=torch.int64),
        "masks": torch.zeros(0, 40, 64, dtype=torch.uint8),
    }
    one_object = {
        "boxes": torch.tensor([[3.0, 5, 40, 60]]),
        "labels": torch.tensor([2]),
        "masks": torch.ones(1, 64, 48, dtype=torch.uint8),
    }
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        for targets in ([one_object, nothing], [nothing, nothing]):
            losses = model(images, targets)
            assert sum(losses.values()).isfinite()
            assert (losses["loss_mask"] > 0) == (targets[0] is one_object)
            sum(losses.values()).backward()
            # With several processes every parameter must have a gradient.
            for parameter in model.parameters():
                assert parameter.grad is not None
            model.zero_grad()
        model.eval()
        model.roi_heads.least_score = 1.0
        for image, result in zip(images, model(images), strict=True):
            assert result["boxes"].shape == (0, 4) and not len(result["labels"])
            assert result["masks"].shape == (0, 1, *image.shape[1:])


def test_a_detector_trains_resumes_exactly_and_is_evaluated(example, data, tmp_path, capsys):
    def train(folder, *words):
        save = ["--save-dir", str(tmp_path / folder)]
        assert example.train.main([str(data), *TINY.split(), *save, *words]) == 0
        path = tmp_path / folder / "checkpoint_last.safetensors"
        checkpoint = load_checkpoint(path, with_training_state=True)
        return {**checkpoint.model_tensors, **checkpoint.training_tensors}

    uninterrupted = train("whole", "--max-update", "3")
    train("parts", "--max-update", "1")
    parts = train("parts", "--max-update", "3")
    assert_same_tensors(uninterrupted, parts)
    file = tmp_path / "ap.json"
    words = [str(tmp_path / "whole/checkpoint_last.safetensors"), str(data), "--cpu"]
    assert example.evaluate.main([*words, "--results", str(file)]) == 0
    results = json.loads(file.read_text())
    assert results["images"] == 3 and 0 <= results["masks"]["AP"] <= results["masks"]["AP50"] <= 100
    assert "val: 3 images: boxes: AP " in capsys.readouterr().out


def test_the_backbone_starts_from_an_image_classifier(example, tmp_path):
    make_squares(tmp_path / "squares", 4, seed=1)
    words = f"{tmp_path}/squares --cpu {SHAPE} --image-size 64 --batch-size 6 --max-update 1"
    words += f" --disable-validation --log-format none --save-dir {tmp_path}"
    assert vision_train.main(words.split()) == 0
    path = tmp_path / "checkpoint_last.safetensors"
    config = VisionTransformerConfig.of(
        **{**architectures["vit_ti_p16_64"], "layers": 1, "embed_dim": 16, "heads": 2}
    )
    model = example.detector.build_detector(example.detector.DetectorConfig(), config, 3)
    example.train.start_backbone(model, str(path))
    weights = model.get_submodule("backbone.maps.model").state_dict()
    stored = load_checkpoint(path).model_tensors
    assert set(stored) - set(weights) == {"norm.weight", "norm.bias", "head.weight", "head.bias"}
    for name, tensor in weights.items():
        assert torch.equal(tensor, stored[name])
