"""The splits that relu-nmt-train reads: single sentences, or groups of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relu_nmt.corpus.translation import TranslationTask
from relu_nmt.data.batches import TranslationBatches
from relu_nmt.data.batching import BatchingConfig, refuse_too_long
from relu_nmt.data.groups import (
    LENGTHS_FILE,
    SINGLE_SENTENCES,
    DocumentConfig,
    lengths_in_words,
)
from relu_nmt.data.split import Split
from relu_nmt.errors import ConfigError, DataError
from relu_nmt.io.safe_write import write_text


class TrainingSplits:
    """Makes the batches of the splits of a data folder, and says what is in them.

    Args:
        task: with the data folder.
        batching: limits of a batch.
        documents: whether and how sentences are joined.
        say: prints a line.
    """

    def __init__(
        self,
        task: TranslationTask,
        batching: BatchingConfig,
        documents: DocumentConfig,
        say: Callable[[str], None],
    ) -> None:
        self._task = task
        self._batching = batching
        self._documents = documents
        self._say = say
        self._lengths: dict[str, list[dict[str, Any]]] = {}

    def training(self, split: str, seed: int) -> TranslationBatches:
        """Return the batches to train on, shuffled.

        Raises:
            DataError: the split is missing or damaged, nothing is left of it, a sentence does not
                fit into a batch, or document boundaries are wanted but unknown.
        """
        batching, lengths = self._batching, self._documents.training_lengths
        opened = self._open(split)
        skip = batching.skip_invalid_size_inputs
        if not skip and (not lengths or SINGLE_SENTENCES in lengths):
            sizes = opened.source_sizes, opened.target_sizes
            refuse_too_long(*sizes, batching.max_tokens, str(opened.source.prefix))
        self._announce(opened)
        batches = TranslationBatches(opened, batching.training_limits, lengths, seed, skip)
        self._tell_lengths(batches)
        if batches.num_skipped:
            self._say(
                f"{batches.num_skipped:,} of them are longer than --max-tokens "
                f"{batching.max_tokens} and left out (--skip-invalid-size-inputs)"
            )
        return batches

    def validation(self, split: str) -> TranslationBatches:
        """Return the batches to validate on, all sentences of the split.

        Raises:
            DataError: see :meth:`training`.
        """
        documents = self._documents
        lengths = (documents.validation_length,) if documents.active else ()
        opened = self._open(split)
        self._announce(opened)
        batches = TranslationBatches(opened, self._batching.validation_limits, lengths)
        self._tell_lengths(batches)
        return batches

    def write_lengths(self, folder: Path) -> None:
        """Write the realised lengths beside the checkpoints; nothing without documents.

        Raises:
            ConfigError: the folder cannot be written.
        """
        if not self._lengths:
            return
        content = {
            "sentence_separator": self._documents.sentence_separator,
            "mixture_of_epoch": 1,
            "splits": self._lengths,
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / LENGTHS_FILE, json.dumps(content, indent=2) + "\n")
        except OSError as error:
            raise ConfigError(
                f"--save-dir {folder}: cannot write {LENGTHS_FILE}: {error.strerror}"
            ) from error

    def _open(self, name: str) -> Split:
        """Return a split with both sides."""
        split = self._task.load_split(name)
        if split.target is None:
            raise DataError(f"{split.source.prefix}: has no target side to learn from")
        return split

    def _announce(self, split: Split) -> None:
        """Say what a split holds; if sentences are to be joined, it must have documents."""
        self._say(f"{split.source.prefix}: {len(split):,} sentence pairs")
        if self._documents.active:
            given = self._documents.max_doc_tokens
            split.require_documents("--max-doc-tokens" if given else "--doc-mixture")

    def _tell_lengths(self, batches: TranslationBatches) -> None:
        """Print the realised lengths, if any, and keep them for :meth:`write_lengths`."""
        descriptions, name = batches.describe_lengths(), batches.split.name
        if descriptions:
            self._lengths[name] = descriptions
        mixed = " (first epoch; dealt anew in each)" if len(descriptions) > 1 else ""
        for description in descriptions:
            self._say(f"{name}{mixed}: {lengths_in_words(description)}")
