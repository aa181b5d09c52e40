"""The translation task: text, tokenization and dictionaries of a language pair."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from relu_nmt.config.stored import checked
from relu_nmt.data import data_folder
from relu_nmt.data.data_folder import NO_LANGUAGE
from relu_nmt.data.dictionary import SENTENCE_SEPARATOR, UNK, Dictionary
from relu_nmt.data.indexed_dataset import AlignmentDataset, IndexedDataset
from relu_nmt.data.separators import Separators
from relu_nmt.data.split import Split, stored_documents
from relu_nmt.errors import CheckpointError, DataError, ReluNmtError
from relu_nmt.tokenization.pipeline import TextPipeline, load_pipeline

TASK_NAME = "translation"  # name of the task in checkpoints
ESCAPED_UNK = f"<{UNK}>"
"""Form of unknown words in references, which no unknown word of a translation matches."""


TASK_FORM = {
    "source_text": dict[str, Any],
    "target_text": dict[str, Any],
    "source_dictionary": str,
    "target_dictionary": str | None,
}
"""The form of a task in a checkpoint."""


@dataclass(frozen=True, eq=False)
class TranslationTask:
    """Text steps, which map raw sentences to tokens and back, and dictionaries of a language pair.

    A task comes from a data folder (:meth:`from_data_folder`) or from a checkpoint
    (:meth:`from_state`). A task from a data folder can load splits. ``agreement.at_folder`` gives a
    folder to a task from a checkpoint.

    Example:
        >>> words = Dictionary(["ein", "Haus"])
        >>> task = TranslationTask(TextPipeline("de"), TextPipeline("en"), words, words)
        >>> task.decode_target(task.encode_source("ein Haus"))
        'ein Haus'
    """

    source_text: TextPipeline
    target_text: TextPipeline
    source_dictionary: Dictionary
    target_dictionary: Dictionary
    folder: Path | None = None

    @property
    def source_lang(self) -> str:
        """Source language, as in file names ("de")."""
        return self.source_text.language

    @property
    def target_lang(self) -> str:
        """Target language, as in file names ("en")."""
        return self.target_text.language

    @property
    def joined_dictionary(self) -> bool:
        """True if both sides have the same dictionary, as shared embeddings need."""
        return self.source_dictionary == self.target_dictionary

    @classmethod
    def from_data_folder(
        cls,
        path: str | os.PathLike[str],
        source_lang: str | None = None,
        target_lang: str | None = None,
    ) -> "TranslationTask":
        """Load the task of a data folder, by default in its languages."""
        manifest = data_folder.read_manifest(path)
        if source_lang is None or target_lang is None:
            first, second = data_folder.infer_languages(path)
            if second == NO_LANGUAGE:
                raise DataError(
                    f"{path}: holds source text only, in {first}; run relu-nmt-preprocess with "
                    "both sides"
                )
            # Accept either direction of the folder's pair.
            language = source_lang or target_lang
            if language not in (None, first, second):
                raise DataError(f"{path}: holds {first}-{second}, not the language {language}")
            swapped = second == source_lang or first == target_lang
            source_lang, target_lang = (second, first) if swapped else (first, second)
        return cls(
            _load_text(path, manifest, source_lang),
            _load_text(path, manifest, target_lang),
            _load_dictionary(path, source_lang),
            _load_dictionary(path, target_lang),
            Path(path),
        )

    def with_post_processing(
        self, remove_bpe: str | None = None, detokenizer: str | None = None
    ) -> "TranslationTask":
        """Return the task with :meth:`TextPipeline.with_post_processing` on both sides."""
        return replace(
            self,
            source_text=self.source_text.with_post_processing(remove_bpe, detokenizer),
            target_text=self.target_text.with_post_processing(remove_bpe, detokenizer),
        )

    def with_sentence_separator(
        self, earlier: "TranslationTask | None" = None
    ) -> "TranslationTask":
        """Return the task in which ``<sep>`` ends each sentence of both sides.

        No file changes: the symbol gets an id that the binarized data does not use, and is added
        when sentences are read. If training starts from an ``earlier`` task with the symbol, the id
        stays. If the earlier task has no such symbol, the id comes last, because the earlier model
        knows all others, and a sentence that stands alone does not end in it.
        """
        # Take over the ids from the earlier model.
        source_id = target_id = None
        alone = True
        if earlier is not None:
            last = Separators(len(self.source_dictionary), len(self.target_dictionary), alone=False)
            source_id, target_id, alone = earlier.separators or last
        symbol = SENTENCE_SEPARATOR
        for text, dictionary in (
            (self.source_text, self.source_dictionary),
            (self.target_text, self.target_dictionary),
        ):
            if symbol in dictionary:
                file = data_folder.dictionary_path(self.folder or "", text.language)
                raise DataError(
                    f"{file}: '{symbol}' is a word of the text, so it cannot separate sentences; "
                    "replace it in the text and run relu-nmt-preprocess again, or leave "
                    "--sentence-separator out"
                )
        return replace(
            self,
            source_text=replace(self.source_text, sentence_separator=symbol, separates_alone=alone),
            target_text=replace(self.target_text, sentence_separator=symbol, separates_alone=alone),
            source_dictionary=self.source_dictionary.with_symbol(symbol, source_id),
            target_dictionary=self.target_dictionary.with_symbol(symbol, target_id),
        )

    @property
    def separators(self) -> Separators | None:
        """Ids of ``<sep>`` in source and target. None if sentences do not end in it."""
        if self.target_text.sentence_separator is None:
            return None
        source = self.source_dictionary.index(SENTENCE_SEPARATOR)
        target = self.target_dictionary.index(SENTENCE_SEPARATOR)
        return Separators(source, target, self.target_text.separates_alone)

    def load_split(self, split: str, with_alignments: bool = False) -> Split:
        """Open ``train``, ``valid``... (DataError: it is missing, damaged or not parallel)."""
        folder = self.folder
        if folder is None:
            raise DataError("this task comes from a checkpoint and has no data folder; give one")
        # Open both sides. Data may be source-only.
        pair = data_folder.find_pair(folder, split, self.source_lang, self.target_lang)
        source = IndexedDataset(data_folder.split_path(folder, split, pair, self.source_lang))
        target = None
        if pair != data_folder.pair_name(self.source_lang, None):
            target = IndexedDataset(data_folder.split_path(folder, split, pair, self.target_lang))
        # Open the alignments, swapped if the folder has the other direction.
        alignments = None
        prefix = data_folder.alignment_path(folder, split, pair)
        if with_alignments and data_folder.paths_of(prefix)[0].exists():
            swapped = pair == data_folder.pair_name(self.target_lang, self.source_lang)
            alignments = AlignmentDataset(prefix, swapped)
        return Split(
            source,
            target,
            source_vocab_size=len(self.source_dictionary),
            target_vocab_size=len(self.target_dictionary),
            separators=self.separators,
            alignments=alignments,
            documents=stored_documents(source),
        )

    def load_chained(self, split: str, with_alignments: bool = False) -> list[Split]:
        """Open ``train``, ``train1``... (DataError: one is damaged, or the first missing)."""
        splits = [self.load_split(split, with_alignments)]
        # Take the pair's name from the first part, in either direction.
        pair = Path(splits[0].stem).suffix
        while True:
            stem = f"{split}{len(splits)}{pair}.{self.source_lang}"
            if not data_folder.paths_of(Path(self.folder or "") / stem)[0].exists():
                return splits
            splits.append(self.load_split(f"{split}{len(splits)}", with_alignments))

    def references(self, split: Split) -> list[str]:
        """Return the target sentences of a split, raw or decoded, to compare translations with."""
        raw = split.raw_target
        text = self.target_text
        if raw is not None and text.keeps_text:
            return [text.decode(line.split()) for line in raw]
        if raw is not None:
            return raw
        # Mark unknown words, so that no translation matches them by chance.
        return [self.decode_target(ids, ESCAPED_UNK) for ids in split.targets()]

    def encode_source(self, raw: str) -> np.ndarray:
        """Return the token ids of a raw source sentence, int64 [S], ending in ``</s>``."""
        return self.source_ids(self.source_text.encode(raw))

    def encode_target(self, raw: str) -> np.ndarray:
        """Return the token ids of a raw target sentence, int64 [T], ending in ``</s>``."""
        return self.target_ids(self.target_text.encode(raw))

    def source_ids(self, tokens: Sequence[str]) -> np.ndarray:
        """Return the ids of the tokens of a source sentence, int64 [S], ending in ``</s>``."""
        return _ids_of(tokens, self.source_text, self.source_dictionary)

    def target_ids(self, tokens: Sequence[str]) -> np.ndarray:
        """Return the ids of the tokens of a target sentence, int64 [T], ending in ``</s>``."""
        return _ids_of(tokens, self.target_text, self.target_dictionary)

    def decode_target(self, ids: Iterable[int], unk: str = UNK) -> str:
        """Return the raw sentence of target token ids."""
        return self.target_text.decode(self.target_dictionary.symbols_of(ids, unk))

    def to_state(self) -> dict[str, Any]:
        """Return text steps and dictionaries as JSON values, for a checkpoint."""
        target = None if self.joined_dictionary else self.target_dictionary.to_text()
        return {
            "name": TASK_NAME,
            "source_text": self.source_text.to_state(),
            "target_text": self.target_text.to_state(),
            "source_dictionary": self.source_dictionary.to_text(),
            "target_dictionary": target,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "TranslationTask":
        """Return the task of :meth:`to_state` (CheckpointError: the description is damaged)."""
        try:
            stored = checked(TASK_FORM, dict(state), "task")
            source_text = TextPipeline.from_state(stored["source_text"])
            target_text = TextPipeline.from_state(stored["target_text"])
            source = Dictionary.from_text(stored["source_dictionary"], "source dictionary")
            # Reuse a joined dictionary, which the state stores once.
            target = source
            if stored["target_dictionary"] is not None:
                target = Dictionary.from_text(stored["target_dictionary"], "target dictionary")
        except (ReluNmtError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                "the checkpoint's description of its task is damaged, or names what is missing "
                f"here ({error}); add that, or use another checkpoint"
            ) from error
        return cls(source_text, target_text, source, target)


def _ids_of(tokens: Sequence[str], text: TextPipeline, dictionary: Dictionary) -> np.ndarray:
    ids = dictionary.encode(tokens)
    # A separator inside the text is an unknown word.
    if text.sentence_separator is not None:
        words = ids[: -1 - text.separates_alone]
        words[words == dictionary.index(text.sentence_separator)] = dictionary.unk_index
    return ids


def _load_text(
    path: str | os.PathLike[str], manifest: Mapping[str, Any] | None, language: str
) -> TextPipeline:
    return TextPipeline(language) if manifest is None else load_pipeline(path, manifest, language)


def _load_dictionary(path: str | os.PathLike[str], language: str) -> Dictionary:
    file = data_folder.dictionary_path(path, language)
    dictionary = Dictionary.load(file)
    if not dictionary.num_words:
        raise DataError(
            f"{file}: no words in it; was the training text empty? run relu-nmt-preprocess again"
        )
    return dictionary
