"""What step-by-step decoding remembers: keys and values of source and target."""

import torch
from torch import Tensor

from relu_nmt.attention.masks import Visibility


class LayerCache:
    """Keys and values of one decoder layer.

    Args:
        source_keys: [B, H, S, d], once a sentence.
        source_values: [B, H, S, d].
    """

    def __init__(self, source_keys: Tensor, source_values: Tensor) -> None:
        self.source_keys = source_keys
        self.source_values = source_values
        self.keys: Tensor | None = None  # [B K, H, t, d]
        self.values: Tensor | None = None

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append [B K, H, 1, d] each; return all keys and values so far."""
        if self.keys is None or self.values is None:
            self.keys, self.values = key, value
        else:
            self.keys = torch.cat([self.keys, key], dim=2)
            self.values = torch.cat([self.values, value], dim=2)
        return self.keys, self.values

    def select(self, rows: Tensor) -> None:
        """Keep the target rows (sentence and beam) with these indices."""
        if self.keys is not None and self.values is not None:
            self.keys = self.keys.index_select(0, rows)
            self.values = self.values.index_select(0, rows)

    def select_source(self, sentences: Tensor) -> None:
        """Keep the source sentences with these indices."""
        self.source_keys = self.source_keys.index_select(0, sentences)
        self.source_values = self.source_values.index_select(0, sentences)


class DecoderState:
    """The state of ``B`` sentences with ``K`` beams each.

    Args:
        caches: one cache a layer.
        key_mask: [B, S] bool, True = real source token.
        beam_size: K.
    """

    def __init__(self, caches: list[LayerCache], key_mask: Tensor, beam_size: int) -> None:
        self.caches = caches
        self.key_mask = key_mask
        self.beam_size = beam_size
        self.length = 0
        self.cross_visibility = self._cross_visibility()

    def reorder(self, beam_index: Tensor) -> None:
        """Let hypothesis k of sentence b go on from hypothesis ``beam_index[b, k]``.

        Args:
            beam_index: [B, K'] int64; K' may differ from K. A search starts with one beam, since
                all are equal before the first token, and spreads it here.
        """
        if self.beam_size == beam_index.size(1) == 1:
            return
        first = torch.arange(beam_index.size(0), device=beam_index.device)[:, None]
        rows = (first * self.beam_size + beam_index).flatten()
        for cache in self.caches:
            cache.select(rows)
        if self.beam_size != beam_index.size(1):
            self.beam_size = beam_index.size(1)
            self.cross_visibility = self._cross_visibility()

    def keep(self, sentences: Tensor) -> None:
        """Keep only the sentences with these indices [B'], in this order."""
        beams = torch.arange(self.beam_size, device=sentences.device)
        rows = (sentences[:, None] * self.beam_size + beams).flatten()
        for cache in self.caches:
            cache.select(rows)
            cache.select_source(sentences)
        self.key_mask = self.key_mask.index_select(0, sentences)
        self.cross_visibility = self._cross_visibility()

    def _cross_visibility(self) -> Visibility:
        return Visibility(self.beam_size, self.key_mask.size(1), key_mask=self.key_mask)
