"""BLEU of a model's translations of a validation set, during training."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from relu_nmt.corpus.translation import TranslationTask
from relu_nmt.data.document_groups import DocumentGroups, GroupedDataset
from relu_nmt.decoding.batching import generate_in_order
from relu_nmt.decoding.generator import Generator
from relu_nmt.evaluation.bleu import Score
from relu_nmt.evaluation.config import ScoringConfig
from relu_nmt.evaluation.document_scores import cut_by_counts, join_lines
from relu_nmt.evaluation.split_score import score_split

SAMPLES = 3
CHECKED_SENTENCES = 2


class Processes(Protocol):
    """The processes that train together; each translates its share."""

    rank: int
    world_size: int
    device: torch.device

    def gather(self, value: Any) -> list[Any]:
        """Return every process's value, by rank."""

    def from_first(self, value: Any) -> Any:
        """Return the value of process 0 in all processes."""


class ValidationBleu:
    """Translates a split and scores it against its references.

    With groups of sentences, each group is translated at once, and whole documents are scored
    (d-BLEU), so that the score does not depend on how the groups were cut.

    Args:
        generator: searches with the model being trained.
        task: with the data folder.
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
        split: str,
        scoring: ScoringConfig,
        processes: Processes,
        say: Callable[[str], None],
        num_samples: int = 0,
        groups: DocumentGroups | None = None,
    ) -> None:
        self._generator = generator
        self._task = task
        self._split = split
        self._scoring = scoring
        self._processes = processes
        self._say = say
        self._num_samples = num_samples
        self._groups = groups
        sentences = task.load_split(split)
        self._dataset = sentences if groups is None else GroupedDataset(sentences, groups)

    def score(self) -> dict[str, float]:
        """Return ``bleu``, 0 to 100.

        Raises:
            ConfigError: the model's scores are not finite, so that there is no translation.
        """
        processes = self._processes
        lengths = self._dataset.source_sizes
        # Dealt out in order of length, the shares take equally long.
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        mine = order[processes.rank :: processes.world_size]
        everyones = processes.gather(list(zip(mine, self._translate(mine), strict=True)))
        score = None
        if processes.rank == 0:
            tokens = [line for _, line in sorted(itertools.chain.from_iterable(everyones))]
            texts = [self._task.target_text.decode(line) for line in tokens]
            result = self._score(texts, tokens)
            self._print_samples(texts)
            score = result.value
        return {"bleu": processes.from_first(score)}

    def _score(self, texts: list[str], tokens: list[list[str]]) -> Score:
        """Score all translations, given as texts and as dictionary tokens, and print it."""
        task, split, scoring, groups = self._task, self._split, self._scoring, self._groups
        if groups is None:
            score = score_split(task, split, texts, tokens, scoring)
            self._say(f"{score}")
            return score
        of_document = np.bincount(groups.document)
        rest = iter(tokens)
        whole = [list(itertools.chain(*itertools.islice(rest, count))) for count in of_document]
        sentences = np.bincount(groups.document, groups.count).astype(np.int64)
        texts = join_lines(cut_by_counts(texts, of_document, self._split))
        score = score_split(task, split, texts, whole, scoring, sentences)
        self._say(f"{len(texts):,} documents: d-{score}")
        return score

    def check(self) -> None:
        """Translate the shortest sentences or groups, and see that the references are there.

        Raises:
            DataError: the split has no references.
        """
        lengths = self._dataset.source_sizes
        shortest = sorted(range(len(lengths)), key=lengths.__getitem__)[:CHECKED_SENTENCES]
        self._translate(shortest)
        self._task.references(self._split)

    def _translate(self, numbers: Sequence[int]) -> list[list[str]]:
        """Return the best translation of each sentence or group, as dictionary tokens."""
        dictionary = self._task.target_dictionary
        found = generate_in_order(
            self._generator,
            [self._dataset.pair(number)[0] for number in numbers],
            len(dictionary),
            self._processes.device,
        )
        return [dictionary.symbols_of(best.tokens) for best, *_ in found]

    def _print_samples(self, texts: Sequence[str]) -> None:
        if not self._num_samples:
            return
        references = self._task.references(self._split)
        if self._groups is not None:
            references = join_lines(cut_by_counts(references, self._groups.count, self._split))
        step = max(1, len(texts) // self._num_samples)
        for number in range(0, len(texts), step)[: self._num_samples]:
            self._say(f"example hypothesis: {texts[number]}")
            self._say(f"example reference: {references[number]}")
