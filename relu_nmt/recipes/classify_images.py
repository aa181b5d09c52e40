"""Classify pictures, and print the likeliest classes of each."""

import json

from relu_nmt.recipes.image_settings import ClassifyImagesSettings as Settings
from relu_nmt.recipes.images import load_classifier


def run(settings: Settings, *, progress: bool = True) -> list[dict[str, float]]:
    """Classify pictures, and return the probabilities of the likeliest classes of each.

    Args:
        settings: the checkpoint, the pictures and what to print.
        progress: print on standard output.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or cannot work at this image size.
        ConfigError: settings that do not fit the model or the device.
        DataError: a file is missing or no image.
    """
    options = settings.options
    classifier = load_classifier(settings.path, settings.model, options.image_size)
    found = classifier.classify(settings.images, options.top_k)
    if not progress:
        return found
    pairs = list(zip(settings.images, found, strict=True))
    if options.json:
        values = [{"image": image, "classes": classes} for image, classes in pairs]
        print(json.dumps(values, indent=1, ensure_ascii=False))
        return found
    for image, classes in pairs:
        print("\t".join([image, *(f"{name} {share:.1%}" for name, share in classes.items())]))
    return found
