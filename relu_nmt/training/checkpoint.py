"""The checkpoint file: one safetensors file with weights, settings and state, and no pickle.

Tensors are named ``model.*`` (the weights to decode with, averaged with EMA) and, to resume
training, ``train.model.*`` (the raw weights, only with EMA) and ``optimizer.*``. The metadata of
safetensors maps ``format``, ``version``, ``tied``, ``model_config``, ``task``, ``training_state``
and ``args`` to JSON. A file is written beside its place and renamed, so an interrupted or failed
write never harms an older checkpoint.

The metadata also has a CRC-32 of every tensor and of all other metadata, which finds damage, not
forgery. Earlier files have none. :func:`read_tensors` reads weights of other libraries.
"""

import json
import os
import pickle
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from relu_nmt.config.classes import flat
from relu_nmt.config.stored import checked, parse_json
from relu_nmt.errors import CheckpointError, ConfigError, first_line, reporting, some_of
from relu_nmt.io.safe_write import plain_file, replacing
from relu_nmt.training import version_1
from relu_nmt.training.distributed import part_like

SUFFIX = ".safetensors"
FORMAT = "relu_nmt checkpoint"
VERSION = 2
OLD_VERSION = 1  # see relu_nmt.training.version_1
MODEL_PREFIX = "model."
BACKEND = "pread"
"""The way to read a file. Tensors mapped from a file change or crash with the file."""
METADATA_FORM = {
    "version": int,
    "tied?": dict[str, str],
    "checksums?": dict[str, int],
    "model_config?": dict[str, Any],
    "task?": dict[str, Any],
    "training_state?": dict[str, Any],
    "args?": {
        "model?": dict[str, Any],
        "documents?": dict[str, Any],
        "batching?": {"max_tokens?": int | None},
    },
}
"""The form of the metadata, see :func:`checked`: what readers may rely on."""
SHOWN_NAMES = 3
_MOST_HEADER = 100_000_000
"""Largest header of safetensors in bytes. The file begins with the header's size and a {."""
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


@dataclass
class Checkpoint:
    """The contents of a checkpoint."""

    # The ``state_dict`` for decoding. Tied weights are stored once and come back as one tensor.
    model_tensors: dict[str, Tensor]
    metadata: dict[str, Any] = field(default_factory=dict)  # values for JSON
    # Tensors that only training needs, by their full names.
    training_tensors: dict[str, Tensor] = field(default_factory=dict)


def save_checkpoint(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Write ``checkpoint`` to ``path``. The old file stays whole until the new one is complete."""
    # Store each tensor once, with checksums of all parts.
    target = Path(path)
    tensors = {MODEL_PREFIX + name: t for name, t in checkpoint.model_tensors.items()}
    stored, tied = without_aliases(tensors | checkpoint.training_tensors)
    header = {**checkpoint.metadata, "format": FORMAT, "version": VERSION, "tied": tied}
    header["checksums"] = {name: _checksum(tensor) for name, tensor in stored.items()}
    text = {key: json.dumps(value, ensure_ascii=False) for key, value in header.items()}
    text["metadata_checksum"] = json.dumps(_checksum_of_texts(text))
    # Write beside the target and rename, so that a failure harms no file.
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target, durable=True) as temporary:
            save_file(stored, temporary, metadata=text)
            _sort_metadata(temporary)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{target}: cannot write the checkpoint ({error}); free some space or choose another "
            "folder. Earlier checkpoints are unharmed"
        ) from error


def load_checkpoint(path: str | os.PathLike[str], with_training_state: bool = False) -> Checkpoint:
    """Read a checkpoint to the CPU. ``with_training_state``: also the tensors of training alone."""
    metadata = _read_header(path)
    source = Path(path)
    version = metadata.pop("version")
    tied = metadata.pop("tied", {})
    checksums: dict[str, int] | None = metadata.pop("checksums", None)
    prefix = "" if with_training_state else MODEL_PREFIX
    try:
        with safe_open(source, framework="pt", backend=BACKEND) as file:
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names if name.startswith(prefix)}
    except (OSError, SafetensorError) as error:
        raise _damaged(source, error) from error
    if checksums is not None:
        for name in checksums:
            if name.startswith(MODEL_PREFIX) and name not in tensors:
                raise _damaged(source, f"the tensor {name} is missing")
        for name, tensor in tensors.items():
            if checksums.get(name) != _checksum(tensor):
                raise _damaged(source, f"the tensor {name} does not fit its checksum")
    # Restore tied tensors, and divide all into weights for decoding and those for training only.
    tensors |= {alias: tensors[name] for alias, name in tied.items() if name in tensors}
    model = without_prefix(tensors, MODEL_PREFIX)
    training = {n: t for n, t in tensors.items() if not n.startswith(MODEL_PREFIX)}
    if version == OLD_VERSION:
        model = version_1.present_tensors(model)
        training = version_1.present_tensors(training)
    return Checkpoint(model, metadata, training)


def without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, by name without the prefix."""
    return {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}


def same_model_advice(fresh_start: str) -> str:
    """Return advice for weights that do not fit the model of a training."""
    return (
        "give the same --arch, model flags (--config reads them from a checkpoint) and data, or "
        f"{fresh_start}"
    )


def weights_alone_advice(path: str | os.PathLike[str]) -> str:
    """Return advice to train on from the weights of a checkpoint, without its state."""
    return (
        f"start from its weights with --finetune-from-model {path} in another --save-dir, without "
        "--restore-file"
    )


def load_weights(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    origin: str | os.PathLike[str],
    model_tensors: Mapping[str, Tensor] | None = None,
    advice: str = "",
) -> None:
    """Copy stored weights into the model, or ``model_tensors``. ``advice`` ends the errors."""
    model_tensors = model_tensors or model.state_dict()
    unlike: list[str] = []
    missing: list[str] = []
    for name, expected in model_tensors.items():
        if name not in tensors:
            missing.append(name)
        elif (shape := tensors[name].shape) != expected.shape:
            unlike.append(f"{name} {list(shape)} instead of {list(expected.shape)}")
    foreign = [name for name in tensors if name not in model_tensors]
    # Raise the first kind of difference, with a few names as examples.
    for verb, names in (("has", unlike), ("lacks", missing), ("has also", foreign)):
        if names:
            raise CheckpointError(
                f"{origin}: the checkpoint does not fit the model: it {verb} "
                f"{some_of(names, SHOWN_NAMES)}{advice and '; '}{advice}"
            )
    parts = {name: part_like(tensor, model_tensors[name]) for name, tensor in tensors.items()}
    model.load_state_dict(parts, strict=False)


def average_checkpoints(
    paths: Sequence[Path], check: Callable[[Checkpoint, Path, Checkpoint, Path], None]
) -> Checkpoint:
    """Return a checkpoint with the mean weights, in float64. ``check`` refuses other models."""
    first = load_checkpoint(paths[0])
    tensors = first.model_tensors
    # Add up the weights by the first name of each tensor, so that tied weights count once.
    names = {id(x): name for name, x in reversed(tensors.items()) if x.is_floating_point()}
    sums = {name: tensors[name].double() for name in names.values()}
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    for path in paths[1:]:
        other = load_checkpoint(path)
        check(first, paths[0], other, path)
        other_shapes = {name: tensor.shape for name, tensor in other.model_tensors.items()}
        if other_shapes != shapes:
            different = min(name for name, _ in shapes.items() ^ other_shapes.items())
            raise CheckpointError(
                f"{path}: the weight '{different}' does not fit that of {paths[0]}; average "
                "checkpoints of one model"
            )
        for name in sums:
            sums[name] = sums[name] + other.model_tensors[name].double()
    means = {name: (total / len(paths)).to(tensors[name].dtype) for name, total in sums.items()}
    # Leave out the training state, since the mean is for decoding only.
    metadata = dict(first.metadata)
    metadata.pop("training_state", None)
    metadata["averaged"] = [path.name for path in paths]
    averaged = {name: means.get(names.get(id(x), ""), x) for name, x in tensors.items()}
    return Checkpoint(averaged, metadata)


def read_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return a checkpoint's metadata without reading tensors."""
    hidden = ("version", "tied", "checksums")
    return {name: value for name, value in _read_header(path).items() if name not in hidden}


def read_tensors(path: Path, flag: str = "", wrappers: Sequence[str] = ()) -> dict[str, Tensor]:
    """Return the tensors of another library's file by name, or below a key of ``wrappers``."""
    origin = f"{flag} {path}".strip()
    try:
        if path.suffix == SUFFIX:
            return load_file(plain_file(path), backend=BACKEND)
        content = torch.load(plain_file(path), map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{origin}: no such file") from None
    except MemoryError:
        raise
    except pickle.UnpicklingError as error:  # its text advises to read the file unsafely
        raise CheckpointError(
            f"{origin}: cannot be read as weights (damaged, or more than weights in it)"
        ) from error
    except Exception as error:  # the readers raise any exception for damaged files
        raise CheckpointError(
            f"{origin}: cannot be read as weights ({first_line(error)})"
        ) from error
    for key in wrappers:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(t, Tensor) for t in content.values()):
        raise CheckpointError(f"{origin}: expected tensors by name")
    return {str(name): tensor for name, tensor in content.items()}


def _read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the metadata with the version, the names of tied tensors and the checksums."""
    with reporting(f"checkpoint {path!r}: expected a path", CheckpointError, TypeError):
        source = Path(path)
    _check_is_safetensors(source)
    try:
        with safe_open(source, framework="pt", backend=BACKEND) as file:
            raw = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise _damaged(source, error) from error
    # Compare the checksum of the metadata. Earlier files have no checksums at all.
    checksum = raw.pop("metadata_checksum", None)
    expected = None
    if "checksums" in raw:
        expected = str(_checksum_of_texts(raw))
    if checksum != expected:
        raise _damaged(source, "its metadata does not fit its checksum")
    if raw.pop("format", None) != json.dumps(FORMAT):
        raise CheckpointError(
            f"{source}: a safetensors file, but not a checkpoint of relu_nmt; "
            "give a file that relu-nmt-train or relu-nmt-average wrote"
        )
    if raw.get("version") not in (str(OLD_VERSION), str(VERSION)):
        raise CheckpointError(
            f"{source}: checkpoint version {raw.get('version')}, but this relu_nmt reads version "
            f"{VERSION}; use the relu_nmt that wrote it"
        )
    # Check the types of all values, which a checksum does not.
    with reporting(f"{source}: damaged", CheckpointError, (ValueError, ConfigError)):
        metadata = checked(METADATA_FORM, {k: parse_json(v) for k, v in raw.items()}, "metadata")
        for name in ("args", "model_config"):
            flat(metadata.get(name, {}))
    if metadata["version"] == OLD_VERSION:
        version_1.rename_settings(metadata)
    return metadata


def without_aliases(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return each tensor once, on the CPU, and the first name for all other names of tied ones."""
    stored: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    first_name: dict[tuple[Any, ...], str] = {}
    for name, tensor in tensors.items():
        # Identify a tensor by its memory and layout, since tied weights share both.
        memory = tensor.untyped_storage().data_ptr()
        identity = memory, tensor.storage_offset(), tensor.shape, tensor.stride()
        if tensor.numel() and identity in first_name:
            tied[name] = first_name[identity]
            continue
        first_name[identity] = name
        value = tensor.detach().to("cpu").contiguous()
        # Copy a view of a larger tensor: in safetensors every tensor owns its storage.
        if value.untyped_storage().nbytes() != value.numel() * value.element_size():
            value = value.clone()
        stored[name] = value
    return stored, tied


def _sort_metadata(path: Path) -> None:
    """Sort the metadata in a new file by name, since safetensors writes them in any order."""
    with open(path, "r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        assert len(text) <= size, "the same values take the same space"
        file.seek(8)
        file.write(text.ljust(size))


def _checksum(tensor: Tensor) -> int:
    """Return the CRC-32 of dtype, shape and bytes of a contiguous tensor on the CPU."""
    start = zlib.crc32(f"{tensor.dtype} {list(tensor.shape)}".encode())
    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, start)


def _checksum_of_texts(texts: Mapping[str, str]) -> int:
    return zlib.crc32(json.dumps(sorted(texts.items())).encode())


def _check_is_safetensors(path: Path) -> None:
    """Refuse folders, pickles and other wrong files, each with a remedy."""
    if path.is_dir():
        raise CheckpointError(f"{path}: a folder; give the checkpoint file in it")
    # Read the size of the header, 8 bytes, and its first character.
    try:
        with open(plain_file(path), "rb") as file:
            start = file.read(9)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such checkpoint{_beside(path)}") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot read the checkpoint ({error.strerror})") from error
    # The size of a header may begin with the same bytes as a pickle, so look for the brace, too.
    has_header = start[8:] == b"{" and int.from_bytes(start[:8], "little") < _MOST_HEADER
    if start.startswith(_PICKLE_STARTS) and not has_header:
        raise CheckpointError(
            f"{path}: a pickled PyTorch or fairseq checkpoint, which could run any code when "
            "read; only checkpoints of relu_nmt (.safetensors) are loaded, and "
            f"relu-nmt-import-fairseq makes one of fairseq's{_beside(path)}"
        )
    if not has_header:
        raise CheckpointError(
            f"{path}: not a checkpoint (no safetensors header), or damaged; "
            f"give a file that relu-nmt-train wrote{_beside(path)}"
        )


def _beside(path: Path) -> str:
    """Return a hint if there is a checkpoint with this name and the ending ``.safetensors``."""
    other = path.with_suffix(SUFFIX)
    return f"; {other.name} is there" if other != path and other.is_file() else ""


def _damaged(path: Path, reason: Exception | str) -> CheckpointError:
    return CheckpointError(
        f"{path}: the checkpoint is damaged or cut short ({reason}); use another one, "
        "for example checkpoint_best or the one before"
    )
