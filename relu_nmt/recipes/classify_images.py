"""Classify pictures, and print the likeliest classes of each."""

import itertools
import json
import sys
from typing import Any

from relu_nmt.cli.vision_classify import ClassifyImagesSettings as Settings
from relu_nmt.errors import DataError
from relu_nmt.recipes.images import load_classifier
from relu_nmt.vision.loading import BATCH_SIZE


class Classified(list[dict[str, float]]):
    """The probabilities of classes for each picture; empty if the picture cannot be read.

    Attributes:
        errors: the errors of pictures that cannot be read, by path.
    """

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, str] = {}

    @property
    def exit_code(self) -> int:
        """2 if pictures cannot be read, otherwise 0."""
        return 2 if self.errors else 0


def run(settings: Settings, *, progress: bool = True) -> Classified:
    """Classify pictures, and return the probabilities of the likeliest classes of each.

    A picture that cannot be read is reported on standard error, and the others are classified.

    Args:
        settings: the checkpoint, the pictures and the output.
        progress: print on standard output, batch by batch, or at the end as JSON.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or cannot work at this image size.
        ConfigError: settings that do not fit the model or the device.
    """
    classifier = load_classifier(settings.path, settings, settings.image_size)
    found, remaining, values = Classified(), iter(settings.images), list[dict[str, Any]]()
    # Classify batch by batch, and print each result at once.
    while chunk := list(itertools.islice(remaining, BATCH_SIZE)):
        errors: list[DataError] = []
        results = classifier.classify(chunk, settings.top_k, damaged=errors.append)
        # Errors come in the order of the pictures without classes.
        damaged = [image for image, classes in zip(chunk, results, strict=True) if not classes]
        own = dict(zip(damaged, map(str, errors), strict=False))
        for image, classes in zip(chunk, results, strict=True):
            values.append({"image": image, "classes": classes})
            if image in own:
                values[-1]["error"] = own[image]
            elif progress and not settings.json:
                shares = (f"{name} {share:.1%}" for name, share in classes.items())
                print("\t".join([image, *shares]), flush=True)
        found += results
        found.errors |= own
        if progress and own:
            print("\n".join(own.values()), file=sys.stderr)
    # Print all as JSON, and the number of failures.
    if progress and settings.json:
        print(json.dumps(values, indent=1, ensure_ascii=False))
    if progress and len(settings.images) > 1 and found.errors:
        lost = len(found) - sum(map(bool, found))
        print(f"{lost:,} of {len(found):,} pictures cannot be read", file=sys.stderr)
    return found
