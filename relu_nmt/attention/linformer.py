"""Linformer: softmax attention over learnt mixtures of the tokens."""

import math
from dataclasses import replace

import torch
from torch import nn

from relu_nmt.attention import attentions
from relu_nmt.attention.base import (
    MIXES_TOKENS,
    Attention,
    AttentionConfig,
    AttentionOutput,
    AttentionProblem,
)
from relu_nmt.config import option, settings
from relu_nmt.errors import ConfigError


@attentions.register("linformer")
class LinformerAttention(Attention):
    """out = softmax(q (E k)^T / sqrt(d)) (F v), with learnt E and F, [rank, length].

    The heads of a layer share E and F. Padded rows of k and v are 0, so they add nothing to the
    mixtures.

    Reference: Wang et al. 2020, "Linformer: Self-Attention with Linear Complexity", Eq. 7
    (head-wise sharing). The start of E and F, normal with variance 1 / length, is ours: the paper
    gives none.
    """

    @settings(flags=False)
    class Config(AttentionConfig):
        """Options behind the colon."""

        length: int = option(1024, "most keys; shorter sentences use the first columns", least=1)
        rank: int = option(256, "number of mixtures k", least=1)

    exact = True
    capabilities = replace(
        MIXES_TOKENS,
        cross=True,
        fixed_length=True,
        reason="its keys and values are mixtures of all tokens",
    )

    def __init__(self, config: Config, num_heads: int, head_dim: int, dropout: float) -> None:
        super().__init__(config, num_heads, head_dim, dropout)
        self.keys_projection = nn.Parameter(torch.empty(config.rank, config.length))  # E
        self.values_projection = nn.Parameter(torch.empty(config.rank, config.length))  # F
        nn.init.normal_(self.keys_projection, std=config.length**-0.5)
        nn.init.normal_(self.values_projection, std=config.length**-0.5)

    def most_keys(self, causal: bool) -> int | None:
        """Return ``length``."""
        return self.config.length

    def attend(self, problem: AttentionProblem) -> AttentionOutput:
        """See :meth:`Attention.attend`; more keys than ``length`` are a ConfigError."""
        num_keys = problem.k.size(2)
        if num_keys > self.config.length:
            raise ConfigError(
                f"linformer: {num_keys} keys, but it was made for length={self.config.length}; "
                f"train with the attention option length={num_keys} or more"
            )
        k, v = map(problem.visibility.without_padding, (problem.k, problem.v))
        keys = self.keys_projection[:, :num_keys] @ k  # [B, H, rank, d]
        mixtures = self.values_projection[:, :num_keys] @ v
        # Compare each query with the mixed keys, [B, H, Nq, rank].
        scores = problem.q @ keys.transpose(-1, -2) / math.sqrt(self.head_dim)
        # Without keys all mixtures are 0, and so is the output.
        return AttentionOutput(scores.softmax(-1) @ mixtures)
