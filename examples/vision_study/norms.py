r"""Measure Frobenius norms of attention in the checkpoints of a training.

    python examples/vision_study/norms.py CHECKPOINTS --data cifar10/test.zip --results norms.json

For every layer: the norm of the weights A, and the norm of the Jacobian of the map from scores to
weights. Both are means over heads and some test images.

Reference: Saratchandran et al. 2024, "Rethinking Attention", Figures 2, 3, 6 and 7.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relu_nmt.attention.base import Attention, Need
from relu_nmt.attention.normalized import SoftmaxAttention
from relu_nmt.attention.pointwise import PointwiseAttention
from relu_nmt.attention.polynomial import PolynomialAttention
from relu_nmt.attention.records import AttentionRecord, record_attention
from relu_nmt.attention.thresholded_relu import ThresholdedReLUAttention
from relu_nmt.cli.command import Command
from relu_nmt.config import REQUIRED, WRITTEN, Files, option, settings
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.io.safe_write import check_writable, json_text, write_output
from relu_nmt.jobs.vision_evaluate.job import evaluation_sets
from relu_nmt.training.checkpoint import read_metadata
from relu_nmt.vision.config import IMAGES
from relu_nmt.vision.loading import ImageClassifier


@settings
class NormSettings:
    """The checkpoints and the images to measure."""

    folder: str = option(
        REQUIRED,
        "the --save-dir",
        positional=True,
        metavar="CHECKPOINTS",
        files=Files(names=r"checkpoint.*\.safetensors"),
    )
    data: str = option(
        REQUIRED, "images, as relu-nmt-vision-evaluate takes them", metavar="PATH", files=IMAGES
    )
    results: str = option(REQUIRED, "write the norms to FILE as JSON", files=WRITTEN)
    images: int = option(128, "images to measure, from all over the set", least=1)


def norms(attention: Attention, record: AttentionRecord) -> tuple[float, float]:
    """Return the norms of the weights and of the Jacobian, means over images and heads.

    The Jacobian belongs to the weights [Nq, Nk] of a head as a function of its scores.

    Args:
        attention: softmax, polynomial, or point-wise with ReLU.
        record: record of one pass, with weights.

    Raises:
        ConfigError: the attention is of another kind.
    """
    weights = record.weights
    has_formula = isinstance(attention, SoftmaxAttention | PolynomialAttention) or (
        isinstance(attention, PointwiseAttention)
        and attention.map.name == "relu"
        and not isinstance(attention, ThresholdedReLUAttention)
        and not getattr(attention.config, "centered", False)
    )
    if weights is None or not has_formula:
        raise ConfigError(
            f"--attention {attention.name}: norms are those of softmax, polynomial and rectified "
            "(pointwise:h=relu) attention"
        )
    weights = weights.double()  # [B, H, Nq, Nk]
    if isinstance(attention, SoftmaxAttention):
        # The Jacobian of a row is diag(p) - p p^T.
        squares = weights.square().sum(-1)
        rows = squares - 2 * weights.pow(3).sum(-1) + squares.square()  # [B, H, Nq]
    else:
        assert isinstance(attention, PointwiseAttention), "it has a formula"
        rows = _derivatives(attention, weights, record).square().sum(-1)
    return (
        weights.square().sum((-2, -1)).sqrt().mean().item(),
        rows.sum(-1).sqrt().mean().item(),
    )


def _derivatives(attention: PointwiseAttention, weights: Tensor, record: AttentionRecord) -> Tensor:
    """Return |p c z^(p-1)| of the weights w = c z^p [B, H, Nq, Nk]: p |c|^(1/p) |w|^(1 - 1/p).

    For rectified scores, w = c max(z, 0), the derivative is |c| where w is not 0.
    """
    scale = attention.row_scale(record.visibility.positive_counts).double()[..., None]
    gain = attention.gain()
    if gain is not None:
        scale = scale * gain.double()[:, None, None]
    if not isinstance(attention, PolynomialAttention):
        return scale.abs() * (weights != 0)
    power = attention.config.power
    return power * scale.abs() ** (1 / power) * weights.abs() ** (1 - 1 / power)


def checkpoints_of(folder: str) -> dict[int, Path]:
    """Return the checkpoints of a training by their number of updates, without averaged ones.

    Raises:
        CheckpointError: a checkpoint is damaged.
        DataError: the folder has no checkpoint.
    """
    checkpoints = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        state = read_metadata(path).get("training_state")
        if state is not None:
            checkpoints[int(state["num_updates"])] = path
    if not checkpoints:
        raise DataError(f"{folder}: no checkpoints there; give the --save-dir of a training")
    return dict(sorted(checkpoints.items()))


def pixels_of(classifier: ImageClassifier, data: str, count: int) -> Tensor:
    """Return normalized pixels [B, 3, Y, X] of images from all over a set.

    Raises:
        DataError: there are no images, or they are damaged.
    """
    images = next(iter(evaluation_sets((data,)).values()))
    count = min(count, len(images))
    # Spread the choice: files are sorted by class.
    views = []
    for index in range(count):
        image = images.read(index * len(images) // count)
        views.append(classifier.transform.evaluation(image))
    return torch.from_numpy(np.stack(views))


def measured(path: Path, settings: NormSettings) -> list[dict[str, Any]]:
    """Return the norms of every layer of a checkpoint.

    Raises:
        CheckpointError: the checkpoint is damaged.
        ConfigError: the attention is of another kind.
        DataError: there are no images, or they are damaged.
    """
    classifier = ImageClassifier.from_checkpoint(path)
    pixels = pixels_of(classifier, settings.data, settings.images)
    attentions = {m.layer: m for m in classifier.model.modules() if isinstance(m, Attention)}
    rows: list[dict[str, Any]] = []

    def add_row(record: AttentionRecord) -> None:
        weights, jacobian = norms(attentions[record.layer], record)
        rows.append({"layer": record.layer + 1, "weights": weights, "jacobian": jacobian})

    with record_attention(classifier.model, Need(weights=True), add_row):
        classifier.outputs(pixels)
    return rows


def run(settings: NormSettings) -> None:
    """Measure all checkpoints and write the norms.

    Raises:
        ReluNmtError: as :func:`checkpoints_of` and :func:`measured`.
    """
    check_writable("--results", settings.results)
    rows = []
    for updates, path in checkpoints_of(settings.folder).items():
        for row in measured(path, settings):
            rows.append({"num_updates": updates, **row})
    write_output("--results", settings.results, json_text({"norms": rows}))


main = Command("norms", __doc__, NormSettings, run)

if __name__ == "__main__":
    sys.exit(main())
