"""What is told of attention and memories in translations: statistics in files, weights as lines."""

import json
from collections.abc import Sequence

import numpy as np

from relu_nmt.applications.analysis.attention import AttentionStatistics
from relu_nmt.applications.analysis.memories import MemoryStatistics
from relu_nmt.attention.spec import AttentionPlace
from relu_nmt.recipes.output_files import check_writable, write_file
from relu_nmt.recipes.split_settings import AttentionOptions
from relu_nmt.translation.attention_maps import checked_place, single_model
from relu_nmt.translation.search.translations import SourceSentence, Translation
from relu_nmt.translator import Translator


class AttentionReport:
    """Prints and gathers what the options ask for; checks at the start that it can.

    Args:
        options: what is wanted.
        translator: has the model.
        subset: name of the split, for the files.

    Raises:
        ConfigError: several models, or a mechanism without weights, or a network without a memory.
        DataError: a file's folder cannot be made.
    """

    def __init__(self, options: AttentionOptions, translator: Translator, subset: str) -> None:
        self._translator = translator
        self._subset = subset
        self._place = None
        self._files: list[tuple[str, str, AttentionStatistics | MemoryStatistics]] = []
        self._sources: list[np.ndarray] = []
        self._targets: list[np.ndarray] = []
        if options.print_attention is not None:
            place = AttentionPlace.parse(options.print_attention)
            self._place = checked_place(single_model(translator.ensemble), place)
        for flag, path, statistics in (
            ("--attention-stats", options.attention_stats, AttentionStatistics),
            ("--memory-stats", options.memory_stats, MemoryStatistics),
        ):
            if path is not None:
                self._files.append((flag, path, statistics(translator.ensemble)))
                check_writable(flag, path)

    def lines(self, number: int, source: SourceSentence, translation: Translation) -> list[str]:
        """Return the ``A-`` line of a translation, if it is to be printed."""
        if self._place is None:
            return []
        found = self._translator.attention_at(self._place, source, translation.hypothesis.tokens)
        return [f"A-{number}\t{found.to_json()}"]

    def add(
        self, sources: Sequence[SourceSentence], found: Sequence[Sequence[Translation]]
    ) -> None:
        """Note sentences with their references, or what was found where there are none.

        Those without words are left out.
        """
        if not self._files:
            return
        for source, (best, *_) in zip(sources, found, strict=True):
            if len(source.ids) > 1:  # the model was not asked about empty sentences
                self._sources.append(source.ids)
                given = source.reference
                self._targets.append(best.hypothesis.tokens if given is None else given)

    def write(self) -> None:
        """Measure, and write the files, each whole or not at all.

        Only now, so that time and memory of the translation are its own.

        Raises:
            DataError: one cannot be written.
        """
        for flag, path, statistics in self._files:
            statistics.add(self._sources, self._targets)
            report = {"subset": self._subset, **statistics.report()}
            write_file(flag, path, json.dumps(report, indent=1) + "\n")
