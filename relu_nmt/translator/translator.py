"""Translate raw text."""

import importlib
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from relu_nmt import engine
from relu_nmt.data.dictionary import UNK
from relu_nmt.data.document_settings import SINGLE_SENTENCES, WindowConfig
from relu_nmt.drawing.attention_maps import AttentionMap
from relu_nmt.errors import ConfigError, is_out_of_memory
from relu_nmt.modules.config import AttentionPlace
from relu_nmt.translation.base import Ensemble, StepDecoder, TranslationModel
from relu_nmt.translation.search.banned_terms import BannedTerms
from relu_nmt.translation.search.config import GenerationConfig, generation_config
from relu_nmt.translation.search.document_search import (
    Decode,
    SourceDocuments,
    TranslatedDocuments,
    TranslateWindows,
    translate_windows,
)
from relu_nmt.translation.search.generator import Generator
from relu_nmt.translation.search.shortlist import Shortlist
from relu_nmt.translation.search.translations import (
    Hypothesis,
    SourceSentence,
    TranslatedLines,
    Translation,
    check_lengths,
    join_translations,
    load_translations,
    replace_unknown_words,
)
from relu_nmt.translation.task import TranslationTask
from relu_nmt.translator.attention_maps import attention_weights, checked_place
from relu_nmt.translator.models import foreign_classes, load_models, model_of, model_state
from relu_nmt.translator.sources import TERMS, SourceEncoder, TranslationRequest, plain_lines
from relu_nmt.translator.spans import WordAlignment, align_words


class Translator:
    """A translator with one model, or with an ensemble of several models.

    A worker process, spawned or forked, can receive a translator. The weights are copied. Threads
    cannot share a translator, because tokenizers and models keep state during a call. Give each
    thread a copy (``copy.deepcopy``), or let one thread at a time use the translator.

    Args:
        models: models with the same dictionaries.
        task: tokenization and dictionaries.
        device: by default a GPU, if there is one.
        dtype: compute dtype: ``torch.float16`` or ``torch.bfloat16``. By default float32.
            ``torch.int8`` replaces the models' products by products of 8-bit integers (CPU only).
        max_doc_tokens: most tokens of a group of sentences in training. 1: single sentences.
        packed: pack the weights for fast decoding. The models can no longer be trained.
        shortlist: restricts the target vocabulary by the source words. None: no restriction.

    Attributes:
        sources: encodes raw text as token ids.

    Raises:
        ConfigError: no model, no such device, or 8-bit integers on a device where they are slow.

    Example:
        >>> from relu_nmt.data.dictionary import Dictionary
        >>> from relu_nmt.translation.config import TransformerConfig
        >>> from relu_nmt.translation.encoder_decoder import EncoderDecoder
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
        models: Sequence[TranslationModel],
        task: TranslationTask,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        max_doc_tokens: int = SINGLE_SENTENCES,
        packed: bool = False,
        shortlist: Shortlist | None = None,
    ) -> None:
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.task = task
        self.sources = SourceEncoder(task, max_doc_tokens)
        try:
            self.device = torch.device(device)
            self.models = [model.to(self.device) for model in models]
        except (RuntimeError, AssertionError) as error:  # PyTorch's errors for a missing device
            if is_out_of_memory(error):
                raise
            raise ConfigError(f"device {device}: {str(error).splitlines()[0]}") from error
        # 8-bit products replace modules of the models. All other modules compute in float32.
        self.dtype = None if dtype in (torch.float32, torch.int8) else dtype
        # Install the engine if asked. 8-bit products need it in any case.
        self.packed = dtype == torch.int8 or (packed and self.device.type == "cpu")
        self.decoders: list[StepDecoder] = []
        for model in self.models:
            decoder = engine.install(model, dtype) if self.packed else StepDecoder(model)
            self.decoders.append(decoder)
        self.max_doc_tokens = max_doc_tokens
        self.ensemble = Ensemble(self.decoders, dtype=self.dtype)
        self.max_source_positions = self.ensemble.max_source_positions
        self.shortlist = shortlist

    @classmethod
    def from_checkpoint(
        cls,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        attention_backend: str = "auto",
        model_overrides: Mapping[str, Any] | None = None,
        int8: bool = False,
    ) -> "Translator":
        """Load a checkpoint, or several as an ensemble.

        Args:
            path: a file, files joined by colons (``a.safetensors:b.safetensors``), or a list.
            device: by default a GPU, if there is one.
            dtype: compute dtype, by default float32.
            attention_backend: a backend that every attention of the model supports, or ``auto``.
            model_overrides: model settings that replace those in the checkpoint.
            int8: multiply 8-bit integers, as ``--int8``. The same as ``dtype=torch.int8``.

        Raises:
            CheckpointError: a file is missing or damaged, or processes text unlike the first file.
            ConfigError: no such backend or device.
            MissingExtraError: the backend is not installed.
        """
        models, task, max_doc_tokens = load_models(path, attention_backend, model_overrides)
        # Pack the weights, since loaded models are not for training.
        return cls(models, task, device, torch.int8 if int8 else dtype, max_doc_tokens, packed=True)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return plain values for pickle and copy. Raise ConfigError for a user's hook or class."""
        state = {
            # List foreign classes first: reading imports and registers them before the models.
            "classes": foreign_classes(self.models, self.task),
            "models": [model_state(model) for model in self.models],
            "task": self.task.to_state(),
            "folder": self.task.folder,
            "settings": {
                "device": str(self.device),
                "dtype": self.dtype,
                "packed": self.packed,
                "max_doc_tokens": self.max_doc_tokens,
                "shortlist": self.shortlist,
            },
        }
        return type(self)._of_state, (state,)

    @classmethod
    def _of_state(cls, state: Mapping[str, Any]) -> "Translator":
        task = replace(TranslationTask.from_state(state["task"]), folder=state["folder"])
        models = [model_of(values, task) for values in state["models"]]
        return cls(models, task, **state["settings"])

    def translate(
        self, lines: Iterable[str], config: GenerationConfig | None = None, **options: Any
    ) -> TranslatedLines:
        """Return the best translation of each line. A blank line has an empty translation.

        ``at_limit`` of the result lists translations that reached the longest output and may be cut
        off. A warning counts them. ``translations`` has the tokens and scores of all translations.

        Args:
            lines: raw sentences.
            config: settings of the search.
            options: fields of :class:`TranslationRequest` (``forced=[["house"]]``) and, instead of
                ``config``, of :class:`GenerationConfig` (``beam=5``).

        Raises:
            ConfigError: a setting is unknown or out of range.
            DataError: a sentence is too long for learned positions, ``lines`` is a single text,
                the model cannot write a forced term, or a term is forced in a blank line.
        """
        request = TranslationRequest(plain_lines(lines), **_request_fields(options))
        return self._translate(request, generation_config(config, options))[0]

    def translate_nbest(
        self,
        lines: Iterable[str],
        config: GenerationConfig | None = None,
        first_id: int = 0,
        **options: Any,
    ) -> list[list[Translation]]:
        """Return the n best translations of each line, best first.

        ``reached_limit`` of a translation says that it may be cut off. A warning counts the lines
        whose best translation may be cut off. ``first_id`` is the number of the first line, which
        seeds the draws of sampling. See :meth:`translate` for other arguments (``nbest=5``) and
        errors.
        """
        request = TranslationRequest(plain_lines(lines), **_request_fields(options))
        translated = self._translate(request, generation_config(config, options), first_id)
        return [window.translations for window in translated.windows]

    def translate_documents(
        self,
        documents: Iterable[Iterable[str]],
        max_doc_tokens: int | None = None,
        window_overlap: int = 0,
        config: GenerationConfig | None = None,
        **options: Any,
    ) -> TranslatedDocuments:
        """Return the translation of each document, with a line for each of its lines.

        The model translates consecutive lines together. A model trained with
        ``--sentence-separator`` writes as many sentences as there are lines, unless
        ``free_sentence_count`` is set. A model trained without this flag gives one line for each
        group of lines. A warning counts translations that may be cut off.

        At most ``max_doc_tokens`` source tokens are translated at once, by default as in training.
        1: each line on its own. A line with more tokens is not cut. Each window repeats
        ``window_overlap`` previous lines as context. See :meth:`translate` for the other arguments.
        Prefixes and forced terms come as a list for each document.

        Raises:
            ConfigError: as in :meth:`translate`, or prefixes and forced terms for lines that are
                translated together by a model that does not separate sentences.
            DataError: as in :meth:`translate`, for a document and a group of lines.
        """
        if max_doc_tokens is None:
            max_doc_tokens = self.max_doc_tokens
        windows = WindowConfig(max_doc_tokens, window_overlap, repair=True)
        fields = _request_fields(options)
        request = TranslationRequest.of_documents(documents, windows=windows, **fields)
        return self._translate(request, generation_config(config, options))

    def translate_document(self, lines: Iterable[str], **settings: Any) -> TranslatedLines:
        """Return the translation of one document, with a line for each of its lines.

        ``settings`` are the arguments of :meth:`translate_documents`. The errors are the same.
        """
        return self.translate_documents([lines], **settings)[0]

    def translate_file(
        self, path: str | os.PathLike[str], output: str | os.PathLike[str], **options: Any
    ) -> None:
        """Translate a file with markup, such as a web page or a Word file. Only its text changes.

        The ``options`` are arguments of
        :func:`relu_nmt.applications.files.sentences.translate_with`: the name of the ``format``, a
        ``glossary``, and settings of the search (``beam=5``).
        """
        # Import late: applications import the translator.
        files = importlib.import_module("relu_nmt.applications.files.sentences")
        files.translate_with(self, path, output, **options)

    def translate_request(
        self, request: TranslationRequest, config: GenerationConfig | None = None, **settings: Any
    ) -> TranslatedDocuments:
        """Return the translations of a request's documents, or of its lines as one document.

        ``settings`` are fields of :class:`GenerationConfig` instead of ``config``. See
        :meth:`translate_documents` for the errors.
        """
        return self._translate(request, generation_config(config, settings))

    def _translate(
        self, request: TranslationRequest, config: GenerationConfig, first_id: int = 0
    ) -> TranslatedDocuments:
        """Translate a request, and warn the caller of the public method about the result."""
        # Resolve the longest output, which grows with its source for documents only.
        config = config.resolved(documents=request.counts is not None)
        documents = self.sources.encode(request)
        if documents.note:
            warnings.warn(documents.note.removeprefix("NOTE: "), stacklevel=3)
        translated = self.translate_sources(documents, config, first_id=first_id)
        if translated.num_at_limit:
            longest = config.describe_longest_output(self.ensemble.max_target_positions)
            warnings.warn(
                f"{translated.num_at_limit:,} of {len(translated.windows):,} translations reached "
                f"the longest output ({longest}) and may be cut off; max_len_a and max_len_b "
                "change it",
                stacklevel=3,
            )
        return translated

    def translate_sources(
        self,
        documents: SourceDocuments,
        config: GenerationConfig,
        translate: TranslateWindows | None = None,
        first_id: int = 0,
    ) -> TranslatedDocuments:
        """Return the translations of documents, window by window, for commands and the server.

        ``translate`` translates windows, by default with a new :meth:`window_translator`. A command
        passes one for all of its input. The server passes a function that joins requests in
        batches. ``first_id`` is the number of the first sentence, which seeds sampling.

        Raises:
            ConfigError: the settings do not fit the model or the documents.
            DataError: a window is too long for the model.
        """
        # Check all lines before the search of the first one.
        check_lengths(documents.sentences, self.max_source_positions)
        translate = translate or self.window_translator(config)
        max_positions = self.ensemble.max_target_positions
        return translate_windows(
            documents, config, max_positions, self.text_of, translate, first_id
        )

    def window_translator(self, config: GenerationConfig) -> "WindowTranslator":
        """Return a function that translates sentences, or windows of sentences, as token ids.

        Raises:
            ConfigError: the settings do not fit the model.
            DataError: the file of ``replace_unk`` cannot be read.
        """
        return WindowTranslator(self.generator(config), self.text_of, self.task.target_lang)

    def text_of(self, tokens: Sequence[str]) -> str:
        """Return the raw text of target tokens."""
        with self.sources.text_lock:
            return self.task.target_text.decode(tokens)

    def generator(self, config: GenerationConfig) -> Generator:
        """Return the search engine for token ids, which can also score references."""
        symbols = self.task.target_dictionary
        first = self.task.target_text.first_symbol
        separators = self.sources.separators
        return Generator(self.ensemble, config, symbols, separators, self.shortlist, first)

    def attention(
        self,
        source: str,
        target: str | Translation | None = None,
        slot: str = "cross",
        layer: int = -1,
        head: int | None = None,
    ) -> AttentionMap:
        """Return the attention weights of any slot, layer and head for a sentence.

        ``weights`` of the result have shape [H, queries, keys], or [queries, keys] for one head,
        before dropout. ``queries`` and ``keys`` name the tokens.

        Args:
            source: raw sentence.
            target: its translation: raw text, or a result of :meth:`translate_nbest`. By default
                the best translation that the search finds.
            slot: ``encoder``, ``decoder`` (self-attention) or ``cross``.
            layer: from 0, or -1 for the last layer.
            head: from 0, by default all heads.

        Raises:
            ConfigError: an ensemble, no such layer or head, or a mechanism without weights.
        """
        # Translate the sentence first, if the caller gives no translation.
        if target is None:
            target = self.translate_nbest([source])[0][0]
        # Take the ids of the translation, since encoding its text may give other ids.
        if isinstance(target, Translation):
            ids = target.hypothesis.ids
        else:
            ids = self.task.encode_target(target)
        place = AttentionPlace(slot, layer, head)
        return self.attention_at(place, self.sources.sentence(source), ids)

    def align_words(self, line: str, translation: Translation) -> WordAlignment:
        """Return the words of a line and of its translation, and which words align.

        Raises:
            ConfigError: the translation was made without ``print_alignment="hard"``.
        """
        alignment = translation.alignment
        if alignment is None:
            raise ConfigError("no alignment; translate with print_alignment='hard'")
        source = self.sources.token_spans(line, translation.source_tokens, is_source=True)
        target = self.sources.token_spans(translation.text, translation.tokens, is_source=False)
        return align_words((line, source), (translation.text, target), alignment)

    def attention_at(
        self, place: AttentionPlace, source: SourceSentence, target: np.ndarray
    ) -> AttentionMap:
        """Return the weights for token ids at a place. See :meth:`attention` for the errors."""
        place = checked_place(self.ensemble, place)
        [weights] = attention_weights(self.ensemble, [place], source.ids, target)
        # Label the rows and columns of the weights, [(H,) Q, K], with their tokens.
        dictionary = self.task.target_dictionary
        labels = list(map(dictionary.__getitem__, target.tolist()))
        queries = keys = [*source.tokens, dictionary[dictionary.eos_index]]
        if place.slot != "encoder":
            queries = labels
        # The decoder reads the end symbol first and then all but the last token.
        if place.slot == "decoder":
            keys = [labels[-1], *labels[:-1]]
        return AttentionMap(place.slot, place.layer, place.head, queries, keys, weights)


class WindowTranslator:
    """Finds the n best translations of sentences, or of windows of sentences.

    ``decode`` returns the raw text of target tokens, in the ``language`` of the model.
    """

    def __init__(self, generator: Generator, decode: Decode, language: str) -> None:
        self._generator = generator
        self._decode = decode
        self._language = language
        replace_unk = generator.config.replace_unk
        self._replaces_unknown = replace_unk is not None
        # Unknown words become their source word, or the translation of that word in a file.
        self._words: dict[str, str] = {}
        if replace_unk:
            self._words = load_translations(replace_unk)

    def __call__(
        self,
        sources: Sequence[SourceSentence],
        first_id: int = 0,
        on_progress: Callable[[int], object] | None = None,
    ) -> list[list[Translation]]:
        """Return the n best translations of each source.

        ``first_id`` is the number of the first sentence, which seeds the draws of sampling.
        ``on_progress`` gets the number of sentences of each finished batch.
        """
        generator = self._generator
        sentences: list[SourceSentence] = []
        for source in sources:
            sentences += source.sentences
        # Check again, since windows join several sentences.
        check_lengths(sentences, generator.ensemble.max_source_positions)
        nbest_lists = iter(generator.translate(sentences, first_id, on_progress))
        results = []
        for source in sources:
            by_sentence = []
            for sentence in source.sentences:
                by_sentence.append([self._translation(sentence, h) for h in next(nbest_lists)])
            # Join the best translations of all sentences, then the second best, and so on.
            joined = []
            for translations in zip(*by_sentence, strict=False):
                joined.append(
                    join_translations(source, translations, self._language, generator.scorer)
                )
            results.append(joined)
        return results

    def _translation(self, source: SourceSentence, hypothesis: Hypothesis) -> Translation:
        tokens = self._generator.symbols.symbols_of(hypothesis.ids)
        alignment = hypothesis.alignment
        if self._replaces_unknown and alignment is not None and UNK in tokens:
            # Forced text may contain banned terms. Then words are replaced as if none were banned.
            banned = None if self._has_banned(source.banned, tokens) else source.banned
            is_banned = partial(self._has_banned, banned)
            tokens = replace_unknown_words(tokens, source.tokens, alignment, self._words, is_banned)
        return Translation(self._decode(tokens), tokens, hypothesis, source.tokens)

    def _has_banned(self, banned: BannedTerms | None, tokens: Sequence[str]) -> bool:
        return banned is not None and banned.occur_in(self._decode(tokens))


def _request_fields(options: dict[str, Any]) -> dict[str, Any]:
    """Take the fields of :class:`TranslationRequest` out of options, which keep search settings."""
    return {name: options.pop(name) for name in TERMS if name in options}
