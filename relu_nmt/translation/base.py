"""The interface of translation models: states for training, and steps for a search."""

from typing import Any

from torch import Tensor, nn

from relu_nmt.attention.base import Attention
from relu_nmt.attention.records import AttentionRecord
from relu_nmt.errors import ConfigError
from relu_nmt.translation.config import TransformerConfig


class SearchState:
    """The memory of a model of the hypotheses of one search.

    Attributes:
        symbols: ids of the only symbols that the search may write, int64 [V']. None: all.
    """

    symbols: Tensor | None = None

    def reorder(self, parents: Tensor) -> None:
        """Let beam k of sentence b continue beam ``parents[b, k]`` of its group, [B, K] int64."""
        raise TypeError(f"{type(self).__name__} must define reorder")

    def keep(self, sentences: Tensor) -> None:
        """Keep only the sentences with these indices [B'], in this order."""
        raise TypeError(f"{type(self).__name__} must define keep")


class TranslationModel(nn.Module):
    """A model of target sentences given source sentences.

    Training calls :meth:`forward` and :meth:`logits`. A search calls :meth:`start`, :meth:`step`
    and :meth:`logits`, and ``reorder`` and ``keep`` of the state. Both ways give the same logits.

    A subclass is registered in ``translation_models`` and takes (config, source_vocab_size,
    target_vocab_size, pad_index, separators), as :class:`EncoderDecoder` does. A subclass with
    options names its settings class ``Config`` and takes an instance as a further argument. It
    makes ``output_projection``, which maps states [..., D] to scores [..., V].
    """

    output_projection: nn.Module

    def __init__(self, config: TransformerConfig, pad_index: int) -> None:
        super().__init__()
        self.config = config
        self.pad_index = pad_index

    def forward(self, src_tokens: Tensor, prev_output_tokens: Tensor) -> Tensor:
        """Return the states [B, T, D] of all target positions (teacher forcing).

        Sources [B, S] int64 are right-padded, each ending in the end symbol, as are targets [B, T],
        shifted right, end symbol first. :meth:`logits` maps the states to scores of the vocabulary.
        """
        raise TypeError(f"{type(self).__name__} must define forward")

    def logits(self, features: Tensor) -> Tensor:
        """Return the scores [..., V] in float32 of features [..., D]."""
        return self.output_projection(features).float()

    def start(self, src_tokens: Tensor, num_groups: int = 1) -> Any:
        """Read the sources [B, S], and return the :class:`SearchState` with one beam a sentence.

        Beams of different groups never mix.
        """
        raise TypeError(f"{type(self).__name__} must define start")

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Add the newest tokens [B, K] of all beams to a state, and return their states [B, K, D].

        K is 1 in the first step, whose token is the end symbol. All K beams of the second step
        continue this single one.
        """
        raise TypeError(f"{type(self).__name__} must define step")

    def most_tokens(self, side: str, of_sentence: bool = False) -> int | None:
        """Return the limit of tokens of the side ``source`` or ``target``, end symbol included.

        The limit is for a document, or for each sentence in it. None: unlimited.
        """
        return None

    @property
    def aligning_attention(self) -> Attention:
        """The attention that aligns target with source tokens (ConfigError: there is none)."""
        raise ConfigError(
            f"--translation-model {self.config.translation_model} has no attention from target to "
            "source, which alignments, coverage and shown weights need; leave them out"
        )

    def alignment_weights(self, record: AttentionRecord) -> Tensor:
        """Return the mean weights [B, T, S] over the aligning heads, from their record."""
        raise TypeError(f"{type(self).__name__} must define alignment_weights")
