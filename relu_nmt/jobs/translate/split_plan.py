"""The division of a split into windows that are translated at once, and their translations."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relu_nmt.data.document_settings import SINGLE_SENTENCES
from relu_nmt.data.groups import Groups, longer_side, plan_groups
from relu_nmt.data.split import Split
from relu_nmt.errors import DataError, counted
from relu_nmt.evaluation.metrics import Score
from relu_nmt.evaluation.split_scorer import AlignedSentence
from relu_nmt.jobs.translate.model import source_limit
from relu_nmt.jobs.translate.settings import TranslateSplitSettings
from relu_nmt.translation.search.translations import Line
from relu_nmt.translator import Translator


class SplitPlan:
    """A split, or a shard of it, and its groups of sentences.

    Attributes:
        split: the sentences to translate.
        has_documents: the groups belong to documents. Otherwise each sentence is a document.
        windows: the division of documents into groups.
        config: the settings of the search.
        counts_source_only: references do not count toward the limit of a group.
        first_group: number of the first group. The groups of earlier shards are only counted.
        sizes: tokens of each sentence, int [N].
        document_sizes: sentences of each document.
        groups: the groups to translate.
        limit: the longest source, and the treatment of longer ones.
    """

    def __init__(self, settings: TranslateSplitSettings, translator: Translator) -> None:
        self.split = translator.task.load_split(settings.gen_subset)
        if settings.search.replace_unk is not None and self.split.raw_source is None:
            raise DataError(
                f"--replace-unk: {self.split.name}: the data folder has token ids only, so that "
                "unknown source words cannot be copied; leave it out, or translate the raw text "
                "with relu-nmt-interactive"
            )
        # Join sentences with --max-doc-tokens, or if data and model both have documents.
        trained = translator.max_doc_tokens
        has_both = self.split.documents is not None and trained != SINGLE_SENTENCES
        self.has_documents = settings.max_doc_tokens is not None or has_both
        if not self.has_documents:
            settings.check_sentences()
            trained = SINGLE_SENTENCES
        self.windows = settings.windows(trained, repair=False)
        self.config = settings.search.resolved(self.has_documents, workers=0)
        # References that are scored count toward the limit, too.
        self.counts_source_only = settings.count_source_only or not self.config.score_reference
        self.first_group = 0
        if settings.num_shards > 1:
            before, self.split = self.split.cut(settings.shard_id, settings.num_shards)
            if len(before):
                self.first_group = len(self._divided(before)[-1])
        self.sizes, self.document_sizes, self.groups = self._divided(self.split)
        self.limit = source_limit(settings.model, translator)

    def _divided(self, split: Split) -> tuple[np.ndarray, np.ndarray, Groups]:
        """Return the tokens of each sentence, the sentences of each document, and the groups."""
        windows = self.windows
        document_sizes = np.ones(len(split), dtype=np.int64)
        if self.has_documents:
            document_sizes = split.require_documents("--max-doc-tokens", windows.max_doc_tokens)
        target_sizes = None if self.counts_source_only else split.target_sizes
        sizes = longer_side(split.source_sizes, target_sizes)
        groups = plan_groups(sizes, document_sizes, windows.max_doc_tokens, windows.window_overlap)
        return sizes, document_sizes, groups

    def over_long_note(self, is_skipped: bool) -> str:
        """Return a note on sentences that are too long, or "". Refuse them if not skipped."""
        most_tokens = self.limit.most_tokens
        if most_tokens is None:
            return ""
        too_long = self.split.group_sizes(self.split.groups())[0] > most_tokens
        number = int(too_long.sum())
        if not number:
            return ""
        if not (is_skipped or self.limit.truncate):
            raise DataError(
                f"split {self.split.name}: sentence {int(too_long.argmax())} has more than the "
                f"{most_tokens} tokens that the model can read, or of --max-source-length "
                f"({counted(number, 'such sentence')}); --skip-invalid-size-inputs-valid-test "
                "leaves them empty, --truncate-source cuts them"
            )
        note = f"NOTE: {counted(number, 'sentence')} of more than {most_tokens} tokens"
        return f"{note} cut" if self.limit.truncate else f"{note} left empty"


@dataclass
class SplitTranslation:
    """The translations of a split, with their scores. It keeps no model and no search."""

    # The translation of each sentence, or of each group of sentences, in order.
    groups: list[Line] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # sentences of each group
    # Lines of each translated document: one for each sentence, or one for a group whose translation
    # has another number of sentences.
    documents: list[Sequence[Line]] = field(default_factory=list)
    num_tokens: int = 0  # target tokens of the best translations, ``</s>`` included
    seconds: float = 0.0  # of the search. With ``--results`` without loading and compiling
    num_at_limit: int = 0  # groups whose translation reached the longest output
    num_mismatched: int | None = 0  # of groups, None without separators
    num_undivided: int = 0  # groups of several sentences that became one line
    scores: dict[str, Score] = field(default_factory=dict)  # the main one first
    # Sentences of groups whose translation has the same number of sentences.
    aligned: list[AlignedSentence] = field(default_factory=list)
    # Lengths of the groups (:func:`relu_nmt.data.groups.describe_lengths`).
    lengths: dict[str, Any] | None = None

    @property
    def score(self) -> Score | None:
        """The main score, or None without references."""
        return next(iter(self.scores.values()), None)

    @property
    def tokens_per_second(self) -> float:
        """Speed of the search."""
        return self.num_tokens / max(self.seconds, 1e-9)
