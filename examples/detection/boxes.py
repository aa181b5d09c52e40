"""Boxes of a detector: overlap, suppression, encoding, and features inside a box (RoIAlign).

Boxes are [N, 4]: left, top, right and bottom in pixels. All is plain PyTorch, on any device.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

MOST_GROWTH = math.log(1000 / 16)
"""Largest change of the logarithm of a side when a box is decoded."""


def area(boxes: Tensor) -> Tensor:
    """Return the areas [N] of boxes [N, 4], in pixels."""
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def box_iou(first: Tensor, second: Tensor) -> Tensor:
    """Return intersection over union [N, M] of boxes [N, 4] and boxes [M, 4], from 0 to 1."""
    corner = torch.maximum(first[:, None, :2], second[:, :2])
    opposite = torch.minimum(first[:, None, 2:], second[:, 2:])
    common = (opposite - corner).clamp(min=0).prod(2)
    return common / (area(first)[:, None] + area(second) - common)


def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Keep each box that overlaps no kept box of a higher score (non-maximum suppression).

    Args:
        boxes: [N, 4].
        scores: [N]. Of equal scores the first counts as higher.
        threshold: greatest intersection over union of two kept boxes.

    Returns:
        Indices of the kept boxes, the best first, int64.
    """
    order = scores.argsort(descending=True, stable=True)
    # beats[i, j]: box i, if kept, suppresses the worse box j.
    beats = (box_iou(boxes[order], boxes[order]) > threshold).triu(1)
    # Repeat until nothing changes. After t rounds the best t boxes are right, and often all.
    is_kept = torch.ones_like(order, dtype=torch.bool)
    while True:
        still_kept = ~(beats & is_kept[:, None]).any(0)
        if torch.equal(still_kept, is_kept):
            return order[is_kept]
        is_kept = still_kept


def batched_nms(boxes: Tensor, scores: Tensor, groups: Tensor, threshold: float) -> Tensor:
    """Suppress boxes within each group (class or level), see :func:`nms`.

    Args:
        boxes: [N, 4].
        scores: [N].
        groups: [N] int64. Boxes of different groups do not suppress each other.
        threshold: greatest intersection over union of two kept boxes of a group.

    Returns:
        Indices of the kept boxes, the best first, int64.
    """
    is_kept = torch.zeros_like(groups, dtype=torch.bool)
    for group in groups.unique():
        members = (groups == group).nonzero()[:, 0]
        is_kept[members[nms(boxes[members], scores[members], threshold)]] = True
    indices = is_kept.nonzero()[:, 0]
    return indices[scores[indices].argsort(descending=True, stable=True)]


def clip(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Return boxes [..., 4] cut off at the border of an image of this height and width."""
    x = boxes[..., 0::2].clamp(0, size[1])
    y = boxes[..., 1::2].clamp(0, size[0])
    return torch.stack([x[..., 0], y[..., 0], x[..., 1], y[..., 1]], -1)


def _centers_and_sides(boxes: Tensor) -> tuple[Tensor, Tensor]:
    sides = boxes[..., 2:] - boxes[..., :2]
    return boxes[..., :2] + 0.5 * sides, sides


def encode(boxes: Tensor, anchors: Tensor, weights: Sequence[float]) -> Tensor:
    """Return the offsets [N, 4] of boxes from anchors: what a detector learns to predict.

    Args:
        boxes: [N, 4].
        anchors: [N, 4], one for each box.
        weights: factors of the offsets of centers and of the logarithms of sides.

    Reference: Girshick et al. 2014, "Rich feature hierarchies", appendix C.
    """
    centers, sides = _centers_and_sides(boxes)
    anchor_centers, anchor_sides = _centers_and_sides(anchors)
    shifts = weights[0] * (centers - anchor_centers) / anchor_sides
    return torch.cat([shifts, weights[1] * (sides / anchor_sides).log()], 1)


def decode(offsets: Tensor, anchors: Tensor, weights: Sequence[float]) -> Tensor:
    """Return the boxes [N, K, 4] of offsets [N, K, 4] from anchors [N, 4]. Inverts `encode`."""
    offsets = offsets.to(anchors.dtype)
    centers, sides = _centers_and_sides(anchors[:, None])
    centers = centers + offsets[..., :2] / weights[0] * sides
    half = 0.5 * sides * (offsets[..., 2:] / weights[1]).clamp(max=MOST_GROWTH).exp()
    return torch.cat([centers - half, centers + half], -1)


def roi_align(
    features: Tensor,
    boxes: Tensor,
    owners: Tensor,
    output_size: tuple[int, int],
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:
    """Average the features in each cell of a grid laid over each box, by bilinear samples.

    Samples that lie more than one position outside the map count as 0.

    Args:
        features: maps [B, C, Y, X]. The result is differentiable in them.
        boxes: [K, 4], in units of the image.
        owners: [K] int64, the index of the map of each box.
        output_size: rows and columns of the grid.
        spatial_scale: number of positions of the map per unit of the image.
        sampling_ratio: samples of a cell along each axis. 0 or less: one for each position of the
            map that the cell covers, rounded up.
        aligned: the center of the first position is at 0.5. Otherwise it is at 0, and the sides
            of a box are at least 1.

    Returns:
        The cells [K, C, rows, columns], computed in float32 or more and of the features' dtype.

    Reference: He et al. 2017, "Mask R-CNN", section 3.
    """
    maps = features if features.dtype == torch.float64 else features.float()
    # Start and sides of the boxes, first along y, in positions of the map: [K, 2] each.
    scaled = boxes.to(maps.dtype) * spatial_scale - (0.5 if aligned else 0.0)
    start = scaled[:, [1, 0]]
    sides = (scaled[:, 2:] - scaled[:, :2])[:, [1, 0]]
    sides = sides if aligned else sides.clamp(min=1)
    # Count the samples of a cell along each axis.
    if sampling_ratio > 0:
        counts = torch.full_like(sides, sampling_ratio)
    else:
        counts = (sides / sides.new_tensor(output_size)).ceil()
    # Sample the boxes of one map and of the same counts together.
    cells = maps.new_zeros(len(boxes), features.size(1), *output_size)
    groups, group_of = torch.cat([owners[:, None], counts.long()], 1).unique(
        dim=0, return_inverse=True
    )
    parts = []
    order = []
    for group, (owner, *samples) in enumerate(groups.tolist()):
        if min(samples) > 0:
            order.append((group_of == group).nonzero()[:, 0])
            members = order[-1]
            parts.append(_sample(maps[owner], start[members], sides[members], output_size, samples))
    if parts:
        cells = cells.index_copy(0, torch.cat(order), torch.cat(parts))
    return cells.to(features.dtype)


def _sample(
    features: Tensor,
    start: Tensor,
    sides: Tensor,
    output_size: tuple[int, int],
    samples: Sequence[int],
) -> Tensor:
    """Return the cells [K, C, rows, columns] of K boxes on one map [C, Y, X]."""
    axes = []
    for axis, length in enumerate(features.shape[1:]):
        # Positions of the samples along the axis, [K, cells * count], as -1 to 1 over the map.
        count = output_size[axis] * samples[axis]
        steps = (torch.arange(count, dtype=start.dtype, device=start.device) + 0.5) / count
        at = start[:, axis, None] + sides[:, axis, None] * steps
        inside = (at >= -1) & (at <= length)
        axes.append((at.clamp(0, length - 1) * 2 / max(length - 1, 1) - 1, inside))
    (y, y_inside), (x, x_inside) = axes
    # One grid for all boxes, one below the other: samples [1, K * rows, columns, 2].
    grid_x = x[:, None, :].expand(-1, y.size(1), -1)
    grid_y = y[:, :, None].expand(-1, -1, x.size(1))
    grid = torch.stack((grid_x, grid_y), -1).flatten(0, 1)[None]
    values = F.grid_sample(features[None], grid, padding_mode="border", align_corners=True)
    values = values[0].unflatten(1, y.shape)  # [C, K, rows, columns] of samples
    values = values * (y_inside[:, :, None] & x_inside[:, None, :])
    return F.avg_pool2d(values, (samples[0], samples[1])).transpose(0, 1)
