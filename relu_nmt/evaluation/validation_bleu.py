"""BLEU of a validation split, which the processes of a training compute together."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from relu_nmt.data.documents import Line
from relu_nmt.data.translation_batches import TranslationBatches
from relu_nmt.errors import counted
from relu_nmt.evaluation.document_scores import SplitScorer, cut_by_counts, join_lines
from relu_nmt.evaluation.metrics import Score, ScoringConfig
from relu_nmt.io.work import progress_bar
from relu_nmt.training.distributed import ProcessGroup
from relu_nmt.translation.search.generator import Generator
from relu_nmt.translation.search.translations import SourceSentence
from relu_nmt.translation.task import TranslationTask

SAMPLES = 3
CHECKED_SENTENCES = 2


class ValidationBleu:
    """Translates a split and scores it against its references.

    Each group of sentences is translated at once. Single sentences are groups of one. With
    ``of_documents`` groups are joined and whole documents scored (d-BLEU), so the score does not
    depend on the division into groups. Sources of more than ``longest`` tokens get empty
    translations. The processes share the work, and ``say`` prints the score and, with
    ``prints_samples``, some translations.
    """

    def __init__(
        self,
        generator: Generator,
        task: TranslationTask,
        batches: TranslationBatches,
        scoring: ScoringConfig,
        process: ProcessGroup,
        say: Callable[[str], None],
        of_documents: bool,
        longest: int | None,
        prints_samples: bool,
    ) -> None:
        self._longest = longest
        self._generator = generator
        self._task = task
        self._split = batches.split
        self._groups = batches.groups
        # Numbers of the sentences or groups, the shortest first.
        self._lengths = batches.split.group_sizes(batches.groups)[0]
        self._by_length: list[int] = np.argsort(self._lengths, kind="stable").tolist()
        self.scorer = SplitScorer(task, batches.split, scoring)
        self.signatures = {"bleu": self.scorer.signature}
        self._process = process
        self._say = say
        self._prints_samples = prints_samples
        self._of_documents = of_documents

    def score(self) -> dict[str, float]:
        """Return ``bleu``, 0 to 100."""
        process = self._process
        # Deal out sources in order of length, so that all shares take equally long.
        mine = self._by_length[process.rank :: process.world_size]
        everyones = process.gather(list(zip(mine, self._translate(mine), strict=True)))
        score = None
        if process.is_first:
            # Restore the order of the split from the shares of all processes.
            lines = []
            for _, tokens in sorted(itertools.chain.from_iterable(everyones)):
                lines.append(Line(self._task.target_text.decode(tokens), tokens))
            score = self._score(lines).value
            if self._prints_samples:
                self._print_samples(lines)
        # Share the score, since only the first process computes it.
        return {"bleu": process.gather(score)[0]}

    def _score(self, lines: list[Line]) -> Score:
        """Score the translations of all sentences or groups, and print it."""
        if not self._of_documents:
            score = self.scorer.score(lines)
            self._say(f"{score}")
            return score
        groups = np.bincount(self._groups.document)
        documents: list[Line] = []
        for part in cut_by_counts(lines, groups, self._split.name):
            [text] = join_lines([[line.text for line in part]], self._task.target_lang)
            tokens = itertools.chain.from_iterable(line.tokens for line in part)
            documents.append(Line(text, list(tokens)))
        score = self.scorer.score(documents, self._split.documents)
        self._say(f"{counted(len(documents), 'document')}: d-{score}")
        return score

    def check(self, largest: bool) -> None:
        """Translate the shortest sentences or groups, and with ``largest`` the longest batch.

        Its translations get about as many tokens. An untrained model would go on to the limit.
        """
        # First a small batch, then the one that needs most memory.
        self._translate(self._by_length[:CHECKED_SENTENCES])
        if largest:
            longest = self._by_length[-self._generator.first_batch(self._lengths) :]
            config = self._generator.config
            short = replace(config, max_len_a=1.0, max_len_b=config.min_len)
            self._translate(longest, self._generator.with_config(short))

    def _translate(
        self, numbers: Sequence[int], generator: Generator | None = None
    ) -> list[list[str]]:
        """Return the best translation of each sentence or group, as dictionary tokens."""
        sources = []
        for number in numbers:
            ids, _ = self._split.joined(self._groups.sentences(number))
            # A source that is too long keeps its end symbol only.
            if self._longest is not None and len(ids) > self._longest:
                ids = ids[-1:]
            sources.append(SourceSentence(ids))
        unit = "groups" if self._of_documents else "sentences"
        label = f"BLEU: translate {self._split.name}"
        with progress_bar(
            label, len(sources), unit, shows_waiting=True, only_if_slow=True, say=self._say
        ) as advance:
            results = (generator or self._generator).translate(sources, 0, advance)
        return [self._task.target_dictionary.symbols_of(best.tokens) for best, *_ in results]

    def _print_samples(self, lines: Sequence[Line]) -> None:
        references = self._task.references(self._split)
        if self._of_documents:
            cut = cut_by_counts(references, self._groups.count, self._split.name)
            references = join_lines(cut, self._task.target_lang)
        # Spread the samples over the split.
        step = max(1, len(lines) // SAMPLES)
        for number in range(0, len(lines), step)[:SAMPLES]:
            self._say(f"example hypothesis: {lines[number].text}")
            self._say(f"example reference: {references[number]}")
