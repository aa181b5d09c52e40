"""The encoder: embedding of the source and layers of self-attention."""

from dataclasses import dataclass

from torch import Tensor

from relu_nmt.attention.masks import Visibility
from relu_nmt.translation.transformer_stack import TransformerStack


@dataclass
class EncoderOutput:
    """The encoded source.

    Args:
        states: [B, S, D].
        key_mask: [B, S] bool, True = real token.
    """

    states: Tensor
    key_mask: Tensor


class Encoder(TransformerStack):
    """Layers of self-attention over the whole source."""

    side = "encoder"

    def forward(self, src_tokens: Tensor) -> EncoderOutput:
        """Encode src_tokens [B, S], right-padded."""
        key_mask = src_tokens != self.pad_index
        length = src_tokens.size(1)
        visibility = Visibility(length, length, key_mask=key_mask, query_mask=key_mask)
        return EncoderOutput(self.run_layers(self.embedding(src_tokens), visibility), key_mask)
