"""Which tokens may come next: length limits, forced prefixes, repeated n-grams."""

import numpy as np
import torch
from torch import Tensor

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.decoding.config import GenerationConfig
from relu_nmt.errors import ConfigError


def length_limits(
    config: GenerationConfig, source_lengths: np.ndarray, max_positions: int | None = None
) -> np.ndarray:
    """Return the largest number of tokens before the end symbol for each sentence, int64 [B].

    Args:
        config: ``max_len_a`` and ``max_len_b``; ``min_len`` tokens are allowed in any case.
        source_lengths: tokens of each source with the end symbol, [B].
        max_positions: tokens that the models can write, the end symbol included; None for any.

    Raises:
        ConfigError: the models cannot write ``--min-len`` tokens.
    """
    limits = (config.max_len_a * source_lengths + config.max_len_b).astype(np.int64)
    limits = np.maximum(limits, config.min_len)
    if max_positions is None:
        return limits
    if config.min_len >= max_positions:
        raise ConfigError(
            f"--min-len {config.min_len}: the model can write {max_positions - 1} tokens and the "
            "end symbol at most"
        )
    return np.minimum(limits, max_positions - 1)


class TokenConstraints:
    """What the settings forbid at each step, for the live sentences of one batch.

    Args:
        config: settings of the search.
        symbols: the target dictionary.
        limits: largest number of tokens before the end symbol, int64 [B].
        context_sizes: how many forced tokens are context, int64 [B]: these cost nothing, and
            ``min_len`` counts what follows them.
        device: where the search runs.
        prefixes: forced first tokens [B, P] int64, padded on the right; None for none.
    """

    def __init__(
        self,
        config: GenerationConfig,
        symbols: Dictionary,
        limits: np.ndarray,
        context_sizes: np.ndarray,
        device: torch.device,
        prefixes: Tensor | None,
    ) -> None:
        self._config = config
        self._symbols = symbols
        self.limits = limits
        self.context_sizes = context_sizes
        self._device = device
        self._prefixes = prefixes
        self._history: Tensor | None = None  # [B, K, t], only where n-grams are blocked
        # Steps before and from which no sentence needs to be looked at.
        self._last_too_short = int(context_sizes.max(initial=0)) + config.min_len
        self._first_limit = int(limits.min())

    def apply(self, log_probs: Tensor, step: int) -> None:
        """Change log_probs [B, K, V] of the token after ``step`` others, in place.

        Forbidden tokens become -inf. A forced prefix comes before everything but the longest
        length; the end symbol is forced at the limit.
        """
        config, symbols = self._config, self._symbols
        log_probs[:, :, symbols.pad_index] = -torch.inf
        log_probs[:, :, symbols.bos_index] = -torch.inf
        if config.unkpen:
            log_probs[:, :, symbols.unk_index] -= config.unkpen
        end = log_probs[:, :, symbols.eos_index].clone()
        forced = self._forced_by_prefix(log_probs, step)
        if step < self._last_too_short:
            too_short = self._rows(step < self.context_sizes + config.min_len)
            log_probs[too_short, :, symbols.eos_index] = -torch.inf
        if self._history is not None:
            size = config.no_repeat_ngram_size
            block_repeated_ngrams(log_probs, self._history, size, symbols.pad_index)
        if forced is not None:
            rows, values = forced
            log_probs[rows] = values
        if step >= self._first_limit:
            rows = self._rows(step >= self.limits)
            log_probs[rows] = -torch.inf
            log_probs[rows, :, symbols.eos_index] = end[rows]

    def _forced_by_prefix(self, log_probs: Tensor, step: int) -> tuple[Tensor, Tensor] | None:
        """Return the rows [R] with a forced token and what their log_probs [R, K, V] become."""
        if self._prefixes is None or step >= self._prefixes.size(1):
            return None
        tokens = self._prefixes[:, step]
        rows = (tokens != self._symbols.pad_index).nonzero()[:, 0]
        values = torch.full_like(log_probs[rows], -torch.inf)
        index = tokens[rows, None, None].expand(-1, log_probs.size(1), 1)
        in_context = torch.from_numpy(step < self.context_sizes).to(self._device)[rows]
        own = log_probs[rows].gather(2, index).masked_fill(in_context[:, None, None], 0.0)
        values.scatter_(2, index, own)
        return rows, values

    def _rows(self, mask: np.ndarray) -> Tensor:
        """Return the rows of a mask [B] on the device."""
        return torch.from_numpy(np.flatnonzero(mask)).to(self._device)

    def advance(self, parents: Tensor | None, tokens: Tensor) -> None:
        """Note the tokens [B, K] that were chosen, after beams ``parents`` [B, K] (None: same)."""
        if not self._config.no_repeat_ngram_size:
            return
        newest = tokens[:, :, None]
        if self._history is None:
            self._history = newest
            return
        history = self._history
        if parents is not None:
            history = history.gather(1, parents[:, :, None].expand_as(history))
        self._history = torch.cat([history, newest], dim=2)

    def keep(self, rows: Tensor, mask: np.ndarray) -> None:
        """Keep only these rows [B'], which are those of the mask [B]."""
        self.limits = self.limits[mask]
        self.context_sizes = self.context_sizes[mask]
        if self._prefixes is not None:
            self._prefixes = self._prefixes.index_select(0, rows)
        if self._history is not None:
            self._history = self._history.index_select(0, rows)


def block_repeated_ngrams(log_probs: Tensor, history: Tensor, size: int, spare_index: int) -> None:
    """Forbid, in place, every token that would repeat an n-gram of its hypothesis.

    Args:
        log_probs: [B, K, V]; forbidden tokens become -inf.
        history: tokens of each hypothesis so far, [B, K, t] int64, without a start symbol.
        size: n, 1 or more.
        spare_index: a symbol that is forbidden anyway.

    Example:
        >>> log_probs = torch.zeros(1, 1, 8)
        >>> block_repeated_ngrams(log_probs, torch.tensor([[[5, 6, 7, 5]]]), 2, 0)
        >>> log_probs.isinf().nonzero()[:, 2].tolist()
        [0, 6]
    """
    length = history.size(2)
    if length < size:
        return
    # The n-grams so far are a context of n - 1 tokens and the token that followed it; a token is
    # forbidden if the context is also the end of the hypothesis.
    followers = history[:, :, size - 1 :]  # [B, K, t - n + 1]
    if size > 1:
        contexts = history[:, :, :-1].unfold(2, size - 1, 1)  # [B, K, t - n + 1, n - 1]
        ending = history[:, :, None, length - size + 1 :]  # [B, K, 1, n - 1]
        followers = torch.where((contexts == ending).all(-1), followers, spare_index)
    log_probs.scatter_(2, followers, -torch.inf)
