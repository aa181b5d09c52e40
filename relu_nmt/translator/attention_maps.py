"""Attention weights of a sentence pair, read from the model in one pass."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor, nn

from relu_nmt.attention.base import Attention, Need
from relu_nmt.attention.records import record_attention
from relu_nmt.attention.sentences import in_documents
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.translation_batches import pad_rows, shift_right
from relu_nmt.errors import ConfigError
from relu_nmt.modules.config import AttentionPlace
from relu_nmt.modules.transformer_layer import TransformerLayer
from relu_nmt.translation.base import Ensemble
from relu_nmt.translation.encoder_decoder import EncoderDecoder, encoder_decoder_of
from relu_nmt.translation.search.generator import longest_first

MOST_WEIGHTS = 2**25
"""Most elements of one attention's weights [B, H, Nq, Nk] at a time: 128 MB in float32."""
MOST_TOKENS = 2**14
"""Most tokens of a batch, padding included. They bound all other memory of a layer."""


def layers_of(model: EncoderDecoder, slot: str) -> Sequence[TransformerLayer]:
    """Return the layers that have a slot."""
    stack = model.encoder if slot == "encoder" else model.decoder
    return stack.layers


def attention_of(model: EncoderDecoder, slot: str, layer: int) -> Attention:
    """Return the attention mechanism of a layer. Raise ConfigError if there is no such layer."""
    layers = layers_of(model, slot)
    if not -len(layers) <= layer < len(layers):
        raise ConfigError(
            f"attention {slot}.{layer}: the model's layers are {slot}.0 to {slot}.{len(layers) - 1}"
        )
    if slot == "cross":
        return model.decoder.cross_attentions[layer].attention
    return layers[layer].self_attention.attention


def checked_place(ensemble: Ensemble, place: AttentionPlace) -> AttentionPlace:
    """Return a place with its layer from 0 (ConfigError: it is missing or has no weights)."""
    model = single_model(ensemble)
    attention = attention_of(model, place.slot, place.layer)
    # Check the head. The lookup has already checked the layer.
    if place.head is not None and not 0 <= place.head < attention.num_heads:
        raise ConfigError(f"attention {place}: its heads are 0 to {attention.num_heads - 1}")
    if not attention.capabilities.weights:
        name = model.config.attention_of(place.slot)
        raise ConfigError(f"attention {place}: {name} has no matrix of weights to show")
    # Count the layer from 0, even if it was given from the end.
    return replace(place, layer=attention.layer)


def attention_weights(
    ensemble: Ensemble, places: Sequence[AttentionPlace], source: np.ndarray, target: np.ndarray
) -> list[np.ndarray]:
    """Return the weights at places of one slot, [Nq, Nk] or of all heads [H, Nq, Nk], float32.

    The model reads source and target, which are token ids ending in the end symbol, in one pass.
    Only these mechanisms leave their fast path. A layer that attends to sentences and to the whole
    document returns the weights over the document.
    """
    # Run one pass in which only these attentions record their weights.
    model = single_model(ensemble)
    places = [checked_place(ensemble, place) for place in places]
    attentions = nn.ModuleList(attention_of(model, place.slot, place.layer) for place in places)
    src_tokens, prev_output_tokens = decoder_inputs([source], [target], ensemble)
    with ensemble.evaluating(), record_attention(attentions, Need(weights=True)) as records:
        model(src_tokens, prev_output_tokens)
    # Take the last record of each layer: a gated layer's second one covers the document.
    last = {record.layer: record for record in records}
    matrices = []
    for place in places:
        record = last.get(place.layer)
        if record is None or record.weights is None:
            raise ConfigError(f"attention {place}: its mechanism returned no weights")
        weights = in_documents(record.weights, record.visibility)[0].float()
        if place.head is not None:
            weights = weights[place.head]
        matrices.append(weights.cpu().numpy())
    return matrices


def decoder_inputs(
    sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], ensemble: Ensemble
) -> tuple[Tensor, Tensor]:
    """Return the sources [B, S] and the targets shifted right [B, T], int64, right-padded."""
    pad_index = ensemble.models[0].pad_index
    shifted = shift_right(pad_rows(targets, pad_index), pad_index, Dictionary.eos_index)
    return pad_rows(sources, pad_index).to(ensemble.device), shifted.to(ensemble.device)


def input_batches(
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    ensemble: Ensemble,
    weights: Callable[[int], int],
) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
    """Yield batches, longest first: indices of sentences, and their :func:`decoder_inputs`."""
    lengths = np.maximum(list(map(len, sources)), list(map(len, targets)))

    def batch_size(longest: int) -> int:
        return min(MOST_WEIGHTS // weights(longest), MOST_TOKENS // longest)

    for batch in longest_first(lengths, batch_size):
        batch_sources = [sources[i] for i in batch]
        batch_targets = [targets[i] for i in batch]
        yield batch, *decoder_inputs(batch_sources, batch_targets, ensemble)


def single_model(ensemble: Ensemble) -> EncoderDecoder:
    """Return the only model of an ensemble (ConfigError: several models, no encoder-decoder)."""
    if len(ensemble.models) != 1:
        raise ConfigError(
            "attention and memories can be shown of one model only, and --path names "
            f"{len(ensemble.models)}"
        )
    return encoder_decoder_of(ensemble.models[0], "showing attention and memories")
