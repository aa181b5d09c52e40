"""Write models for other runtimes: ONNX graphs, and the format of CTranslate2.

In ONNX an encoder-decoder is two graphs. ``encoder.onnx`` runs once per sentence. ``decoder.onnx``
runs once per token, over all tokens so far, without a cache. An image classifier is one graph.
CTranslate2 computes only transformers with softmax attention.
"""

import dataclasses
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from relu_nmt.attention import attentions
from relu_nmt.config.registry import Spec
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.errors import CheckpointError, needing
from relu_nmt.io.safe_write import json_text, write_text
from relu_nmt.modules.config import SLOTS
from relu_nmt.modules.multihead import CrossAttentionBase, SelfAttentionBase
from relu_nmt.translation.base import TranslationModel
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.encoder import EncoderOutput, TransformerStack
from relu_nmt.translation.encoder_decoder import EncoderDecoder, encoder_decoder_of
from relu_nmt.translation.task import TranslationTask
from relu_nmt.vision.loading import ImageClassifier

LONGEST = 4096  # rows of the stored table of sinusoidal positions
EMBEDDED = ("sinusoidal", "sinusoidal-fairseq", "learned")  # position schemes of CTranslate2
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh", "silu": "SWISH"}
"""Names in CTranslate2, by ``--feed-forward``."""


class _Graph(nn.Module):
    """A module for the exporter. Its forward pass calls ``compute`` with the model and inputs."""

    def __init__(
        self, model: nn.Module, compute: Callable[[Any, tuple[Tensor, ...]], Tensor]
    ) -> None:
        super().__init__()
        self.model = model
        self.compute = compute

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.compute(self.model, inputs)


def _decode(model: EncoderDecoder, inputs: tuple[Tensor, ...]) -> Tensor:
    """Return the logits [B, T, V] of the token after each of prev_output_tokens [B, T] int64."""
    prev_output_tokens, states, src_tokens = inputs
    encoder_out = EncoderOutput(states, src_tokens != model.encoder.pad_index)
    return model.logits(model.decoder(prev_output_tokens, encoder_out))


def save_onnx(model: TranslationModel, task: TranslationTask, folder: Path) -> None:
    """Write two graphs, and ``config.json`` with symbols and limits, to an existing folder."""
    model = encoder_decoder_of(model, "--to onnx")
    if model.config.document_attention != "full":
        raise CheckpointError(
            f"--document-attention {model.config.document_attention}: the visible keys depend on "
            "the ends of sentences, which a graph does not see; ONNX needs full attention"
        )
    for slot in SLOTS:
        name = model.config.mechanism_of(slot)
        if not attentions.is_built_in(name):
            raise CheckpointError(
                f"attention {name} ({slot}): one of your own, whose graph no test checks; ONNX "
                "needs an attention of relu_nmt"
            )
    # Trace with three example sequences. Batch size and lengths are the free axes of the graphs.
    longest = {
        "source": _prepare(model, "encoder", model.most_tokens("source")),
        "target": _prepare(model, "decoder", model.most_tokens("target")),
    }
    batch = torch.export.Dim("batch", max=1 << 16)
    source = {0: batch, 1: torch.export.Dim("source", min=1, max=longest["source"])}
    target = {0: batch, 1: torch.export.Dim("target", min=1, max=longest["target"])}
    sources = torch.tensor([[4, 3, 3, 3, 2], [3, 3, 2, 1, 1], [3, 3, 3, 2, 1]])
    targets = torch.tensor([[2, 3, 3, 3], [2, 3, 3, 1], [2, 3, 1, 1]])
    inputs = {"src_tokens": (sources, source)}
    graph = _Graph(model, lambda model, inputs: model.encoder(inputs[0]).states)
    _export(graph, inputs, "encoder_states", folder / "encoder.onnx")
    inputs = {
        "prev_output_tokens": (targets, target),
        "encoder_states": (torch.randn(3, 5, model.config.encoder_embed_dim), source),
        "src_tokens": (sources, source),
    }
    _export(_Graph(model, _decode), inputs, "logits", folder / "decoder.onnx")
    content = {
        "source_lang": task.source_lang,
        "target_lang": task.target_lang,
        "longest": longest,
        "special": {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3},
        "source_symbols": _symbols(task.source_dictionary),
        "target_symbols": _symbols(task.target_dictionary),
        # A model of several languages reads and writes the symbol of the language first.
        "source_first_symbol": task.source_text.first_symbol,
        "target_first_symbol": task.target_text.first_symbol,
    }
    write_text(folder / "config.json", json_text(content))


def save_image_onnx(classifier: ImageClassifier, folder: Path) -> None:
    """Write ``model.onnx``, and ``config.json`` with classes and sizes, to an existing folder."""
    height, width = classifier.transform.sides
    batch = torch.export.Dim("batch", max=1 << 16)
    inputs = {"images": (torch.randn(2, 3, height, width), {0: batch})}
    graph = _Graph(classifier.model, lambda model, inputs: model(inputs[0]).logits)
    _export(graph, inputs, "logits", folder / "model.onnx")
    content: dict[str, Any] = {"classes": classifier.classes, "size": [height, width]}
    content["preprocessing"] = dataclasses.asdict(classifier.transform.config)
    write_text(folder / "config.json", json_text(content))


def _symbols(dictionary: Dictionary) -> list[str]:
    return [dictionary[index] for index in range(len(dictionary))]


def _prepare(model: EncoderDecoder, side: str, limit: int | None) -> int:
    """Prepare a side of the model for its graph. Return its longest sequence in tokens."""
    positions = getattr(model, side).embedding.positions
    longest = min(LONGEST, limit or LONGEST)
    positions.embed(longest)  # fill the table now, as it cannot grow within a graph
    return longest


def _export(
    model: nn.Module, inputs: Mapping[str, tuple[Tensor, dict[int, Any]]], output: str, path: Path
) -> None:
    """Write the graph of a model. ``inputs`` are an example and the free axes by input name."""
    with needing('ONNX is not installed: pip install "relu-nmt[onnx]"'):
        import onnxscript  # noqa: F401  # PyTorch writes the graphs with it
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    examples, shapes = zip(*inputs.values(), strict=True)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            model.eval()(*examples)  # draw a performer's features now, since a graph cannot
            program = torch.onnx.export(
                model,
                examples,
                dynamo=True,
                dynamic_shapes=(shapes,),  # one argument, *inputs
                input_names=list(inputs),
                output_names=[output],
                verbose=False,
            )
            assert program is not None, "dynamo=True returns a program"
            program.save(path)
    except OSError:  # of writing the file
        raise
    except Exception as error:  # the exporter raises any exception for unsupported code
        # Report the line that names the error, without the trace.
        reason = next((line for line in str(error).splitlines() if "Error" in line), str(error))
        raise CheckpointError(f"cannot become an ONNX graph: {reason.strip()[:200]}") from error
    finally:
        logger.setLevel(level)


def save_ctranslate2(model: TranslationModel, task: TranslationTask, folder: Path) -> None:
    """Write ``model.bin``, ``config.json`` and the vocabularies to an existing folder."""
    with needing('CTranslate2 is not installed: pip install "relu-nmt[ctranslate2]"'):
        from ctranslate2.specs import common_spec, transformer_spec
    model = encoder_decoder_of(model, "--to ctranslate2")
    config = model.config
    _check(config)
    shared = {
        "activation": getattr(common_spec.Activation, ACTIVATIONS[config.feed_forward]),
        "layernorm_embedding": config.layernorm_embedding,
    }
    encoder = transformer_spec.TransformerEncoderSpec(
        len(model.encoder.layers),
        num_heads=config.encoder_attention_heads,
        pre_norm=config.encoder_normalize_before,
        **shared,
    )
    decoder = transformer_spec.TransformerDecoderSpec(
        len(model.decoder.layers),
        num_heads=config.decoder_attention_heads,
        pre_norm=config.decoder_normalize_before,
        alignment_layer=-1 if config.alignment_layer is None else config.alignment_layer,
        alignment_heads=config.alignment_heads or config.decoder_attention_heads,
        **shared,
    )
    spec = transformer_spec.TransformerSpec(encoder, decoder)
    with torch.no_grad():
        _fill_stack(encoder, model.encoder, encoder.embeddings[0])
        _fill_stack(decoder, model.decoder, decoder.embeddings)
        _fill(decoder.projection, model.output_projection)
    # Add the vocabularies, with CTranslate2's name of the padding symbol.
    for dictionary, register in (
        (task.source_dictionary, spec.register_source_vocabulary),
        (task.target_dictionary, spec.register_target_vocabulary),
    ):
        symbols = _symbols(dictionary)
        symbols[dictionary.pad_index] = "<blank>"
        register(symbols)
    spec.config.decoder_start_token = config.decoder_start_symbol
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize(quantization=None)
    spec.save(str(folder))


def _check(config: TransformerConfig) -> None:
    """Check that CTranslate2 supports a model with these settings."""
    parts: dict[str, bool] = {}
    for slot in SLOTS:
        spec = Spec.parse(config.attention_of(slot))
        parts[f"attention {spec} ({slot})"] = spec.name == "softmax" and not spec.options
    for side in ("encoder", "decoder"):
        positions = config.positions_of(side)
        parts[f"--{side}-positions {positions}"] = positions in EMBEDDED
    parts[f"--feed-forward {config.feed_forward}"] = config.feed_forward in ACTIVATIONS
    parts[f"--norm {config.norm}"] = config.norm == "layer"
    parts[f"--document-attention {config.document_attention}"] = config.document_attention == "full"
    for part, is_known in parts.items():
        if not is_known:
            raise CheckpointError(f"CTranslate2 has no {part}; --to onnx takes more models")


def _fill_stack(spec: Any, stack: TransformerStack, embeddings: Any) -> None:
    embedding = stack.embedding
    embeddings.weight = embedding.tokens.weight.numpy()
    spec.scale_embeddings = embedding.scale
    # Store the positions as a table. Sinusoidal positions get a table of fixed length.
    table = embedding.positions.embed(embedding.positions.max_positions or LONGEST)
    assert table is not None, "every scheme in EMBEDDED has a table"
    spec.position_encodings.encodings = table.contiguous().numpy()
    if isinstance(embedding.norm, nn.LayerNorm):
        _fill(spec.layernorm_embedding, embedding.norm)
    if isinstance(stack.final_norm, nn.LayerNorm):
        _fill(spec.layer_norm, stack.final_norm)
    for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
        _fill_attention(layer_spec.self_attention, layer.self_attention)
        _fill(layer_spec.self_attention.layer_norm, layer.self_attention_residual.norm)
        if layer.cross_attention is not None:
            _fill_attention(layer_spec.attention, layer.cross_attention)
            _fill(layer_spec.attention.layer_norm, layer.cross_attention_residual.norm)
        _fill(layer_spec.ffn.linear_0, layer.feed_forward.inner)
        _fill(layer_spec.ffn.linear_1, layer.feed_forward.outer)
        _fill(layer_spec.ffn.layer_norm, layer.feed_forward_residual.norm)


def _fill_attention(spec: Any, attention: SelfAttentionBase | CrossAttentionBase) -> None:
    parts: Sequence[nn.Module]
    if isinstance(attention, SelfAttentionBase):
        parts = [attention.qkv]
    else:
        parts = [attention.q, attention.kv]
    for linear_spec, part in zip(spec.linear, [*parts, attention.out_proj], strict=True):
        _fill(linear_spec, part)


def _fill(spec: Any, module: Any) -> None:
    """Copy the weights of a linear map or a LayerNorm."""
    if isinstance(module, nn.LayerNorm):
        spec.gamma = module.weight.numpy()
        spec.beta = module.bias.numpy()
        return
    spec.weight = module.weight.numpy()
    if module.bias is not None:
        spec.bias = module.bias.numpy()
