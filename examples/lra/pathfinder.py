"""Pathfinder: two dashed paths among distractors. Are the two discs at the ends of one path?

The images follow the description of Linsley et al. 2018, "Learning long-range spatial dependencies
with horizontal gated recurrent units", section 3, in Long Range Arena's size of 32 pixels with
paths of 14 dashes. The generator is our own, so these are not the images of Long Range Arena.
"""

import math
from collections.abc import Sequence
from itertools import chain, pairwise
from random import Random

import numpy as np

# Side of an image in pixels, and the factor by which the image is drawn larger.
SIDE = 32
SCALE = 4
PATH_DASHES = 14
DISTRACTOR_DASHES = 4
DISTRACTORS = 5
# Pixels between dashes, length and width of a dash, and radius of a disc.
STEP = 2.2
DASH = 1.4
THICKNESS = 0.9
DISC = 1.6
# Least pixels to the border and to other paths, and most radians between two dashes.
MARGIN = 2.0
GAP = 3.0
BEND = 0.5
STARTS = 60
TURNS = 4

Point = tuple[float, float]


def _is_free(point: Point, obstacles: Sequence[Point]) -> bool:
    x, y = point
    if not (MARGIN < x < SIDE - MARGIN and MARGIN < y < SIDE - MARGIN):
        return False
    return all((x - a) ** 2 + (y - b) ** 2 > GAP**2 for a, b in obstacles)


def _path(random: Random, dashes: int, obstacles: Sequence[Point]) -> list[Point] | None:
    """Return the dashes + 1 points of a smooth path away from the obstacles, or None."""
    points = [(random.uniform(MARGIN, SIDE - MARGIN), random.uniform(MARGIN, SIDE - MARGIN))]
    if not _is_free(points[0], obstacles):
        return None
    heading = random.uniform(0, 2 * math.pi)
    for _ in range(dashes):
        x, y = points[-1]
        for _ in range(TURNS):
            turned = heading + random.uniform(-BEND, BEND)
            point = (x + STEP * math.cos(turned), y + STEP * math.sin(turned))
            if _is_free(point, obstacles) and _is_free(point, points[:-1]):
                break
        else:
            return None
        points.append(point)
        heading = turned
    return points


def _place(random: Random, dashes: int, paths: Sequence[list[Point]]) -> list[Point] | None:
    """Return a path away from other paths, or None if all trials fail."""
    obstacles = list(chain.from_iterable(paths))
    for _ in range(STARTS):
        path = _path(random, dashes, obstacles)
        if path is not None:
            return path
    return None


def make_image(random: Random) -> tuple[np.ndarray, int]:
    """Return an image as gray values, uint8 [32 * 32], and 1 if both discs are on one path, else 0.

    Example:
        >>> pixels, label = make_image(Random(1))
        >>> pixels.shape, label in (0, 1)
        ((1024,), True)
    """
    paths: list[list[Point]] = []
    while len(paths) < 2:
        path = _place(random, PATH_DASHES, paths)
        paths = [] if path is None else [*paths, path]
    label = random.randrange(2)
    first, second = paths
    last_disc = first[-1] if label else random.choice((second[0], second[-1]))
    discs = (first[0], last_disc)
    for _ in range(DISTRACTORS):
        path = _place(random, DISTRACTOR_DASHES, paths)
        if path is not None:
            paths.append(path)
    return _drawn(paths, discs), label


def _drawn(paths: Sequence[list[Point]], discs: Sequence[Point]) -> np.ndarray:
    from PIL import Image, ImageDraw
    from PIL.Image import Resampling

    image = Image.new("L", (SIDE * SCALE, SIDE * SCALE))
    draw = ImageDraw.Draw(image)
    for path in paths:
        for start, end in pairwise(np.array(path)):
            middle = (start + end) / 2
            half = (end - start) / STEP * DASH / 2
            line = np.concatenate([middle - half, middle + half]) * SCALE
            draw.line(line.tolist(), fill=255, width=round(THICKNESS * SCALE))
    for disc in np.array(discs):
        box = np.concatenate([disc - DISC, disc + DISC]) * SCALE
        draw.ellipse(box.tolist(), fill=255)
    return np.asarray(image.resize((SIDE, SIDE), Resampling.BOX)).flatten()
