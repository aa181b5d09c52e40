"""Readers of what commands print and write."""

import csv
import json

import torch

from relu_nmt.training.checkpoint import load_checkpoint


def contents(folder):
    """Return the files of a folder by name, without the manifest, which names the folder.

    A folder in it has no bytes, and so None.
    """
    found = {}
    for path in folder.iterdir():
        if path.name != "manifest.json":
            found[path.name] = path.read_bytes() if path.is_file() else None
    return found


def names_in(folder, pattern="*"):
    """Return the sorted names of the files in a folder."""
    return sorted(path.name for path in folder.glob(pattern))


def csv_rows(path):
    """Return the rows of a table as dictionaries."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def weights(folder, name="checkpoint_last"):
    """Return the weights in a checkpoint by name."""
    return load_checkpoint(folder / f"{name}.safetensors").model_tensors


def last_checkpoint(folder, name="checkpoint_last"):
    """Return a checkpoint with the state of the training."""
    return load_checkpoint(folder / f"{name}.safetensors", with_training_state=True)


def tensors(folder, name="checkpoint_last"):
    """Return all tensors in a checkpoint by name: weights, and the state of the optimizer."""
    checkpoint = last_checkpoint(folder, name)
    return {**checkpoint.model_tensors, **checkpoint.training_tensors}


def assert_same_tensors(first, second):
    """Assert that tensors by name are the same to the bit."""
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def json_lines(output):
    """Return the JSON objects in an output that may have other lines."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def values(lines, name):
    """Return the values under a name, from the lines that have it."""
    return [line[name] for line in lines if name in line]


def column(rows, name):
    """Return the value under a name in each row."""
    return [row[name] for row in rows]


def select(rows, **fields):
    """Return the rows that have these values."""
    return [row for row in rows if fields.items() <= row.items()]


def starting(lines, start):
    """Return the lines that start so."""
    return [line for line in lines if line.startswith(start)]


def containing(lines, part):
    """Return the lines, or other collections, that have a part."""
    return [line for line in lines if part in line]


def lines_of(output, kind):
    """Return the lines ``S-``, ``H-``... of relu-nmt-generate as (number, fields)."""
    rows = []
    for line in starting(output.split("\n"), f"{kind}-"):
        number, *fields = line.removeprefix(f"{kind}-").split("\t")
        rows.append((int(number), fields))
    return rows


def numbers_of(output, kind):
    """Return the numbers of lines ``S-``, ``H-``... of relu-nmt-generate."""
    return [number for number, _ in lines_of(output, kind)]


def texts_of(output, kind="D"):
    """Return the last fields of lines ``S-``, ``H-``... of relu-nmt-generate."""
    return [fields[-1] for _, fields in lines_of(output, kind)]


def steps_of(curves, name):
    """Return the steps of a curve in a log for TensorBoard."""
    return [event.step for event in curves.Scalars(name)]
