"""examples/detection: suppression, RoIAlign and the parts of Mask R-CNN by their definitions."""

import itertools
import math

import pytest
import torch

from tests.example_modules import example_modules


@pytest.fixture(scope="module")
def example():
    with example_modules("detection", ["boxes", "proposals", "mask_rcnn"]) as modules:
        yield modules


MAPS = torch.tensor(
    [
        [[[0.0, 3, 1, 2], [5, 8, -2, 4], [7, 0, 6, 1]]],
        [[[1.0, 0, 2, -1], [3, 2, 0, 5], [4, 4, -3, 2]]],
    ]
)
BOXES = torch.tensor([[0.0, 0, 4, 4], [3, 1, 9, 6], [-4, -3, 2, 2], [2.5, 2.5, 3, 3]])
OWNERS = torch.tensor([0, 1, 0, 1])
# The cells of the two by two grid of each box, by a loop over samples and corners.
CELLS = {
    (False, 2): [
        [4.0, 2.5, 5.0, 3.0],
        [1.0293, 1.89062, -1.0, 1.0],
        [0.0, 0.46875, 0.9375, 2.8125],
        [0.75, -0.90625, 0.53125, -2.08203],
    ],
    (False, 0): [
        [4.0, 2.5, 5.0, 3.0],
        [1.0293, 1.89062, -1.0, 1.0],
        [0.0, 0.46875, 0.9375, 2.8125],
        [0.75, -1.5, 0.5, -3.0],
    ],
    (True, 2): [
        [1.0, 2.875, 4.84375, 5.28125],
        [1.03125, 2.625, -0.18555, 2.34375],
        [0.0, 0.0, 0.0, 0.65625],
        [1.8125, 1.6875, 2.0625, 1.9375],
    ],
    (True, 0): [
        [0.0, 3.0, 5.0, 8.0],
        [1.03125, 2.625, -0.18555, 2.34375],
        [0.0, 0.0, 0.0, 0.65625],
        [1.8125, 1.6875, 2.0625, 1.9375],
    ],
}


@pytest.mark.parametrize(("aligned", "ratio"), CELLS)
def test_roi_align_gives_the_stored_cells(example, aligned, ratio):
    cells = example.boxes.roi_align(MAPS, BOXES, OWNERS, (2, 2), 0.5, ratio, aligned)
    assert cells.shape == (4, 1, 2, 2)
    expected = torch.tensor(CELLS[aligned, ratio]).view(4, 1, 2, 2)
    torch.testing.assert_close(cells, expected, atol=2e-5, rtol=0)


def sampled(features, y, x):
    """Return the bilinear value [C] of a map [C, Y, X], 0 beyond a position outside."""
    height, width = features.shape[1:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return features.new_zeros(len(features))
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    value = 0
    for row in {math.floor(y), math.ceil(y)}:
        for column in {math.floor(x), math.ceil(x)}:
            value = value + features[:, row, column] * (1 - abs(y - row)) * (1 - abs(x - column))
    return value


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("ratio", [3, 1, 0, -1])
def test_roi_align_agrees_with_a_loop_over_samples(example, aligned, ratio):
    torch.manual_seed(1)
    maps = torch.randn(2, 3, 5, 7, dtype=torch.float64)
    boxes = torch.rand(8, 4, dtype=torch.float64) * 20 - 4
    boxes[:, 2:] = boxes[:, :2] + torch.rand(8, 2, dtype=torch.float64) * 24
    boxes[0, 2:] = boxes[0, :2]  # an empty box
    owners = torch.tensor([0, 1, 1, 0, 0, 1, 0, 1])
    outputs = example.boxes.roi_align(maps, boxes, owners, (2, 3), 0.5, ratio, aligned)
    for box, owner, cells in zip(boxes, owners, outputs, strict=True):
        left, top, right, bottom = (0.5 * box - (0.5 if aligned else 0)).tolist()
        high = bottom - top
        wide = right - left
        if not aligned:
            high = max(high, 1)
            wide = max(wide, 1)
        ys, xs = (ratio, ratio) if ratio > 0 else (math.ceil(high / 2), math.ceil(wide / 3))
        for i in range(2):
            for j in range(3):
                values = []
                for a, b in itertools.product(range(ys), range(xs)):
                    y = top + high * (i + (a + 0.5) / ys) / 2
                    x = left + wide * (j + (b + 0.5) / xs) / 3
                    values.append(sampled(maps[owner], y, x))
                mean = sum(values) / len(values) if values else torch.zeros(3).double()
                torch.testing.assert_close(cells[:, i, j], mean, atol=1e-12, rtol=0)


@pytest.mark.parametrize("ratio", [2, 0])
def test_the_gradient_of_roi_align_is_exact(example, ratio):
    torch.manual_seed(1)
    maps = torch.randn(2, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    boxes = BOXES.double()

    def cells(maps):
        return example.boxes.roi_align(maps, boxes, OWNERS, (2, 2), 0.5, ratio, True)

    assert torch.autograd.gradcheck(cells, (maps,))


def test_roi_align_without_boxes_is_empty(example):
    cells = example.boxes.roi_align(MAPS, BOXES[:0], OWNERS[:0], (2, 2))
    assert cells.shape == (0, 1, 2, 2)


def test_suppression_keeps_the_stored_boxes(example):
    """The second overlaps the first by 0.6. The third overlaps the second, which is gone."""
    boxes = torch.tensor([[0.0, 0, 8, 1], [2, 0, 10, 1], [4, 0, 12, 1], [0, 0, 8, 1], [0, 5, 1, 6]])
    scores = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.95])
    assert example.boxes.nms(boxes, scores, 0.5).tolist() == [4, 0, 2]
    assert example.boxes.nms(boxes, scores, 0.65).tolist() == [4, 0, 1, 2]
    # The same overlap as the threshold is no reason to suppress a box.
    halves = torch.tensor([[0.0, 0, 2, 1], [0, 0, 1, 1]])
    assert example.boxes.nms(halves, torch.tensor([1.0, 0.5]), 0.5).tolist() == [0, 1]
    # Boxes of different classes do not suppress each other.
    classes = torch.tensor([1, 2, 1, 2, 1])
    assert example.boxes.batched_nms(boxes, scores, classes, 0.5).tolist() == [4, 0, 1, 2]
    assert example.boxes.nms(boxes[:0], scores[:0], 0.5).tolist() == []


def test_suppression_agrees_with_a_loop(example):
    torch.manual_seed(1)
    boxes = torch.rand(80, 4) * 10
    boxes[:, 2:] += boxes[:, :2]
    scores = torch.rand(80).mul(20).round()  # with ties
    overlap = example.boxes.box_iou(boxes, boxes)
    chosen = []
    for index in scores.argsort(descending=True, stable=True).tolist():
        if all(overlap[index, other] <= 0.4 for other in chosen):
            chosen.append(index)
    assert example.boxes.nms(boxes, scores, 0.4).tolist() == chosen and len(chosen) > 5


def test_decoding_inverts_encoding(example):
    torch.manual_seed(1)
    boxes, anchors = torch.rand(2, 6, 4).mul(50).double()
    boxes[:, 2:] += boxes[:, :2] + 1
    anchors[:, 2:] += anchors[:, :2] + 1
    offsets = example.boxes.encode(boxes, anchors, (10, 5))
    decoded = example.boxes.decode(offsets[:, None], anchors, (10, 5))[:, 0]
    torch.testing.assert_close(decoded, boxes)
    # A shift by a side of the anchor, and twice its height.
    offsets = example.boxes.encode(
        torch.tensor([[6.0, 0, 8, 8]]), torch.tensor([[4.0, 2, 6, 6]]), (1, 1)
    )
    torch.testing.assert_close(offsets, torch.tensor([[1, 0, 0, math.log(2)]]))


def test_anchors_lie_around_the_positions_of_their_map(example):
    [anchors] = example.proposals.make_anchors([8], (4, 8), [torch.zeros(1, 1, 1, 2)])
    expected = [[-6, -3, 6, 3], [-4, -4, 4, 4], [-3, -6, 3, 6]]
    assert anchors[:3].tolist() == expected
    assert (anchors[3:] - anchors[:3]).tolist() == [[4, 0, 4, 0]] * 3


def test_matches_by_overlap(example):
    objects = torch.tensor([[0.0, 0, 10, 1], [20, 0, 30, 1]])
    boxes = torch.tensor([[0.0, 0, 9, 1], [0, 0, 5, 1], [0, 0, 2, 1], [28, 0, 38, 1]])
    match = example.proposals.match
    assert match(objects, boxes, 0.3, 0.7, all_objects=False).tolist() == [0, -2, -1, -1]
    assert match(objects, boxes, 0.3, 0.7, all_objects=True).tolist() == [0, -2, -1, 1]
    assert match(objects[:0], boxes, 0.3, 0.7, all_objects=True).tolist() == [-1] * 4


def test_samples_have_at_most_the_share_of_objects(example):
    matches = torch.tensor([3, -1, -2, 0, -1, 1, -1, -1, 2])
    objects, background = example.proposals.sample(matches, 6, 0.5)
    assert len(objects) == len(background) == 3
    assert (matches[objects] >= 0).all() and (matches[background] == -1).all()
    objects, background = example.proposals.sample(matches, 100, 0.5)
    assert (objects.tolist(), background.tolist()) == ([0, 3, 5, 8], [1, 4, 6, 7])


def test_masks_are_pasted_into_their_boxes(example):
    masks = torch.ones(2, 1, 28, 28)
    boxes = torch.tensor([[2.0, 1, 10, 5], [-4, -4, 4, 4]])
    pasted = example.mask_rcnn.paste_masks(masks, boxes, (8, 12))
    assert pasted.shape == (2, 1, 8, 12)
    expected = torch.zeros(2, 8, 12)
    expected[0, 1:5, 2:10] = expected[1, :4, :4] = 1
    # Corners are rounded to whole pixels, outwards: a border of one pixel may be more.
    inside = (pasted[:, 0] > 0.5).float()
    border = torch.nn.functional.max_pool2d(expected, 3, 1, 1)
    assert (expected <= inside).all() and (inside <= border).all()
    assert not pasted[0, 0, 6:].any() and not pasted[1, 0, 6:].any()
