"""Proposals of Mask R-CNN: anchors, matches and samples of boxes, and the network.

Reference: Ren et al. 2015, "Faster R-CNN".
"""

from collections.abc import Sequence

import torch
from boxes import batched_nms, box_iou, clip, decode, encode
from torch import Tensor, nn
from torch.nn import functional as F

Target = dict[str, Tensor]
Size = tuple[int, int]

RATIOS = (0.5, 1.0, 2.0)
"""Height by width of the anchors at each position."""
BETWEEN = -2
BELOW = -1
"""Matches of boxes that overlap an object somewhat, and of boxes that overlap too little."""
UNIT = (1.0, 1.0)


def convolution(inputs: int, outputs: int, side: int, *layers: nn.Module) -> nn.Sequential:
    """Return a convolution that keeps height and width, with the ``layers`` after it."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, side, padding=side // 2), *layers)


def make_anchors(sides: Sequence[float], image: Size, maps: Sequence[Tensor]) -> list[Tensor]:
    """Return the anchors of each map, [Y * X * ratios, 4], in pixels.

    Args:
        sides: side of the square anchor of each map, in pixels.
        image: height and width of the padded images.
        maps: [B, C, Y, X] each.
    """
    anchors = []
    for side, features in zip(sides, maps, strict=True):
        # Anchors around 0, [ratios, 4], in whole pixels.
        high = torch.tensor(RATIOS, device=features.device).sqrt()
        half = torch.stack([1 / high, high], 1) * side / 2
        around = torch.cat([-half, half], 1).round()
        # Move them to each position of the map.
        rows, columns = features.shape[-2:]
        y = torch.arange(rows, device=features.device) * float(image[0] // rows)
        x = torch.arange(columns, device=features.device) * float(image[1] // columns)
        y, x = torch.meshgrid(y, x, indexing="ij")
        corners = torch.stack([x, y, x, y], 2)  # [Y, X, 4]
        anchors.append((corners[:, :, None] + around).flatten(0, 2))
    return anchors


def match(objects: Tensor, boxes: Tensor, low: float, high: float, all_objects: bool) -> Tensor:
    """Assign an object to each box.

    Args:
        objects: [N, 4].
        boxes: [M, 4].
        low: a box belongs to the background if its greatest overlap is less.
        high: a box has an object if its greatest overlap is at least this.
        all_objects: also assign each object to the boxes that overlap it most, however little.

    Returns:
        [M] int64: the index of an object, ``BELOW`` or ``BETWEEN``.
    """
    if not len(objects):
        return torch.full((len(boxes),), BELOW, device=boxes.device)
    overlap = box_iou(objects, boxes)
    value, nearest = overlap.max(0)
    matches = nearest.masked_fill(value < high, BETWEEN).masked_fill(value < low, BELOW)
    if all_objects:
        best = (overlap == overlap.amax(1, keepdim=True)).any(0)
        matches = torch.where(best, nearest, matches)
    return matches


def sample(matches: Tensor, count: int, share: float) -> tuple[Tensor, Tensor]:
    """Draw boxes with an object and boxes of the background.

    Args:
        matches: result of :func:`match`.
        count: number of boxes to draw, or all boxes if there are fewer.
        share: greatest share of boxes with an object.

    Returns:
        Indices of both kinds, in ascending order.
    """
    chosen = []
    room = int(count * share)
    for candidates in ((matches >= 0).nonzero()[:, 0], (matches == BELOW).nonzero()[:, 0]):
        drawn = torch.randperm(len(candidates), device=matches.device)[:room]
        chosen.append(candidates[drawn].sort().values)
        room = count - len(chosen[0])
    return chosen[0], chosen[1]


def offset_loss(predicted: Tensor, target: Tensor) -> Tensor:
    """Return the sum of the smooth absolute differences of two sets of offsets."""
    return F.smooth_l1_loss(predicted.to(target.dtype), target, beta=1 / 9, reduction="sum")


class ProposalNetwork(nn.Module):
    """Find boxes in which there may be an object, of any class.

    Args:
        dim: channels of the maps.
        sides: side of the square anchor of each map, in pixels.
        max_proposals: proposals of an image in training. In evaluation there are half as many.
    """

    sampled = 256
    share = 0.5
    low = 0.3
    high = 0.7
    threshold = 0.7
    least_side = 1e-3

    def __init__(self, dim: int, sides: Sequence[float], max_proposals: int) -> None:
        super().__init__()
        self.sides = sides
        self.max_proposals = max_proposals
        self.head = nn.ModuleDict(
            {
                "conv": nn.Sequential(convolution(dim, dim, 3, nn.ReLU())),
                "cls_logits": nn.Conv2d(dim, len(RATIOS), 1),
                "bbox_pred": nn.Conv2d(dim, 4 * len(RATIOS), 1),
            }
        )
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, std=0.01)
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(
        self, maps: Sequence[Tensor], image: Size, sizes: Sequence[Size], targets: Sequence[Target]
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Return the proposals of each image, [N, 4], and in training the losses.

        Args:
            maps: [B, C, Y, X] each.
            image: height and width of the padded images.
            sizes: height and width of each image without padding.
            targets: objects of each image. In evaluation none.
        """
        # Predict for each anchor, in the order of maps, rows, columns and ratios.
        logits = []
        map_offsets = []
        for features in maps:
            hidden = self.head["conv"](features)
            logits.append(self.head["cls_logits"](hidden).permute(0, 2, 3, 1).flatten(1))
            predicted = self.head["bbox_pred"](hidden).permute(0, 2, 3, 1)  # [B, Y, X, ratios * 4]
            map_offsets.append(predicted.unflatten(3, (-1, 4)).flatten(1, 3))
        offsets = torch.cat(map_offsets, 1)  # [B, N, 4]
        anchors = torch.cat(make_anchors(self.sides, image, maps))
        boxes = torch.stack([decode(x[:, None], anchors, UNIT)[:, 0] for x in offsets.detach()])
        proposals = self.best(boxes, [x.detach() for x in logits], sizes)
        if not self.training:
            return proposals, {}
        return proposals, self.losses(torch.cat(logits, 1), offsets, anchors, targets)

    def best(self, boxes: Tensor, logits: Sequence[Tensor], sizes: Sequence[Size]) -> list[Tensor]:
        """Return the best boxes of each image, without those that overlap a better one.

        Args:
            boxes: [B, N, 4].
            logits: of each map, [B, N_l].
            sizes: height and width of each image.
        """
        max_boxes = self.max_proposals if self.training else self.max_proposals // 2
        # Choose the best boxes of each map first, since the suppression is slow.
        indices = []
        levels = []
        start = 0
        for level, scores in enumerate(logits):
            indices.append(scores.topk(min(max_boxes, scores.size(1)), 1).indices + start)
            levels.append(torch.full_like(indices[-1], level))
            start += scores.size(1)
        picked = torch.cat(indices, 1)
        level_of = torch.cat(levels, 1)
        scores = torch.cat(list(logits), 1).gather(1, picked).sigmoid()
        proposals = []
        for image_boxes, score, level, row, size in zip(
            boxes, scores, level_of, picked, sizes, strict=True
        ):
            candidates = clip(image_boxes[row], size)
            wide = (candidates[:, 2:] - candidates[:, :2] >= self.least_side).all(1)
            candidates = candidates[wide]
            best = batched_nms(candidates, score[wide], level[wide], self.threshold)[:max_boxes]
            proposals.append(candidates[best])
        return proposals

    def losses(
        self, logits: Tensor, offsets: Tensor, anchors: Tensor, targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """Return the losses of scores [B, N] and offsets [B, N, 4] on a sample of anchors."""
        scores = []
        labels = []
        predicted = []
        true_offsets = []
        for row, target in enumerate(targets):
            matches = match(target["boxes"], anchors, self.low, self.high, all_objects=True)
            objects, background = sample(matches, self.sampled, self.share)
            chosen = torch.cat([objects, background])
            scores.append(logits[row, chosen].float())
            labels.append((matches[chosen] >= 0).float())
            predicted.append(offsets[row, objects])
            true_offsets.append(encode(target["boxes"][matches[objects]], anchors[objects], UNIT))
        count = sum(map(len, labels))
        return {
            "loss_objectness": F.binary_cross_entropy_with_logits(
                torch.cat(scores), torch.cat(labels)
            ),
            "loss_rpn_box_reg": offset_loss(torch.cat(predicted), torch.cat(true_offsets)) / count,
        }
