"""Answers to requests: translations of documents, and their attention weights."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from relu_nmt.applications.serving.batcher import Batcher, Ticket, Turns
from relu_nmt.applications.serving.shown_attention import DECIMALS, Side, weights_json
from relu_nmt.attention.spec import SLOTS
from relu_nmt.data.documents import SINGLE_SENTENCES
from relu_nmt.data.groups import join_sentences
from relu_nmt.errors import ConfigError, ReluNmtError
from relu_nmt.translation.attention_maps import MOST_WEIGHTS, attention_of, slot_weights
from relu_nmt.translation.search.config import GenerationConfig, WindowConfig
from relu_nmt.translation.search.document_search import TranslatedDocuments
from relu_nmt.translation.search.translations import SourceSentence, Translation
from relu_nmt.translator import TranslationRequest, Translator

MOST_NUMBERS = 2**21
"""Most weights in one answer, which are some 15 MB of JSON."""
LARGE_NUMBERS = 2**17
"""Make answers with more weights than this one at a time."""
BATCH_TOKENS = 2048
"""Source tokens of a batch without ``--max-tokens``, for a second or two on a CPU."""


class TooLarge(ReluNmtError):
    """A request asks for more than the server allows."""


class TranslationService:
    """Answers requests with one translator; many threads may call its methods.

    Args:
        translator: the model.
        config: settings of the search, the same for all requests.
        windows: how to divide documents, unless a request says so.
        max_tokens: most tokens of a request, forced ones included.
        max_large: most requests that make a large answer or wait to do so.
        batcher: runs the model, in a thread of its own.
    """

    def __init__(
        self,
        translator: Translator,
        config: GenerationConfig,
        windows: WindowConfig,
        max_tokens: int,
        max_large: int,
        batcher: Batcher,
    ) -> None:
        self._translator = translator
        self._config = config
        self._windows = windows
        self._max_tokens = max_tokens
        self._batcher = batcher
        self._large_answers = Turns(max_large)
        # Tokenizers keep state while they split a text; joining tokens keeps none.
        self._text_lock = threading.Lock()

    def describe(self) -> dict[str, Any]:
        """Return the description of the model as JSON values."""
        translator = self._translator
        models = translator.models
        # Describe the attention of each slot by its first layer.
        slots = {}
        for slot in SLOTS:
            attention = attention_of(models[0], slot, 0)
            layers = (models[0].encoder if slot == "encoder" else models[0].decoder).layers
            slots[slot] = {
                "mechanism": str(models[0].config.attention_of(slot)),
                "layers": len(layers),
                "heads": attention.num_heads,
                # Offer the weights of a single model only, not of an ensemble.
                "has_weights": attention.capabilities.weights and len(models) == 1,
            }
        # Add the languages, the size and the defaults of the search.
        return {
            "source_lang": translator.task.source_lang,
            "target_lang": translator.task.target_lang,
            "parameters": sum(w.numel() for model in models for w in model.parameters()),
            "max_doc_tokens": self._windows.max_doc_tokens,
            "keeps_sentences": translator.task.has_sentence_separator,
            "beam": self._config.beam,
            "attention": slots,
        }

    def translate(
        self, request: TranslationRequest, max_doc_tokens: int | None, ticket: Ticket
    ) -> dict[str, Any]:
        """Return the translation of a document, as JSON values.

        Args:
            request: one document.
            max_doc_tokens: tokens to translate at once; by default as the server's flags say.
            ticket: the request's.

        Raises:
            TooLarge: too many tokens.
            ConfigError: the model cannot read a line or write so many sentences, or the search
                cannot force terms.
            DataError: the model cannot write a term, or a blank line has a prefix or terms.
        """
        # Encode the document.
        translator, windows = self._translator, self._windows
        [lines] = map(list, request.documents)
        sentences = self._read(translator.sources.sentences(request), len(lines), ticket)
        documents = translator.sources.documents(sentences, [len(lines)])
        # Divide it as the request says; single lines have no context.
        if max_doc_tokens is not None:
            overlap = 0 if max_doc_tokens == SINGLE_SENTENCES else windows.window_overlap
            windows = WindowConfig(max_doc_tokens, overlap, repair=True)

        # Check the length and the forced terms of each window before its search.
        def search(sources: Sequence[SourceSentence]) -> list[list[Translation]]:
            for source in sources:
                self._check_length(source, "lines to translate at once have")
                if source.forced.num_tokens and self._config.not_for_terms:
                    raise ConfigError(
                        f"this server runs with {self._config.not_for_terms}, which can force "
                        "neither terms nor a prefix behind the first line of several; leave them "
                        "out"
                    )
            return self._batcher.search(sources, ticket)

        # Search its windows in batches with those of other requests.
        found = translator.answer(documents, self._config, windows, search=search)
        return {
            "lines": list(found[0]),
            "groups": _groups(found),
            "source_tokens": int(documents.sizes.sum()),
            "target_tokens": sum(len(line.tokens) for line in found.lines[0]),
        }

    def attention(
        self,
        lines: Sequence[str],
        translation: Sequence[str],
        slot: str,
        line: int | None,
        ticket: Ticket,
    ) -> bytes:
        """Return the weights of a slot for a group of lines and any translation, as JSON.

        Args:
            lines: the lines of the group.
            translation: line by line, or as one line.
            slot: ``encoder``, ``decoder`` or ``cross``.
            line: give the rows of the tokens of this line only.
            ticket: the request's.

        Raises:
            TooLarge: too many tokens or weights.
            ConfigError: the slot has no weights, or there is no such line.
        """
        # Encode both sides, and check their lengths.
        request = TranslationRequest.of_lines(lines)
        sources = self._read(self._translator.sources.sentences(request), len(lines), ticket)
        written = map(self._encoded_target, translation)
        targets = self._read(written, len(translation), ticket, is_source=False)
        source = SourceSentence(join_sentences([own.ids for own in sources]))
        target = SourceSentence(join_sentences([own.ids for own in targets]))
        ensemble = self._translator.ensemble
        self._check_length(source, "lines to read at once have")
        if ensemble.max_positions is not None and len(target.ids) > ensemble.max_positions:
            raise ConfigError(
                f"the translation has {len(target.ids):,} tokens, but the model writes "
                f"{ensemble.max_positions:,}"
            )
        by_side = {
            "source": Side(lines, sources, self._translator.task.source_text),
            "target": Side(translation, targets, self._translator.task.target_text),
        }
        # Locate the tokens of queries and keys in the text.
        query_side = by_side["source" if slot == "encoder" else "target"]
        key_side = by_side["target" if slot == "decoder" else "source"]
        rows = query_side.rows(line)
        # Count the weights before the model computes them, and refuse too many.
        size = self._checked_size(slot, query_side, len(rows), key_side)
        queries, keys = query_side.tokens(ticket), key_side.tokens(ticket)
        if slot == "decoder":
            keys = [keys[-1], *keys[:-1]]  # the decoder reads the end symbol first
        # Compute the weights, [layers, heads, rows, keys], and write the JSON in parts.
        with self._large_answers.turn(ticket) if size > LARGE_NUMBERS else nullcontext():
            weights = self._batcher.run(
                lambda: slot_weights(ensemble, slot, source.ids, target.ids)[:, :, rows], ticket
            )
            head = {
                "queries": [queries[i].as_values() for i in rows],
                "keys": [token.as_values() for token in keys],
            }
            begin = json.dumps(head, ensure_ascii=False).removesuffix("}")
            return b"".join(
                [f'{begin}, "weights": '.encode(), *weights_json(weights, ticket), b"}"]
            )

    def _checked_size(self, slot: str, query_side: Side, num_rows: int, key_side: Side) -> int:
        """Return the number of weights in an answer.

        Raises:
            TooLarge: too many.
        """
        # The model computes all queries; the answer may have the rows of one line only.
        model = self._translator.models[0]
        layers = (model.encoder if slot == "encoder" else model.decoder).layers
        num_heads = len(layers) * attention_of(model, slot, 0).num_heads
        num_queries, num_keys = query_side.num_tokens, key_side.num_tokens
        if num_heads * num_queries * num_keys > MOST_WEIGHTS:
            raise TooLarge(
                f"{num_queries:,} and {num_keys:,} tokens are too many to show the attention of "
                "all layers; ask for fewer lines"
            )
        size = num_heads * num_rows * num_keys
        if size > MOST_NUMBERS:
            raise TooLarge(
                f"{size:,} weights are more than the {MOST_NUMBERS:,} of an answer; ask for a "
                "line, or for fewer"
            )
        return size

    def _read(
        self,
        sentences: Iterator[SourceSentence],
        num_lines: int,
        ticket: Ticket,
        is_source: bool = True,
    ) -> list[SourceSentence]:
        """Return sentences that are encoded one by one, and stop when they are too many.

        Raises:
            RequestGone: the request was given up.
            TooLarge: too many tokens.
            ConfigError: the model cannot read so long a line.
        """
        found, tokens = [], 0
        for number in range(1, num_lines + 1):
            ticket.check()
            # Let one thread at a time use the tokenizer, which keeps state.
            with self._text_lock:
                found.append(next(sentences))
            if is_source:
                self._check_length(found[-1], f"line {number} has")
            # Count forced tokens, as they make the search longer.
            tokens += len(found[-1].ids) + len(found[-1].prefix) + found[-1].forced.num_tokens
            if tokens > self._max_tokens:
                raise TooLarge(
                    f"more than {self._max_tokens:,} tokens, at line {number} of {num_lines:,}; "
                    "send fewer lines at a time"
                )
        return found

    def _encoded_target(self, line: str) -> SourceSentence:
        task = self._translator.task
        tokens = task.target_text.encode(line)
        ids = task.target_dictionary.encode(tokens)
        if task.separators is not None:  # a separator in the raw text is an unknown word
            words = ids[:-2]
            words[words == task.separators[1]] = task.target_dictionary.unk_index
        return SourceSentence(ids, tokens)

    def _check_length(self, source: SourceSentence, subject: str) -> None:
        limit = self._translator.max_source_positions
        if limit is not None and len(source.ids) > limit:
            raise ConfigError(
                f"{subject} {len(source.ids):,} tokens, but the model reads {limit:,}"
            )


def _groups(found: TranslatedDocuments) -> list[dict[str, Any]]:
    """Return the groups of lines that were translated at once, as JSON values."""
    return [
        {
            "first": own.window.first,
            "count": own.window.num_new,
            "lines": [line.text for line in own.lines],
            "score": round(own.translations[0].score, DECIMALS),
            "reached_limit": own.reached_limit,
        }
        for own in found.windows
    ]
