"""Values of JSON changed where a damaged byte would not: behind right checksums.

The bytes of the fuzzer are the seed of the changes, so that every input is a file that its reader
parses, with some values of other types, sizes or depths.
"""

import copy
import itertools
import json
import random
import zlib

from safetensors import safe_open
from safetensors.torch import save

DEEP = {
    f"@deep {depth} {opening}@": (opening, depth)
    for depth, opening in itertools.product((9, 40, 900, 20_000), ("[", '{"a":'))
}
STRANGE = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -1.5, 1e308, -1e308, 10**15, 10**16, 10**400, 2**63),
    *(float("nan"), float("inf"), "", "x", "5", "a\x1b[31m\n\0b", "\ud800", "x" * 5000, "../x"),
    *([], [1], ["x"], [[]], [None], {}, {"a": 1}, {"": {}}, {"a": {"a": [1]}}, *DEEP),
)


def changed(value, seed):
    """Return JSON text of a value with one to three changes, drawn by the seed."""
    draws = random.Random(seed)
    holder = {"value": json.loads(json.dumps(value))}
    for _ in range(draws.choice((1, 1, 2, 3))):
        _change(holder, draws)
    text = json.dumps(holder["value"])
    for name, (opening, depth) in DEEP.items():
        closing = "]" if opening == "[" else "}"
        text = text.replace(json.dumps(name), opening * depth + "1" + closing * depth)
    return text


def _change(holder, draws):
    """Replace, drop, add or repeat something at a place of any depth."""
    holders = [(holder, "value")]
    for outer, key in holders:
        inner = outer[key]
        keys = (
            inner
            if isinstance(inner, dict)
            else range(len(inner))
            if isinstance(inner, list)
            else ()
        )
        holders += [(inner, key) for key in keys]
    # Draw the depth first, since most places are deep.
    outer, key = draws.choice(holders[: draws.choice((2, 12, len(holders)))] or holders)
    kind = draws.choice(("replace", "replace", "replace", "drop", "add"))
    if kind == "drop" and outer is not holder:
        del outer[key]
    elif kind == "add" and isinstance(outer[key], dict):
        outer[key][draws.choice(("x", "", "name", "rate", "a\x1b[31m\n"))] = copy.deepcopy(
            draws.choice(STRANGE)
        )
    else:
        outer[key] = copy.deepcopy(draws.choice(STRANGE))


def checkpoint_with_changes(path, seed):
    """Return the bytes of a checkpoint with changed metadata and right checksums."""
    with safe_open(path, "pt") as file:
        texts = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.offset_keys()}
    texts.pop("metadata_checksum", None)
    draws = random.Random(seed)
    key = draws.choice(sorted(texts))
    texts[key] = changed(json.loads(texts[key]), draws.random())
    if "checksums" in texts:
        texts["metadata_checksum"] = str(zlib.crc32(json.dumps(sorted(texts.items())).encode()))
    return save(tensors, texts)
