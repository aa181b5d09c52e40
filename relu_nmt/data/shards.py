"""Training data in several folders: each epoch trains on one of them, in turn, as in fairseq."""

from collections.abc import Callable, Sequence
from pathlib import Path

from relu_nmt.data.batches import FIRST_EPOCH, TranslationBatch, TranslationBatches


def data_folders(text: str) -> list[str]:
    """Return the folders of ``data-bin/shard0:data-bin/shard1``; a single one may hold a colon.

    Example:
        >>> data_folders("data-bin/a:data-bin/b")
        ['data-bin/a', 'data-bin/b']
    """
    return [text] if Path(text).exists() else text.split(":")


class ShardedBatches:
    """The batches of several data folders, of which an epoch has those of one.

    Only the plan of this one is in memory. Which one it is follows from the number of the epoch, so
    that a training is resumed in the right one.

    Args:
        folders: the data folders.
        make: returns the batches of a folder, after checking it; all are checked at the start.

    Attributes:
        batches: those of the present epoch, at first of epoch 1.
    """

    def __init__(self, folders: Sequence[str], make: Callable[[str], TranslationBatches]) -> None:
        self._folders = folders
        self._make = make
        for folder in reversed(folders):
            self.batches = make(folder)
        self._epoch = FIRST_EPOCH

    def begin_epoch(self, epoch: int) -> int:
        """Plan ``epoch`` (from 1) and return its number of batches."""
        folder, before = (self._folders[(e - 1) % len(self._folders)] for e in (epoch, self._epoch))
        if folder != before:
            self.batches = self._make(folder)
        self._epoch = epoch
        return self.batches.begin_epoch(epoch)

    def load(self, index: int) -> TranslationBatch:
        """Read batch ``index`` of the planned epoch."""
        return self.batches.load(index)

    def largest(self) -> int:
        """Return the number of the planned epoch's batch that takes the most memory."""
        return self.batches.largest()
