r"""Compute the average precision of a detector on a set in COCO's format.

    python examples/detection/evaluate.py detection/xca/checkpoint_last.safetensors shapes

AP is the mean over overlaps from .5 to .95 and over kinds, in percent, as COCO's own program
(pycocotools) computes it.
"""

import contextlib
import io
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from coco import CocoSet, data_option
from detector import DetectorConfig, build_detector
from torch import nn

from relu_nmt.cli.command import Command
from relu_nmt.config import READ, REQUIRED, WRITTEN, from_dict, option, settings
from relu_nmt.errors import CheckpointError, DataError
from relu_nmt.io.progress import progress_bar
from relu_nmt.io.safe_write import check_writable, json_text, write_output
from relu_nmt.training.checkpoint import load_checkpoint, load_weights
from relu_nmt.vision.config import VisionTransformerConfig

METRICS = ("AP", "AP50", "AP75")
"""The first three of pycocotools's statistics."""
KINDS = {"bbox": "boxes", "segm": "masks"}


@settings
class EvaluationSettings:
    """The detector and the images of an evaluation."""

    path: str = option(
        REQUIRED, "checkpoint of train.py", positional=True, metavar="CKPT", files=READ
    )
    data: str = data_option()
    valid_set: str = option("val", "name of the set: DATA/annotations/instances_NAME.json")
    results: str | None = option(None, "write the results to FILE as JSON", files=WRITTEN)
    cpu: bool = option(False, "use the CPU even if there is a GPU")


def load_detector(path: str) -> tuple[nn.Module, list[int]]:
    """Return the detector of a checkpoint, and the ids of its categories.

    Raises:
        CheckpointError: the file is missing, damaged or of another kind.
    """
    checkpoint = load_checkpoint(path)
    task = checkpoint.metadata.get("task") or {}
    if task.get("name") != "detection":
        raise CheckpointError(f"{path}: not the checkpoint of a detector")
    model = build_detector(
        from_dict(DetectorConfig, task["detector"]),
        from_dict(VisionTransformerConfig, checkpoint.metadata["model_config"]),
        len(task["categories"]),
    )
    load_weights(model, checkpoint.model_tensors, path)
    return model.eval(), task["categories"]


@torch.inference_mode()
def detections(
    model: nn.Module, categories: Sequence[int], data: CocoSet, device: torch.device
) -> list[dict[str, Any]]:
    """Return the objects found on all images, in COCO's format of results.

    Raises:
        DataError: an image is missing or damaged.
    """
    from pycocotools import mask

    results = []
    model.to(device)
    with progress_bar("detect", len(data.numbers), "images") as advance:
        for number in data.numbers:
            [output] = model([data.read(number).to(device)])
            masks = (output["masks"][:, 0] > 0.5).cpu().numpy().astype(np.uint8)
            values = zip(
                output["boxes"].tolist(),
                output["labels"].tolist(),
                output["scores"].tolist(),
                masks,
                strict=True,
            )
            for (left, top, right, bottom), label, score, pixels in values:
                results.append(
                    {
                        "image_id": number,
                        "category_id": categories[label - 1],
                        "bbox": [left, top, right - left, bottom - top],
                        "score": score,
                        "segmentation": mask.encode(np.asfortranarray(pixels)),
                    }
                )
            advance(1)
    return results


def average_precision(data: CocoSet, results: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return AP, AP50 and AP75 of boxes and masks, in percent. Without a detection they are 0."""
    from pycocotools.cocoeval import COCOeval

    if not results:
        return {name: dict.fromkeys(METRICS, 0.0) for name in KINDS.values()}
    scores = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for kind, name in KINDS.items():
            # Load each kind by itself, so that the areas are computed from this kind.
            other_kind = {"bbox": "segmentation", "segm": "bbox"}[kind]
            results_of_kind = []
            for detection in results:
                result = dict(detection)
                result.pop(other_kind, None)
                results_of_kind.append(result)
            loaded = data.annotations.loadRes(results_of_kind)
            judge = COCOeval(data.annotations, loaded, kind)
            judge.evaluate()
            judge.accumulate()
            judge.summarize()
            scores[name] = dict(zip(METRICS, (100 * judge.stats[:3]).tolist(), strict=True))
    return scores


def run(settings: EvaluationSettings) -> None:
    """Evaluate a checkpoint.

    Raises:
        CheckpointError: the checkpoint cannot be read, or has other categories.
        DataError: images or annotations are missing or damaged.
        MissingExtraError: pycocotools is not installed.
    """
    check_writable("--results", settings.results)
    data = CocoSet(settings.data, settings.valid_set)
    model, categories = load_detector(settings.path)
    unknown = set(categories) - set(data.categories)
    if unknown:
        raise DataError(f"{settings.data}: {settings.valid_set} has no category {min(unknown)}")
    device = torch.device("cuda" if torch.cuda.is_available() and not settings.cpu else "cpu")
    scores = average_precision(data, detections(model, categories, data, device))
    for name, values in scores.items():
        figures = ", ".join(f"{metric} {value:.1f}" for metric, value in values.items())
        print(f"{settings.valid_set}: {len(data.numbers):,} images: {name}: {figures}")
    if settings.results is not None:
        text = json_text({"images": len(data.numbers), **scores})
        write_output("--results", settings.results, text)


main = Command("evaluate", __doc__, EvaluationSettings, run)

if __name__ == "__main__":
    sys.exit(main())
