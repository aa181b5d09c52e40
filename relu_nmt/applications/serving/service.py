"""Answers to requests: translations of documents, and their attention weights by token."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from starlette.exceptions import HTTPException

from relu_nmt.applications.files import Languages
from relu_nmt.applications.files.sentences import SegmentTranslator
from relu_nmt.applications.serving import ServerOptions
from relu_nmt.applications.serving.detection import SourceLikelihood
from relu_nmt.applications.serving.queues import Batcher, QueuedRequest, run_large_answer
from relu_nmt.data.document_settings import SINGLE_SENTENCES, WindowConfig
from relu_nmt.data.separators import join_sentences
from relu_nmt.errors import ConfigError
from relu_nmt.modules.config import SLOTS, AttentionPlace
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.generator import longest_first
from relu_nmt.translation.search.translations import SourceSentence, Translation
from relu_nmt.translator import TranslationRequest, Translator
from relu_nmt.translator.attention_maps import (
    MOST_WEIGHTS,
    attention_of,
    attention_weights,
    layers_of,
    single_model,
)
from relu_nmt.translator.sources import plain_lines

MOST_NUMBERS = 2**21
"""Most weights in one answer, about 15 MB of JSON."""
LARGE_NUMBERS = 2**17
"""Answers with more weights than this are made one at a time."""
BATCH_TOKENS = 2048
"""Source tokens of a batch, and of a part of a file, without ``--max-tokens``.

A CPU needs a second or two for them.
"""
DECIMALS = 4


@dataclass(frozen=True)
class _Side:
    """One side of a pair of texts: its lines and their sentences."""

    lines: Sequence[str]
    sentences: Sequence[SourceSentence]
    is_source: bool

    @property
    def ids(self) -> np.ndarray:
        """The token ids of all lines as one text."""
        return join_sentences([sentence.ids for sentence in self.sentences])

    def rows(self, line: int | None = None) -> range:
        """Return the indices of a line's tokens. None: all tokens, and the end symbol."""
        counts = [len(sentence.tokens) for sentence in self.sentences]
        if line is None:
            return range(sum(counts) + 1)
        begin = sum(counts[:line])
        end = sum(counts[: line + 1])
        if begin == end:
            raise ConfigError(f"line {line}: the line has no token; lines count from 0")
        return range(begin, end)


class TranslationService:
    """Answers requests with one translator. Many threads may call its methods.

    All requests share the settings of the search. ``windows`` divides documents, unless a request
    has its own division. The ``batcher`` runs the model in one thread, and calls ``on_batch``.
    """

    def __init__(
        self,
        translator: Translator,
        config: GenerationConfig,
        windows: WindowConfig,
        limits: ServerOptions,
        on_batch: Callable[[int, int, float], object],
    ) -> None:
        self._translator = translator
        self._config = config
        self._windows = windows
        self._max_tokens = limits.max_request_tokens
        self._split_sentences = limits.split_sentences
        self._likelihood = SourceLikelihood(translator.task)
        # Make large answers, and parts of files, in one thread. An eighth of the queue stays free
        # for other requests.
        num_places = max(1, limits.max_waiting - max(1, limits.max_waiting // 8))
        self._large_answers = ThreadPoolExecutor(1, "large answer")
        self._large_answer_places = threading.Semaphore(num_places)
        self._batch_tokens = config.max_tokens or BATCH_TOKENS
        translate = translator.window_translator(config)
        self.batcher = Batcher(translate, self._batch_tokens, limits.batch_wait, on_batch)

    def close(self) -> None:
        """Wait for the large answer in progress. The queue of requests is closed already."""
        self._large_answers.shutdown(cancel_futures=True)

    def describe(self) -> dict[str, Any]:
        """Return the description of the model as JSON values."""
        translator = self._translator
        models = translator.models
        # Describe each slot by its first layer. An ensemble shows no weights.
        model = models[0]
        slots: dict[str, dict[str, Any]] = {}
        if isinstance(model, EncoderDecoder):
            for slot in SLOTS:
                attention = attention_of(model, slot, 0)
                slots[slot] = {
                    "mechanism": str(model.config.attention_of(slot)),
                    "layers": len(layers_of(model, slot)),
                    "heads": attention.num_heads,
                    "has_weights": attention.capabilities.weights and len(models) == 1,
                }
        # Add the languages, the size and the defaults of the search.
        parameters = chain.from_iterable(model.parameters() for model in models)
        return {
            "source_lang": self.languages.source,
            "target_lang": self.languages.target,
            "parameters": sum(parameter.numel() for parameter in parameters),
            "max_doc_tokens": self._windows.max_doc_tokens,
            "keeps_sentences": translator.task.separators is not None,
            "beam": self._config.beam,
            "attention": slots,
        }

    def translate(
        self,
        request: QueuedRequest,
        lines: list[str],
        max_doc_tokens: int | None = None,
        **terms: Any,
    ) -> dict[str, Any]:
        """Return the translation of a document, as JSON values.

        At most ``max_doc_tokens`` source tokens are translated at once. None: as the server's flags
        say. ``terms`` are further fields of :class:`TranslationRequest`.
        """
        # Divide the document as the request says. Single lines have no context.
        windows = self._windows
        if max_doc_tokens is not None:
            overlap = 0 if max_doc_tokens == SINGLE_SENTENCES else windows.window_overlap
            windows = WindowConfig(max_doc_tokens, overlap, repair=True)
        # Encode it line by line.
        translator = self._translator
        document = TranslationRequest(
            plain_lines(lines), windows=windows, split_sentences=self._split_sentences, **terms
        )
        documents = translator.sources.encode(
            document, lambda sentences: self._read(sentences, len(lines), request)
        )

        # Check the length and the forced terms of each window before its search.
        def translate(sources: Sequence[SourceSentence], _: int) -> list[list[Translation]]:
            for source in sources:
                self._check_length(source, "lines to translate at once have")
                if source.num_forced and self._config.not_for_terms:
                    raise ConfigError(
                        f"this server runs with {self._config.not_for_terms}, which can force "
                        "neither terms nor a prefix behind the first line of several; leave them "
                        "out"
                    )
            return self.batcher.translate(sources, request)

        # Translate its windows in batches with windows of other requests.
        translated = translator.translate_sources(documents, self._config, translate)
        groups = []
        for group in translated.windows:
            values = {
                "first": group.window.first,
                "count": group.window.num_new,
                "lines": [line.text for line in group.lines],
                "score": round(group.translations[0].score, DECIMALS),
                "reached_limit": group.reached_limit,
            }
            groups.append(values)
        return {
            "lines": list(translated[0]),
            "groups": groups,
            "source_tokens": int(documents.sizes.sum()),
            "target_tokens": sum(len(line.tokens) for line in translated[0].translations),
        }

    @property
    def languages(self) -> Languages:
        """The model's source and target language."""
        return Languages(self._translator.task.source_lang, self._translator.task.target_lang)

    def likelihood(self, text: str) -> float:
        """Return the log likelihood of a text by its symbols in the model's source language."""
        with self._translator.sources.text_lock:
            return self._likelihood(text)

    def segment_translator(
        self, request: QueuedRequest, num_best: int = 1, is_file: bool = False
    ) -> SegmentTranslator:
        """Return a translator of the segments of a text or a file, within the limits of a request.

        It finds ``num_best`` translations of each window, but at most the beam size. A file may
        have any number of tokens, but only one part of one file at a time has the model.
        """
        num_best = max(self._config.nbest, min(num_best, self._config.beam))
        config = replace(self._config, nbest=num_best)
        segments = SegmentTranslator(
            self._translator,
            config,
            self._windows,
            read=lambda sentences: list(request.checked(sentences)),
        )
        translate = self._translator.window_translator(segments.config)

        def translate_parts(
            sources: Sequence[SourceSentence], first_id: int
        ) -> list[list[Translation]]:
            num_tokens = sum(len(source.ids) for source in sources)
            if num_tokens > self._max_tokens and not is_file:
                raise HTTPException(413, f"{num_tokens:,} tokens; send less text at a time")
            for source in sources:
                self._check_length(source, "a text to translate at once has")
            lengths = np.array([len(source.ids) for source in sources])
            translated: list[list[Translation]] = [[] for _ in sources]
            # Let other requests use the model between the parts.
            for numbers in longest_first(lengths, lambda longest: self._batch_tokens // longest):
                part = [sources[number] for number in numbers]
                run = partial(self.batcher.run, partial(translate, part, first_id), request)
                results = request.wait(self._large_answers.submit(run)) if is_file else run()
                first_id += len(part)  # no window has parts
                for number, translations in zip(numbers, results, strict=True):
                    translated[number] = translations
                segments.num_done += sum(map(self._num_sentences, part))
            return translated

        segments.translate_windows = translate_parts
        return segments

    def attention(
        self,
        request: QueuedRequest,
        lines: Sequence[str],
        translation: Sequence[str],
        slot: str,
        line: int | None,
    ) -> bytes:
        """Return the weights of a slot for a group of lines and any translation, as JSON.

        ``translation`` has a line for each source line, or a single line. With ``line``, the answer
        has only the rows of this line's tokens.
        """
        source, target = self._sides(request, lines, translation)
        query_side = source if slot == "encoder" else target
        key_side = target if slot == "decoder" else source
        # Count the weights, [layers, heads, queries, keys], before the model computes them.
        rows = query_side.rows(line)
        model = single_model(self._translator.ensemble)
        num_layers = len(layers_of(model, slot))
        num_heads = num_layers * attention_of(model, slot, 0).num_heads
        num_keys = len(key_side.rows())
        # The model computes all queries, even if the answer has fewer.
        num_queries = len(query_side.rows())
        if num_heads * num_queries * num_keys > MOST_WEIGHTS:
            text = f"{num_queries:,} and {num_keys:,} tokens are too many to show the attention of"
            raise HTTPException(413, f"{text} all layers; ask for fewer lines")
        size = num_heads * len(rows) * num_keys
        if size > MOST_NUMBERS:
            text = f"{size:,} weights are more than the {MOST_NUMBERS:,} of an answer"
            raise HTTPException(413, f"{text}; ask for a line, or for fewer")
        # Locate the tokens of queries and keys in the text.
        queries = self._tokens(query_side, request)
        keys = self._tokens(key_side, request)
        if slot == "decoder":
            keys = [keys[-1], *keys[:-1]]  # the decoder reads the end symbol first
        part = slice(rows.start, rows.stop)
        head = {"queries": queries[part], "keys": keys}

        def compute() -> np.ndarray:
            layers = [AttentionPlace(slot, layer) for layer in range(num_layers)]
            maps = attention_weights(self._translator.ensemble, layers, source.ids, target.ids)
            return np.stack(maps)

        # Compute the weights, and write the JSON in parts.
        def write() -> bytes:
            weights = self.batcher.run(compute, request)
            parts = weights_json(weights[:, :, part], request)
            begin = json.dumps(head, ensure_ascii=False).removesuffix("}")
            return b"".join([f'{begin}, "weights": '.encode(), *parts, b"}"])

        if size <= LARGE_NUMBERS:
            return write()
        return run_large_answer(self._large_answers, self._large_answer_places, write, request)

    def _sides(
        self, request: QueuedRequest, lines: Sequence[str], translation: Sequence[str]
    ) -> tuple[_Side, _Side]:
        """Return source and target in the form that the model reads, and check their lengths."""
        translator = self._translator
        encoded = translator.sources.sentences(TranslationRequest(lines))
        sources = self._read(encoded, len(lines), request)
        encoded_targets = map(self._encoded_target, translation)
        targets = self._read(encoded_targets, len(translation), request, is_source=False)
        # Each of several sentences ends in a separator, and so do their translations.
        separators = translator.task.separators
        is_group = sum(bool(sentence.tokens) for sentence in sources) > 1
        if separators is not None and is_group:
            of_targets = separators._replace(source=separators.target)
            sources = [sentence.in_group(separators) for sentence in sources]
            targets = [sentence.in_group(of_targets) for sentence in targets]
        source = _Side(lines, sources, is_source=True)
        target = _Side(translation, targets, is_source=False)
        self._check_length(SourceSentence(source.ids), "lines to read at once have")
        limit = translator.ensemble.max_target_positions
        if limit is not None and len(target.ids) > limit:
            raise ConfigError(
                f"the translation has {len(target.ids):,} tokens, but the model writes {limit:,}"
            )
        return source, target

    def _tokens(self, side: _Side, request: QueuedRequest) -> list[dict[str, Any]]:
        """Return the tokens of lines and their spans as JSON values, the end symbol last."""
        values: list[dict[str, Any]] = []
        lines = request.checked(zip(side.lines, side.sentences, strict=True))
        for number, (line, sentence) in enumerate(lines):
            spans = self._translator.sources.token_spans(line, sentence.tokens, side.is_source)
            for token, (begin, end) in zip(sentence.tokens, spans, strict=True):
                values.append({"text": token, "line": number, "begin": begin, "end": end})
        return [*values, {"text": "</s>", "line": None, "begin": 0, "end": 0}]

    def _read(
        self,
        sentences: Iterator[SourceSentence],
        num_lines: int,
        request: QueuedRequest,
        is_source: bool = True,
    ) -> list[SourceSentence]:
        """Encode the sentences one by one, and refuse the request when it has too many tokens."""
        encoded: list[SourceSentence] = []
        num_tokens = 0
        for number, sentence in enumerate(request.checked(sentences), 1):
            encoded.append(sentence)
            if is_source:
                self._check_length(sentence, f"line {number} has")
            # Count forced tokens, as they make the search longer.
            num_tokens += len(sentence.ids) + len(sentence.prefix) + sentence.num_forced
            if num_tokens > self._max_tokens:
                raise HTTPException(
                    413,
                    f"more than {self._max_tokens:,} tokens, at line {number} of {num_lines:,}; "
                    "send fewer lines at a time",
                )
        return encoded

    def _num_sentences(self, source: SourceSentence) -> int:
        separators = self._translator.task.separators
        if separators is None:
            return 1
        return max(1, int(np.count_nonzero(source.ids == separators.source)))

    def _encoded_target(self, line: str) -> SourceSentence:
        task = self._translator.task
        with self._translator.sources.text_lock:
            tokens = task.target_text.encode(line)
        return SourceSentence(task.target_ids(tokens), tokens)

    def _check_length(self, source: SourceSentence, subject: str) -> None:
        limit = self._translator.max_source_positions
        if limit is not None and source.num_read > limit:
            raise ConfigError(
                f"{subject} {source.num_read:,} tokens, but the model reads {limit:,}"
            )


def services_of(
    services: Sequence[TranslationService], source: str | None, target: str | None
) -> list[TranslationService]:
    """Return the services of a source and a target language. None stands for any language."""
    fitting = []
    for service in services:
        languages = service.languages
        if source in (None, languages.source) and target in (None, languages.target):
            fitting.append(service)
    return fitting


def weights_json(weights: np.ndarray, request: QueuedRequest) -> Iterator[bytes]:
    """Yield the weights as JSON, row by row, to let other threads run in between."""
    if weights.ndim == 1:
        request.check()
        row = np.round(weights.astype(np.float64), DECIMALS).tolist()
        yield json.dumps(row, allow_nan=False).encode()
        return
    for index, part in enumerate(weights):
        yield b", " if index else b"["
        yield from weights_json(part, request)
    yield b"]"
