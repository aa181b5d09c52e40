"""The splits that relu-nmt-train reads: single sentences, or groups of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relu_nmt.corpus.translation import TranslationTask
from relu_nmt.data.batching import BatchingConfig, refuse_too_long
from relu_nmt.data.document_batches import DocumentBatches, DocumentSplit
from relu_nmt.data.document_config import DocumentConfig
from relu_nmt.data.document_groups import SINGLE_SENTENCES
from relu_nmt.data.document_lengths import LENGTHS_FILE, lengths_in_words
from relu_nmt.data.documents import require_documents
from relu_nmt.data.pair_batches import PairBatches
from relu_nmt.data.parallel import ParallelDataset
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

    def training(self, split: str, seed: int) -> PairBatches | DocumentBatches:
        """Return the batches to train on, shuffled.

        Raises:
            DataError: the split is missing or damaged, nothing is left of it, a sentence does not
                fit into a batch, or document boundaries are wanted but unknown.
        """
        batching, lengths = self._batching, self._documents.training_lengths
        dataset = self._load(split)
        origin = str(dataset.source.prefix)
        skip = batching.skip_invalid_size_inputs
        if not skip and (not self._documents.active or SINGLE_SENTENCES in lengths):
            sizes = dataset.source_sizes, dataset.target_sizes
            refuse_too_long(*sizes, batching.max_tokens, origin)
        self._say(f"{origin}: {len(dataset):,} sentence pairs")
        batches: PairBatches | DocumentBatches
        if self._documents.active:
            documents = self._with_documents(split, dataset)
            batches = DocumentBatches(documents, lengths, batching.training_limits, seed, skip)
            self._tell_lengths(split, batches)
        else:
            batches = PairBatches(dataset, batching.training_limits, seed, skip)
        if batches.num_skipped:
            self._say(
                f"{batches.num_skipped:,} of them are longer than --max-tokens "
                f"{batching.max_tokens} and left out (--skip-invalid-size-inputs)"
            )
        return batches

    def validation(self, split: str) -> PairBatches | DocumentBatches:
        """Return the batches to validate on, all sentences of the split.

        Raises:
            DataError: see :meth:`training`.
        """
        dataset = self._load(split)
        self._say(f"{dataset.source.prefix}: {len(dataset):,} sentence pairs")
        if not self._documents.active:
            return PairBatches(dataset, self._batching.validation_limits)
        documents = self._with_documents(split, dataset)
        length = self._documents.validation_length
        batches = DocumentBatches(documents, (length,), self._batching.validation_limits)
        self._tell_lengths(split, batches)
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

    def _load(self, split: str) -> ParallelDataset:
        """Return a split with both sides."""
        dataset = self._task.load_split(split)
        if dataset.target is None:
            raise DataError(f"{dataset.source.prefix}: has no target side to learn from")
        return dataset

    def _with_documents(self, split: str, dataset: ParallelDataset) -> DocumentSplit:
        flag = "--max-doc-tokens" if self._documents.max_doc_tokens else "--doc-mixture"
        origin = str(dataset.source.prefix).rpartition(".")[0]
        boundaries = require_documents(self._task.documents(split), origin, flag)
        return DocumentSplit(dataset, boundaries)

    def _tell_lengths(self, split: str, batches: DocumentBatches) -> None:
        """Print the realised lengths and keep them for :meth:`write_lengths`."""
        self._lengths[split] = batches.describe_lengths()
        mixed = " (first epoch; dealt anew in each)" if len(self._lengths[split]) > 1 else ""
        for description in self._lengths[split]:
            self._say(f"{split}{mixed}: {lengths_in_words(description)}")
