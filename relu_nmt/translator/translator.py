"""The front door: raw sentences in, raw translations out."""

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from relu_nmt import engine
from relu_nmt.attention.kernels import set_attention_backend
from relu_nmt.attention.spec import AttentionPlace
from relu_nmt.config import from_flat
from relu_nmt.data.dictionary import UNK
from relu_nmt.data.documents import SINGLE_SENTENCES
from relu_nmt.errors import ConfigError, is_out_of_memory
from relu_nmt.translation.agreement import require_same
from relu_nmt.translation.attention_maps import AttentionMap, attention_weights, checked_place
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.loading import load_model
from relu_nmt.translation.search.config import GenerationConfig, WindowConfig
from relu_nmt.translation.search.document_search import (
    DocumentSearch,
    SourceDocuments,
    TranslatedDocuments,
)
from relu_nmt.translation.search.ensemble import Ensemble
from relu_nmt.translation.search.generator import Generator
from relu_nmt.translation.search.shortlist import Shortlist
from relu_nmt.translation.search.translations import (
    SourceSentence,
    TranslatedLines,
    Translation,
    as_lines,
    check_lengths,
    load_translations,
    replace_unknown_words,
)
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator.source_encoder import SourceEncoder
from relu_nmt.translator.state import foreign_classes, model_of, model_state

ONE_TASK = (
    "an ensemble needs models of one language pair whose text was prepared in one way: train them "
    "on one data folder, with the same flags of it"
)


class Translator:
    """Translates with one model, or with several as an ensemble.

    Worker processes, spawned ones too, can be given a translator: its weights are copied. Threads
    cannot share one, as tokenisers and models keep what they work on: give each its own
    (``copy.deepcopy``), or let one thread at a time use it.

    Args:
        models: models with the same dictionaries.
        task: tokenisation and dictionaries.
        device: where to compute; a GPU if there is one by default.
        dtype: ``torch.float16`` or ``torch.bfloat16`` to compute in; float32 by default. With
            ``torch.int8`` the models are changed to products of 8-bit integers, for CPUs.
        max_doc_tokens: the longest groups of sentences that the models learnt from, in tokens;
            1: single sentences.
        packed: pack the weights for fast decoding; the models must not be trained any more.

    Attributes:
        sources: makes token ids of raw text, for the methods that read those.
        shortlist: the symbols that translations may have, by what is in their sources; None, as at
            first, for all.

    Raises:
        ConfigError: no model, no such device, or one that is slow with 8-bit integers is to use
            them.

    Example:
        >>> from relu_nmt.data.dictionary import Dictionary
        >>> from relu_nmt.translation.config import TransformerConfig
        >>> from relu_nmt.tokenization.pipeline import TextPipeline
        >>> words = Dictionary(["ein", "Haus"])
        >>> task = TranslationTask(TextPipeline("de"), TextPipeline("en"), words, words)
        >>> config = TransformerConfig(encoder_layers=1, decoder_layers=1)
        >>> translator = Translator([EncoderDecoder(config, 6, 6, pad_index=1)], task, "cpu")
        >>> translations = translator.translate(["ein Haus", ""], beam=2, max_len_b=5)
        >>> len(translations), translations[1]
        (2, '')
    """

    def __init__(
        self,
        models: Sequence[EncoderDecoder],
        task: TranslationTask,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        max_doc_tokens: int = SINGLE_SENTENCES,
        packed: bool = False,
    ) -> None:
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.task = task
        self.sources = SourceEncoder(task)
        try:
            self.device = torch.device(device)
            self.models = [model.to(self.device) for model in models]
        except (RuntimeError, AssertionError) as error:  # PyTorch's words for one that is not there
            if is_out_of_memory(error):
                raise
            raise ConfigError(f"device {device}: {str(error).splitlines()[0]}") from error
        self.dtype = None if dtype in (torch.float32, torch.int8) else dtype
        self.decoders = [
            engine.install(model, dtype)
            if packed or dtype == torch.int8
            else engine.FastDecoder(model)
            for model in self.models
        ]
        self.max_doc_tokens = max_doc_tokens
        self.ensemble = Ensemble(self.decoders, dtype=self.dtype)
        self.max_source_positions = self.ensemble.max_source_positions
        self.shortlist: Shortlist | None = None

    @classmethod
    def from_checkpoint(
        cls,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        attention_backend: str = "auto",
        model_overrides: Mapping[str, Any] | None = None,
    ) -> "Translator":
        """Load a checkpoint, or several as an ensemble.

        Args:
            path: a file; ``a.safetensors:b.safetensors``; or a list of files.
            device: where to compute; a GPU if there is one by default.
            dtype: what to compute in; float32 by default.
            attention_backend: the name of one that every attention of the model has, or ``auto``.
            model_overrides: settings of the model that go before those in the checkpoint.

        Raises:
            CheckpointError: a file is missing or damaged, or reads or writes other text than the
                first one.
            ConfigError: no such back end or device.
            MissingExtraError: the back end is not installed.
        """
        if isinstance(path, str | os.PathLike):
            path = os.fspath(path).split(os.pathsep)
            if "" in path:
                raise ConfigError(
                    f"'{os.pathsep.join(path)}': an empty name of a checkpoint; give a file, or "
                    f"several with {os.pathsep} between them"
                )
        loaded = [load_model(file, model_overrides) for file in path]
        for file, other in zip(path[1:], loaded[1:], strict=True):
            first = loaded[0].task.describe()
            require_same(first, path[0], other.task.describe(), file, ONE_TASK)
        if not loaded:
            raise ConfigError("no checkpoint given")
        for each in loaded:
            set_attention_backend(each.model, attention_backend)
        max_doc_tokens = min(each.max_doc_tokens for each in loaded)
        models = [each.model for each in loaded]
        return cls(models, loaded[0].task, device, dtype, max_doc_tokens, packed=True)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a translator be pickled, and copied: plain values make the same one anywhere.

        Raises:
            ConfigError: hooks, or classes of a user's file, are no plain values.
        """
        state = {
            "classes": foreign_classes(self.models, self.task),
            "models": [model_state(model) for model in self.models],
            "task": self.task.to_state(),
            "folder": self.task.folder,
            "device": str(self.device),
            "dtype": self.dtype,
            "max_doc_tokens": self.max_doc_tokens,
            "shortlist": self.shortlist,
        }
        return type(self)._of_state, (state,)

    @classmethod
    def _of_state(cls, state: Mapping[str, Any]) -> "Translator":
        task = replace(TranslationTask.from_state(state["task"]), folder=state["folder"])
        models = [model_of(each, task) for each in state["models"]]
        translator = cls(models, task, state["device"], state["dtype"], state["max_doc_tokens"])
        translator.shortlist = state["shortlist"]
        return translator

    def translate(
        self,
        lines: Iterable[str],
        config: GenerationConfig | None = None,
        prefixes: Iterable[str] | None = None,
        banned: Iterable[str] = (),
        forced: Iterable[Iterable[str]] | None = None,
        ordered: bool = True,
        **settings: Any,
    ) -> TranslatedLines:
        """Return the best translation of each line; a blank line gives an empty one.

        The list also tells, as ``at_limit``, which translations reached the longest output and may
        be cut off; a warning tells how many.

        Args:
            lines: raw sentences.
            config: settings of the search.
            prefixes: what the translation of each line begins with, in whole words; "" for nothing.
            banned: terms, one or more words each, that no translation may have, but in what is
                forced.
            forced: terms that the translation of each line must have, [] for none; one that is
                given twice occurs twice.
            ordered: whether each line's terms come in this order.
            settings: instead of ``config``, fields of :class:`GenerationConfig` (``beam=5``).

        Raises:
            ConfigError: a setting is unknown or out of range.
            DataError: a sentence is too long for learned positions, ``lines`` is one text, the
                model cannot write a term that is forced, or it is forced in a blank line.
        """
        never = self.sources.banned_ids(banned)
        sources = self.sources.sentences(lines, prefixes, never, forced, ordered)
        config = self._config(config, settings)
        best = [own[0] for own in self.translate_sentences(sources, config)]
        at_limit = [number for number, own in enumerate(best) if own.reached_limit]
        self._warn_of_limit(config, len(at_limit), len(best))
        return TranslatedLines([own.text for own in best], at_limit)

    def translate_nbest(
        self,
        lines: Iterable[str],
        config: GenerationConfig | None = None,
        first_id: int = 0,
        prefixes: Iterable[str] | None = None,
        banned: Iterable[str] = (),
        forced: Iterable[Iterable[str]] | None = None,
        ordered: bool = True,
        **settings: Any,
    ) -> list[list[Translation]]:
        """Return the n best translations of each line, best first.

        Each tells whether it ``reached_limit``; a warning tells of how many lines the best did.

        Args:
            lines: raw sentences.
            config: settings of the search.
            first_id: number of the first line, for the random numbers of sampling.
            prefixes: as in :meth:`translate`.
            banned: as in :meth:`translate`.
            forced: as in :meth:`translate`.
            ordered: as in :meth:`translate`.
            settings: instead of ``config``, fields of :class:`GenerationConfig` (``nbest=5``).

        Raises:
            ConfigError: as in :meth:`translate`.
            DataError: likewise.
        """
        never = self.sources.banned_ids(banned)
        sources = self.sources.sentences(lines, prefixes, never, forced, ordered)
        config = self._config(config, settings)
        found = self.translate_sentences(sources, config, first_id)
        self._warn_of_limit(config, sum(best.reached_limit for best, *_ in found), len(found))
        return found

    def translate_sentences(
        self,
        sources: Sequence[SourceSentence],
        config: GenerationConfig,
        first_id: int = 0,
        on_progress: Callable[[int], object] | None = None,
    ) -> list[list[Translation]]:
        """Return the n best translations of sentences that are token ids already.

        Args:
            sources: the sentences.
            config: settings of the search.
            first_id: number of the first sentence, for the random numbers of sampling.
            on_progress: called with the number of sentences in each batch that is done.

        Raises:
            ConfigError: the settings need references that the sentences do not have.
        """
        words = load_translations(config.replace_unk) if config.replace_unk else {}
        found = self.generator(config).translate(sources, first_id, on_progress)
        results: list[list[Translation]] = []
        for source, hypotheses in zip(sources, found, strict=True):
            results.append([])
            for own in hypotheses:
                tokens = self.task.target_dictionary.symbols_of(own.tokens)
                if config.replace_unk is not None and own.alignment is not None:
                    tokens = replace_unknown_words(tokens, source.tokens, own.alignment, UNK, words)
                text = self.task.target_text.decode(tokens)
                results[-1].append(Translation(text, tokens, own))
        return results

    def generator(self, config: GenerationConfig) -> Generator:
        """Return what searches, or scores references, with the models."""
        task = self.task
        return Generator(
            self.decoders,
            config,
            task.target_dictionary,
            self.dtype,
            task.separators,
            self.shortlist,
        )

    def translate_documents(
        self,
        documents: Iterable[Iterable[str]],
        max_doc_tokens: int | None = None,
        window_overlap: int = 0,
        config: GenerationConfig | None = None,
        prefixes: Iterable[Iterable[str]] | None = None,
        banned: Iterable[str] = (),
        forced: Iterable[Iterable[Iterable[str]]] | None = None,
        ordered: bool = True,
        **settings: Any,
    ) -> TranslatedDocuments:
        """Return the translation of each document, a line for each of its lines.

        Consecutive lines are translated together. A model trained with ``--sentence-separator``
        writes as many sentences as there are lines, unless ``free_sentence_count`` is set. If it
        was trained without, there is a line for each such group of lines instead. The list
        also has ``mismatch_rate``, ``num_at_limit`` and more of :class:`TranslatedDocuments`; a
        warning tells of translations that may be cut off.

        Args:
            documents: the lines of each document, sentences or paragraphs; a blank line gives an
                empty one.
            max_doc_tokens: most tokens, of the source, to translate at once; by default as in
                training. 1: each line on its own. A longer line is not cut.
            window_overlap: lines before to give as context of those that are translated.
            config: settings of the search.
            prefixes: what the translation of each line begins with, a list for each document.
            banned: as in :meth:`translate`.
            forced: terms that the translation of each line must have, by document and line.
            ordered: whether each line's terms come in this order.
            settings: instead of ``config``, fields of :class:`GenerationConfig`.

        Raises:
            ConfigError: a setting is unknown or out of range; or prefixes and forced terms of
                lines that are translated together, whose translations nothing tells apart.
            DataError: a group is too long for the model, a document is one text, the model cannot
                write a term that is forced, or it is forced in a blank line.
        """
        lines = [as_lines(document) for document in documents]
        limit = self.max_doc_tokens if max_doc_tokens is None else max_doc_tokens
        windows = WindowConfig(limit, window_overlap, repair=True)
        config = self._config(config, settings).resolved(documents=True)
        never = self.sources.banned_ids(banned)
        sources = self.sources.documents(lines, prefixes, never, forced, ordered)
        found = self.translate_in_windows(sources, windows, config)
        self._warn_of_limit(config, found.num_at_limit, len(found.windows))
        return found

    def translate_document(self, lines: Iterable[str], **settings: Any) -> TranslatedLines:
        """Return the translation of one document, a line for each of its lines.

        Args:
            lines: the document's lines.
            settings: arguments of :meth:`translate_documents`.

        Raises:
            ConfigError: see :meth:`translate_documents`.
            DataError: likewise.
        """
        return self.translate_documents([lines], **settings)[0]

    def translate_in_windows(
        self,
        documents: SourceDocuments,
        windows: WindowConfig,
        config: GenerationConfig,
        first_id: int = 0,
        on_progress: Callable[[int], object] | None = None,
    ) -> TranslatedDocuments:
        """Return the translations of documents, window by window.

        Args:
            documents: the documents.
            windows: how to divide them.
            config: settings of the search.
            first_id: number of the first window, for the random numbers of sampling.
            on_progress: called with the number of windows in each batch that is done.

        Raises:
            ConfigError: an overlap with a model without separators, or with other prefixes.
            DataError: a window is too long for the model.
        """
        limit = self.max_source_positions
        check_lengths(documents.sentences, limit)  # before any is translated
        if windows.window_overlap and (config.score_reference or config.prefix_size):
            raise ConfigError(
                "--window-overlap forces prefixes itself; it goes with neither "
                "--prefix-size nor --score-reference"
            )

        def search(sources: Sequence[SourceSentence]) -> list[list[Translation]]:
            nonlocal first_id
            check_lengths(sources, limit)
            first_id += len(sources)  # each draws its own random numbers
            first = first_id - len(sources)
            return self.translate_sentences(sources, config, first, on_progress)

        decode, max_positions = self.task.target_text.decode, self.ensemble.max_positions
        return DocumentSearch(documents, windows, config, max_positions, decode).run(search)

    def attention(
        self,
        source: str,
        target: str | Translation | None = None,
        slot: str = "cross",
        layer: int = -1,
        head: int | None = None,
    ) -> AttentionMap:
        """Return the attention weights of any slot, layer and head for a sentence.

        ``weights`` of the result are [H, queries, keys], or [queries, keys] of one head, before
        dropout; ``queries`` and ``keys`` name the tokens.

        Args:
            source: raw sentence.
            target: its translation, raw or as :meth:`translate_nbest` gave it; by default the
                best one that is found.
            slot: ``encoder``, ``decoder`` (self-attention) or ``cross``.
            layer: from 0; -1 is the last.
            head: from 0; all heads by default.

        Raises:
            ConfigError: an ensemble, no such layer or head, or a mechanism without weights.
        """
        if target is None:
            target = self.translate_nbest([source])[0][0]
        if isinstance(target, Translation):
            ids = target.hypothesis.tokens
        else:
            ids = self.task.encode_target(target)
        return self.attention_at(
            AttentionPlace(slot, layer, head), self.sources.sentence(source), ids
        )

    def attention_at(
        self, place: AttentionPlace, source: SourceSentence, target: np.ndarray
    ) -> AttentionMap:
        """Return the attention weights at a place for a sentence and the ids of its translation.

        Raises:
            ConfigError: see :meth:`attention`.
        """
        weights = attention_weights(self.ensemble, place, source.ids, target)
        place = checked_place(self.models[0], place)
        dictionary = self.task.target_dictionary
        source_labels = [*source.tokens, dictionary[dictionary.eos_index]]
        labels = [dictionary[int(number)] for number in target]
        queries = source_labels if place.slot == "encoder" else labels
        keys = [labels[-1], *labels[:-1]] if place.slot == "decoder" else source_labels
        return AttentionMap(place.slot, place.layer, place.head, queries, keys, weights)

    @staticmethod
    def _config(config: GenerationConfig | None, settings: dict[str, Any]) -> GenerationConfig:
        if config is None:
            return from_flat(GenerationConfig, settings)
        if settings:
            raise ConfigError(f"give either config or settings ({', '.join(settings)}), not both")
        return config

    def _warn_of_limit(self, config: GenerationConfig, number: int, total: int) -> None:
        """Warn the caller of the caller, if translations reached the longest output."""
        if not number:
            return
        a, b = config.longest_output
        longest = f"{b} token{'' if b == 1 else 's'}"
        if a:
            longest = f"{a:g} * source + {longest}"
        if (most := self.ensemble.max_positions) is not None:
            longest += f", and {most - 1} at most"
        warnings.warn(
            f"{number:,} of {total:,} translations reached the longest output ({longest}) and may "
            "be cut off; max_len_a and max_len_b change it",
            stacklevel=3,
        )
