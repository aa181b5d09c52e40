"""Tokens that may come next, by lengths, sentences, prefixes, repetitions and terms."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from torch import Tensor

from relu_nmt.config import build_part
from relu_nmt.config.registry import Spec
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.documents import Separators
from relu_nmt.errors import ConfigError
from relu_nmt.translation.base import Ensemble
from relu_nmt.translation.search import step_rules, step_scores
from relu_nmt.translation.search.banned_terms import TermBans
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.forced_terms import TermTracker
from relu_nmt.translation.search.step_rules import StepRule
from relu_nmt.translation.search.translations import SourceSentence


def build_step_score(config: GenerationConfig, symbols: Dictionary) -> step_rules.StepScore:
    """Return the bonus or penalty that ``--step-score`` names (ConfigError: a wrong option)."""
    spec = Spec.parse(str(config.step_score))
    return build_part(step_scores.get(spec.name), spec, "--step-score", symbols)


class TokenConstraints:
    """Rules about the next tokens of the live sentences of one batch.

    If sentences are counted, a translation has as many sentences as its source: the end symbol
    follows the last separator directly and is forbidden elsewhere. A sentence may be empty, since a
    translation may join two. Allowed tokens keep their log-probabilities. A context and the first
    ``num_free`` tokens cost nothing. ``min_len`` counts only tokens after the context. Prefixes
    [B, P] int64 are right-padded. The limits leave room for all sentences, prefixes and terms.

    Attributes:
        written: the amounts that the hypotheses have written and may write.
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
        # A sentence has a limit of its own if the models limit it more than the whole output.
        most_tokens = ensemble.max_positions
        most_of_a_sentence = ensemble.max_sentence_positions
        if most_of_a_sentence == most_tokens:
            most_of_a_sentence = None
        separator = -1 if separators is None else separators.source
        self.written = written = step_rules.Written(
            symbols,
            limits=config.length_limits(_counts(len(s.ids) for s in sources), most_tokens),
            context_sizes=_counts(len(source.context) for source in sources),
            num_separators=_counts((source.ids == separator).sum() for source in sources),
            separators=separators,
            most_of_a_sentence=most_of_a_sentence,
            is_counted=not config.free_sentence_count,
            device=prefixes.device,
        )
        pad_index = symbols.pad_index
        _make_room(written, sources, prefixes, pad_index, most_tokens)
        # The number of sentences decides where the end is.
        if written.sentences_left is not None:
            prefixes = prefixes.masked_fill(prefixes == symbols.eos_index, pad_index)
        self.idle_token = None if written.sentence_room is None else written.separator
        self.terms = None
        if has_terms:
            self.terms = TermTracker([source.forced for source in sources], written)
        # Change the scores of the models first, then forbid and force tokens.
        self._score_rules: list[StepRule] = [step_rules.SpecialSymbols(symbols, config.unkpen)]
        if written.is_single is not None:
            self._score_rules.append(step_rules.SingleSentences(written))
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
        written = self.written
        pad_index = symbols.pad_index
        rules: list[StepRule] = []
        if config.unkpen == math.inf:
            rules.append(step_rules.NoUnknownWords(symbols.unk_index))
        banned = [source.banned for source in sources]
        if any(banned):
            num_forced = (prefixes != pad_index).sum(1).tolist()
            rules.append(TermBans(banned, num_forced, written, self.terms))
        if config.no_repeat_ngram_size:
            rules.append(
                step_rules.NoRepeatedNgrams(config.no_repeat_ngram_size, pad_index, written)
            )
        rules.append(step_rules.ShortestOutput(config.min_len, written))
        if self.terms is not None:
            rules.append(self.terms)
        rules.append(step_rules.Prefixes(prefixes, pad_index, num_free, written))
        if written.sentences_left is not None:
            rules.append(step_rules.SentenceCount(written))
        if written.sentence_room is not None:
            rules.append(step_rules.SentenceLength(written))
        rules.append(step_rules.LongestOutput(written))
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
            self.written.save(log_probs)
            for rule in active:
                rule.save(log_probs, step)
        for rule in active:
            rule.apply(log_probs, step)

    def advance(self, parents: Tensor | None, tokens: Tensor) -> None:
        """Append the chosen tokens [B, K] to beams ``parents`` [B, K]. None: the same beams."""
        self.written.advance(parents, tokens)
        for rule in self._rules:
            rule.advance(parents, tokens)

    def keep(self, rows: Tensor, mask: np.ndarray) -> None:
        """Keep only the sentences with indices ``rows`` [B'], which ``mask`` [B] marks."""
        self.written.keep(rows, mask)
        for rule in self._rules:
            rule.keep(rows, mask)


def _counts(numbers: Iterable[int]) -> np.ndarray:
    """Return a number for each sentence, int64 [B]."""
    return np.fromiter(numbers, dtype=np.int64)


def _make_room(
    written: step_rules.Written,
    sources: Sequence[SourceSentence],
    prefixes: Tensor,
    pad_index: int,
    most_tokens: int | None,
) -> None:
    """Raise the limits so that all sentences, prefixes and terms fit (ConfigError: they cannot)."""
    forced = prefixes.cpu().numpy()
    num_sentences = np.zeros_like(written.limits)
    room = np.zeros_like(written.limits)
    if written.sentences_left is not None:
        # Leave room for all separators and for the other tokens of the context.
        num_sentences = written.sentences_left[:, 0].cpu().numpy()
        in_context = np.arange(forced.shape[1]) < written.context_sizes[:, None]
        room = num_sentences + written.context_sizes
        room -= ((forced == written.separator) & in_context).sum(1)
    # With prefixes or terms, leave room for all forced tokens and all separators.
    num_terms = _counts(source.num_forced for source in sources)
    is_forced = num_terms + _counts(len(source.prefix) for source in sources) > 0
    needed = num_terms + num_sentences + (forced != pad_index).sum(1)
    written.limits = np.maximum(written.limits, np.maximum(room, needed * is_forced))
    # A source without separator ends at the longest sentence that the models can write.
    if written.is_single is not None and written.sentence_room is not None:
        is_single = written.is_single[:, 0].cpu().numpy()
        shorter = np.minimum(written.limits, written.sentence_room[:, 0].cpu().numpy())
        written.limits = np.where(is_single, shorter, written.limits)
    longest = int(written.limits.max(initial=0))
    if most_tokens is not None and longest >= most_tokens:
        raise ConfigError(
            f"{longest} tokens are needed for the sentences to translate at once, or for "
            f"prefixes and forced terms, but the model can write {most_tokens - 1}; give a "
            "smaller --max-doc-tokens, shorter prefixes or fewer terms"
        )
