"""The input of a search, sentences as token ids, and its results: hypotheses and translations."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from relu_nmt.data.dictionary import SENTENCE_SEPARATOR, UNK
from relu_nmt.data.separators import Separators, ended, join_sentences
from relu_nmt.errors import DataError
from relu_nmt.io.text_lines import read_lines
from relu_nmt.tokenization.sentences import join_texts
from relu_nmt.translation.search.banned_terms import BannedTerms
from relu_nmt.translation.search.forced_terms import ForcedTerms
from relu_nmt.translation.search.scoring import Scorer


@dataclass(frozen=True)
class SourceSentence:
    """A sentence to translate, or a window of several sentences of a document.

    Args:
        ids: token ids, ending in the end symbol.
        tokens: the tokens, with unknown words as in the text, to be shown or copied.
        reference: token ids of the reference, for forced prefixes and scoring.
        context: token ids, without end symbol, of the known translation of the first part of the
            source. The translation continues it and does not include it.
        prefix: token ids, without end symbol, with which the translation begins.
        forced: terms that the translation must have. They may be in the prefix, but not in the
            context. None: no terms.
        banned: terms that it may not have, except in a forced prefix or term. None: no terms.
        parts: the sentences of a line that are translated one by one. () for a single sentence.
    """

    ids: np.ndarray
    tokens: list[str] = field(default_factory=list)
    reference: np.ndarray | None = None
    context: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    prefix: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    forced: ForcedTerms | None = None
    banned: BannedTerms | None = None
    parts: tuple["SourceSentence", ...] = ()

    @classmethod
    def of_parts(cls, parts: Sequence["SourceSentence"]) -> "SourceSentence":
        """Return a line of several sentences, which are translated one by one."""
        ids, tokens = joined_tokens(parts)
        return cls(ids, tokens, banned=parts[0].banned, parts=tuple(parts))

    @property
    def sentences(self) -> tuple["SourceSentence", ...]:
        """The units of the search: the parts, or else the source itself."""
        return self.parts or (self,)

    @property
    def num_forced(self) -> int:
        """Number of tokens of forced terms, and of prefixes of later sentences."""
        return 0 if self.forced is None else self.forced.num_tokens

    @property
    def num_read(self) -> int:
        """Number of tokens of the longest sentence that the model reads at once."""
        return max(len(sentence.ids) for sentence in self.sentences)

    def in_group(self, separators: Separators) -> "SourceSentence":
        """Return the sentence as one of several that are read at once.

        It ends in a separator, unless it is blank, and so does its reference.
        """
        ids = self.ids
        if len(ids) > 1:
            ids = ended(ids, separators.source)
        tokens = self.tokens + [SENTENCE_SEPARATOR] * (len(ids) - len(self.ids))
        reference = self.reference
        if reference is not None:
            reference = ended(reference, separators.target)
        return replace(self, ids=ids, tokens=tokens, reference=reference)


def joined_tokens(sentences: Iterable[SourceSentence]) -> tuple[np.ndarray, list[str]]:
    """Return the token ids and the tokens of sentences that are read as one."""
    ids = []
    tokens = []
    for sentence in sentences:
        ids.append(sentence.ids)
        tokens += sentence.tokens
    return join_sentences(ids), tokens


@dataclass(frozen=True)
class Hypothesis:
    """One finished translation.

    Args:
        ids: target symbols, int64 [T], ending in the end symbol.
        score: number that ranks the hypotheses of the sentence, from the search's scorer. By
            default the total log-probability (nats) over the length penalty.
        positional_scores: log-probability of each token in nats, float32 [T].
        alignment: source position that each token attends to most, int64 [T]. -1 if it attends to
            no position. None: not asked for.
        reached_limit: it ended at the longest output and may be cut off.
    """

    ids: np.ndarray
    score: float
    positional_scores: np.ndarray
    alignment: np.ndarray | None = None
    reached_limit: bool = False


@dataclass(frozen=True)
class Line:
    """A line of a translated text, as raw text and as tokens of the dictionary."""

    text: str
    tokens: list[str]


@dataclass(frozen=True)
class Translation(Line):
    """A translation of a line, or of several lines that were translated at once.

    The tokens come from the dictionary. With ``replace_unk`` unknown words are replaced.

    Args:
        hypothesis: token ids, scores by position, alignment. For one of several lines, it has
            this line's ids and the score of all lines.
        source_tokens: the tokens of the source.
    """

    hypothesis: Hypothesis
    source_tokens: list[str] = field(default_factory=list)

    @property
    def score(self) -> float:
        """Score from the scorer. By default log-probability (nats) over length penalty."""
        return self.hypothesis.score

    @property
    def alignment(self) -> np.ndarray | None:
        """The number of the source token that each token attends to most, int64 [T].

        Ends of sentences do not count. -1 stands for a token of another line, or for no attention
        at all. None: the alignment was not asked for (``print_alignment``).
        """
        alignment = self.hypothesis.alignment
        return None if alignment is None else alignment[: len(self.tokens)]

    def part(self, span: slice, source: SourceSentence, begin: int, text: str) -> "Translation":
        """Return the translation of one line of several.

        Args:
            span: the positions of the line's tokens.
            source: the line.
            begin: number of source tokens before the line.
            text: raw text of the line.
        """
        hypothesis = self.hypothesis
        alignment = hypothesis.alignment
        if alignment is not None:
            alignment = alignment[span] - begin
            is_outside = (alignment < 0) | (alignment >= len(source.tokens))
            alignment = np.where(is_outside, -1, alignment)
        hypothesis = replace(
            hypothesis,
            ids=hypothesis.ids[span],
            positional_scores=hypothesis.positional_scores[span],
            alignment=alignment,
        )
        return Translation(text, self.tokens[span], hypothesis, source.tokens)

    @property
    def reached_limit(self) -> bool:
        """Return True if it ended at the longest output and may be cut off."""
        return self.hypothesis.reached_limit


def join_translations(
    source: SourceSentence, translations: Sequence[Translation], language: str, scorer: Scorer
) -> Translation:
    """Return the translation of a line from those of its parts, or the only one of a sentence.

    Scores include the inner end symbols. The alignment counts source tokens from the line's begin.
    """
    if not source.parts:
        return translations[0]
    tokens: list[str] = []
    ids = []
    scores = []
    alignments = []
    position = 0  # number of source tokens before the part
    for part, translation in zip(source.parts, translations, strict=True):
        hypothesis = translation.hypothesis
        tokens += translation.tokens
        ids.append(hypothesis.ids)
        scores.append(hypothesis.positional_scores)
        if hypothesis.alignment is not None:
            is_aligned = hypothesis.alignment >= 0
            alignments.append(np.where(is_aligned, hypothesis.alignment + position, -1))
        position += len(part.tokens)
    lengths = np.array(list(map(len, ids)))
    inner_ends = np.cumsum(lengths)[:-1] - 1
    positional_scores = np.concatenate(scores)
    for end in inner_ends:
        positional_scores[end + 1] += positional_scores[end]
    alignment = None
    if alignments:
        alignment = np.delete(np.concatenate(alignments), inner_ends)
    joined_ids = join_sentences(ids)
    by_part = np.array([translation.score for translation in translations])
    hypothesis = Hypothesis(
        joined_ids,
        score=scorer.joined(by_part, lengths, len(joined_ids)),
        positional_scores=np.delete(positional_scores, inner_ends),
        alignment=alignment,
        reached_limit=any(translation.reached_limit for translation in translations),
    )
    text = join_texts([translation.text for translation in translations], language)
    return Translation(text, tokens, hypothesis, source.tokens)


class TranslatedLines(list[str]):
    """A list with the translation of each line, and the numbers of lines that may be cut off.

    Args:
        texts: the translations, as raw text.
        at_limit: numbers of lines, from 0, whose translation, or the translation of their group of
            lines, reached the longest output.
        too_long: numbers of lines whose source is too long: its translation is empty, or only its
            beginning is translated.
        translations: the same with tokens, scores and alignment.

    Example:
        >>> lines = TranslatedLines(["a house", "a a a a"], [1])
        >>> lines, lines.at_limit
        (['a house', 'a a a a'], (1,))
    """

    def __init__(
        self,
        texts: Iterable[str],
        at_limit: Iterable[int] = (),
        too_long: Iterable[int] = (),
        translations: Sequence[Translation] = (),
    ) -> None:
        super().__init__(texts)
        self.at_limit = tuple(at_limit)
        self.too_long = tuple(too_long)
        self.translations = translations


def check_lengths(sources: Sequence[SourceSentence], limit: int | None) -> None:
    """Refuse sources of more than ``limit`` tokens (DataError). None: any length."""
    longest = max((source.num_read for source in sources), default=0)
    if limit is not None and longest > limit:
        raise DataError(
            f"{longest} tokens to translate at once, but the model can read {limit}; "
            f"give --max-doc-tokens {limit} or less, and split sentences that are longer"
        )


@dataclass(frozen=True)
class SourceLimit:
    """The longest source to translate, and the treatment of longer ones.

    Example:
        >>> source = SourceSentence(np.array([5, 6, 7, 2]), ["a", "b", "c"])
        >>> SourceLimit(3, truncate=True).applied(source).tokens
        ['a', 'b']
    """

    most_tokens: int | None = None  # that are read, </s> included. None: any length
    # Cut longer sources. Otherwise they lose all words and their translation is empty.
    truncate: bool = False
    separator: int | None = None  # may end a sentence, before </s>. A cut keeps it

    def refuses(self, source: SourceSentence) -> bool:
        """Return True if the source, or a sentence of it, is too long."""
        return self.most_tokens is not None and source.num_read > self.most_tokens

    def applied(self, source: SourceSentence) -> SourceSentence:
        """Return the source, cut or emptied if it is too long."""
        if self.most_tokens is None or not self.refuses(source):
            return source
        if source.parts and self.truncate:
            return SourceSentence.of_parts([self.applied(part) for part in source.parts])
        # Keep the end symbol, and a separator before it.
        num_ends = 1 + (source.ids[-2:-1].tolist() == [self.separator])
        num_words = self.most_tokens - num_ends
        if not self.truncate or num_words <= 0:
            # Drop forced terms too, since the translation is empty.
            return SourceSentence(source.ids[-1:], [], source.reference)
        end = len(source.ids) - num_ends
        ids = np.concatenate([source.ids[:num_words], source.ids[end:]])
        return replace(source, ids=ids, tokens=source.tokens[:num_words] + source.tokens[end:])


ANY_LENGTH = SourceLimit()


def replace_unknown_words(
    tokens: Sequence[str],
    source_tokens: Sequence[str],
    alignment: np.ndarray,
    translations: Mapping[str, str],
    is_banned: Callable[[list[str]], bool] = lambda tokens: False,
) -> list[str]:
    """Return ``tokens`` with every ``<unk>`` replaced by its source token or a translation of it.

    An ``<unk>`` stays where a word would make the tokens banned.
    Source tokens have unknown words as in the text. The alignment is the source position of each
    output token, [T], or -1, which leaves ``<unk>``. Source tokens without translation are copied.

    Reference: Luong et al. 2015, "Addressing the rare word problem", section 3, with attention
    instead of learned alignments.
    """
    replaced = list(tokens)
    for number, position in enumerate(alignment[: len(replaced)].tolist()):
        # Ignore the end symbol of the source, which stands for no word.
        if replaced[number] == UNK and 0 <= position < len(source_tokens):
            source = source_tokens[position]
            replaced[number] = translations.get(source, source)
            if is_banned(replaced):
                replaced[number] = UNK
    return replaced


def load_translations(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read the words and translations of a file (DataError: a line does not have two words)."""
    translations = {}
    for number, line in enumerate(read_lines(path), 1):
        words = line.split()
        if len(words) != 2:
            raise DataError(
                f"{path}:{number}: expected 'source target', found {line.strip()[:60]!r}"
            )
        # Keep the last entry of a repeated word.
        translations[words[0]] = words[1]
    return translations
