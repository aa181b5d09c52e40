"""BLEU of a model's translations of a validation set, during training."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from relu_nmt.corpus.translation import TranslationTask
from relu_nmt.data.groups import Groups
from relu_nmt.data.split import Split
from relu_nmt.decoding.generator import Generator
from relu_nmt.decoding.translations import Line, SourceSentence
from relu_nmt.evaluation.bleu import Score
from relu_nmt.evaluation.config import ScoringConfig
from relu_nmt.evaluation.document_scores import cut_by_counts, join_lines
from relu_nmt.evaluation.split_score import SplitScorer

SAMPLES = 3
CHECKED_SENTENCES = 2


class Processes(Protocol):
    """The processes that train together; each translates its share."""

    rank: int
    world_size: int

    def gather(self, value: Any) -> list[Any]:
        """Return every process's value, by rank."""

    def from_first(self, value: Any) -> Any:
        """Return the value of process 0 in all processes."""


class ValidationBleu:
    """Translates a split and scores it against its references.

    Each group of sentences is translated at once; single sentences are groups of one. Of joined
    sentences whole documents are scored (d-BLEU), so that the score does not depend on how the
    groups were cut.

    Args:
        generator: searches with the model being trained.
        task: tokenisation and dictionaries.
        split: ``valid``...
        scoring: settings of the score.
        processes: who shares the work.
        say: prints a line; the score's signature and samples go there.
        num_samples: translations to print each time.
        groups: the sentences to translate together, all of the split; None for each on its own.
    """

    metric_names = ("bleu",)

    def __init__(
        self,
        generator: Generator,
        task: TranslationTask,
        split: Split,
        scoring: ScoringConfig,
        processes: Processes,
        say: Callable[[str], None],
        num_samples: int = 0,
        groups: Groups | None = None,
    ) -> None:
        self._generator = generator
        self._task = task
        self._split = split
        self._scoring = scoring
        self._processes = processes
        self._say = say
        self._num_samples = num_samples
        self._of_documents = groups is not None
        self._groups = split.groups() if groups is None else groups

    def score(self) -> dict[str, float]:
        """Return ``bleu``, 0 to 100.

        Raises:
            ConfigError: the model's scores are not finite, so that there is no translation.
        """
        processes = self._processes
        # Dealt out in order of length, the shares take equally long.
        mine = self._by_length()[processes.rank :: processes.world_size]
        everyones = processes.gather(list(zip(mine, self._translate(mine), strict=True)))
        score = None
        if processes.rank == 0:
            tokens = [line for _, line in sorted(itertools.chain.from_iterable(everyones))]
            lines = [Line(self._task.target_text.decode(line), line) for line in tokens]
            score = self._score(lines).value
            self._print_samples([line.text for line in lines])
        return {"bleu": processes.from_first(score)}

    def _whole_documents(self, lines: list[Line]) -> list[Line]:
        """Join the groups of each document."""
        counts = np.bincount(self._groups.document)  # groups of each document
        documents = cut_by_counts(lines, counts, self._split.name)
        texts = join_lines([[line.text for line in own] for own in documents])
        tokens = [[token for line in own for token in line.tokens] for own in documents]
        return [Line(*line) for line in zip(texts, tokens, strict=True)]

    def _score(self, lines: list[Line]) -> Score:
        """Score the translations of all sentences or groups, and print it."""
        scorer = SplitScorer(self._task, self._split, self._scoring)
        if not self._of_documents:
            score = scorer.score(lines)
            self._say(f"{score}")
            return score
        documents = self._whole_documents(lines)
        score = scorer.score(documents, self._split.documents)
        self._say(f"{len(documents):,} documents: d-{score}")
        return score

    def _by_length(self) -> list[int]:
        """Return the numbers of the sentences or groups, the shortest first."""
        lengths = self._split.group_sizes(self._groups)[0]
        return np.argsort(lengths, kind="stable").tolist()

    def check(self) -> None:
        """Translate the shortest sentences or groups, and see that the references are there.

        Raises:
            DataError: the split has no references.
        """
        self._translate(self._by_length()[:CHECKED_SENTENCES])
        self._task.references(self._split)

    def _translate(self, numbers: Sequence[int]) -> list[list[str]]:
        """Return the best translation of each sentence or group, as dictionary tokens."""
        joined = [self._split.joined(self._groups.sentences(number))[0] for number in numbers]
        found = self._generator.translate([SourceSentence(ids) for ids in joined])
        return [self._task.target_dictionary.symbols_of(best.tokens) for best, *_ in found]

    def _print_samples(self, texts: Sequence[str]) -> None:
        if not self._num_samples:
            return
        references = self._task.references(self._split)
        if self._of_documents:
            counts = self._groups.count
            references = join_lines(cut_by_counts(references, counts, self._split.name))
        step = max(1, len(texts) // self._num_samples)
        for number in range(0, len(texts), step)[: self._num_samples]:
            self._say(f"example hypothesis: {texts[number]}")
            self._say(f"example reference: {references[number]}")
