"""examples/vision_study: times of blocks, overlays and heat maps."""

import re

import numpy as np
import pytest
import torch

from relu_nmt.attention.base import Need
from relu_nmt.attention.masks import Visibility
from relu_nmt.attention.records import record_attention
from relu_nmt.attention.token_axis import SimAAttention
from relu_nmt.cli import vision_train
from relu_nmt.vision.images import open_images
from relu_nmt.vision.loading import ImageClassifier
from tests.example_modules import example_modules
from tests.outputs import column, csv_rows, select
from tests.unit.vision.made_images import make_squares

TINY = "--cpu --batch-size 20 --max-update 2 --no-progress-bar --no-epoch-checkpoints"
SHAPES = {
    "sima": "--arch vit_ti --patch-size 8 --layers 3 --embed-dim 16 --heads 2 --attention sima",
    "xca": "--arch xcit_nano_12 --patch-size 8 --layers 2 --embed-dim 16 --heads 2",
    "gau": "--arch vit_ti --patch-size 8 --layers 2 --embed-dim 16 --heads 2 --block gau "
    "--attention pointwise:h=relu2",
    "swin": "--arch swin_tiny --stage-layers 1 --stage-heads 2 --embed-dim 16 --window-size 4",
}


@pytest.fixture(scope="module")
def example():
    with example_modules("vision_study", ["study", "timings", "norms", "pictures"]) as modules:
        yield modules


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The test images and a checkpoint of each shape."""
    folder = tmp_path_factory.mktemp("squares")
    make_squares(folder / "train", 10, seed=1)
    make_squares(folder / "test", 4, seed=2)
    for name, shape in SHAPES.items():
        words = f"{folder} --image-size 32 {shape} {TINY} --save-dir {folder / name}"
        assert vision_train.main(words.split()) == 0
    return folder / "test", {n: str(folder / n / "checkpoint_last.safetensors") for n in SHAPES}


@pytest.mark.parametrize(("tokens", "width"), [(3, 8), (20, 4)])
def test_both_orders_of_sima_are_the_same_attention(example, tokens, width):
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 2, 2, tokens, width, dtype=torch.float64)
    config = SimAAttention.Config()
    visible = Visibility(tokens, tokens)
    q_shares = q / q.abs().sum(2, keepdim=True)
    k_shares = k / k.abs().sum(2, keepdim=True)
    expected = q_shares @ k_shares.transpose(-1, -2) @ v
    orders = set(example.timings.ORDERS.values())
    assert len(orders) == 2
    for kind in orders:
        values = kind(config, 2, width, 0.0)(q, k, v, visible).values
        torch.testing.assert_close(values, expected)


def test_the_table_and_the_page_have_the_times_of_all_attentions(example, tmp_path, capsys):
    words = ["--cpu", "--runs", "2", "--tokens", "9,200", "--widths", "16,24", "--out"]
    assert example.timings.main([*words, str(tmp_path)]) == 0, capsys.readouterr()
    rows = csv_rows(tmp_path / "timings.csv")
    assert set(column(rows, "attention")) == set(example.timings.SPECS)
    sizes = {(row["part"], row["tokens"], row["width"]) for row in rows}
    assert sizes >= {("D of all heads", "256", "64"), ("D of each head", "256", "512")}
    assert sizes >= {("by N", "9", "16"), ("by N", "200", "16"), ("by D", "200", "24")}
    for row in rows:
        assert float(row["median"]) > 0
        assert float(row["ratio_low"]) <= float(row["ratio_high"])
    assert set(column(select(rows, attention="softmax"), "ratio")) == {"1.0"}
    assert example.timings.median_interval(range(30)) == (9, 20)
    page = (tmp_path / "timings.html").read_text("utf-8")
    columns = {"attention": "softmax", "part": "D of each head", "tokens": "256"}
    [time] = column(select(rows, **columns), "median")
    row = re.search(r'<th scope="row">softmax</th>(.*)</tr>', page)[1]
    assert re.findall("<td>(.*?)</td>", row)[1:] == [
        f"{float(time):.2f}",
        *("177.40", "35.80", "180.60"),
    ]
    assert page.count("<img") == 1


def test_widths_that_the_heads_do_not_divide_are_an_error(example, capsys):
    assert example.timings.main(["--widths", "12"]) == 2
    assert "--widths 12 must be a multiple of --heads 8" in capsys.readouterr().err


def test_an_error_about_a_wrong_name_lists_the_others_with_commas(example, capsys):
    assert example.timings.main(["--attentions", "SimA"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    _, _, names = line.partition("--attentions SimA: expected one of ")
    assert set(example.timings.SPECS) <= set(names.partition(";")[0].split(", "))


def test_lengths_cover_all_channels_of_the_patches(example):
    torch.manual_seed(1)
    q, k = torch.randn(2, 1, 2, 7, 3)
    kinds = example.timings.TokensFirst(SimAAttention.Config(), 2, 3, 0.0), torch.nn.Identity()
    for attention, divisor in zip(kinds, (q.abs().sum(2, keepdim=True), 1.0), strict=True):
        maps = example.pictures.lengths(attention, q, k, (2, 3))
        joined = (q / divisor)[0, :, 1:].transpose(0, 1).flatten(1)  # token 0 is no patch
        torch.testing.assert_close(maps[0, 0].flatten(), joined.norm(dim=1))
        assert maps.shape == (2, 1, 2, 3)


def test_overlays_range_from_0_to_1_in_each_image(example):
    sizes = torch.tensor([[[2.0, 4.0], [2.0, 4.0]], [[5.0, 5.0], [5.0, 5.0]]])
    mask = example.pictures.saliency(sizes, (4, 8))
    assert mask.shape == (2, 4, 8)
    assert (mask[0, :, 0] == 0).all() and (mask[0, :, -1] == 1).all()
    assert (mask[0].diff(dim=1) >= 0).all()
    assert (mask[1] == 0).all()  # all alike


def test_pictures_of_several_models(example, trained, tmp_path, capsys):
    images, paths = trained
    words = ["--data", str(images), "--overlays", "3", "--images", "50", "--out", str(tmp_path)]
    words += ["--heat-maps", "1.2", "2.1"]
    assert example.pictures.main([paths["sima"], paths["xca"], *words]) == 0, capsys.readouterr()
    page = (tmp_path / "pictures.html").read_text("utf-8")
    assert page.count("<img") == 3 and "It has no weights between patches" in page
    assert "<dt>heat maps are means over</dt><dd>12 images</dd>" in page
    sizes = csv_rows(tmp_path / "overlays.csv")
    assert len(sizes) == 2 * 2 * 3 * 16  # models, queries and keys, images, patches
    assert set(column(sizes, "layer")) == {"3", "2"}
    weights = csv_rows(tmp_path / "heat_maps.csv")
    assert len(weights) == 2 * 17 * 17
    classifier = ImageClassifier.from_checkpoint(paths["sima"])
    pixels = example.norms.pixels_of(classifier, str(images), 50)
    assert pixels.shape == (12, 3, 32, 32)
    with record_attention(classifier.model, Need(weights=True)) as records:
        classifier.outputs(pixels)
    numbers = list(map(float, column(select(weights, layer="1", head="2"), "weight")))
    expected = records[0].weights[:, 1].mean(0).flatten().tolist()
    assert numbers == pytest.approx(expected, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("count", [5, 8, 20])
def test_images_come_from_all_parts_of_the_set(example, trained, count):
    images, paths = trained
    classifier = ImageClassifier.from_checkpoint(paths["sima"])
    pixels = example.norms.pixels_of(classifier, str(images), count)
    [image_set] = open_images(images).values()
    indices = {5: [0, 2, 4, 7, 9], 8: [0, 1, 3, 4, 6, 7, 9, 10], 20: range(12)}[count]
    expected = list(map(classifier.transform.evaluation, map(image_set.read, indices)))
    assert np.array_equal(pixels.numpy(), expected)


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("swin", [], "pictures are of vit and xcit"),
        ("gau", [], "a block of --block gau has 2 attentions; pictures are of blocks with one"),
        ("sima", ["--layer", "4"], "--layer 4"),
        ("sima", ["--heat-maps", "1.3"], "--heat-maps 1.3: expected BLOCK.HEAD, from 1.1 to 3.2"),
        ("sima", ["--heat-maps", "first"], "--heat-maps first"),
    ],
)
def test_errors_are_one_line(example, trained, tmp_path, capsys, name, words, message):
    images, paths = trained
    words = [paths[name], "--data", str(images), "--out", str(tmp_path / "o"), *words]
    assert example.pictures.main(words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "o").exists()
