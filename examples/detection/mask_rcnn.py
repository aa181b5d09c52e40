"""Mask R-CNN in plain PyTorch: proposals, then a class, a box and a mask for each proposal.

The parameters are named as in torchvision's Mask R-CNN, so weights of either model load in both.

Reference: He et al. 2017, "Mask R-CNN", and Lin et al. 2017, "Feature pyramid networks for object
detection".
"""

import math
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from boxes import area, batched_nms, clip, decode, encode, roi_align
from proposals import ProposalNetwork, Size, Target, convolution, match, offset_loss, sample
from torch import Tensor, nn
from torch.nn import functional as F

PADDED_TO = 32
"""The sides of a batch are multiples of this, in pixels."""
HEAD_WEIGHTS = (10.0, 5.0)
"""Factors of the offsets of centers and sides that the box head predicts."""
CANONICAL_SIDE = 224
CANONICAL_LEVEL = 4
"""A box of this side, in pixels, is looked up in the map of stride 2 ** level."""


class FeaturePyramidNetwork(nn.Module):
    """Join maps from coarse to fine, and add a map of twice the coarsest stride.

    Args:
        channels: of each map, the finest first.
        dim: channels of every map of the result.
    """

    def __init__(self, channels: Sequence[int], dim: int) -> None:
        super().__init__()
        self.inner_blocks = nn.ModuleList()
        self.layer_blocks = nn.ModuleList()
        for width in channels:
            self.inner_blocks.append(convolution(width, dim, 1))
            self.layer_blocks.append(convolution(dim, dim, 3))
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_uniform_(layer.weight, a=1)
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Return a map [B, dim, Y, X] for each map, the finest first, and then a coarser one."""
        inner: Tensor | None = None
        joined: list[Tensor] = []
        for x, project, smooth in zip(
            reversed(maps), reversed(self.inner_blocks), reversed(self.layer_blocks), strict=True
        ):
            x = project(x)
            inner = x if inner is None else x + F.interpolate(inner, size=x.shape[-2:])
            joined.insert(0, smooth(inner))
        return [*joined, F.max_pool2d(joined[-1], 1, 2)]


class RegionHeads(nn.Module):
    """Give each proposal a class, a better box and a mask.

    Args:
        dim: channels of the maps.
        strides: of the maps in which proposals are looked up, in pixels.
        num_classes: with the background, class 0.
        sampled: proposals of an image that the heads learn from.
    """

    box_side = 7
    mask_side = 14
    share = 0.25
    overlap = 0.5
    least_score = 0.05
    threshold = 0.5
    max_objects = 100
    least_side = 1e-2

    def __init__(self, dim: int, strides: Sequence[int], num_classes: int, sampled: int) -> None:
        super().__init__()
        self.strides = strides
        self.sampled = sampled
        width = 1024
        self.box_head = nn.Sequential(
            OrderedDict(
                flatten=nn.Flatten(),
                fc6=nn.Linear(dim * self.box_side**2, width),
                relu6=nn.ReLU(),
                fc7=nn.Linear(width, width),
                relu7=nn.ReLU(),
            )
        )
        self.box_predictor = nn.ModuleDict(
            {
                "cls_score": nn.Linear(width, num_classes),
                "bbox_pred": nn.Linear(width, 4 * num_classes),
            }
        )
        self.mask_head = nn.Sequential(*(convolution(dim, dim, 3, nn.ReLU()) for _ in range(4)))
        self.mask_predictor = nn.Sequential(
            OrderedDict(
                conv5_mask=nn.ConvTranspose2d(dim, dim, 2, 2),
                relu=nn.ReLU(),
                mask_fcn_logits=nn.Conv2d(dim, num_classes, 1),
            )
        )
        for name, parameter in [
            *self.mask_head.named_parameters(),
            *self.mask_predictor.named_parameters(),
        ]:
            if name.endswith("weight"):
                nn.init.kaiming_normal_(parameter, mode="fan_out", nonlinearity="relu")
        for name, parameter in self.mask_head.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)

    def pooled(self, maps: Sequence[Tensor], boxes: Sequence[Tensor], side: int) -> Tensor:
        """Return the features [K, C, side, side] of all boxes. A box's size chooses its map."""
        rois = torch.cat(list(boxes))
        counts = torch.tensor(list(map(len, boxes)), device=rois.device)
        owners = torch.arange(len(boxes), device=rois.device).repeat_interleave(counts)
        # Choose the map of each box by the box's size, then sample the boxes of each map.
        first = round(math.log2(self.strides[0]))
        last = round(math.log2(self.strides[-1]))
        size = area(rois).sqrt() / CANONICAL_SIDE
        levels = (CANONICAL_LEVEL + size.log2() + 1e-6).floor().clamp(first, last).long() - first
        features = maps[0].new_zeros(len(rois), maps[0].size(1), side, side)
        for level, stride in enumerate(self.strides):
            indices = (levels == level).nonzero()[:, 0]
            cut = roi_align(
                maps[level], rois[indices], owners[indices], (side, side), 1 / stride, 2
            )
            features = features.index_copy(0, indices, cut)
        return features

    def scores_and_offsets(
        self, maps: Sequence[Tensor], boxes: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the class logits [K, classes] and offsets [K, classes, 4] of all boxes."""
        hidden = self.box_head(self.pooled(maps, boxes, self.box_side))
        offsets = self.box_predictor["bbox_pred"](hidden).unflatten(1, (-1, 4))
        return self.box_predictor["cls_score"](hidden), offsets

    def mask_logits(
        self, maps: Sequence[Tensor], boxes: Sequence[Tensor], labels: Tensor
    ) -> Tensor:
        """Return the mask logits [K, 28, 28] of all boxes, each for its own class."""
        hidden = self.mask_head(self.pooled(maps, boxes, self.mask_side))
        all_logits = self.mask_predictor(hidden)  # [K, classes, 28, 28]
        return all_logits[torch.arange(len(labels), device=labels.device), labels]

    def losses(
        self, maps: Sequence[Tensor], proposals: Sequence[Tensor], targets: Sequence[Target]
    ) -> dict[str, Tensor]:
        """Return the losses of classes, boxes and masks on a sample of the proposals."""
        # Draw from the proposals and the objects themselves.
        boxes = []
        labels = []
        true_offsets = []
        mask_boxes = []
        owners = []
        for image_proposals, target in zip(proposals, targets, strict=True):
            candidates = torch.cat([image_proposals, target["boxes"]])
            matches = match(
                target["boxes"], candidates, self.overlap, self.overlap, all_objects=False
            )
            chosen = torch.cat(sample(matches, self.sampled, self.share)).sort().values
            candidates = candidates[chosen]
            matches = matches[chosen]
            positive = matches >= 0
            owner = matches[positive]
            boxes.append(candidates)
            mask_boxes.append(candidates[positive])
            owners.append(owner)
            labels.append(
                torch.zeros_like(matches).masked_scatter(positive, target["labels"][owner])
            )
            true_offsets.append(encode(target["boxes"][owner], mask_boxes[-1], HEAD_WEIGHTS))
        # Learn classes from all drawn boxes, and boxes and masks from boxes with an object.
        logits, offsets = self.scores_and_offsets(maps, boxes)
        label = torch.cat(labels)
        positive = label.nonzero()[:, 0]
        box_loss = offset_loss(offsets[positive, label[positive]], torch.cat(true_offsets))
        masks = self.mask_logits(maps, mask_boxes, label[positive])
        size = (2 * self.mask_side, 2 * self.mask_side)
        true_masks = []
        for target, positive_boxes, owner in zip(targets, mask_boxes, owners, strict=True):
            pixels = target["masks"][:, None].to(positive_boxes)
            true_masks.append(roi_align(pixels, positive_boxes, owner, size)[:, 0])
        mask_loss = F.binary_cross_entropy_with_logits(
            masks.float(), torch.cat(true_masks), reduction="sum"
        ) / max(masks.numel(), 1)
        return {
            "loss_classifier": F.cross_entropy(logits, label),
            "loss_box_reg": box_loss / len(label),
            "loss_mask": mask_loss,
        }

    def detect(
        self, maps: Sequence[Tensor], proposals: Sequence[Tensor], sizes: Sequence[Size]
    ) -> list[Target]:
        """Return boxes, labels, scores and masks [N, 1, 28, 28] of the objects of each image."""
        logits, offsets = self.scores_and_offsets(maps, proposals)
        boxes = decode(offsets, torch.cat(list(proposals)), HEAD_WEIGHTS)  # [K, classes, 4]
        counts = list(map(len, proposals))
        detections: list[Target] = []
        for class_boxes, class_scores, size in zip(
            boxes.split(counts), logits.float().softmax(1).split(counts), sizes, strict=True
        ):
            # Every proposal is a candidate for every class but the background.
            candidates = clip(class_boxes[:, 1:], size).flatten(0, 1)
            scores = class_scores[:, 1:]
            classes = torch.arange(1, scores.size(1) + 1, device=candidates.device)
            label = classes.expand_as(scores).flatten()
            score = scores.flatten()
            wide = (candidates[:, 2:] - candidates[:, :2] >= self.least_side).all(1)
            good = (score > self.least_score) & wide
            candidates = candidates[good]
            score = score[good]
            label = label[good]
            best = batched_nms(candidates, score, label, self.threshold)[: self.max_objects]
            detections.append(
                {"boxes": candidates[best], "labels": label[best], "scores": score[best]}
            )
        labels = [detection["labels"] for detection in detections]
        detected_boxes = [detection["boxes"] for detection in detections]
        masks = self.mask_logits(maps, detected_boxes, torch.cat(labels)).sigmoid()[:, None]
        image_masks = masks.split(list(map(len, labels)))
        for detection, detection_masks in zip(detections, image_masks, strict=True):
            detection["masks"] = detection_masks
        return detections


def paste_masks(masks: Tensor, boxes: Tensor, size: Size) -> Tensor:
    """Return masks [N, 1, Y, X] in the size of an image, from masks [N, 1, M, M] inside boxes."""
    side = masks.size(-1)
    # Pad by a position on each side, so that a mask fades out at its border.
    padded = F.pad(masks.float(), (1, 1, 1, 1))
    centers = (boxes[:, :2] + boxes[:, 2:]) / 2
    half = (boxes[:, 2:] - boxes[:, :2]) / 2
    half = half * ((side + 2) / side)
    corners = torch.cat([centers - half, centers + half], 1).long().tolist()
    pasted = padded.new_zeros(len(masks), 1, *size)
    for mask, (left, top, right, bottom), image in zip(padded, corners, pasted, strict=True):
        shape = (max(bottom - top + 1, 1), max(right - left + 1, 1))
        mask = F.interpolate(mask[None], size=shape, mode="bilinear", align_corners=False)[0]
        y = slice(max(top, 0), min(bottom + 1, size[0]))
        x = slice(max(left, 0), min(right + 1, size[1]))
        image[:, y, x] = mask[:, y.start - top : y.stop - top, x.start - left : x.stop - left]
    return pasted


class MaskRCNN(nn.Module):
    """Mask R-CNN on a backbone with a feature pyramid network.

    Args:
        backbone: maps images [B, 3, Y, X] to a list of maps [B, C, Y / stride, X / stride]. Has
            ``out_channels`` and ``strides``, in pixels.
        num_classes: with the background, class 0.
        min_size: shorter side of an image in pixels. Given several, training draws one for each
            image, and evaluation takes the last one.
        max_size: greatest longer side in pixels.
        pixel_mean: subtracted from red, green and blue.
        pixel_std: divisors after the subtraction.
        anchor_scale: side of an anchor in strides.
        proposals: most proposals of an image in training. In evaluation there are half as many.
        sampled_boxes: proposals of an image that the heads learn from.
    """

    def __init__(
        self,
        backbone: nn.Module,
        num_classes: int,
        *,
        min_size: Sequence[int],
        max_size: int,
        pixel_mean: Sequence[float],
        pixel_std: Sequence[float],
        anchor_scale: float,
        proposals: int,
        sampled_boxes: int,
    ) -> None:
        super().__init__()
        self.min_size = min_size
        self.max_size = max_size
        self.pixel_mean = pixel_mean
        self.pixel_std = pixel_std
        self.backbone = backbone
        dim: int = backbone.out_channels
        strides: list[int] = backbone.strides
        sides = [round(anchor_scale * stride) for stride in strides]
        self.rpn = ProposalNetwork(dim, sides, proposals)
        # The last map only finds the largest proposals. No features are read from it.
        self.roi_heads = RegionHeads(dim, strides[:-1], num_classes, sampled_boxes)

    def forward(
        self, images: Sequence[Tensor], targets: Sequence[Target] = ()
    ) -> dict[str, Tensor] | list[Target]:
        """Return the losses in training, the objects of each image in evaluation.

        Args:
            images: [3, Y, X] each, from 0 to 1.
            targets: boxes [N, 4], labels [N] from 1 and masks [N, Y, X] of each image, for
                training.

        Returns:
            The losses by name, or boxes, labels, scores and masks [N, 1, Y, X] from 0 to 1, the
            best first, in pixels of the given images.
        """
        pixels, scaled = self.resized(images, targets)
        sizes = [(image.size(1), image.size(2)) for image in pixels]
        batch = padded(pixels)
        maps = self.backbone(batch)
        proposals, losses = self.rpn(maps, (batch.size(2), batch.size(3)), sizes, scaled)
        if self.training:
            return {**self.roi_heads.losses(maps, proposals, scaled), **losses}
        detections = self.roi_heads.detect(maps, proposals, sizes)
        for image, size, detection in zip(images, sizes, detections, strict=True):
            original = (image.size(1), image.size(2))
            detection["boxes"] = scale_boxes(detection["boxes"], size, original)
            detection["masks"] = paste_masks(detection["masks"], detection["boxes"], original)
        return detections

    def resized(
        self, images: Sequence[Tensor], targets: Sequence[Target]
    ) -> tuple[list[Tensor], list[Target]]:
        """Return normalized images in the model's size, and their objects."""
        resized = []
        scaled = []
        for index, image in enumerate(images):
            image = (image - image.new_tensor(self.pixel_mean)[:, None, None]) / image.new_tensor(
                self.pixel_std
            )[:, None, None]
            choice = int(torch.rand(1) * len(self.min_size)) if self.training else -1
            old = (image.size(1), image.size(2))
            factor = min(
                np.float32(self.min_size[choice]) / np.float32(min(old)),
                np.float32(self.max_size) / np.float32(max(old)),
            )
            new = (int(old[0] * float(factor)), int(old[1] * float(factor)))
            resized.append(F.interpolate(image[None], new, mode="bilinear", align_corners=False)[0])
            if targets:
                target = targets[index]
                masks = F.interpolate(target["masks"][:, None].float(), new)[:, 0].byte()
                boxes = scale_boxes(target["boxes"], old, new)
                scaled.append({**target, "boxes": boxes, "masks": masks})
        return resized, scaled


def scale_boxes(boxes: Tensor, old: Size, new: Size) -> Tensor:
    """Return boxes of an image of the size ``old`` for the same image of the size ``new``."""
    y = new[0] / old[0]
    x = new[1] / old[1]
    return boxes * boxes.new_tensor([x, y, x, y])


def padded(images: Sequence[Tensor]) -> Tensor:
    """Return images [3, Y, X] as one batch, padded on the right and below with the mean color."""
    height = _rounded_up(max(image.size(1) for image in images))
    width = _rounded_up(max(image.size(2) for image in images))
    return torch.stack(
        [F.pad(image, (0, width - image.size(2), 0, height - image.size(1))) for image in images]
    )


def _rounded_up(side: int) -> int:
    return -(-side // PADDED_TO) * PADDED_TO
