"""Sentences that are longer than a model can read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from relu_nmt.errors import DataError

if TYPE_CHECKING:
    from relu_nmt.translator import SourceSentence


class SourceLimit:
    """Refuses sentences that are too long, or leaves them untranslated.

    Args:
        limit: most tokens, ``</s>`` included; None for any number.
        sizes: source tokens of each sentence of a split, int [N].
        split: name of the split, for the message.
        skip: leave such sentences untranslated.

    Raises:
        DataError: there are such sentences, and they are not to be skipped.
    """

    def __init__(self, limit: int | None, sizes: np.ndarray, split: str, skip: bool) -> None:
        self._limit = limit
        self.num_skipped = 0 if limit is None else int((sizes > limit).sum())
        if self.num_skipped and not skip:
            raise DataError(
                f"split {split}: sentence {int((sizes > limit).argmax())} has more than the "
                f"{limit} tokens that the model can read ({self.num_skipped} such sentences); "
                "--skip-invalid-size-inputs-valid-test leaves them empty"
            )

    @property
    def note(self) -> str:
        """What was left out, in a line; empty if nothing was."""
        if not self.num_skipped:
            return ""
        return f"NOTE: {self.num_skipped} sentences of more than {self._limit} tokens stay empty"

    def shortened(self, sentence: SourceSentence) -> SourceSentence:
        """Return the sentence, without words if the model cannot read it."""
        if self._limit is None or len(sentence.ids) <= self._limit:
            return sentence
        return replace(sentence, ids=sentence.ids[-1:], tokens=[])
