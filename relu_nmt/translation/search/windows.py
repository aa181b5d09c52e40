"""Windows: consecutive sentences of a document that are translated at once.

A single sentence is a window of one. Without overlap the windows are the groups of training. With
overlap, each window also holds the last sentences of the one before as context. No sentence is left
out or cut: a sentence that is longer than the limit is a window of its own.
"""

import bisect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from relu_nmt.config import like, option, settings
from relu_nmt.data.documents import SINGLE_SENTENCES, DocumentConfig
from relu_nmt.data.groups import Groups
from relu_nmt.errors import ConfigError


@settings
class WindowConfig:
    """Division of documents for decoding.

    Raises:
        ConfigError: a number is out of range, or single sentences shall overlap.
    """

    max_doc_tokens: int = like(
        DocumentConfig,
        "max_doc_tokens",
        SINGLE_SENTENCES,
        f"most tokens of a window with its context; {SINGLE_SENTENCES}: single sentences",
    )
    window_overlap: int = option(
        0, "sentences before a window that it gets as context", metavar="SENTENCES", least=0
    )
    repair: bool = option(
        False, "translate windows whose translation cannot be cut again in halves"
    )

    def check(self) -> None:
        """Compare overlap and limit."""
        if self.window_overlap and self.max_doc_tokens == SINGLE_SENTENCES:
            raise ConfigError(
                f"--window-overlap {self.window_overlap}: --max-doc-tokens {SINGLE_SENTENCES} "
                "translates single sentences, without context; give more tokens"
            )


@dataclass(frozen=True)
class Window:
    """Consecutive sentences of a document that the model reads at once.

    Args:
        document: number of the document.
        context: number of the first sentence; sentences before ``first`` are context, which is
            translated already.
        first: number of the first new sentence.
        end: number after the last sentence.
    """

    document: int
    context: int
    first: int
    end: int

    @property
    def num_new(self) -> int:
        """Number of new sentences."""
        return self.end - self.first

    def halves(self) -> tuple["Window", "Window"]:
        """Return two windows without context for the new sentences."""
        middle = (self.first + self.end) // 2
        return (
            Window(self.document, self.first, self.first, middle),
            Window(self.document, middle, middle, self.end),
        )


class WindowPlan:
    """Divides documents into windows, from the lengths of their sentences alone.

    Args:
        sizes: tokens of each sentence with its ``</s>``, int [N].
        documents: sentences of each document, int [documents].
        config: limit and overlap.

    Example:
        >>> sizes, documents = np.array([4, 4, 4, 4]), np.array([4])
        >>> plan = WindowPlan(sizes, documents, WindowConfig(10, window_overlap=1))
        >>> [(window.context, window.first, window.end) for window in plan.windows]
        [(0, 0, 3), (2, 3, 4)]
    """

    def __init__(self, sizes: np.ndarray, documents: np.ndarray, config: WindowConfig) -> None:
        self._limit = config.max_doc_tokens
        self._overlap = config.window_overlap
        # First sentence of each document, and the tokens before each sentence.
        self._begins = np.append(0, np.cumsum(documents)).tolist()
        self._totals = np.append(0, np.cumsum(sizes.astype(np.int64) - 1)).tolist()
        self.windows = list(self._plan())

    def _plan(self) -> Iterator[Window]:
        for document, (begin, end) in enumerate(itertools.pairwise(self._begins)):
            first = begin
            while first < end:
                # Begin with one new sentence and as much context as fits; then add sentences.
                context = self.with_context(Window(document, first, first, first + 1)).context
                last = first + 1
                if self._limit != SINGLE_SENTENCES:
                    while last < end and self.tokens(context, last + 1) <= self._limit:
                        last += 1
                yield Window(document, context, first, last)
                first = last

    def tokens(self, begin: int, end: int) -> int:
        """Return the tokens of sentences ``begin`` to ``end - 1`` with one ``</s>``."""
        return 1 + self._totals[end] - self._totals[begin]

    def with_context(self, window: Window) -> Window:
        """Return the window with as much context as overlap and limit allow."""
        first = window.first
        context = max(self._begins[window.document], first - self._overlap)
        # Find the first sentence from which the tokens are within the limit.
        least = 1 + self._totals[window.end] - self._limit
        context = bisect.bisect_left(self._totals, least, context, first)
        return Window(window.document, context, first, window.end)

    def groups(self) -> Groups:
        """Return the new sentences of each window as groups; ``tokens`` count the context too."""
        columns = [
            (w.first, w.num_new, w.document, self._limit, self.tokens(w.context, w.end))
            for w in self.windows
        ]
        return Groups(*np.array(columns, dtype=np.int64).reshape(-1, 5).T)
