"""Rules about the next token, by lengths, sentences, prefixes and repetitions, and their order."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from relu_nmt.config import build_part
from relu_nmt.config.registry import Spec
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.separators import Separators
from relu_nmt.translation.base import Ensemble
from relu_nmt.translation.search import step_scores
from relu_nmt.translation.search.banned_terms import TermBans
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.forced_terms import TermTracker
from relu_nmt.translation.search.step_rules import (
    OutputBudget,
    StepRule,
    StepScore,
    column,
    exclude_token,
)
from relu_nmt.translation.search.translations import SourceSentence


class SpecialSymbols(StepRule):
    """Forbids the symbols that no output has, and subtracts the finite penalty of ``<unk>``."""

    is_alike = True

    def __init__(self, symbols: Dictionary, unkpen: float) -> None:
        self._symbols = symbols
        self._unkpen = unkpen if unkpen < torch.inf else 0.0

    def apply(self, log_probs: Tensor, step: int) -> None:
        symbols = self._symbols
        log_probs[:, :, symbols.bos_index : symbols.pad_index + 1] = -torch.inf  # neighbors
        if self._unkpen:
            log_probs[:, :, symbols.unk_index] -= self._unkpen


class SingleSentences(StepRule):
    """Takes the separator out of the distribution for sources without one."""

    def __init__(self, budget: OutputBudget) -> None:
        self._budget = budget
        self.is_alike = budget.is_single is not None and bool(budget.is_single.all())

    def apply(self, log_probs: Tensor, step: int) -> None:
        where = None if self.is_alike else self._budget.is_single
        exclude_token(log_probs, self._budget.separator, where)


class NoUnknownWords(StepRule):
    """Forbids ``<unk>``, for ``--unkpen inf``."""

    is_alike = True

    def __init__(self, unk_index: int) -> None:
        self._unk_index = unk_index

    def apply(self, log_probs: Tensor, step: int) -> None:
        log_probs[:, :, self._unk_index] = -torch.inf


class NoRepeatedNgrams(StepRule):
    """Forbids n-grams that a hypothesis already has, for one n. Ends of sentences may repeat."""

    def __init__(self, size: int, pad_index: int, budget: OutputBudget) -> None:
        self._size = size
        self._pad_index = pad_index
        self._budget = budget
        self._history: Tensor | None = None  # all tokens of each hypothesis, [B, K, t]

    def is_active(self, step: int) -> bool:
        """Return False before the first token is written."""
        return step > 0

    def apply(self, log_probs: Tensor, step: int) -> None:
        assert self._history is not None, "it is active"
        separator = self._budget.separator
        of_separator = log_probs[:, :, separator].clone()
        block_repeated_ngrams(log_probs, self._history, self._size, self._pad_index)
        if self._budget.sentences_left is not None:
            log_probs[:, :, separator] = of_separator

    def advance(self, parents: Tensor, tokens: Tensor) -> None:
        """Append the chosen tokens to the history of the parents, [B, K, t + 1]."""
        newest = tokens[:, :, None]
        if self._history is not None:
            index = parents[:, :, None].expand_as(self._history)
            newest = torch.cat([self._history.gather(1, index), newest], dim=2)
        self._history = newest

    def keep(self, rows: Tensor, mask: np.ndarray) -> None:
        if self._history is not None:
            self._history = self._history.index_select(0, rows)


class ShortestOutput(StepRule):
    """Forbids the end symbol, and the separator before it, where a hypothesis is too short."""

    def __init__(self, min_len: int, budget: OutputBudget) -> None:
        self._min_len = min_len
        self._budget = budget
        self._last = int(budget.context_sizes.max(initial=0)) + min_len

    def is_active(self, step: int) -> bool:
        """Return whether an output may still be too short."""
        return step < self._last

    def apply(self, log_probs: Tensor, step: int) -> None:
        # Forbid the end symbol, and the last separator, since it would force the end symbol.
        budget = self._budget
        shortest = budget.context_sizes + self._min_len
        too_short = column(step < shortest, log_probs)
        log_probs[:, :, budget.eos_index].masked_fill_(too_short, -torch.inf)
        if budget.sentences_left is not None:
            too_short = column(step + 1 < shortest, log_probs) & (budget.sentences_left == 1)
            log_probs[:, :, budget.separator].masked_fill_(too_short, -torch.inf)


class Prefixes(StepRule):
    """Forces the first tokens, int64 [B, P]. A context and ``num_free`` tokens cost nothing."""

    def __init__(
        self, prefixes: Tensor, pad_index: int, num_free: int, budget: OutputBudget
    ) -> None:
        self._prefixes = prefixes
        self._pad_index = pad_index
        self._budget = budget
        self._num_free = num_free
        self._saved = prefixes, torch.empty(0)  # rows [R], and their new scores [R, K, V]

    def is_active(self, step: int) -> bool:
        """Return False after the longest prefix."""
        return step < self._prefixes.size(1)

    def save(self, log_probs: Tensor, step: int) -> None:
        """Keep the scores of the forced tokens."""
        tokens = self._prefixes[:, step]
        rows = (tokens != self._pad_index).nonzero()[:, 0]
        values = torch.full_like(log_probs[rows], -torch.inf)
        index = tokens[rows, None, None].expand(-1, log_probs.size(1), 1)
        is_free = column(step < np.maximum(self._budget.context_sizes, self._num_free), log_probs)
        scores = log_probs[rows].gather(2, index).masked_fill(is_free[rows, :, None], 0.0)
        self._saved = rows, values.scatter_(2, index, scores)

    def apply(self, log_probs: Tensor, step: int) -> None:
        rows, values = self._saved
        log_probs[rows] = values

    def keep(self, rows: Tensor, mask: np.ndarray) -> None:
        self._prefixes = self._prefixes.index_select(0, rows)


class SentenceCount(StepRule):
    """Forces the end after the last sentence, and separators where nothing else fits."""

    def __init__(self, budget: OutputBudget) -> None:
        assert budget.sentences_left is not None, "sentences are counted"
        self._budget = budget
        number = budget.sentences_left[:, 0].cpu().numpy()
        self._first_end = int(number.min())
        self._first_limit = int((budget.limits - number).min())

    def apply(self, log_probs: Tensor, step: int) -> None:
        budget = self._budget
        left = budget.sentences_left
        assert left is not None, "sentences are counted"
        log_probs[:, :, budget.eos_index].masked_fill_(left > 0, -torch.inf)
        if step >= self._first_end:
            ended = left == 0
            if budget.is_single is not None:
                ended = ended & ~budget.is_single
            budget.allow_only(budget.eos_index, log_probs, ended)
        if step >= self._first_limit:
            is_full = (budget.tokens_left(step, log_probs) <= 0) & (left > 0)
            where = is_full & budget.is_begun(step, log_probs)
            budget.allow_only(budget.separator, log_probs, where)


class SentenceLength(StepRule):
    """Forces the separator where a sentence has as many tokens as the models can write."""

    def __init__(self, budget: OutputBudget) -> None:
        self._budget = budget

    def apply(self, log_probs: Tensor, step: int) -> None:
        budget = self._budget
        assert budget.sentence_tokens_left is not None, "sentences are limited"
        is_full = budget.sentence_tokens_left <= 0
        if budget.sentences_left is not None:
            is_full = is_full & (budget.sentences_left > 0)
        where = is_full & budget.is_begun(step, log_probs)
        budget.allow_only(budget.separator, log_probs, where)


class LongestOutput(StepRule):
    """Forces the end symbol at the longest output."""

    def __init__(self, budget: OutputBudget) -> None:
        self._budget = budget
        self._first = int(budget.limits.min())

    def is_active(self, step: int) -> bool:
        """Return whether an output may have its longest length."""
        return step >= self._first

    def apply(self, log_probs: Tensor, step: int) -> None:
        at_limit = column(step >= self._budget.limits, log_probs)
        self._budget.allow_only(self._budget.eos_index, log_probs, at_limit)


def block_repeated_ngrams(log_probs: Tensor, history: Tensor, size: int, spare_index: int) -> None:
    """Forbid, in place, every token that would repeat an n-gram of its hypothesis.

    log_probs are [B, K, V], the history the tokens of each hypothesis so far, [B, K, t]. The size
    is n, 1 or more, and ``spare_index`` a symbol that is always forbidden.

    Example:
        >>> log_probs = torch.zeros(1, 1, 8)
        >>> block_repeated_ngrams(log_probs, torch.tensor([[[5, 6, 7, 5]]]), 2, 0)
        >>> log_probs.isinf().nonzero()[:, 2].tolist()
        [0, 6]
    """
    length = history.size(2)
    if length < size:
        return
    # The n-grams so far are a context of n - 1 tokens and the token that followed it. A token is
    # forbidden if the context is also the end of the hypothesis.
    followers = history[:, :, size - 1 :]  # [B, K, t - n + 1]
    if size > 1:
        contexts = history[:, :, :-1].unfold(2, size - 1, 1)  # [B, K, t - n + 1, n - 1]
        ending = history[:, :, None, length - size + 1 :]  # [B, K, 1, n - 1]
        followers = torch.where((contexts == ending).all(-1), followers, spare_index)
    log_probs.scatter_(2, followers, -torch.inf)


def build_step_score(config: GenerationConfig, symbols: Dictionary) -> StepScore:
    """Return the bonus or penalty that ``--step-score`` names (ConfigError: a wrong option)."""
    spec = Spec.parse(str(config.step_score))
    return build_part(step_scores.get(spec.name), spec, "--step-score", symbols)


class TokenConstraints:
    """Rules about the next tokens of the live sentences of one batch.

    If sentences are counted, a translation has as many sentences as its source: the end symbol
    follows the last separator directly and is forbidden elsewhere. A sentence may be empty, since a
    translation may join two. Allowed tokens keep their log-probabilities. A context and the first
    ``num_free`` tokens cost nothing. ``min_len`` counts only tokens after the context. Prefixes
    [B, P] int64 are right-padded.

    Attributes:
        budget: the tokens that the hypotheses may still write.
        terms: the forced terms. None for none.
        idle_token: token that is fed to beams without a hypothesis. None: any.
    """

    def __init__(
        self,
        config: GenerationConfig,
        symbols: Dictionary,
        ensemble: Ensemble,
        sources: Sequence[SourceSentence],
        prefixes: Tensor,
        separators: Separators | None,
        num_free: int,
    ) -> None:
        has_terms = any(source.num_forced for source in sources)
        if has_terms:
            config.check_terms()
        self.budget = budget = OutputBudget(
            config, symbols, ensemble, sources, prefixes, separators
        )
        # The number of sentences decides where the end is.
        if budget.sentences_left is not None:
            is_end = prefixes == symbols.eos_index
            prefixes = prefixes.masked_fill(is_end, symbols.pad_index)
        self.idle_token = None if budget.sentence_tokens_left is None else budget.separator
        self.terms = None
        if has_terms:
            self.terms = TermTracker([source.forced for source in sources], config.beam, budget)
        # Change the scores of the models first, then forbid and force tokens.
        self._score_rules: list[StepRule] = [SpecialSymbols(symbols, config.unkpen)]
        if budget.is_single is not None:
            self._score_rules.append(SingleSentences(budget))
        if config.step_score is not None:
            self._score_rules.append(build_step_score(config, symbols))
        self._token_rules = self._make_token_rules(config, symbols, sources, prefixes, num_free)
        self._rules = [*self._score_rules, *self._token_rules]

    def _make_token_rules(
        self,
        config: GenerationConfig,
        symbols: Dictionary,
        sources: Sequence[SourceSentence],
        prefixes: Tensor,
        num_free: int,
    ) -> list[StepRule]:
        """Return the rules that forbid and force tokens. A later one has priority."""
        budget = self.budget
        pad_index = symbols.pad_index
        rules: list[StepRule] = []
        if config.unkpen == math.inf:
            rules.append(NoUnknownWords(symbols.unk_index))
        banned = [source.banned for source in sources]
        if any(banned):
            num_forced = (prefixes != pad_index).sum(1).tolist()
            rules.append(TermBans(banned, num_forced, config.beam, budget, self.terms))
        if config.no_repeat_ngram_size:
            rules.append(NoRepeatedNgrams(config.no_repeat_ngram_size, pad_index, budget))
        rules.append(ShortestOutput(config.min_len, budget))
        if self.terms is not None:
            rules.append(self.terms)
        rules.append(Prefixes(prefixes, pad_index, num_free, budget))
        if budget.sentences_left is not None:
            rules.append(SentenceCount(budget))
        if budget.sentence_tokens_left is not None:
            rules.append(SentenceLength(budget))
        rules.append(LongestOutput(budget))
        return rules

    def are_alike(self, step: int) -> bool:
        """Return True if the same tokens are forbidden for all hypotheses at a step."""
        return all(rule.is_alike or not rule.is_active(step) for rule in self._rules)

    def apply(self, log_probs: Tensor, step: int) -> None:
        """Change log_probs [B, K, V] of the token after ``step`` tokens, in place.

        Forbidden tokens become -inf. If :meth:`are_alike`, log_probs may belong to any hypotheses,
        in any shape [..., ..., V]. The longest length and the number of sentences have the highest
        priority, then forced prefixes, then forced terms.
        """
        for rule in self._score_rules:
            if rule.is_active(step):
                rule.apply(log_probs, step)
        active = [rule for rule in self._token_rules if rule.is_active(step)]
        if not self.are_alike(step):
            self.budget.save(log_probs)
            for rule in active:
                rule.save(log_probs, step)
        for rule in active:
            rule.apply(log_probs, step)

    def advance(self, parents: Tensor, tokens: Tensor) -> None:
        """Append the chosen tokens [B, K] to beams ``parents`` [B, K]."""
        self.budget.advance(parents, tokens)
        for rule in self._rules:
            rule.advance(parents, tokens)

    def keep(self, rows: Tensor, mask: np.ndarray) -> None:
        """Keep only the sentences with indices ``rows`` [B'], which ``mask`` [B] marks."""
        self.budget.keep(rows, mask)
        for rule in self._rules:
            rule.keep(rows, mask)
