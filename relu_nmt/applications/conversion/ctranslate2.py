"""Write transformers with softmax attention in the format of CTranslate2."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from relu_nmt.config.registry import Spec
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.errors import CheckpointError, needing
from relu_nmt.modules.multihead import CrossAttention, SelfAttention
from relu_nmt.translation.encoder import TransformerStack
from relu_nmt.translation.encoder_decoder import EncoderDecoder, LoadedModel

with needing('CTranslate2 is not installed: pip install "relu-nmt[ctranslate2]"'):
    from ctranslate2.specs import common_spec, transformer_spec

POSITIONS = 4096
"""Rows of a table of sinusoidal positions: the longest sentence and translation in CTranslate2."""
EMBEDDED = ("sinusoidal", "sinusoidal-fairseq", "learned")
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh", "silu": "SWISH"}
"""Names in CTranslate2, by ``--feed-forward``."""


def save_ctranslate2(loaded: LoadedModel, folder: Path) -> None:
    """Write ``model.bin``, ``config.json`` and the vocabularies to an existing folder.

    Raises:
        CheckpointError: CTranslate2 does not support the model.
    """
    model, task, config = loaded.model, loaded.task, loaded.model.config
    _check(model)
    # Describe the shape of the model.
    encoder = transformer_spec.TransformerEncoderSpec(
        len(model.encoder.layers), **_shape(model, "encoder")
    )
    decoder = transformer_spec.TransformerDecoderSpec(
        len(model.decoder.layers),
        alignment_layer=-1 if config.alignment_layer is None else config.alignment_layer,
        alignment_heads=config.alignment_heads or config.decoder_attention_heads,
        **_shape(model, "decoder"),
    )
    spec = transformer_spec.TransformerSpec(encoder, decoder)
    # Copy the weights.
    with torch.no_grad():
        _fill_stack(encoder, model.encoder, encoder.embeddings[0])
        _fill_stack(decoder, model.decoder, decoder.embeddings)
        _fill(decoder.projection, model.output_projection)
    # Add the vocabularies, and write the files.
    spec.register_source_vocabulary(_symbols(task.source_dictionary))
    spec.register_target_vocabulary(_symbols(task.target_dictionary))
    # Describe how sources end and translations begin.
    spec.config.decoder_start_token = model.config.decoder_start_symbol
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize(quantization=None)
    spec.save(str(folder))


def _check(model: EncoderDecoder) -> None:
    """Check that CTranslate2 supports the model."""
    config = model.config
    # Compare each part of the model with the parts of CTranslate2.
    for slot in ("encoder", "decoder", "cross"):
        spec = Spec.parse(config.attention_of(slot))
        if spec.name != "softmax" or spec.options:
            raise _lacking(f"attention {spec} ({slot})")
    for side in ("encoder", "decoder"):
        if config.positions_of(side) not in EMBEDDED:
            raise _lacking(f"--{side}-positions {config.positions_of(side)}")
    if config.feed_forward not in ACTIVATIONS:
        raise _lacking(f"--feed-forward {config.feed_forward}")
    if config.norm != "layer":
        raise _lacking(f"--norm {config.norm}")
    if config.document_attention != "full":
        raise _lacking(f"--document-attention {config.document_attention}")


def _lacking(part: str) -> CheckpointError:
    return CheckpointError(f"CTranslate2 has no {part}; --to onnx takes more models")


def _shape(model: EncoderDecoder, side: str) -> dict[str, Any]:
    config = model.config
    return {
        "num_heads": getattr(config, f"{side}_attention_heads"),
        "pre_norm": getattr(config, f"{side}_normalize_before"),
        "activation": getattr(common_spec.Activation, ACTIVATIONS[config.feed_forward]),
        "layernorm_embedding": config.layernorm_embedding,
    }


def _symbols(dictionary: Dictionary) -> list[str]:
    """Return the symbols, with CTranslate2's name of the padding symbol."""
    symbols = [dictionary[index] for index in range(len(dictionary))]
    symbols[dictionary.pad_index] = "<blank>"
    return symbols


def _fill_stack(spec: Any, stack: TransformerStack, embeddings: Any) -> None:
    # Copy the embeddings and the norms of the whole stack.
    embedding = stack.embedding
    embeddings.weight = embedding.tokens.weight.numpy()
    spec.scale_embeddings = embedding.scale
    # Store the positions as a table, of a fixed length for sinusoidal ones.
    table = embedding.positions.embed(embedding.positions.max_positions or POSITIONS)
    assert table is not None, "every scheme in EMBEDDED has a table"
    spec.position_encodings.encodings = table.contiguous().numpy()
    if isinstance(embedding.norm, nn.LayerNorm):
        _fill(spec.layernorm_embedding, embedding.norm)
    if isinstance(stack.final_norm, nn.LayerNorm):
        _fill(spec.layer_norm, stack.final_norm)
    # Copy the layers.
    for own, layer in zip(spec.layer, stack.layers, strict=True):
        _fill_attention(own.self_attention, layer.self_attention)
        _fill(own.self_attention.layer_norm, layer.self_attention_residual.norm)
        # Fill cross-attention, which only the decoder has.
        if layer.cross_attention is not None:
            _fill_attention(own.attention, layer.cross_attention)
            _fill(own.attention.layer_norm, layer.cross_attention_residual.norm)
        _fill(own.ffn.linear_0, layer.feed_forward.inner)
        _fill(own.ffn.linear_1, layer.feed_forward.outer)
        _fill(own.ffn.layer_norm, layer.feed_forward_residual.norm)


def _fill_attention(spec: Any, attention: SelfAttention | CrossAttention) -> None:
    parts: Sequence[nn.Module] = (
        [attention.qkv] if isinstance(attention, SelfAttention) else [attention.q, attention.kv]
    )
    for own, part in zip(spec.linear, [*parts, attention.out_proj], strict=True):
        _fill(own, part)


def _fill(spec: Any, module: Any) -> None:
    """Copy the weights of a linear map or a LayerNorm."""
    if isinstance(spec, common_spec.LayerNormSpec):
        spec.gamma, spec.beta = module.weight.numpy(), module.bias.numpy()
        return
    spec.weight = module.weight.numpy()
    if module.bias is not None:
        spec.bias = module.bias.numpy()
