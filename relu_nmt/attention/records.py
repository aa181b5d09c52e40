"""What one attention module did in one forward pass."""

from dataclasses import dataclass

from relu_nmt.attention.base import AttentionOutput
from relu_nmt.attention.masks import Visibility


@dataclass
class AttentionRecord:
    """Row statistics and weights of one module.

    Args:
        slot: ``encoder``, ``decoder`` (self-attention) or ``cross``.
        layer: index of the layer, from 0.
        output: the statistics and weights that were asked for; its values are the sublayer's.
        visibility: which keys each query could see, and which query rows are real.
    """

    slot: str
    layer: int
    output: AttentionOutput
    visibility: Visibility
