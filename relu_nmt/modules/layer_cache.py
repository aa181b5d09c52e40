"""The cache of one decoder layer for step-by-step decoding.

:mod:`relu_nmt.translation.decoder_state` explains the trees of hypotheses.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


class LayerCache:
    """Keys and values of one decoder layer: of the source, and of the target so far.

    ``R`` trees of hypotheses have k beams each, and M entries for the tokens of their beams.

    Args:
        keys: keys of the source, [B, H, S, d], one for each sentence.
        values: values of the source, likewise.

    Attributes:
        target: keys and values of the target tokens so far, [R, H, M, d] each; None before the
            first step.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        # Copy the heads, which are views of the projections, once and not in every step.
        self.source = keys.contiguous(), values.contiguous()
        self.target: tuple[Tensor, Tensor] | None = None

    def memory(self) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the source, [B, H, S, d] each."""
        return self.source

    def append(self, keys: Tensor, values: Tensor, used: int) -> tuple[Tensor, Tensor]:
        """Store the newest tokens' keys and values; return those of all tokens.

        Args:
            keys: [R, H, k, d].
            values: likewise.
            used: number of entries in use, M'; the newest tokens use the last k.

        Returns:
            keys and values, [R, H, M', d] each.
        """
        if self.target is None:
            self.target = keys, values
        else:
            # Overwrite the last entries in use, which were reserved for them.
            new = slice(used - keys.size(2), used)
            self.target[0][:, :, new], self.target[1][:, :, new] = keys, values
        kept_keys, kept_values = self.target
        return kept_keys[:, :, :used], kept_values[:, :, :used]

    def take(self, trees: Tensor, entries: Tensor, room: int) -> None:
        """Keep these entries of these trees, and add capacity for more.

        Args:
            trees: [R'] int64.
            entries: [R', M'] int64, which entries of each tree to keep.
            room: number of entries to add. They hold no NaN, since 0 * NaN is NaN.
        """
        if self.target is not None:
            keys, values = self.target
            self.target = (
                self.take_entries(keys, trees, entries, room),
                self.take_entries(values, trees, entries, room),
            )

    def take_entries(self, x: Tensor, trees: Tensor, entries: Tensor, room: int) -> Tensor:
        """Return [R', H, M' + room, d] of keys or values x [R, H, M, d]; see :meth:`take`."""
        # Index whole vectors among all heads of all trees; the new entries repeat the first one.
        entries = F.pad(entries, (0, room))
        _, num_heads, num_entries, width = x.shape
        heads = trees[:, None] * num_heads + torch.arange(num_heads, device=x.device)
        index = heads[:, :, None] * num_entries + entries[:, None]  # [R', H, M' + room]
        # ``gather`` would copy each number separately.
        return x.reshape(-1, width).index_select(0, index.flatten()).view(*index.shape, width)

    def keep(self, sentences: Tensor) -> None:
        """Keep the sources with these indices [B']."""
        keys, values = self.source
        self.source = keys.index_select(0, sentences), values.index_select(0, sentences)
