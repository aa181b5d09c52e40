"""Read transformers trained by fairseq: settings and weights under relu_nmt's names.

A checkpoint of fairseq is a pickle. PyTorch's unpickler for weights reads it, and creates only
tensors, plain containers and ``argparse.Namespace``. An empty object replaces every other object of
fairseq, OmegaConf or NumPy (meters, scores). Objects of other packages are an error. So reading a
file never imports or calls a function that the file names.
"""

import argparse
import os
import re
import warnings
import zipfile
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from relu_nmt.config import from_dict
from relu_nmt.errors import CheckpointError, ConfigError, reporting
from relu_nmt.io.safe_write import plain_file
from relu_nmt.translation.config import TransformerConfig

IGNORED_MODULES = ("fairseq", "numpy", "omegaconf")
OLD_METERS = [f"fairseq.meters.{kind}Meter" for kind in ("Average", "Time", "Stopwatch")]
"""Classes in files of PyTorch before 1.6. The contents of such files cannot be listed first."""
FIRST = 2  # first row of fairseq's position table: positions begin behind the padding index, 1
SIDE_SETTINGS = (
    *("embed_dim", "ffn_embed_dim", "layers", "attention_heads", "normalize_before"),
    "layerdrop",
)
"""Settings that have the same name here, after the prefix ``encoder_`` or ``decoder_``."""
SAME_SETTINGS = (
    *("dropout", "attention_dropout", "activation_dropout", "layernorm_embedding"),
    *("share_decoder_input_output_embed", "share_all_embeddings", "no_scale_embedding"),
    *("alignment_layer", "alignment_heads"),
)
FEED_FORWARDS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
FEED_FORWARDS |= dict.fromkeys(("gelu_fast", "gelu_accurate", "gelu_new"), "gelu-tanh")
"""Feed-forward networks by the names that fairseq and Hugging Face give activation functions."""
REFUSED_SETTINGS = (
    *("adaptive_softmax_cutoff", "adaptive_input", "cross_self_attention", "no_cross_attention"),
    *("encoder_layers_to_keep", "decoder_layers_to_keep", "no_decoder_final_norm", "base_layers"),
)
"""Settings that change the model in a way that relu_nmt does not support."""
PARTS = {
    "self_attn_layer_norm": "self_attention_residual.norm",
    "encoder_attn_layer_norm": "cross_attention_residual.norm",
    "final_layer_norm": "feed_forward_residual.norm",
    "self_attn": "self_attention",
    "encoder_attn": "cross_attention",
    "fc1": "feed_forward.inner",
    "fc2": "feed_forward.outer",
}
_NUMBERED_NORM = re.compile(r"((encoder|decoder)\.layers\.\d+)\.layer_norms\.(\d)\.")
_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
_LAYER = re.compile(r"((?:en|de)coder\.layers\.\d+)\.(\w+?)\.(.+)")
_UNUSED = re.compile(r".*\.(version|embed_positions\.(_float_tensor|weights))")


class _Ignored:
    """An empty object in place of an object that is not used."""

    def __init__(self, *parts: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


def read_fairseq(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return settings by name, and weights by name, from a checkpoint of any fairseq version."""
    # Open the file first, for a separate error.
    with reporting(f"{path}: cannot read it", CheckpointError), open(plain_file(path), "rb"):
        pass
    try:
        # Allow objects of known packages, but replace them by empty objects.
        names = [*OLD_METERS]
        if zipfile.is_zipfile(path):
            names += torch.serialization.get_unsafe_globals_in_checkpoint(path)
        allowed: list[Any] = [argparse.Namespace]
        for name in names:
            if name.partition(".")[0] in IGNORED_MODULES:
                allowed.append((_Ignored, name))
        with torch.serialization.safe_globals(allowed), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns of other pickle protocols
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler raises any exception for damaged files
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        reason = "damaged or no pickle"
        if refused is not None:
            reason = f"it names {refused[1]}, which no model needs"
        raise CheckpointError(
            f"{path}: not read ({reason}); expected a checkpoint of fairseq"
        ) from error
    tensors = content.get("model") if isinstance(content, dict) else None
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in tensors.items()
    ):
        raise CheckpointError(f"{path}: no model in it; expected a checkpoint of fairseq")
    # Join the settings, stored as ``args`` until fairseq 0.9, later as ``cfg`` with parts.
    parts = [content.get("args")]
    config = content.get("cfg")
    if isinstance(config, dict):
        parts += [config.get("task"), config.get("model")]
    settings: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, argparse.Namespace):
            settings |= vars(part)
        elif isinstance(part, dict):
            settings |= part
    if "encoder_attention_heads" not in settings:
        raise CheckpointError(f"{path}: the settings of no transformer of fairseq in it")
    return settings, tensors


def transformer_config(
    theirs: Mapping[str, Any], path: str | os.PathLike[str]
) -> TransformerConfig:
    """Return relu_nmt's settings from fairseq's. Messages name the path of the checkpoint."""
    for name in REFUSED_SETTINGS:
        if theirs.get(name):
            flag = f"--{name.replace('_', '-')}"
            raise CheckpointError(f"{path}: trained with {flag}, which no model here has")
    names = list(SAME_SETTINGS)
    for name in SIDE_SETTINGS:
        names += [f"encoder_{name}", f"decoder_{name}"]
    ours = {name: theirs[name] for name in names if theirs.get(name) is not None}
    function = theirs.get("activation_fn", "relu")
    ours["feed_forward"] = feed_forward_of(function, f"{path}: trained with --activation-fn")
    for side, text in (("encoder", "source"), ("decoder", "target")):
        ours[f"{side}_positions"] = "sinusoidal-fairseq"
        if theirs.get("no_token_positional_embeddings"):
            ours[f"{side}_positions"] = "none"
        elif theirs.get(f"{side}_learned_pos"):
            ours[f"{side}_positions"] = "learned"
            ours[f"max_{text}_positions"] = theirs.get(f"max_{text}_positions")
    # Read the dropout after the activation under its old name.
    if "relu_dropout" in theirs and "activation_dropout" not in theirs:
        ours["activation_dropout"] = theirs["relu_dropout"]
    return read_config(ours, path)


def feed_forward_of(function: object, setting: str) -> str:
    """Return the feed-forward network of an activation function. ``setting`` names it in errors."""
    name = str(function)
    if name not in FEED_FORWARDS:
        raise CheckpointError(f"{setting} {name}; known are {', '.join(FEED_FORWARDS)}")
    return FEED_FORWARDS[name]


def read_config(ours: Mapping[str, Any], path: str | os.PathLike[str]) -> TransformerConfig:
    """Return settings of a file under relu_nmt's names (CheckpointError: they are damaged)."""
    with reporting(path, CheckpointError, ConfigError):
        return from_dict(TransformerConfig, ours)


def transformer_tensors(
    theirs: Mapping[str, Tensor], config: TransformerConfig
) -> dict[str, Tensor]:
    """Return fairseq's weights under relu_nmt's names, in float32. Unknown names stay."""
    # Bring the weights of all versions into the form of the last one.
    tensors = {}
    for name, tensor in theirs.items():
        if _UNUSED.fullmatch(name):
            continue
        # Name the norms, which were numbers until fairseq 0.6.
        name = _NUMBERED_NORM.sub(lambda m: f"{m[1]}.{_NORMS[m[2]][int(m[3])]}.", name)
        tensors[name] = tensor.float()
        # Split queries, keys and values, stored as one until 0.8.
        start, separator, kind = name.rpartition("in_proj_")
        if separator:
            for part, weight in zip("qkv", tensors.pop(name).chunk(3), strict=True):
                tensors[f"{start}{part}_proj.{kind}"] = weight
    ours = {}
    for name, tensor in joined_projections(tensors).items():
        if name.endswith(".embed_positions.weight"):
            name = name.replace("embed_positions", "embedding.positions")
            tensor = tensor[FIRST:]
        name = re.sub(r"^(\w+)\.embed_tokens\.", r"\1.embedding.tokens.", name)
        name = re.sub(r"^(\w+)\.layernorm_embedding\.", r"\1.embedding.norm.", name)
        ours[our_name(name)] = tensor
    # Find the output projection. It may be the table of the embeddings.
    output = ours.pop("decoder.embed_out", None)  # until fairseq 0.8
    output = ours.pop("decoder.output_projection.weight", output)
    if config.share_all_embeddings or config.share_decoder_input_output_embed:
        output = ours.get("decoder.embedding.tokens.weight")
    if output is not None:
        ours["output_projection.weight"] = output
    return ours


def our_name(name: str) -> str:
    """Return the name of a weight such as ``encoder.layers.0.fc1.bias`` of layers and norms."""
    name = re.sub(r"^(\w+)\.layer_norm\.", r"\1.final_norm.", name)
    return _LAYER.sub(lambda m: f"{m[1]}.{PARTS.get(m[2], m[2])}.{m[3]}", name)


def joined_projections(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Join the projections ``self_attn.q_proj.weight`` and so on of queries, keys and values."""
    joined = dict(tensors)
    for name in tensors:
        keys = name.replace(".q_proj.", ".k_proj.")
        values = name.replace(".q_proj.", ".v_proj.")
        # Keep a name as it is if its keys or values are missing.
        if "_attn.q_proj." not in name or not {keys, values} <= joined.keys():
            continue
        q = joined.pop(name)
        k = joined.pop(keys)
        v = joined.pop(values)
        if "self_attn" in name:
            joined[name.replace("q_proj", "qkv")] = torch.cat([q, k, v])
        else:
            joined[name.replace("q_proj", "q")] = q
            joined[name.replace("q_proj", "kv")] = torch.cat([k, v])
    return joined
