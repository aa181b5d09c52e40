"""Read translation models in the format of Hugging Face, under relu_nmt's names.

Marian's models (OPUS-MT) are post-norm transformers with one table for all embeddings, and a bias
for each output symbol. The decoder starts from the padding symbol, which becomes ``<s>``. The
sinusoidal positions become learned positions, because they have other wavelengths than fairseq's
and a fixed number.

M2M100 and NLLB are models of fairseq: pre-norm, with one table and fairseq's positions. Each source
begins with the code of its language, and so does each target.

Reference: transformers 4.57, ``MarianMTModel``, ``M2M100ForConditionalGeneration`` and their
tokenizers, ``NllbTokenizer``.
"""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relu_nmt.applications.conversion import fairseq
from relu_nmt.config.registry import close_names
from relu_nmt.config.stored import checked, parse_json
from relu_nmt.data.dictionary import BOS, EOS, FILLER, PAD, SPECIAL_SYMBOLS, UNK, Dictionary
from relu_nmt.errors import IN_BRACKETS, CheckpointError, ConfigError, reporting
from relu_nmt.io.safe_write import plain_file
from relu_nmt.tokenization.base import load_subword
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.training.checkpoint import read_tensors
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.task import TranslationTask

MARIAN = "marian"
M2M100 = "m2m_100"  # also the ``model_type`` of NLLB
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")
LAYERDROPS = ("encoder_layerdrop", "decoder_layerdrop")
NAMES = "tokenizer_config.json"
PIECES = "sentencepiece.bpe.model"
TABLES = ("shared.weight", "embed_tokens.weight", "lm_head.weight")  # names of one table
MOST_NAMED = 6  # most languages that an error message names
NO_SYMBOL = -1  # index of the padding symbol, which Marian's vocabulary lacks
NEVER = -100.0  # bias of the padding symbol of Marian
MOST_POSITIONS = 2**16  # limit that shows damage. Real models have 512 or 1024 positions.
MOST_ADDED = 2**16  # limit that shows damage. NLLB's tokenizer adds 203 symbols.
KIND_SETTINGS: dict[str, dict[str, Any]] = {
    MARIAN: {"positions": "learned", "output_bias": True, "decoder_start_symbol": BOS},
    M2M100: {
        "positions": "sinusoidal-fairseq",
        "output_bias": False,
        "decoder_start_symbol": EOS,
        "encoder_normalize_before": True,
        "decoder_normalize_before": True,
    },
}
"""The settings that all models of a kind share."""
START_SYMBOLS = {MARIAN: PAD, M2M100: EOS}
LANGUAGE_CODE = re.compile(r">>(.+)<<")
Vocabulary = tuple[list[str], TextPipeline, TextPipeline]
"""Symbols in the order of the model's ids, and the text steps of source and target."""


def read_hub_model(
    folder: str | os.PathLike[str], source_lang: str | None = None, target_lang: str | None = None
) -> tuple[TransformerConfig, TranslationTask, dict[str, Tensor]]:
    """Read a folder of ``save_pretrained`` or of the Hugging Face hub, weights in float32.

    A model of several languages needs their names: ``fra`` for the symbol ``>>fra<<``, ``fr`` for
    ``__fr__``, and ``fra_Latn`` for NLLB.
    """
    folder = Path(folder)
    settings = _read_json(folder / "config.json", {"activation_function?": str})
    kind = settings.get("model_type")
    if kind == MARIAN:
        symbols, source, target = _marian_vocabulary(folder, source_lang, target_lang)
    elif kind == M2M100:
        symbols, source, target = _m2m100_vocabulary(folder, source_lang, target_lang)
    else:
        raise CheckpointError(
            f"{folder / 'config.json'}: its model_type is {kind!r}; expected '{MARIAN}' or "
            f"'{M2M100}'"
        )
    theirs = _read_weights(folder)
    table = _embeddings(theirs)
    # Put the symbols in the order of relu_nmt's ids.
    if kind == MARIAN:
        first = [symbols.index(PAD), NO_SYMBOL, symbols.index(EOS), symbols.index(UNK)]
        order = first + [i for i in range(len(symbols)) if i not in first]
    else:
        for i in range(len(symbols), len(table)):  # rows behind the last symbol have no name
            symbols.append(f"{FILLER}_{i}")
        order = list(range(len(symbols)))
    # Rename a symbol that has the name of a special symbol. The new name is in no text.
    words = []
    for i in order[len(SPECIAL_SYMBOLS) :]:
        word = symbols[i]
        if word in SPECIAL_SYMBOLS:
            word = f"{FILLER}{word}"
        words.append(word)
    dictionary = Dictionary(words)
    config = _config(folder / "config.json", settings, symbols)
    task = TranslationTask(source, target, dictionary, dictionary)
    return config, task, _our_tensors(folder, theirs, table, order, config)


def _marian_vocabulary(
    folder: Path, source_lang: str | None, target_lang: str | None
) -> Vocabulary:
    path = folder / "vocab.json"
    symbols = _symbols_of_json(path)
    # Symbols such as >>fra<< name the target languages, if a model has several.
    matches = filter(None, map(LANGUAGE_CODE.fullmatch, symbols))
    target_codes = [match[1] for match in matches]
    if not target_codes and target_lang is not None:
        raise ConfigError(
            f"--target-lang {target_lang}: {path} names no languages, so the model has only one "
            "target language; leave the flag out"
        )
    code = None
    if target_codes:
        code = f">>{target_lang}<<"
        if target_lang not in target_codes:
            description = "of several target languages; give --target-lang"
            if target_lang is not None:
                description = f"without the target language {target_lang!r}; --target-lang is"
            languages = ", ".join(sorted(target_codes))
            raise ConfigError(f"{path}: a model {description} one of {languages}")
    # Use default language names if the tokenizer's file has none.
    names = _tokenizer_settings(folder)
    source = str(source_lang or names.get("source_lang") or "source")
    target = str(target_lang or names.get("target_lang") or "target")
    # Marian has a SentencePiece model for each side.
    source_text = _text(folder / "source.spm", source, code)
    return symbols, source_text, _text(folder / "target.spm", target)


def _m2m100_vocabulary(
    folder: Path, source_lang: str | None, target_lang: str | None
) -> Vocabulary:
    path = folder / "vocab.json"
    symbols = _symbols_of_json(path) if path.exists() else _symbols_of_pieces(folder)
    if tuple(symbols[: len(SPECIAL_SYMBOLS)]) != SPECIAL_SYMBOLS:
        raise CheckpointError(f"{path}: must begin with {', '.join(SPECIAL_SYMBOLS)}")
    # Add the codes of languages, which stand behind the symbols of the vocabulary.
    try:
        added = _added_symbols(folder, len(symbols))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / NAMES}: damaged ({error})") from error
    codes = {code.strip("_"): code for code in added if not code.startswith(("<", FILLER))}
    for flag, language in (("--source-lang", source_lang), ("--target-lang", target_lang)):
        if language not in codes:
            reason = f"{language}: no such language" if language else "missing"
            examples = f"{', '.join(sorted(codes)[:MOST_NAMED])}... ({len(codes)} languages)"
            hint = language and close_names(language, codes)
            raise ConfigError(f"{flag} {reason} of {folder}; {hint or f'give one of {examples}'}")
    source = str(source_lang)
    target = str(target_lang)
    source_text = _text(folder / PIECES, source, codes[source])
    return symbols + added, source_text, _text(folder / PIECES, target, codes[target])


def _text(pieces: Path, language: str, first_symbol: str | None = None) -> TextPipeline:
    subword = load_subword("sentencepiece", pieces)
    return TextPipeline(language, subword=subword, first_symbol=first_symbol)


def _config(path: Path, theirs: Mapping[str, Any], symbols: list[str]) -> TransformerConfig:
    kind = theirs["model_type"]
    for name, expected in (
        ("tie_word_embeddings", True),
        ("share_encoder_decoder_embeddings", True),
        ("decoder_start_token_id", symbols.index(START_SYMBOLS[kind])),
    ):
        if theirs.get(name, expected) != expected:
            raise CheckpointError(
                f"{path}: {name} is {theirs[name]!r}; only models with {expected!r} are read"
            )
    ours = {name: theirs[name] for name in (*DROPOUTS, *LAYERDROPS) if name in theirs}
    ours |= KIND_SETTINGS[kind]
    for side, text in (("encoder", "source"), ("decoder", "target")):
        for field, name in (
            ("embed_dim", "d_model"),
            ("ffn_embed_dim", f"{side}_ffn_dim"),
            ("layers", f"{side}_layers"),
            ("attention_heads", f"{side}_attention_heads"),
        ):
            if name not in theirs:
                raise CheckpointError(f"{path}: lacks {name}")
            ours[f"{side}_{field}"] = theirs[name]
        # The table of positions limits the length of sentences for Marian.
        if kind == MARIAN:
            ours[f"max_{text}_positions"] = theirs.get("max_position_embeddings")
    ours |= {
        "feed_forward": fairseq.feed_forward_of(
            theirs.get("activation_function"), f"{path}: activation_function"
        ),
        "share_all_embeddings": True,
        "no_scale_embedding": not theirs.get("scale_embedding"),
    }
    config = fairseq.read_config(ours, path)
    # Refuse a size from a damaged file before memory is reserved for it.
    if config.max_positions_of("encoder") > MOST_POSITIONS:
        raise CheckpointError(f"{path}: more than {MOST_POSITIONS:,} positions; damaged")
    return config


def _our_tensors(
    folder: Path,
    tensors: Mapping[str, Tensor],
    table: Tensor,
    ids: list[int],
    config: TransformerConfig,
) -> dict[str, Tensor]:
    """Return the weights under relu_nmt's names, the table [V, D] in the order of ``ids``."""
    theirs = {name.removeprefix("model."): t.float() for name, t in tensors.items()}
    bias = theirs.pop("final_logits_bias", None)
    order = torch.tensor(ids)
    number = int((order != NO_SYMBOL).sum())
    fits = not config.output_bias or (bias is not None and bias.shape == (1, number))
    if not fits or table.dim() != 2 or len(table) != number:
        raise CheckpointError(
            f"{folder}: no weights and biases of {number:,} symbols, which its vocabulary has; "
            "the files are damaged or of different models"
        )
    unfit = (RuntimeError, IndexError)  # from tensors of a wrong shape
    with reporting(f"{folder}: damaged weights", CheckpointError, unfit, IN_BRACKETS):
        named = fairseq.joined_projections(theirs)
    # Drop copies of the table, and positions, which are computed.
    computed = (*TABLES, "embed_positions.weight", "embed_positions.weights")
    ours = {fairseq.our_name(name): t for name, t in named.items() if not name.endswith(computed)}
    # Reorder table and bias, with zeros for the padding symbol.
    table = table.float()[order].masked_fill((order == NO_SYMBOL)[:, None], 0.0)
    for side in ("encoder", "decoder"):
        ours[f"{side}.embedding.tokens.weight"] = table
        if config.output_bias:  # as in Marian, whose positions become learned ones
            longest = config.max_positions_of(side)
            ours[f"{side}.embedding.positions.weight"] = _waves(longest, table.size(1))
    ours["output_projection.weight"] = table
    if config.output_bias and bias is not None:
        ours["output_projection.bias"] = bias[0, order].masked_fill(order == NO_SYMBOL, NEVER)
    return ours


def _symbols_of_json(path: Path) -> list[str]:
    ids = _read_json(path, dict[str, int])
    if sorted(ids.values()) != list(range(len(ids))):
        raise CheckpointError(f"{path}: damaged; expected an id from 0 for each symbol")
    missing = {PAD, EOS, UNK} - ids.keys()
    if missing:
        raise CheckpointError(f"{path}: lacks {', '.join(sorted(missing))}")
    return sorted(ids, key=ids.__getitem__)


def _symbols_of_pieces(folder: Path) -> list[str]:
    """Return NLLB's special symbols, and SentencePiece's pieces without its first three."""
    # Import late, since the package is optional.
    from relu_nmt.tokenization.subwords import SentencePiece

    pieces = load_subword("sentencepiece", folder / PIECES)
    assert isinstance(pieces, SentencePiece), "the model of that name"
    return [*SPECIAL_SYMBOLS, *pieces.vocabulary()[3:]]


def _added_symbols(folder: Path, first: int) -> list[str]:
    """Return the symbols that the tokenizer adds, from the id ``first`` on: language codes."""
    names = _tokenizer_settings(folder)
    # Recent files have ids, with gaps. Earlier files list the codes in the order of their ids.
    entries = names.get("added_tokens_decoder")
    if entries:
        ids = {int(i): str(entry["content"]) for i, entry in entries.items() if int(i) >= first}
        end = max(ids, default=first - 1) + 1
        if end > first + MOST_ADDED:
            raise ValueError(f"the id {end - 1:,}")
        return [ids.get(i, f"{FILLER}_{i}") for i in range(first, end)]
    path = folder / "special_tokens_map.json"
    if path.exists():
        names = _read_json(path)
    symbols = []
    for token in names.get("additional_special_tokens") or ():
        symbols.append(token["content"] if isinstance(token, dict) else str(token))
    return symbols


def _tokenizer_settings(folder: Path) -> dict[str, Any]:
    path = folder / NAMES
    return _read_json(path) if path.exists() else {}


def _read_json(path: Path, form: Any = dict[str, Any]) -> dict[str, Any]:
    try:
        with reporting(f"{path}: cannot read it", CheckpointError):
            return checked(form, parse_json(plain_file(path).read_bytes()))
    except ValueError as error:
        raise CheckpointError(f"{path}: damaged ({error}); download it again") from error


def _embeddings(weights: Mapping[str, Tensor]) -> Tensor:
    """Return the table [V, D] of embeddings under any of its names. Empty [0] if it is missing."""
    for name in TABLES:
        for stored_name, weight in weights.items():
            if stored_name.endswith(name):
                return weight
    return torch.zeros(0)


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights, of one file or of the several files of a large model."""
    # Prefer safetensors to a pickle.
    for name in WEIGHTS:
        path = folder / name
        index = folder / f"{name}.index.json"
        if path.exists():
            return read_tensors(path)
        if index.exists():
            break
    else:
        raise CheckpointError(f"{folder}: neither {' nor '.join(WEIGHTS)} in it")
    files = _read_json(index, {"weight_map": dict[str, str]})["weight_map"]
    weights: dict[str, Tensor] = {}
    for name in sorted(set(files.values())):
        if Path(name).name != name:
            raise CheckpointError(f"{index}: damaged; expected the name of a file for each weight")
        path = index.with_name(name)
        if not path.exists():
            raise CheckpointError(f"{path}: is missing, but the index names it; download it")
        weights |= read_tensors(path)
    missing = sorted(files.keys() - weights)
    if missing:
        raise CheckpointError(f"{index}: names {missing[0]}, which its files lack")
    return weights


def _waves(num_positions: int, embed_dim: int) -> Tensor:
    """Return Marian's positions [N, D]: sines, then cosines, of 10000^(-2i/D) radians each.

    Reference: Vaswani et al. 2017, section 3.5. In fairseq the last rate is 1/10000.
    """
    steps = torch.arange(0, embed_dim, 2, dtype=torch.float64) / embed_dim
    rates = torch.exp(-math.log(10000.0) * steps)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :embed_dim].float()
