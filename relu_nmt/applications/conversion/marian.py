"""Marian's transformers as Hugging Face's transformers keep them (OPUS-MT), under our names.

They are post-norm transformers with one table for all embeddings, a bias for each output symbol and
the padding symbol where the decoder begins, which is ``<s>`` here. Their waves of positions have
other lengths than fairseq's and end with the table, so that they are taken for learned positions.

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
"""Ours, by the name of the activation function there."""
NEVER = -100.0
"""Log-probability, all but a constant, of our padding symbol, which is none of theirs."""
MOST_POSITIONS = 2**16
"""More would be damage; models have 512 or 1024."""
LANGUAGE_CODE = re.compile(r">>(.+)<<")


@dataclass(frozen=True)
class MarianModel:
    """A model as it lies in a folder.

    Args:
        folder: the folder.
        settings: ``config.json``.
        symbols: ``vocab.json``, in the order of the ids.
        languages: of source and target.
        tensors: the weights.
        target_code: the symbol that each source begins with, to be translated into that language;
            None for a model of one.
    """

    folder: Path
    settings: Mapping[str, Any]
    symbols: list[str]
    languages: tuple[str, str]
    tensors: Mapping[str, Tensor]
    target_code: str | None = None

    @classmethod
    def read(cls, folder: str | os.PathLike[str], target_lang: str | None = None) -> "MarianModel":
        """Read a folder that ``save_pretrained`` wrote, or one of the Hugging Face hub.

        Args:
            folder: the folder.
            target_lang: the language to translate into, of a model of several: ``fra`` if its
                vocabulary has ``>>fra<<``. None for a model of one.

        Raises:
            CheckpointError: a file is missing or damaged, or this is another model.
            ConfigError: the model has no such language, or several and none is given.
        """
        folder = Path(folder)
        settings = _read_json(folder / "config.json")
        if settings.get("model_type") != "marian":
            raise CheckpointError(
                f"{folder / 'config.json'}: its model_type is {settings.get('model_type')!r}; "
                "expected 'marian'"
            )
        path = folder / "vocab.json"
        ids = _read_json(path)
        if any(type(i) is not int for i in ids.values()) or (
            sorted(ids.values()) != list(range(len(ids)))
        ):
            raise CheckpointError(f"{path}: damaged; expected an id from 0 for each symbol")
        ordered = sorted(ids, key=lambda symbol: ids[symbol])
        if missing := {PAD, EOS, UNK} - set(ordered):
            raise CheckpointError(f"{path}: lacks {', '.join(sorted(missing))}")
        code = _language_code(path, ordered, target_lang)
        path = folder / "tokenizer_config.json"
        names = _read_json(path) if path.exists() else {}
        source, target = (str(names.get(f"{k}_lang") or k) for k in ("source", "target"))
        tensors = _read_weights(folder)
        return cls(folder, settings, ordered, (source, target_lang or target), tensors, code)

    def dictionary(self) -> Dictionary:
        """Return its symbols under ids of ours."""
        return Dictionary([self._unlike_ours(i) for i in self._order()[len(SPECIAL_SYMBOLS) :]])

    def _order(self) -> list[int]:
        """Return the id there of each id here; the second one, of padding, has none: -1."""
        special = {name: self.symbols.index(name) for name in (PAD, EOS, UNK)}
        others = [i for i in range(len(self.symbols)) if i not in special.values()]
        return [special[PAD], -1, special[EOS], special[UNK], *others]

    def _unlike_ours(self, number: int) -> str:
        """Return a symbol that is none of our special ones; it stands for nothing then."""
        symbol = self.symbols[number]
        return f"{FILLER}{symbol}" if symbol in SPECIAL_SYMBOLS else symbol

    def config(self) -> TransformerConfig:
        """Return our settings of the model.

        Raises:
            CheckpointError: there is no such model here.
        """
        path, theirs = self.folder / "config.json", self.settings
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
        ours = {name: theirs[name] for name in (*DROPOUTS, *LAYERDROPS) if name in theirs}
        for side, which in (("encoder", "source"), ("decoder", "target")):
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
            ours[f"max_{which}_positions"] = theirs.get("max_position_embeddings")
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
        if found.max_positions_of("encoder") > MOST_POSITIONS:
            raise CheckpointError(f"{path}: more than {MOST_POSITIONS:,} positions; damaged")
        return found

    def our_tensors(self) -> dict[str, Tensor]:
        """Return the weights under our names, in float32; a name that is not known stays.

        Raises:
            CheckpointError: weights are missing, damaged, or not as many as symbols.
        """
        theirs = {name.removeprefix("model."): t.float() for name, t in self.tensors.items()}
        bias, table = theirs.pop("final_logits_bias", None), theirs.pop("shared.weight", None)
        number = len(self.symbols)
        fits = bias is not None and bias.shape == (1, number)
        if not fits or table is None or table.dim() != 2 or len(table) != number:
            raise CheckpointError(
                f"{self.folder}: no weights and biases of {number:,} symbols, which vocab.json "
                "has; the files are damaged or of different models"
            )
        assert bias is not None, "it fits"
        try:
            named = joined_projections(theirs)
        except (RuntimeError, IndexError) as error:  # of tensors of a wrong shape
            raise CheckpointError(f"{self.folder}: damaged weights ({error})") from error
        known = ("embed_tokens.weight", "embed_positions.weight", "lm_head.weight")
        ours = {our_name(name): t for name, t in named.items() if not name.endswith(known)}
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
    """Return the symbol that asks for a target language; None in a model of one.

    Reference: transformers 4.57, ``MarianTokenizer.remove_language_code``.
    """
    found = [match[1] for match in map(LANGUAGE_CODE.fullmatch, symbols) if match is not None]
    if not found:
        if target_lang is not None:
            raise ConfigError(
                f"--target-lang {target_lang}: {path} names no languages, so that the model has "
                "one; leave the flag out"
            )
        return None
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
    """Return the weights; of a pickle, by PyTorch's reader of weights, which calls nothing."""
    paths = [folder / name for name in WEIGHTS if (folder / name).exists()]
    if not paths:
        raise CheckpointError(f"{folder}: neither {' nor '.join(WEIGHTS)} in it")
    try:
        if paths[0].name == WEIGHTS[0]:
            return load(paths[0].read_bytes())
        found = torch.load(paths[0], map_location="cpu", weights_only=True)
    except Exception as error:  # of damaged files the readers raise whatever comes
        raise CheckpointError(f"{paths[0]}: damaged, or more than weights in it") from error
    if not isinstance(found, dict) or not all(isinstance(t, Tensor) for t in found.values()):
        raise CheckpointError(f"{paths[0]}: no weights in it")
    return {str(name): tensor for name, tensor in found.items()}


def _waves(num_positions: int, embed_dim: int) -> Tensor:
    """Return Marian's waves [N, D]: sines, then cosines, of 10000^(-2i/D) radians a position.

    Reference: Vaswani et al. 2017, section 3.5; the rates of fairseq's end at 1/10000.
    """
    steps = torch.arange(0, embed_dim, 2, dtype=torch.float64) / embed_dim
    rates = torch.exp(-math.log(10000.0) * steps)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :embed_dim].float()
