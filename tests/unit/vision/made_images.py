"""Small pictures of colored squares in class folders, for tests, and other forms of them."""

import json
import random
import zipfile

import pytest
from PIL import Image

COLORS = {"blue": (20, 20, 220), "green": (20, 220, 20), "red": (220, 20, 20)}


def square(color, rng, size=12):
    """A square somewhere on a gray ground."""
    image = Image.new("RGB", (size, size), (rng.randrange(80),) * 3)
    x = rng.randrange(size // 2)
    y = rng.randrange(size // 2)
    image.paste(color, (x, y, x + size // 2, y + size // 2))
    return image


def make_squares(folder, count, seed=0):
    """Write ``count`` pictures of each color."""
    rng = random.Random(seed)
    for name, color in COLORS.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            square(color, rng).save(folder / name / f"{number:04d}.png")
    return folder


def zip_folder(folder, file):
    """Write the folder's files in reversed order, with entries for folders, as some tools do."""
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(folder.rglob("*"), reverse=True):
            archive.write(path, path.relative_to(folder))
    return file


def write_table(path, columns, names=None):
    """Write a parquet file, with names of classes as Hugging Face stores them."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table(columns)
    if names is not None:
        features = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    parquet.write_table(table, path, row_group_size=2)
