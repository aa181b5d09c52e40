"""What relu-nmt-generate tells of the attention: statistics in a file, and weights as lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relu_nmt.analysis.places import AttentionPlace
from relu_nmt.cli.document_options import check_writable
from relu_nmt.config import option
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.io.safe_write import write_text

if TYPE_CHECKING:
    import numpy as np

    from relu_nmt.translator import SourceSentence, Translation, Translator


@dataclass(frozen=True)
class AttentionOptions:
    """What is to be told of the attention."""

    attention_stats: str | None = option(
        None,
        "write row sum, entropy, zeros and largest weight of every layer and head, means over the "
        "best translations (or, with --score-reference, the references), to FILE as JSON",
        metavar="FILE",
    )
    print_attention: str | None = option(
        None,
        "print the weights for each translation: A-, its number, and JSON. SLOT is encoder, "
        "decoder or cross; LAYER from 0, -1 is the last; without HEAD all heads (without a value: "
        "cross.-1)",
        metavar="SLOT.LAYER[.HEAD]",
        parse=lambda text: str(AttentionPlace.parse(text)),
        bare="cross.-1",
    )


class AttentionReport:
    """Prints and gathers what the options ask for; checks at the start that it can.

    Args:
        options: what is wanted.
        translator: has the model.
        subset: name of the split, for the file.

    Raises:
        ConfigError: several models, or a mechanism without weights.
        DataError: the file's folder cannot be made.
    """

    def __init__(self, options: AttentionOptions, translator: Translator, subset: str) -> None:
        from relu_nmt.analysis.attention_maps import checked_place, single_model
        from relu_nmt.analysis.attention_statistics import AttentionStatistics

        self._translator = translator
        self._subset = subset
        self._place = None
        self._path = options.attention_stats
        self._statistics: AttentionStatistics | None = None
        self._sources: list[np.ndarray] = []
        self._targets: list[np.ndarray] = []
        if options.print_attention is not None:
            place = AttentionPlace.parse(options.print_attention)
            self._place = checked_place(single_model(translator.ensemble), place)
        if self._path is not None:
            self._statistics = AttentionStatistics(translator.ensemble)
            check_writable("--attention-stats", self._path)

    def lines(self, number: int, source: SourceSentence, translation: Translation) -> list[str]:
        """Return the ``A-`` line of a translation, if it is to be printed."""
        if self._place is None:
            return []
        found = self._translator.attention_at(self._place, source, translation.hypothesis.tokens)
        return [f"A-{number}\t{found.to_json()}"]

    def add(
        self, sources: Sequence[SourceSentence], found: Sequence[Sequence[Translation]]
    ) -> None:
        """Note sentences with their translations; those without words are left out."""
        if self._statistics is None:
            return
        for source, (best, *_) in zip(sources, found, strict=True):
            if len(source.ids) > 1:  # the model was not asked about empty sentences
                self._sources.append(source.ids)
                self._targets.append(best.hypothesis.tokens)

    def write(self) -> None:
        """Measure, and write the file, whole or not at all.

        Only now, so that time and memory of the translation are its own.

        Raises:
            DataError: it cannot be written.
        """
        if self._statistics is None or self._path is None:
            return
        self._statistics.add(self._sources, self._targets)
        report = {"subset": self._subset, **self._statistics.report()}
        try:
            write_text(self._path, json.dumps(report, indent=1) + "\n")
        except OSError as error:
            message = f"--attention-stats {self._path}: cannot write it: {error.strerror}"
            raise DataError(message) from error


def check_alignment(options: AttentionOptions, print_alignment: str | None) -> None:
    """Refuse two kinds of ``A-`` lines in one output.

    Raises:
        ConfigError: both are asked for.
    """
    if options.print_attention is not None and print_alignment is not None:
        raise ConfigError("--print-attention and --print-alignment both print A- lines; give one")


def check_no_attention(options: AttentionOptions) -> None:
    """Refuse what needs the whole of a translation where only the end of it is kept.

    Raises:
        ConfigError: attention is asked for.
    """
    for flag, given in (
        ("--attention-stats", options.attention_stats),
        ("--print-attention", options.print_attention),
    ):
        if given is not None:
            raise ConfigError(
                f"{flag}: not with --window-overlap, where the context's translation is left out"
            )
