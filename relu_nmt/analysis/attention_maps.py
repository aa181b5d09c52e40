"""The attention weights themselves, of any layer, slot and head."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from relu_nmt.analysis.places import AttentionPlace
from relu_nmt.attention.base import Attention, Need
from relu_nmt.attention.records import record_attention
from relu_nmt.data.batches import pad_rows, shift_right
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.decoding.ensemble import Ensemble
from relu_nmt.errors import ConfigError
from relu_nmt.models.encoder_decoder import EncoderDecoder

DIGITS = 4
"""Significant digits of the weights in JSON."""


@dataclass(frozen=True)
class AttentionMap:
    """What one attention looked at while one sentence was translated.

    Args:
        slot: ``encoder``, ``decoder`` or ``cross``.
        layer: index of the layer, from 0.
        head: index of the head, or ``None`` for all.
        queries: Nq labels of the rows. A row of the decoder's attentions is labelled with the
            token that is predicted there.
        keys: Nk labels of the columns. The decoder's self-attention reads the tokens before the
            predicted one, the end symbol first.
        weights: [Nq, Nk], or [H, Nq, Nk] for all heads; as the mechanism defines them, so a row
            need not sum to 1.
    """

    slot: str
    layer: int
    head: int | None
    queries: list[str]
    keys: list[str]
    weights: np.ndarray

    @classmethod
    def of(
        cls, place: AttentionPlace, weights: np.ndarray, source: list[str], target: list[str]
    ) -> "AttentionMap":
        """Return the weights of :func:`attention_weights` with their labels.

        Args:
            place: where, with the layer counted from 0.
            weights: of one head or of all.
            source: the S source tokens, the end symbol among them.
            target: the T target tokens, the end symbol among them.
        """
        queries = source if place.slot == "encoder" else target
        keys = [target[-1], *target[:-1]] if place.slot == "decoder" else source
        return cls(place.slot, place.layer, place.head, queries, keys, weights)

    def to_json(self) -> str:
        """Return it as one line of JSON, the weights with four significant digits."""
        return json.dumps({**asdict(self), "weights": _short(self.weights)}, ensure_ascii=False)


def attention_of(model: EncoderDecoder, slot: str, layer: int) -> Attention:
    """Return the attention mechanism of a layer.

    Raises:
        ConfigError: there is no such layer.
    """
    layers = (model.encoder if slot == "encoder" else model.decoder).layers
    if not -len(layers) <= layer < len(layers):
        raise ConfigError(
            f"attention {slot}.{layer}: the model's layers are {slot}.0 to {slot}.{len(layers) - 1}"
        )
    if slot == "cross":
        return model.decoder.cross_attentions[layer].attention
    return layers[layer].self_attention.attention


def checked_place(model: EncoderDecoder, place: AttentionPlace) -> AttentionPlace:
    """Return the place, its layer counted from 0, if its weights can be shown.

    Raises:
        ConfigError: there is no such layer or head, or the mechanism has no weights.
    """
    attention = attention_of(model, place.slot, place.layer)
    if place.head is not None and not 0 <= place.head < attention.num_heads:
        raise ConfigError(f"attention {place}: its heads are 0 to {attention.num_heads - 1}")
    if not attention.capabilities.weights:
        name = model.config.attention_of(place.slot)
        raise ConfigError(f"attention {place}: {name} has no matrix of weights to show")
    layers = (model.encoder if place.slot == "encoder" else model.decoder).layers
    return replace(place, layer=place.layer % len(layers))


def attention_weights(
    ensemble: Ensemble, place: AttentionPlace, source: np.ndarray, target: np.ndarray
) -> np.ndarray:
    """Return the weights at a place, [Nq, Nk] of one head or [H, Nq, Nk] of all, float32.

    The target is read in one pass (teacher forcing), which gives what step-by-step decoding
    computed for it. Only this one mechanism leaves its fast path.

    Args:
        ensemble: a single model.
        place: where.
        source: token numbers, ending in the end symbol.
        target: token numbers, ending in the end symbol.

    Raises:
        ConfigError: several models, or nothing to show at this place.
    """
    model = single_model(ensemble)
    place = checked_place(model, place)
    attention = attention_of(model, place.slot, place.layer)
    src_tokens, prev_output_tokens = decoder_inputs([source], [target], ensemble)
    with ensemble.evaluating(), record_attention(attention, Need(weights=True)) as records:
        model(src_tokens, prev_output_tokens)
    if len(records) != 1 or records[0].weights is None:
        raise ConfigError(f"attention {place}: its mechanism returned no weights")
    weights = records[0].weights[0].float()
    return (weights if place.head is None else weights[place.head]).cpu().numpy()


def decoder_inputs(
    sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], ensemble: Ensemble
) -> tuple[Tensor, Tensor]:
    """Return the sources [B, S] and the targets shifted right [B, T], int64, right-padded."""
    pad_index, device = ensemble.models[0].decoder.pad_index, ensemble.device
    shifted = shift_right(pad_rows(targets, pad_index), pad_index, Dictionary.eos_index)
    return pad_rows(sources, pad_index).to(device), shifted.to(device)


def single_model(ensemble: Ensemble) -> EncoderDecoder:
    """Return the model of an ensemble of one.

    Raises:
        ConfigError: there are several.
    """
    if len(ensemble.models) != 1:
        raise ConfigError(
            f"attention can be shown of one model only, and --path names {len(ensemble.models)}"
        )
    return ensemble.models[0]


def _short(weights: np.ndarray) -> list[Any]:
    if weights.ndim > 1:
        return [_short(row) for row in weights]
    return [float(f"{weight:.{DIGITS}g}") for weight in weights.tolist()]
