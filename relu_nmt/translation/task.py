"""The translation task: text, tokenisation and dictionaries of a language pair, joined."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from relu_nmt.data.data_folder import (
    NO_LANGUAGE,
    alignment_path,
    dictionary_path,
    find_pair,
    infer_languages,
    manifest_content,
    pair_name,
    read_manifest,
    split_path,
)
from relu_nmt.data.dictionary import SENTENCE_SEPARATOR, UNK, Dictionary
from relu_nmt.data.indexed_dataset import AlignmentDataset, IndexedDataset, idx_path
from relu_nmt.data.split import Split
from relu_nmt.errors import CheckpointError, DataError, ReluNmtError
from relu_nmt.tokenization.pipeline import TextPipeline, load_pipeline
from relu_nmt.translation.agreement import WAY_BACK, describe_text, fingerprint, require_same

TASK_NAME = "translation"
"""What a checkpoint calls the task."""
SAME_TEXT = "preprocess with the same --tokenizer, --lowercase, --subword and --subword-model"
"""What to do about a data folder whose text was prepared in another way."""
ESCAPED_UNK = f"<{UNK}>"
"""An unknown word in a reference, so that no unknown word of a translation matches it."""


@dataclass(frozen=True, eq=False)
class TranslationTask:
    """What is known about a language pair apart from the model.

    Made from a data folder (:meth:`from_data_folder`) or from a checkpoint (:meth:`from_state`).
    Only the former can load splits.

    Args:
        source_text: the way from raw source sentences to tokens and back.
        target_text: the same for the target.
        source_dictionary: ids of the source tokens.
        target_dictionary: ids of the target tokens; equal to the source's if joined.
        folder: the data folder, if there is one.

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
        """Source language, as in the file names ("de")."""
        return self.source_text.language

    @property
    def target_lang(self) -> str:
        """Target language, as in the file names ("en")."""
        return self.target_text.language

    @property
    def joined_dictionary(self) -> bool:
        """Return whether both sides share one dictionary, as shared embeddings need."""
        return self.source_dictionary == self.target_dictionary

    @classmethod
    def from_data_folder(
        cls,
        path: str | os.PathLike[str],
        source_lang: str | None = None,
        target_lang: str | None = None,
    ) -> "TranslationTask":
        """Return the task of a data folder that relu-nmt-preprocess or fairseq-preprocess made.

        Args:
            path: the data folder.
            source_lang: by default as the folder was binarised.
            target_lang: by default as the folder was binarised.

        Raises:
            DataError: the folder, a dictionary or the manifest is missing or damaged.
        """
        manifest = read_manifest(path)
        if source_lang is None or target_lang is None:
            first, second = infer_languages(path)
            if second == NO_LANGUAGE:
                raise DataError(
                    f"{path}: holds source text only, in {first}; run relu-nmt-preprocess with "
                    "both sides"
                )
            given = source_lang or target_lang
            if given not in (None, first, second):
                raise DataError(f"{path}: holds {first}-{second}, not the language {given}")
            swapped = second == source_lang or first == target_lang
            source_lang, target_lang = (second, first) if swapped else (first, second)
        texts, dictionaries = [], []
        for language in (source_lang, target_lang):
            texts.append(
                TextPipeline(language)
                if manifest is None
                else load_pipeline(path, manifest, language)
            )
            dictionaries.append(Dictionary.load(dictionary_path(path, language)))
            if not dictionaries[-1].num_words:
                raise DataError(
                    f"{dictionary_path(path, language)}: no words in it; was the training text "
                    "empty? run relu-nmt-preprocess again"
                )
        return cls(texts[0], texts[1], dictionaries[0], dictionaries[1], Path(path))

    def with_post_processing(
        self, remove_bpe: str | None = None, detokenizer: str | None = None
    ) -> "TranslationTask":
        """Return the task for text that arrives segmented, which is undone on the way back.

        For folders that fairseq-preprocess made, or that were made here from segmented text; see
        :meth:`relu_nmt.tokenization.pipeline.TextPipeline.with_post_processing`.
        """
        return replace(
            self,
            source_text=self.source_text.with_post_processing(remove_bpe, detokenizer),
            target_text=self.target_text.with_post_processing(remove_bpe, detokenizer),
        )

    def with_sentence_separator(self) -> "TranslationTask":
        """Return the task in which ``<sep>`` ends each sentence of both sides.

        No file changes: the symbol gets an id that the binarised data does not use, and is
        added as sentences are read.

        Raises:
            DataError: ``<sep>`` is a word of the text itself.
        """
        dictionaries = []
        for language, dictionary in (
            (self.source_lang, self.source_dictionary),
            (self.target_lang, self.target_dictionary),
        ):
            if SENTENCE_SEPARATOR in dictionary:
                raise DataError(
                    f"{dictionary_path(self.folder or '', language)}: '{SENTENCE_SEPARATOR}' is a "
                    "word of the text, from which separators could not be told; replace it in the "
                    "text and run relu-nmt-preprocess again, or leave --sentence-separator out"
                )
            dictionaries.append(dictionary.with_symbol(SENTENCE_SEPARATOR))
        return replace(
            self,
            source_text=replace(self.source_text, sentence_separator=SENTENCE_SEPARATOR),
            target_text=replace(self.target_text, sentence_separator=SENTENCE_SEPARATOR),
            source_dictionary=dictionaries[0],
            target_dictionary=dictionaries[1],
        )

    @property
    def has_sentence_separator(self) -> bool:
        """Return whether ``<sep>`` ends each sentence."""
        return self.target_text.sentence_separator is not None

    @property
    def separators(self) -> tuple[int, int] | None:
        """Ids of ``<sep>`` in source and target; None: sentences do not end in it."""
        if not self.has_sentence_separator:
            return None
        source, target = self.source_dictionary, self.target_dictionary
        return source.index(SENTENCE_SEPARATOR), target.index(SENTENCE_SEPARATOR)

    @property
    def has_known_text(self) -> bool:
        """Whether it is known how its text was prepared; a folder of fairseq's does not tell."""
        return self.folder is None or manifest_content(self.folder) is not None

    def describe(self, way_back: bool = True) -> dict[str, str]:
        """Return in words, by name, what decides which text the token ids stand for.

        Args:
            way_back: also return the steps that only the text which comes out depends on.
        """
        sides = {
            "source": (self.source_text, self.source_dictionary),
            "target": (self.target_text, self.target_dictionary),
        }
        found = {f"{side} language": text.language for side, (text, _) in sides.items()}
        for side, (_, words) in sides.items():
            symbols = fingerprint([words[i] for i in range(len(words))])
            found[f"{side} dictionary"] = f"{len(words):,} symbols {symbols}"
        for side, (text, _) in sides.items() if self.has_known_text else ():
            steps = describe_text(text)
            found |= {f"{side} {k}": v for k, v in steps.items() if way_back or k not in WAY_BACK}
        return found

    def load_split(self, split: str, with_alignments: bool = False) -> Split:
        """Open ``train``, ``valid``, ``test``, ``test1``...

        Args:
            split: its name.
            with_alignments: also open the word alignments, if there are any.

        Raises:
            DataError: the split is missing, damaged or not parallel.
        """
        folder = self.folder
        if folder is None:
            raise DataError("this task comes from a checkpoint and has no data folder; give one")
        pair = find_pair(folder, split, self.source_lang, self.target_lang)
        source = IndexedDataset(split_path(folder, split, pair, self.source_lang))
        target = None
        if pair != pair_name(self.source_lang, None):
            target = IndexedDataset(split_path(folder, split, pair, self.target_lang))
        sizes = len(self.source_dictionary), len(self.target_dictionary)
        alignments = None
        prefix = alignment_path(folder, split, pair)
        if with_alignments and idx_path(prefix).exists():
            swapped = pair == pair_name(self.target_lang, self.source_lang)
            alignments = AlignmentDataset(prefix, swapped)
        return Split(source, target, *sizes, self.separators, alignments)

    def load_chained(self, split: str, with_alignments: bool = False) -> list[Split]:
        """Open ``train`` and, if they are there, ``train1``, ``train2``... which belong to it.

        Args:
            split: name of the first.
            with_alignments: also open the word alignments, if there are any.

        Raises:
            DataError: one is damaged, or the first is missing.
        """
        found = [self.load_split(split, with_alignments)]
        pair = Path(found[0].stem).suffix
        while True:
            stem = f"{split}{len(found)}{pair}.{self.source_lang}"
            if not idx_path(Path(self.folder or "") / stem).exists():
                return found
            found.append(self.load_split(f"{split}{len(found)}", with_alignments))

    def references(self, split: Split) -> list[str]:
        """Return the target sentences that translations of a split are compared with.

        These are the raw sentences where they are kept. If the text arrived segmented, the
        segmentation is undone as in the translations (:meth:`with_post_processing`). In a folder
        that fairseq-preprocess made, they come from the binarised data.

        Raises:
            DataError: the split is damaged or source-only.
        """
        raw = split.raw_target
        if raw is not None:
            if not self.target_text.keeps_text:
                return raw
            return [self.target_text.decode(line.split()) for line in raw]
        # An unknown word in a reference is written otherwise, so that none in a translation
        # counts as right.
        return [self.decode_target(ids, ESCAPED_UNK) for ids in split.targets()]

    def encode_source(self, raw: str) -> np.ndarray:
        """Return the token ids of a raw source sentence, int64 [S], ending in ``</s>``."""
        return self.source_dictionary.encode(self.source_text.encode(raw))

    def encode_target(self, raw: str) -> np.ndarray:
        """Return the token ids of a raw target sentence, int64 [T], ending in ``</s>``."""
        return self.target_dictionary.encode(self.target_text.encode(raw))

    def decode_target(self, ids: Iterable[int], unk: str = UNK) -> str:
        """Return the raw sentence that the target token ids stand for."""
        return self.target_text.decode(self.target_dictionary.symbols_of(ids, unk))

    def target_tokens(self, ids: Iterable[int], unk: str = UNK) -> str:
        """Return the target tokens with spaces between them, subwords not joined."""
        return " ".join(self.target_dictionary.symbols_of(ids, unk))

    def source_tokens(self, ids: Iterable[int], unk: str = UNK) -> str:
        """Return the source tokens with spaces between them, subwords not joined."""
        return " ".join(self.source_dictionary.symbols_of(ids, unk))

    def to_state(self) -> dict[str, Any]:
        """Return everything needed to translate, as JSON values, for a checkpoint."""
        joined = self.joined_dictionary
        return {
            "name": TASK_NAME,
            "source_text": self.source_text.to_state(),
            "target_text": self.target_text.to_state(),
            "source_dictionary": self.source_dictionary.to_text(),
            "target_dictionary": None if joined else self.target_dictionary.to_text(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "TranslationTask":
        """Return the task that :meth:`to_state` described.

        Raises:
            CheckpointError: the description is damaged.
        """
        try:
            source_text = TextPipeline.from_state(state["source_text"])
            target_text = TextPipeline.from_state(state["target_text"])
            source = Dictionary.from_text(state["source_dictionary"], "source dictionary")
            target = source
            if state["target_dictionary"] is not None:
                target = Dictionary.from_text(state["target_dictionary"], "target dictionary")
        except (ReluNmtError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"the checkpoint's description of its task is damaged ({error}); use another "
                "checkpoint"
            ) from error
        return cls(source_text, target_text, source, target)

    def at_folder(
        self, path: str | os.PathLike[str], own_place: str = "the checkpoint"
    ) -> "TranslationTask":
        """Return this task, reading splits from ``path``, after comparing both.

        For a model that is used on a data folder: the ids must mean the same in both.

        Args:
            path: the data folder.
            own_place: where this task comes from, for the message.

        Raises:
            DataError: the folder's dictionaries, or steps of its text, differ from this task's.
        """
        manifest = read_manifest(path)
        if not dictionary_path(path, self.source_lang).exists():
            infer_languages(path)  # tells what it is, if it is no data folder
        for own, language, flag in (
            (self.source_dictionary, self.source_lang, "--srcdict"),
            (self.target_dictionary, self.target_lang, "--tgtdict"),
        ):
            file = dictionary_path(path, language)
            if language == self.target_lang and not file.exists():  # source-only data
                continue
            dictionary = Dictionary.load(file)
            if self.has_sentence_separator and SENTENCE_SEPARATOR not in dictionary:
                dictionary = dictionary.with_symbol(SENTENCE_SEPARATOR)
            if dictionary != own:
                raise DataError(
                    f"{file}: not the dictionary of {own_place}; preprocess with {flag} and "
                    + ("that one" if self.folder else "the dictionary of its training data")
                )
        if manifest is not None and self.has_known_text:
            found = replace(
                self,
                source_text=_text_in(path, manifest, self.source_text),
                target_text=_text_in(path, manifest, self.target_text),
            )
            advice = SAME_TEXT if self.folder else f"{SAME_TEXT}, or translate raw text"
            known, other = (task.describe(way_back=False) for task in (self, found))
            require_same(known, own_place, other, path, advice, DataError)
        return replace(self, folder=Path(path))


def _text_in(
    folder: str | os.PathLike[str], manifest: Mapping[str, Any], own: TextPipeline
) -> TextPipeline:
    """Return how a data folder's text in the language of ``own`` was prepared.

    Separators are added as sentences are read. Of source-only data, ``own`` is the target's.
    """
    if own.language not in manifest["text"]:
        return own
    text = load_pipeline(folder, manifest, own.language)
    return replace(text, sentence_separator=own.sentence_separator)
