"""What the server does with the text of a request: limits, documents, attention."""

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from relu_nmt.applications.serving.batcher import Batcher, Ticket, Turns
from relu_nmt.applications.serving.shown_attention import DECIMALS, Side, weights_json
from relu_nmt.attention.spec import SLOTS
from relu_nmt.data.documents import SINGLE_SENTENCES
from relu_nmt.data.groups import join_sentences
from relu_nmt.errors import ConfigError, ReluNmtError
from relu_nmt.translation.attention_maps import MOST_WEIGHTS, attention_of, slot_weights
from relu_nmt.translation.search.config import GenerationConfig, WindowConfig
from relu_nmt.translation.search.document_search import (
    DocumentSearch,
    SourceDocuments,
    TranslatedDocuments,
)
from relu_nmt.translation.search.translations import SourceSentence, Translation
from relu_nmt.translator import Translator

MOST_NUMBERS = 2**21
"""Weights in one answer: some 15 MB of JSON."""
LARGE_NUMBERS = 2**17
"""Weights of an answer above which such answers are made one at a time."""
BATCH_TOKENS = 2048
"""Source tokens of a batch where ``--max-tokens`` does not say it: a second or two on a CPU."""


class TooLarge(ReluNmtError):
    """A request asks for more than the server allows."""


@dataclass(frozen=True)
class Constraints:
    """What translations must and must not have; see :meth:`Translator.translate`.

    Args:
        prefixes: what the translation of each line begins with; None for nothing.
        forced: terms of each line; None for none.
        ordered: whether they come in this order.
        banned: terms that no translation may have.
    """

    prefixes: Sequence[str] | None = None
    forced: Sequence[Sequence[str]] | None = None
    ordered: bool = True
    banned: Sequence[str] = ()

    def check(self, num_lines: int) -> None:
        """See that there is something for each line.

        Raises:
            ConfigError: there is not.
        """
        for name, given in (("prefixes", self.prefixes), ("forced", self.forced)):
            if given is not None and len(given) != num_lines:
                raise ConfigError(f"{name}: {len(given)}, but {num_lines} lines; give one for each")


NO_CONSTRAINTS = Constraints()


class TranslationService:
    """Answers requests with one translator; its methods may be called from many threads.

    Args:
        translator: has the model.
        config: settings of the search, the same for all requests.
        windows: how documents are divided where a request does not say it.
        max_tokens: most source tokens of a request.
        max_large: most requests for large answers at a time, of which one is made.
        batcher: runs what needs the model.
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
        self._text_lock = threading.Lock()  # tokenisers are not made for several threads

    def describe(self) -> dict[str, Any]:
        """Return what is to be known of the model, as JSON values."""
        translator = self._translator
        models = translator.models
        slots = {}
        for slot in SLOTS:
            attention = attention_of(models[0], slot, 0)
            layers = (models[0].encoder if slot == "encoder" else models[0].decoder).layers
            slots[slot] = {
                "mechanism": str(models[0].config.attention_of(slot)),
                "layers": len(layers),
                "heads": attention.num_heads,
                "has_weights": attention.capabilities.weights and len(models) == 1,
            }
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
        self,
        lines: Sequence[str],
        max_doc_tokens: int | None,
        ticket: Ticket,
        constraints: Constraints = NO_CONSTRAINTS,
    ) -> dict[str, Any]:
        """Return the translation of a document, as JSON values.

        Args:
            lines: of the document.
            max_doc_tokens: tokens to translate at once; as the server's flags say by default.
            ticket: the request's.
            constraints: what the translations must and must not have.

        Raises:
            TooLarge: too many tokens.
            ConfigError: a line, or a sentence count, that the model cannot do, or terms that the
                search cannot force.
            DataError: a term that it cannot write, or something forced in a blank line.
        """
        sources = self._encode_constrained(lines, constraints, ticket)
        sizes = np.array([len(source.ids) for source in sources], dtype=np.int64)
        counts, task = np.array([len(lines)]), self._translator.task
        documents = SourceDocuments(sources, counts, sizes, task.separators)

        def search(asked: Sequence[SourceSentence]) -> list[list[Translation]]:
            for source in asked:
                self._check_line(source, "lines to translate at once have")
                if source.forced.num_tokens and self._config.not_for_terms:
                    raise ConfigError(
                        f"this server runs with {self._config.not_for_terms}, which can force "
                        "neither terms nor a prefix behind the first line of several; leave them "
                        "out"
                    )
            return self._batcher.search(asked, ticket)

        windows, positions = self._windows, self._translator.ensemble.max_positions
        if max_doc_tokens is not None:
            overlap = 0 if max_doc_tokens == SINGLE_SENTENCES else windows.window_overlap
            windows = WindowConfig(max_doc_tokens, overlap, repair=True)
        planned = DocumentSearch(documents, windows, self._config, positions, self._decode)
        found = planned.run(search)
        return {
            "lines": list(found[0]),
            "groups": _groups(found),
            "source_tokens": int(sizes.sum()),
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
        """Return the weights of a slot for lines that are translated at once, and a translation.

        Args:
            lines: of one group.
            translation: any translation, line by line or as one line.
            slot: ``encoder``, ``decoder`` or ``cross``.
            line: give the rows of the tokens of this line only.
            ticket: the request's.

        Returns:
            JSON.

        Raises:
            TooLarge: too many tokens or weights.
            ConfigError: nothing to show in this slot, or no such line.
        """
        sources = self._encode(lines, ticket, self._translator.sources.sentence)
        targets = self._encode(translation, ticket, self._encoded_target, is_source=False)
        source = SourceSentence(join_sentences([own.ids for own in sources]))
        target = SourceSentence(join_sentences([own.ids for own in targets]))
        ensemble = self._translator.ensemble
        self._check_line(source, "lines to read at once have")
        if ensemble.max_positions is not None and len(target.ids) > ensemble.max_positions:
            raise ConfigError(
                f"the translation has {len(target.ids):,} tokens, but the model writes "
                f"{ensemble.max_positions:,}"
            )
        by_side = {
            "source": Side(lines, sources, self._translator.task.source_text),
            "target": Side(translation, targets, self._translator.task.target_text),
        }
        of_queries = by_side["source" if slot == "encoder" else "target"]
        of_keys = by_side["target" if slot == "decoder" else "source"]
        rows = of_queries.rows(line)
        size = self._checked_size(slot, of_queries, len(rows), of_keys)
        queries, keys = of_queries.tokens(ticket), of_keys.tokens(ticket)
        if slot == "decoder":
            keys = [keys[-1], *keys[:-1]]  # what each token is predicted from
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

    def _checked_size(self, slot: str, of_queries: Side, num_rows: int, of_keys: Side) -> int:
        """Return how many weights an answer has.

        Raises:
            TooLarge: too many.
        """
        model = self._translator.models[0]
        layers = (model.encoder if slot == "encoder" else model.decoder).layers
        num_heads = len(layers) * attention_of(model, slot, 0).num_heads
        num_queries, num_keys = of_queries.num_tokens, of_keys.num_tokens
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

    def _encode_constrained(
        self, lines: Sequence[str], constraints: Constraints, ticket: Ticket
    ) -> list[SourceSentence]:
        """Return lines to translate, with what their translations must and must not have."""
        constraints.check(len(lines))
        sources = self._translator.sources
        with self._text_lock:
            banned = sources.banned_ids(constraints.banned)
        prefixes, forced = iter(constraints.prefixes or ()), iter(constraints.forced or ())
        return self._encode(
            lines,
            ticket,
            lambda line: sources.sentence(
                line, next(prefixes, ""), banned, next(forced, ()), constraints.ordered
            ),
        )

    def _encode(
        self,
        lines: Sequence[str],
        ticket: Ticket,
        encode: Callable[[str], SourceSentence],
        is_source: bool = True,
    ) -> list[SourceSentence]:
        """Return lines as the model reads them, while they are not too many."""
        found, tokens = [], 0
        for number, line in enumerate(lines, 1):
            ticket.check()
            with self._text_lock:
                found.append(encode(line))
            if is_source:
                self._check_line(found[-1], f"line {number} has")
            # What is forced makes the search longer.
            tokens += len(found[-1].ids) + len(found[-1].prefix) + found[-1].forced.num_tokens
            if tokens > self._max_tokens:
                raise TooLarge(
                    f"more than {self._max_tokens:,} tokens, at line {number} of {len(lines):,}; "
                    "send fewer lines at a time"
                )
        return found

    def _encoded_target(self, line: str) -> SourceSentence:
        task = self._translator.task
        tokens = task.target_text.encode(line)
        ids = task.target_dictionary.encode(tokens)
        if task.separators is not None:  # what looks like a separator in the text is none
            words = ids[:-2]
            words[words == task.separators[1]] = task.target_dictionary.unk_index
        return SourceSentence(ids, tokens)

    def _check_line(self, source: SourceSentence, what: str) -> None:
        limit = self._translator.max_source_positions
        if limit is not None and len(source.ids) > limit:
            raise ConfigError(f"{what} {len(source.ids):,} tokens, but the model reads {limit:,}")

    def _decode(self, tokens: Sequence[str]) -> str:
        with self._text_lock:
            return self._translator.task.target_text.decode(tokens)


def _groups(found: TranslatedDocuments) -> list[dict[str, Any]]:
    """Return which lines were translated at once, and what became of them."""
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
