"""Limits of an output: its longest length, its number of sentences, and their lengths."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from relu_nmt.errors import ConfigError
from relu_nmt.translation.search.config import GenerationConfig


def length_limits(
    config: GenerationConfig, source_lengths: np.ndarray, max_positions: int | None = None
) -> np.ndarray:
    """Return the largest number of tokens before the end symbol for each sentence, int64 [B].

    Args:
        config: the longest output; ``min_len`` tokens are always allowed.
        source_lengths: tokens of each source with the end symbol, [B].
        max_positions: tokens that the models can write, the end symbol included; None for any.

    Raises:
        ConfigError: the models cannot write ``--min-len`` tokens.
    """
    a, b = config.longest_output
    # Scale with the source, but always leave room for the fewest tokens.
    limits = (a * source_lengths + b).astype(np.int64)
    limits = np.maximum(limits, config.min_len)
    if max_positions is None:
        return limits
    if config.min_len >= max_positions:
        raise ConfigError(
            f"--min-len {config.min_len}: the model can write {max_positions - 1} tokens and the "
            "end symbol at most"
        )
    # Leave one position of the model for the end symbol.
    return np.minimum(limits, max_positions - 1)


@dataclass
class SentencesLeft:
    """Sentences that each hypothesis has still to end, to have as many as its source.

    The end symbol follows the last separator directly and is forbidden elsewhere. Allowed tokens
    keep their log-probabilities, so the score of a hypothesis stays the model's own. A sentence
    may be empty, since a translation may join two sentences.

    Args:
        separator: the target symbol that ends each sentence.
        number: sentences left, int64 [B, K]; K may be 1 before the first token.
    """

    separator: int
    number: Tensor

    def advance(self, parents: Tensor | None, tokens: Tensor) -> None:
        """Append the chosen tokens [B, K] to beams ``parents`` [B, K]; None: the same beams."""
        number = self.number.expand(tokens.shape)
        if parents is not None:
            number = number.gather(1, parents)
        self.number = number - (tokens == self.separator).long()

    def room(self, prefixes: Tensor | None, context_sizes: np.ndarray) -> np.ndarray:
        """Return the fewest tokens before the end symbol, int64 [B].

        Args:
            prefixes: forced first tokens [B, P] int64.
            context_sizes: tokens of the context among them, whose sentences count too, int64 [B].
        """
        # All separators, and the tokens of the context that are none.
        needed = self.number[:, 0].cpu().numpy() + context_sizes
        if prefixes is None:
            return needed
        # Subtract separators inside the context, which were counted twice.
        ends = (prefixes == self.separator).cpu().numpy()
        return needed - (ends & (np.arange(ends.shape[1]) < context_sizes[:, None])).sum(1)


@dataclass
class SentenceLengths:
    """Length of the current sentence of each hypothesis, for models that limit it.

    At the limit the separator is forced.

    Args:
        separator: the target symbol that ends each sentence.
        most: most tokens of a sentence, the separator included.
        length: tokens of the current sentence, int64 [B, K]; K may be 1 before the first token.
    """

    separator: int
    most: int
    length: Tensor

    @property
    def full(self) -> Tensor:
        """Return True for hypotheses that have room for the separator only, bool [B, K]."""
        return self.length >= self.most - 1

    def advance(self, parents: Tensor | None, tokens: Tensor) -> None:
        """Append the chosen tokens [B, K] to beams ``parents`` [B, K]; None: the same beams."""
        length = self.length.expand(tokens.shape)
        if parents is not None:
            length = length.gather(1, parents)
        self.length = (length + 1).masked_fill(tokens == self.separator, 0)
