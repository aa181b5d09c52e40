"""BLEU of a validation split, which the processes of a training compute together."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from relu_nmt.data.translation_batches import TranslationBatches
from relu_nmt.errors import counted
from relu_nmt.evaluation.document_scores import cut_by_counts, join_lines
from relu_nmt.evaluation.metrics import Score, ScoringConfig
from relu_nmt.evaluation.split_scorer import SplitScorer
from relu_nmt.io.progress import progress_bar
from relu_nmt.training.distributed import ProcessGroup
from relu_nmt.translation.search.generator import Generator
from relu_nmt.translation.search.translations import Line, SourceLimit, SourceSentence
from relu_nmt.translation.task import TranslationTask

SAMPLES = 3
CHECKED_SENTENCES = 2


@dataclass
class ValidationBleu:
    """Translates a split, group by group, and scores it against its references.

    With ``of_documents`` groups are joined and whole documents scored (d-BLEU), so the score does
    not depend on the division into groups. Sources of more than ``longest`` tokens get empty
    translations. The processes share the work.
    """

    generator: Generator
    task: TranslationTask
    batches: TranslationBatches
    scoring: ScoringConfig
    process: ProcessGroup
    say: Callable[[str], None]
    of_documents: bool
    longest: int | None
    prints_samples: bool

    def __post_init__(self) -> None:
        self.split = self.batches.split
        self.groups = self.batches.planned.all
        # Numbers of the sentences or groups, the shortest first.
        self.lengths = self.split.group_sizes(self.groups)[0]
        self.by_length: list[int] = np.argsort(self.lengths, kind="stable").tolist()
        self.scorer = SplitScorer(self.task, self.split, self.scoring)
        self.signatures = {"bleu": self.scorer.signature}

    def score(self) -> dict[str, float]:
        """Return ``bleu``, 0 to 100."""
        process = self.process
        # Deal out sources in order of length, so that all shares take equally long.
        share = self.by_length[process.rank :: process.world_size]
        shares = process.gather(list(zip(share, self._translate(share), strict=True)))
        score = None
        if process.is_first:
            # Restore the order of the split from the shares of all processes.
            lines = []
            for _, tokens in sorted(itertools.chain.from_iterable(shares)):
                lines.append(Line(self.task.target_text.decode(tokens), tokens))
            score = self._score_of_split(lines).value
            if self.prints_samples:
                self._print_samples(lines)
        # Share the score, since only the first process computes it.
        return {"bleu": process.gather(score)[0]}

    def _score_of_split(self, lines: list[Line]) -> Score:
        """Return and print the score of the translations of all sentences or groups."""
        if not self.of_documents:
            score = self.scorer.score(lines)
            self.say(f"{score}")
            return score
        groups = np.bincount(self.groups.document)
        documents: list[Line] = []
        for part in cut_by_counts(lines, groups, self.split.name):
            [text] = join_lines([[line.text for line in part]], self.task.target_lang)
            tokens = itertools.chain.from_iterable(line.tokens for line in part)
            documents.append(Line(text, list(tokens)))
        score = self.scorer.score(documents, self.split.documents)
        self.say(f"{counted(len(documents), 'document')}: d-{score}")
        return score

    def check(self, largest: bool) -> None:
        """Translate the shortest sentences or groups, and with ``largest`` the longest batch."""
        # First a small batch, then the one that needs most memory.
        self._translate(self.by_length[:CHECKED_SENTENCES])
        if largest:
            longest = self.by_length[-self.generator.first_batch(self.lengths) :]
            config = self.generator.config
            short = replace(config, max_len_a=1.0, max_len_b=config.min_len)
            self._translate(longest, self.generator.with_config(short))

    def _translate(
        self, numbers: Sequence[int], generator: Generator | None = None
    ) -> list[list[str]]:
        """Return the best translation of each sentence or group, as dictionary tokens."""
        sources = []
        for number in numbers:
            ids, _ = self.split.joined(self.groups.sentences(number))
            sources.append(SourceLimit(self.longest).applied(SourceSentence(ids)))
        unit = "groups" if self.of_documents else "sentences"
        label = f"BLEU: translate {self.split.name}"
        with progress_bar(
            label, len(sources), unit, shows_waiting=True, only_if_slow=True, say=self.say
        ) as advance:
            results = (generator or self.generator).translate(sources, 0, advance)
        return [self.task.target_dictionary.symbols_of(best.ids) for best, *_ in results]

    def _print_samples(self, lines: Sequence[Line]) -> None:
        references = self.task.references(self.split)
        if self.of_documents:
            cut = cut_by_counts(references, self.groups.count, self.split.name)
            references = join_lines(cut, self.task.target_lang)
        # Spread the samples over the split.
        step = max(1, len(lines) // SAMPLES)
        for number in range(0, len(lines), step)[:SAMPLES]:
            self.say(f"example hypothesis: {lines[number].text}")
            self.say(f"example reference: {references[number]}")
