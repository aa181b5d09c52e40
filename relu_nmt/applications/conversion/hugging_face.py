"""Read translation models in the format of Hugging Face, under relu_nmt's names.

Marian's models (OPUS-MT) are post-norm transformers with one table for all embeddings, and a bias
for each output symbol. The decoder starts from the padding symbol, which becomes ``<s>``. The
sinusoidal positions have other wavelengths than fairseq's and a longest position, so they become
learned positions.

M2M100 and NLLB are models of fairseq: pre-norm, with one table and fairseq's positions. The code of
a language begins each source, and that of the other language each target.

Reference: transformers 4.57, ``MarianMTModel``, ``M2M100ForConditionalGeneration`` and their
tokenizers, ``NllbTokenizer``.
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
from safetensors.torch import load_file
from torch import Tensor

from relu_nmt.applications.conversion.fairseq import joined_projections, our_name
from relu_nmt.config import from_dict
from relu_nmt.config.registry import close_names
from relu_nmt.data.dictionary import BOS, EOS, FILLER, PAD, SPECIAL_SYMBOLS, UNK, Dictionary
from relu_nmt.errors import CheckpointError, ConfigError
from relu_nmt.tokenization.base import load_subword
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.config import TransformerConfig

MARIAN, M2M100 = "marian", "m2m_100"
"""Kinds of models, by their ``model_type``; NLLB is the second."""
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
NAMES, PIECES = "tokenizer_config.json", "sentencepiece.bpe.model"
TABLES = ("shared.weight", "embed_tokens.weight", "lm_head.weight")
"""Names of the table of embeddings, of which safetensors keeps one."""
MOST_NAMED = 6
"""Most languages that an error message names."""
NEVER = -100.0
"""Bias of the padding symbol, which Marian's vocabulary lacks, so that it is never predicted."""
MOST_POSITIONS = 2**16
"""Most positions of an undamaged model; models have 512 or 1024."""
LANGUAGE_CODE = re.compile(r">>(.+)<<")


@dataclass(frozen=True)
class HubModel:
    """The files of a model's folder.

    Args:
        settings: content of ``config.json``.
        symbols: symbols of the vocabulary, in the order of their ids.
        languages: languages of source and target.
        codes: first symbol of each source, and of each target; None for no such symbol.
    """

    folder: Path
    settings: Mapping[str, Any]
    symbols: list[str]
    languages: tuple[str, str]
    codes: tuple[str | None, str | None]
    tensors: Mapping[str, Tensor]

    @classmethod
    def read(
        cls,
        folder: str | os.PathLike[str],
        source_lang: str | None = None,
        target_lang: str | None = None,
    ) -> "HubModel":
        """Read a folder of ``save_pretrained`` or of the Hugging Face hub.

        A model of several languages needs their names: ``fra`` for the symbol ``>>fra<<``, ``fr``
        for ``__fr__``, and ``fra_Latn`` for NLLB.

        Raises:
            CheckpointError: a file is missing or damaged, or the model is of another kind.
            ConfigError: the model lacks a language, or has several and none is given.
        """
        folder = Path(folder)
        settings = _read_json(folder / "config.json")
        kind, path = settings.get("model_type"), folder / "vocab.json"
        if kind not in (MARIAN, M2M100):
            raise CheckpointError(
                f"{folder / 'config.json'}: its model_type is {kind!r}; expected '{MARIAN}' or "
                f"'{M2M100}'"
            )
        names = _read_json(folder / NAMES) if (folder / NAMES).exists() else {}
        if kind == MARIAN:
            symbols = _symbols_of_json(path)
            # Read the languages; use general names if the tokenizer's file names none.
            code = _language_code(path, symbols, target_lang)
            source = str(source_lang or names.get("source_lang") or "source")
            target = str(target_lang or names.get("target_lang") or "target")
            return cls(
                folder, settings, symbols, (source, target), (code, None), _read_weights(folder)
            )
        # Add the codes of languages, which stand behind the symbols of the vocabulary.
        symbols = _symbols_of_json(path) if path.exists() else _symbols_of_pieces(folder)
        if tuple(symbols[: len(SPECIAL_SYMBOLS)]) != SPECIAL_SYMBOLS:
            raise CheckpointError(f"{path}: must begin with {', '.join(SPECIAL_SYMBOLS)}")
        try:
            added = _added_symbols(folder, names, len(symbols))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{folder / NAMES}: damaged ({error})") from error
        codes = {code.strip("_"): code for code in added if not code.startswith("<")}
        given = {"--source-lang": source_lang, "--target-lang": target_lang}
        for flag, language in given.items():
            if language not in codes:
                reason = f"{language}: no such language" if language else "missing"
                some = f"{', '.join(sorted(codes)[:MOST_NAMED])}... ({len(codes)} languages)"
                hint = language and close_names(language, codes)
                raise ConfigError(f"{flag} {reason} of {folder}; {hint or f'give one of {some}'}")
        languages, tensors = (str(source_lang), str(target_lang)), _read_weights(folder)
        # Name the rest of the table's rows.
        rest = range(len(symbols) + len(added), len(_table(tensors)))
        symbols += [*added, *(f"{FILLER}_{i}" for i in rest)]
        first = codes[languages[0]], codes[languages[1]]
        return cls(folder, settings, symbols, languages, first, tensors)

    @property
    def is_marian(self) -> bool:
        """True for Marian's models, False for M2M100 and NLLB."""
        return self.settings["model_type"] == MARIAN

    def texts(self) -> tuple[TextPipeline, TextPipeline]:
        """Return the steps of the source's and the target's text.

        Raises:
            DataError: a SentencePiece model is missing or damaged.
        """
        # Marian has a SentencePiece model for each side.
        names = ("source.spm", "target.spm") if self.is_marian else (PIECES, PIECES)
        source, target = (
            TextPipeline(
                language,
                subword=load_subword("sentencepiece", self.folder / name),
                first_symbol=code,
            )
            for language, name, code in zip(self.languages, names, self.codes, strict=True)
        )
        return source, target

    def dictionary(self) -> Dictionary:
        """Return the symbols in the order of relu_nmt's ids.

        A symbol with the name of a special one gets a prefix, and means nothing.
        """
        symbols = [self.symbols[i] for i in self._order()[len(SPECIAL_SYMBOLS) :]]
        return Dictionary([f"{FILLER}{s}" if s in SPECIAL_SYMBOLS else s for s in symbols])

    def _order(self) -> list[int]:
        """Return the id there of each id of relu_nmt; -1 for padding, which Marian lacks."""
        if not self.is_marian:
            return list(range(len(self.symbols)))
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
            ("decoder_start_token_id", self.symbols.index(PAD if self.is_marian else EOS)),
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
            # The table of positions limits the length of Marian's sentences.
            if self.is_marian:
                ours[f"max_{text}_positions"] = theirs.get("max_position_embeddings")
            else:
                ours[f"{side}_normalize_before"] = True
        # Add the settings that all models of a kind share.
        ours |= {
            "feed_forward": FEED_FORWARDS[function],
            "positions": "learned" if self.is_marian else "sinusoidal-fairseq",
            "share_all_embeddings": True,
            "no_scale_embedding": not theirs.get("scale_embedding"),
            "output_bias": self.is_marian,
            "decoder_start_symbol": BOS if self.is_marian else EOS,
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
        table, bias = _table(self.tensors).float(), theirs.pop("final_logits_bias", None)
        # Check the table [V, D] of embeddings and the bias [1, V] of Marian's output.
        number = len(self.symbols)
        fits = not self.is_marian or (bias is not None and bias.shape == (1, number))
        if not fits or table.dim() != 2 or len(table) != number:
            raise CheckpointError(
                f"{self.folder}: no weights and biases of {number:,} symbols, which its "
                "vocabulary has; the files are damaged or of different models"
            )
        # Rename the weights of the layers.
        try:
            named = joined_projections(theirs)
        except (RuntimeError, IndexError) as error:  # from tensors of a wrong shape
            raise CheckpointError(f"{self.folder}: damaged weights ({error})") from error
        # Drop copies of the table, and positions, which are computed.
        known = (*TABLES, "embed_positions.weight", "embed_positions.weights")
        ours = {our_name(name): t for name, t in named.items() if not name.endswith(known)}
        # Put table and bias in the order of relu_nmt's ids, with zeros for the padding symbol.
        order = torch.tensor(self._order())
        table = table[order].masked_fill((order < 0)[:, None], 0.0)
        for side in ("encoder", "decoder"):
            ours[f"{side}.embedding.tokens.weight"] = table
            if self.is_marian:
                longest = self.config().max_positions_of(side)
                ours[f"{side}.embedding.positions.weight"] = _waves(longest, table.size(1))
        ours["output_projection.weight"] = table
        if self.is_marian and bias is not None:
            ours["output_projection.bias"] = bias[0, order].masked_fill(order < 0, NEVER)
        return ours


def _table(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the table [V, D] of embeddings, of which a file may have any name; [0] without one."""
    found = (t for name in TABLES for own, t in tensors.items() if own.endswith(name))
    return next(found, torch.zeros(0))


def _symbols_of_json(path: Path) -> list[str]:
    """Return the symbols of ``vocab.json`` in the order of their ids."""
    ids = _read_json(path)
    if any(type(i) is not int for i in ids.values()) or (
        sorted(ids.values()) != list(range(len(ids)))
    ):
        raise CheckpointError(f"{path}: damaged; expected an id from 0 for each symbol")
    # Require the special symbols that relu_nmt needs, too.
    if missing := {PAD, EOS, UNK} - ids.keys():
        raise CheckpointError(f"{path}: lacks {', '.join(sorted(missing))}")
    return sorted(ids, key=lambda symbol: ids[symbol])


def _symbols_of_pieces(folder: Path) -> list[str]:
    """Return the symbols of NLLB: the special ones, and the pieces behind SentencePiece's three."""
    # Import late, since the package is optional.
    from relu_nmt.tokenization.sentencepiece import SentencePiece

    pieces = load_subword("sentencepiece", folder / PIECES)
    assert isinstance(pieces, SentencePiece), "the model of that name"
    return [*SPECIAL_SYMBOLS, *pieces.vocabulary()[3:]]


def _added_symbols(folder: Path, names: Mapping[str, Any], first: int) -> list[str]:
    """Return the symbols from the id ``first`` on, which the tokenizer adds: codes of languages."""
    # Files of recent versions have ids; earlier ones list the codes in the order of their ids.
    if found := names.get("added_tokens_decoder"):
        ids = {int(i): one["content"] for i, one in found.items() if int(i) >= first}
        return [ids.get(i, f"{FILLER}_{i}") for i in range(first, first + len(ids))]
    path = folder / "special_tokens_map.json"
    listed = (_read_json(path) if path.exists() else names).get("additional_special_tokens") or []
    return [one["content"] if isinstance(one, dict) else str(one) for one in listed]


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
            return load_file(paths[0])
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
