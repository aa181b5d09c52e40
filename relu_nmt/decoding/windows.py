"""Which sentences of a document are translated at once: groups, or windows that overlap.

Without overlap these are the groups that training uses. With overlap, each window also holds the
last sentences of the one before as context; only what follows them is new. No sentence is ever
left out or cut: one that is longer than the limit is a window of its own.
"""

import bisect
import itertools
from dataclasses import dataclass

import numpy as np

from relu_nmt.config import like, option, settings
from relu_nmt.data.groups import SINGLE_SENTENCES, DocumentConfig, Groups, plan_groups
from relu_nmt.errors import ConfigError


@settings
class WindowConfig:
    """How documents are divided for decoding.

    Raises:
        ConfigError: a number out of range, or an overlap of single sentences.
    """

    max_doc_tokens: int = like(
        DocumentConfig,
        "max_doc_tokens",
        SINGLE_SENTENCES,
        "most tokens of a window, context and its one </s> included; "
        f"{SINGLE_SENTENCES}: single sentences",
    )
    window_overlap: int = option(
        0,
        "give the N sentences before as context, within --max-doc-tokens, to the sentences that "
        "are translated: the source of each window begins with theirs, its translation is made to "
        "begin with what they were translated to, which no score counts. For documents longer than "
        "the model was trained on; needs a model trained with --sentence-separator",
        metavar="SENTENCES",
        least=0,
    )
    repair: bool = option(
        False,
        "translate a window again in halves, and these in halves, as long as its translation "
        "cannot be cut into its sentences or reached the longest output",
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
        document: the document.
        context: number of the first sentence; those before ``first`` are translated already.
        first: number of the first new sentence.
        end: number behind the last.
    """

    document: int
    context: int
    first: int
    end: int

    @property
    def num_new(self) -> int:
        """Sentences that it translates."""
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
        self._config = config
        self._begins = np.append(0, np.cumsum(documents)).tolist()
        self._totals = np.append(0, np.cumsum(sizes.astype(np.int64) - 1)).tolist()
        if config.window_overlap:
            self.windows = self._overlapping()
        else:
            groups = plan_groups(sizes, documents, config.max_doc_tokens)
            columns = (groups.document, groups.first, groups.count)
            self.windows = [
                Window(document, first, first, first + count)
                for document, first, count in zip(*map(np.ndarray.tolist, columns), strict=True)
            ]

    def _overlapping(self) -> list[Window]:
        windows = []
        for document, (begin, end) in enumerate(itertools.pairwise(self._begins)):
            first = begin
            while first < end:
                # As much context as the first new sentence leaves room for; then more sentences.
                window = self.with_context(Window(document, first, first, first + 1))
                last = first + 1
                while last < end and self.tokens(window.context, last + 1) <= self._limit:
                    last += 1
                windows.append(Window(document, window.context, first, last))
                first = last
        return windows

    @property
    def _limit(self) -> int:
        return self._config.max_doc_tokens

    def tokens(self, begin: int, end: int) -> int:
        """Return the tokens of sentences ``begin`` to ``end - 1`` with one ``</s>``."""
        return 1 + self._totals[end] - self._totals[begin]

    def with_context(self, window: Window) -> Window:
        """Return the window with as much context as overlap and limit allow."""
        first = window.first
        context = max(self._begins[window.document], first - self._config.window_overlap)
        # The first sentence from which on the tokens are within the limit.
        least = 1 + self._totals[window.end] - self._limit
        context = bisect.bisect_left(self._totals, least, context, first)
        return Window(window.document, context, first, window.end)

    def groups(self) -> Groups:
        """Return the new sentences of each window; ``tokens`` are those of the whole window."""
        first = np.array([window.first for window in self.windows], dtype=np.int64)
        return Groups(
            first,
            np.array([window.num_new for window in self.windows], dtype=np.int64),
            np.array([window.document for window in self.windows], dtype=np.int64),
            np.full(len(first), self._limit, dtype=np.int64),
            np.array([self.tokens(w.context, w.end) for w in self.windows], dtype=np.int64),
        )
