"""Attention weights of a model for a sentence pair: any layer, slot and head."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor, nn

from relu_nmt.attention.base import Attention, Need
from relu_nmt.attention.records import record_attention
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.groups import longest_first
from relu_nmt.data.translation_batches import pad_rows, shift_right
from relu_nmt.errors import ConfigError
from relu_nmt.modules.config import AttentionPlace
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.step_decoder import Ensemble

MOST_WEIGHTS = 2**25
"""Number of elements of one attention's weights [B, H, Nq, Nk] at a time: 128 MB in float32."""
MOST_TOKENS = 2**14
"""Number of tokens of a batch, padding included, which bounds all other memory of a layer."""


def attention_of(model: EncoderDecoder, slot: str, layer: int) -> Attention:
    """Return the attention mechanism of a layer; a ConfigError if the layer does not exist."""
    layers = (model.encoder if slot == "encoder" else model.decoder).layers
    if not -len(layers) <= layer < len(layers):
        raise ConfigError(
            f"attention {slot}.{layer}: the model's layers are {slot}.0 to {slot}.{len(layers) - 1}"
        )
    if slot == "cross":
        return model.decoder.cross_attentions[layer].attention
    return layers[layer].self_attention.attention


def checked_place(model: EncoderDecoder, place: AttentionPlace) -> AttentionPlace:
    """Return the place with its layer counted from 0, after checking that it has weights.

    Raises:
        ConfigError: the layer or head does not exist, or the mechanism has no weights.
    """
    attention = attention_of(model, place.slot, place.layer)
    # Check the head; the lookup has already checked the layer.
    if place.head is not None and not 0 <= place.head < attention.num_heads:
        raise ConfigError(f"attention {place}: its heads are 0 to {attention.num_heads - 1}")
    if not attention.capabilities.weights:
        name = model.config.attention_of(place.slot)
        raise ConfigError(f"attention {place}: {name} has no matrix of weights to show")
    # Count the layer from 0, also where it was given from the end.
    return replace(place, layer=attention.layer)


def attention_weights(
    ensemble: Ensemble, place: AttentionPlace, source: np.ndarray, target: np.ndarray
) -> np.ndarray:
    """Return the weights at a place, [Nq, Nk] of one head or [H, Nq, Nk] of all, float32.

    Source and target are token ids that end in the end symbol. The model reads the target in one
    pass (teacher forcing), with the weights of step-by-step decoding. Only this mechanism leaves
    its fast path. A layer that attends to sentences and to the whole document returns the weights
    over the document.

    Raises:
        ConfigError: the ensemble has several models, or the place has no weights.
    """
    place = checked_place(single_model(ensemble), place)
    # Compute all heads, since one pass records them anyway.
    [weights] = _weights_of(ensemble, [place], source, target)
    return weights if place.head is None else weights[place.head]


def slot_weights(
    ensemble: Ensemble, slot: str, source: np.ndarray, target: np.ndarray
) -> np.ndarray:
    """Return the weights of all layers and heads of a slot, [L, H, Nq, Nk] float32, from one pass.

    See :func:`attention_weights`.
    """
    model = single_model(ensemble)
    layers = (model.encoder if slot == "encoder" else model.decoder).layers
    places = [checked_place(model, AttentionPlace(slot, layer)) for layer in range(len(layers))]
    return np.stack(_weights_of(ensemble, places, source, target))


def _weights_of(
    ensemble: Ensemble, places: Sequence[AttentionPlace], source: np.ndarray, target: np.ndarray
) -> list[np.ndarray]:
    """Return the weights of all heads at each place, [H, Nq, Nk] float32, from one pass."""
    # Run one pass in which only these attentions record their weights.
    model = single_model(ensemble)
    attentions = nn.ModuleList(attention_of(model, place.slot, place.layer) for place in places)
    src_tokens, prev_output_tokens = decoder_inputs([source], [target], ensemble)
    with ensemble.evaluating(), record_attention(attentions, Need(weights=True)) as records:
        model(src_tokens, prev_output_tokens)
    # Take the last record of each layer: a gated layer's second one covers the document.
    last = {record.layer: record for record in records}
    found = []
    for place in places:
        record = last.get(place.layer)
        if record is None or record.weights is None:
            raise ConfigError(f"attention {place}: its mechanism returned no weights")
        weights, rows = record.weights, record.visibility.rows
        weights = (weights if rows is None else rows.in_documents(weights))[0].float()
        found.append(weights.cpu().numpy())
    return found


def decoder_inputs(
    sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], ensemble: Ensemble
) -> tuple[Tensor, Tensor]:
    """Return the sources [B, S] and the targets shifted right [B, T], int64, right-padded."""
    pad_index, device = ensemble.models[0].decoder.pad_index, ensemble.device
    shifted = shift_right(pad_rows(targets, pad_index), pad_index, Dictionary.eos_index)
    return pad_rows(sources, pad_index).to(device), shifted.to(device)


def input_batches(
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    ensemble: Ensemble,
    weights: Callable[[int], int],
) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
    """Yield the indices of each batch's sentences, longest first, and :func:`decoder_inputs`.

    ``weights`` returns the number of weights of one module for a sentence of a length.
    """
    # Limit each batch by its weights and by its tokens.
    lengths = [max(len(s), len(t)) for s, t in zip(sources, targets, strict=True)]

    def most(longest: int) -> int:
        return min(MOST_WEIGHTS // weights(longest), MOST_TOKENS // longest)

    for batch in longest_first(np.array(lengths, dtype=np.int64), most):
        pairs = [sources[i] for i in batch], [targets[i] for i in batch]
        yield batch, *decoder_inputs(*pairs, ensemble)


def single_model(ensemble: Ensemble) -> EncoderDecoder:
    """Return the model of an ensemble of one; a ConfigError if it has several."""
    if len(ensemble.models) != 1:
        raise ConfigError(
            "attention and memories can be shown of one model only, and --path names "
            f"{len(ensemble.models)}"
        )
    return ensemble.models[0]
