"""The parts of a study, and the published numbers that stand beside its measured ones."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.paper_registry import published_rows

SMALL = "--image-size 32 --patch-size 8"
ONE_CORE = "--batch-size 64 --lr 1e-3 --clip-norm 1.0"
SHORT = f"{ONE_CORE} --layers 4"


@dataclass(frozen=True)
class Variant:
    """A variant: one training for each seed.

    Args:
        flags: flags of relu-nmt-vision-train for this variant alone.
        model: name of one of the setting's models.
        published: the paper's top-1 in percent, and the name of the paper's model.
        line: its line in the plot over the study's axis.
        x: its value on the axis. None for a variant outside the axis.
    """

    flags: str
    model: str = "ViT"
    published: str = ""
    line: str = ""
    x: float | None = None


@dataclass(frozen=True)
class Setting:
    """The models and flags of all variants in one setting.

    Args:
        models: flags by the name of a model. Variants of other models are not in this setting.
        flags: flags of all variants. ``paper`` has the papers' images per update and learning rate
            with four processes.
        updates: updates of a training. None for the epochs of a recipe.
        valid_fraction: share of the training images held out for the curves.
    """

    models: Mapping[str, str]
    flags: str
    updates: int | None = None
    valid_fraction: float = 0.02


@dataclass(frozen=True)
class Study:
    """A question, and the trainings that answer it.

    Args:
        title: title of the report.
        question: the question in one or two sentences.
        source: paper and its tables or figures.
        variants: variants by their names in the report.
        settings: ``small`` and ``paper``, and further ones of the paper.
        baselines: baseline variant by the name of a model.
        axis: name of a quantity by which the variants differ, if any, for plots over it.
        log_axis: whether the axis is logarithmic.
        norms: also measure norms of attention in the last ten checkpoints.
    """

    title: str
    question: str
    source: str
    variants: Mapping[str, Variant]
    settings: Mapping[str, Setting]
    baselines: Mapping[str, str] = field(default_factory=lambda: {"ViT": "softmax"})
    axis: str = ""
    log_axis: bool = False
    norms: bool = False

    def names(self, setting: str) -> tuple[str, ...]:
        """Return the variants of a setting."""
        models = self.settings[setting].models
        return tuple(name for name, variant in self.variants.items() if variant.model in models)


def published(entry: str, row: str, model: str) -> str:
    """Return a published top-1 and the paper's model as ``79.8, DeiT-S``, or an empty text.

    Args:
        entry: id in the registry of the papers.
        row: name of the row.
        model: the paper's model.
    """
    [number, *_] = published_rows(entry).get(row, [""])
    return f"{number}, {model}" if number else ""
