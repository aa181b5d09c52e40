"""Read Marian's transformers in the format of Hugging Face (OPUS-MT), under relu_nmt's names.

They are post-norm transformers with one table for all embeddings, and a bias for each output
symbol. The decoder starts from the padding symbol, which becomes ``<s>``. The sinusoidal positions
have other wavelengths than fairseq's and a longest position, so they become learned positions.

Reference: transformers 4.57, ``MarianMTModel`` and ``MarianTokenizer``.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

from relu_nmt.applications.conversion.fairseq import joined_projections, our_name
from relu_nmt.config import from_dict
from relu_nmt.data.dictionary import BOS, EOS, FILLER, PAD, SPECIAL_SYMBOLS, UNK, Dictionary
from relu_nmt.errors import CheckpointError, ConfigError
from relu_nmt.translation.config import TransformerConfig

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")
LAYERDROPS = ("encoder_layerdrop", "decoder_layerdrop")
FEED_FORWARDS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "swish": "silu",
    "silu": "silu",
}
"""Feed-forward networks by the name of Marian's activation function."""
NEVER = -100.0
"""Bias of the padding symbol, which Marian's vocabulary lacks, so that it is never predicted."""
MOST_POSITIONS = 2**16
"""Most positions of an undamaged model; models have 512 or 1024."""
LANGUAGE_CODE = re.compile(r">>(.+)<<")


@dataclass(frozen=True)
class MarianModel:
    """The files of a model's folder.

    Args:
        settings: content of ``config.json``.
        symbols: symbols of ``vocab.json``, in the order of their ids.
        languages: languages of source and target.
        target_code: first symbol of each source, which selects the target language; None for a
            model with one target language.
    """

    folder: Path
    settings: Mapping[str, Any]
    symbols: list[str]
    languages: tuple[str, str]
    tensors: Mapping[str, Tensor]
    target_code: str | None = None

    @classmethod
    def read(cls, folder: str | os.PathLike[str], target_lang: str | None = None) -> "MarianModel":
        """Read a folder of ``save_pretrained`` or of the Hugging Face hub.

        A model with several target languages needs ``target_lang``: ``fra`` if the vocabulary has
        ``>>fra<<``.

        Raises:
            CheckpointError: a file is missing or damaged, or the model is none of Marian.
            ConfigError: the model lacks the language, or has several and none is given.
        """
        folder = Path(folder)
        settings = _read_json(folder / "config.json")
        if settings.get("model_type") != "marian":
            raise CheckpointError(
                f"{folder / 'config.json'}: its model_type is {settings.get('model_type')!r}; "
                "expected 'marian'"
            )
        # Read the symbols; their ids must be complete.
        path = folder / "vocab.json"
        ids = _read_json(path)
        if any(type(i) is not int for i in ids.values()) or (
            sorted(ids.values()) != list(range(len(ids)))
        ):
            raise CheckpointError(f"{path}: damaged; expected an id from 0 for each symbol")
        ordered = sorted(ids, key=lambda symbol: ids[symbol])
        # Require the special symbols that relu_nmt needs, too.
        if missing := {PAD, EOS, UNK} - set(ordered):
            raise CheckpointError(f"{path}: lacks {', '.join(sorted(missing))}")
        # Read the languages and the weights.
        code = _language_code(path, ordered, target_lang)
        # Use general names if the tokenizer's file names no languages.
        path = folder / "tokenizer_config.json"
        names = _read_json(path) if path.exists() else {}
        source, target = (str(names.get(f"{k}_lang") or k) for k in ("source", "target"))
        tensors = _read_weights(folder)
        return cls(folder, settings, ordered, (source, target_lang or target), tensors, code)

    def dictionary(self) -> Dictionary:
        """Return the symbols in the order of relu_nmt's ids.

        A symbol with the name of a special one gets a prefix, and means nothing.
        """
        symbols = [self.symbols[i] for i in self._order()[len(SPECIAL_SYMBOLS) :]]
        return Dictionary([f"{FILLER}{s}" if s in SPECIAL_SYMBOLS else s for s in symbols])

    def _order(self) -> list[int]:
        """Return Marian's id of each id of relu_nmt; -1 for the padding symbol, the second."""
        special = {name: self.symbols.index(name) for name in (PAD, EOS, UNK)}
        others = [i for i in range(len(self.symbols)) if i not in special.values()]
        return [special[PAD], -1, special[EOS], special[UNK], *others]

    def config(self) -> TransformerConfig:
        """Return relu_nmt's settings of the model.

        Raises:
            CheckpointError: relu_nmt has no such model.
        """
        path, theirs = self.folder / "config.json", self.settings
        # Refuse models of another structure.
        for name, wanted in (
            ("tie_word_embeddings", True),
            ("share_encoder_decoder_embeddings", True),
            ("decoder_start_token_id", self.symbols.index(PAD)),
        ):
            if theirs.get(name, wanted) != wanted:
                raise CheckpointError(
                    f"{path}: {name} is {theirs[name]!r}; only models with {wanted!r} are read"
                )
        function = theirs.get("activation_function")
        if function not in FEED_FORWARDS:
            known = ", ".join(FEED_FORWARDS)
            raise CheckpointError(f"{path}: activation_function {function!r}; known are {known}")
        # Translate the names of the settings.
        ours = {name: theirs[name] for name in (*DROPOUTS, *LAYERDROPS) if name in theirs}
        for side, text in (("encoder", "source"), ("decoder", "target")):
            shape = {
                "embed_dim": "d_model",
                "ffn_embed_dim": f"{side}_ffn_dim",
                "layers": f"{side}_layers",
                "attention_heads": f"{side}_attention_heads",
            }
            for own, name in shape.items():
                if name not in theirs:
                    raise CheckpointError(f"{path}: lacks {name}")
                ours[f"{side}_{own}"] = theirs[name]
            # The table of positions limits the length.
            ours[f"max_{text}_positions"] = theirs.get("max_position_embeddings")
        # Add the settings that all Marian models share.
        ours |= {
            "feed_forward": FEED_FORWARDS[function],
            "positions": "learned",
            "share_all_embeddings": True,
            "no_scale_embedding": not theirs.get("scale_embedding"),
            "output_bias": True,
            "decoder_start_symbol": BOS,
        }
        try:
            found = from_dict(TransformerConfig, ours)
        except ConfigError as error:
            raise CheckpointError(f"{path}: {error}") from error
        # Refuse a size from a damaged file before memory is reserved for it.
        if found.max_positions_of("encoder") > MOST_POSITIONS:
            raise CheckpointError(f"{path}: more than {MOST_POSITIONS:,} positions; damaged")
        return found

    def our_tensors(self) -> dict[str, Tensor]:
        """Return the weights under relu_nmt's names, in float32; unknown names stay.

        Raises:
            CheckpointError: weights are missing, damaged, or do not fit the number of symbols.
        """
        theirs = {name.removeprefix("model."): t.float() for name, t in self.tensors.items()}
        bias, table = theirs.pop("final_logits_bias", None), theirs.pop("shared.weight", None)
        # Check the table [V, D] of embeddings and the bias [1, V] of the output.
        number = len(self.symbols)
        fits = bias is not None and bias.shape == (1, number)
        if not fits or table is None or table.dim() != 2 or len(table) != number:
            raise CheckpointError(
                f"{self.folder}: no weights and biases of {number:,} symbols, which vocab.json "
                "has; the files are damaged or of different models"
            )
        assert bias is not None, "it fits"
        # Rename the weights of the layers.
        try:
            named = joined_projections(theirs)
        except (RuntimeError, IndexError) as error:  # from tensors of a wrong shape
            raise CheckpointError(f"{self.folder}: damaged weights ({error})") from error
        # Drop copies of the table, and positions, which are computed below.
        known = ("embed_tokens.weight", "embed_positions.weight", "lm_head.weight")
        ours = {our_name(name): t for name, t in named.items() if not name.endswith(known)}
        # Put table and bias in the order of relu_nmt's ids, with zeros for the padding symbol.
        order = torch.tensor(self._order())
        table = table[order].masked_fill((order < 0)[:, None], 0.0)
        waves = _waves(self.config().max_positions_of("encoder"), table.size(1))
        for side in ("encoder", "decoder"):
            ours[f"{side}.embedding.tokens.weight"] = table
            ours[f"{side}.embedding.positions.weight"] = waves
        ours["output_projection.weight"] = table
        ours["output_projection.bias"] = bias[0, order].masked_fill(order < 0, NEVER)
        return ours


def _language_code(path: Path, symbols: list[str], target_lang: str | None) -> str | None:
    """Return the symbol that selects the target language; None for a model with one.

    Reference: transformers 4.57, ``MarianTokenizer.remove_language_code``.
    """
    # Symbols such as >>fra<< name the languages.
    found = [match[1] for match in map(LANGUAGE_CODE.fullmatch, symbols) if match is not None]
    if not found:
        if target_lang is not None:
            raise ConfigError(
                f"--target-lang {target_lang}: {path} names no languages, so the model has a "
                "single one; leave the flag out"
            )
        return None
    # Require a language, and one that the model has.
    if target_lang not in found:
        given = "of several target languages; give --target-lang"
        if target_lang is not None:
            given = f"without the target language {target_lang!r}; --target-lang is"
        raise ConfigError(f"{path}: a model {given} one of {', '.join(sorted(found))}")
    return f">>{target_lang}<<"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot read it: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged ({error}); download it again") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: damaged; expected a JSON object")
    return found


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights; PyTorch's safe reader of weights reads a pickle."""
    # Prefer safetensors to a pickle.
    paths = [folder / name for name in WEIGHTS if (folder / name).exists()]
    if not paths:
        raise CheckpointError(f"{folder}: neither {' nor '.join(WEIGHTS)} in it")
    try:
        if paths[0].name == WEIGHTS[0]:
            return load(paths[0].read_bytes())
        found = torch.load(paths[0], map_location="cpu", weights_only=True)
    except Exception as error:  # the readers raise any exception for damaged files
        raise CheckpointError(f"{paths[0]}: damaged, or more than weights in it") from error
    if not isinstance(found, dict) or not all(isinstance(t, Tensor) for t in found.values()):
        raise CheckpointError(f"{paths[0]}: no weights in it")
    return {str(name): tensor for name, tensor in found.items()}


def _waves(num_positions: int, embed_dim: int) -> Tensor:
    """Return Marian's positions [N, D]: sines, then cosines, of 10000^(-2i/D) radians each.

    Reference: Vaswani et al. 2017, section 3.5; the rates of fairseq's end at 1/10000.
    """
    steps = torch.arange(0, embed_dim, 2, dtype=torch.float64) / embed_dim
    rates = torch.exp(-math.log(10000.0) * steps)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :embed_dim].float()
