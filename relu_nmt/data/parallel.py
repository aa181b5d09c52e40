"""The sentence pairs of one split."""

from collections.abc import Mapping

import numpy as np

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.indexed_dataset import IndexedDataset
from relu_nmt.errors import DataError


class ParallelDataset:
    """Source and target sentences side by side, read from disk as they are asked for.

    Args:
        source: the source sentences.
        target: the target sentences in the same order; None for source-only data.
        source_vocab_size: token numbers at or above it are an error; None checks nothing.
        target_vocab_size: the same for the target.
        separators: numbers of the symbol that ends each source and each target sentence, before
            ``</s>``; it is not in the files. None for no such symbol.

    Raises:
        DataError: the two sides have different numbers of sentences.

    Example:
        >>> import tempfile
        >>> from relu_nmt.data.indexed_dataset import IndexedDatasetWriter
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with IndexedDatasetWriter(folder + "/x", np.uint16) as writer:
        ...         writer.add(np.array([4, 2]), np.array([2]))
        ...     side = IndexedDataset(folder + "/x")
        >>> [ids.tolist() for ids in ParallelDataset(side, side).pair(0)]
        [[4, 2], [4, 2]]
    """

    def __init__(
        self,
        source: IndexedDataset,
        target: IndexedDataset | None = None,
        source_vocab_size: int | None = None,
        target_vocab_size: int | None = None,
        separators: tuple[int, int] | None = None,
    ) -> None:
        if target is not None and len(source) != len(target):
            raise DataError(
                f"{source.prefix}.idx: {len(source):,} sentences, but {target.prefix}.idx has "
                f"{len(target):,}; both sides must be parallel, re-run relu-nmt-preprocess"
            )
        self.source = source
        self.target = target
        self._vocab_sizes = (source_vocab_size, target_vocab_size)
        self._separators = (None, None) if separators is None else separators
        self._added = int(separators is not None)

    def __len__(self) -> int:
        return len(self.source)

    @property
    def source_sizes(self) -> np.ndarray:
        """Tokens of each source sentence with ``</s>``, int32 [N]."""
        return self.source.sizes + self._added

    @property
    def target_sizes(self) -> np.ndarray | None:
        """Tokens of each target sentence with ``</s>``, int32 [N]; None for source-only data."""
        return None if self.target is None else self.target.sizes + self._added

    def pair(self, index: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the token numbers of pair ``index``: two int64 [n], both ending in ``</s>``.

        Raises:
            DataError: a token number is not in the dictionary, or ``</s>`` is missing.
        """
        source = self._sentence(self.source, index, 0)
        if self.target is None:
            return source, None
        return source, self._sentence(self.target, index, 1)

    def _sentence(self, side: IndexedDataset, index: int, which: int) -> np.ndarray:
        vocab_size, separator = self._vocab_sizes[which], self._separators[which]
        ids = side[index]
        if len(ids) == 0 or ids[-1] != Dictionary.eos_index:
            raise DataError(
                f"{side.prefix}.bin: sentence {index} does not end in </s>; binarise the corpus "
                "again (fairseq-preprocess users: with --append-eos)"
            )
        if vocab_size is not None and not 0 <= ids.min() <= ids.max() < vocab_size:
            raise DataError(
                f"{side.prefix}.bin: sentence {index} holds tokens {ids.min()} to {ids.max()}, "
                f"but its dictionary has {vocab_size:,} symbols; data and dictionary do not "
                "belong together"
            )
        if separator is None:
            return ids
        if separator in ids:
            raise DataError(
                f"{side.prefix}.bin: sentence {index} itself holds the symbol that is to end each "
                f"sentence (number {separator}); train without --sentence-separator"
            )
        return np.append(ids[:-1], (separator, Dictionary.eos_index))


def check_parallel(counts: Mapping[str, int], what: str) -> None:
    """Check that all files have as many lines or sentences.

    Args:
        counts: their number by path.
        what: "lines" or "sentences", for the message.

    Raises:
        DataError: the numbers differ; the message names both.
    """
    (path, count), *others = counts.items()
    for other, other_count in others:
        if other_count != count:
            raise DataError(
                f"{path}: {count:,} {what}, but {other} has {other_count:,}; both sides must be "
                "parallel, line by line"
            )
