"""The tokens and weights of an attention as a request is answered with them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relu_nmt.applications.serving.batcher import Ticket
from relu_nmt.applications.serving.spans import Span, token_spans
from relu_nmt.errors import ConfigError
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.translation.search.translations import SourceSentence

DECIMALS = 4


@dataclass(frozen=True)
class ShownToken:
    """A token and where it stands.

    Args:
        text: as the model reads it.
        line: number of its line, from 0; None for the end symbol.
        span: its characters in this line.
    """

    text: str
    line: int | None
    span: Span

    def as_values(self) -> dict[str, Any]:
        """Return it as JSON values."""
        begin, end = self.span
        return {"text": self.text, "line": self.line, "begin": begin, "end": end}


@dataclass(frozen=True)
class Side:
    """The lines of a group, or their translations.

    Args:
        lines: raw text.
        sentences: the same as the model reads it.
        text: how one is made of the other.
    """

    lines: Sequence[str]
    sentences: Sequence[SourceSentence]
    text: TextPipeline

    @property
    def num_tokens(self) -> int:
        """All tokens, the end symbol included."""
        return sum(len(own.tokens) for own in self.sentences) + 1

    def rows(self, line: int | None) -> list[int]:
        """Return the indices of the tokens of a line, or of all tokens.

        Raises:
            ConfigError: the line has none.
        """
        if line is None:
            return list(range(self.num_tokens))
        counts = [len(own.tokens) for own in self.sentences]
        begin = sum(counts[:line])
        rows = list(range(begin, begin + sum(counts[line : line + 1])))
        if not rows:
            raise ConfigError(f"line {line}: no token stands there; lines count from 0")
        return rows

    def tokens(self, ticket: Ticket) -> list[ShownToken]:
        """Return the tokens and where they stand, the end symbol last.

        Raises:
            RequestGone: the request is given up.
        """
        shown = []
        for number, (line, own) in enumerate(zip(self.lines, self.sentences, strict=True)):
            ticket.check()
            spans = token_spans(line, own.tokens, self.text)
            shown += [ShownToken(t, number, s) for t, s in zip(own.tokens, spans, strict=True)]
        return [*shown, ShownToken("</s>", None, Span(0, 0))]


def weights_json(weights: np.ndarray, ticket: Ticket) -> Iterator[bytes]:
    """Yield the weights as JSON, row by row, so that other threads have their turn.

    Raises:
        RequestGone: the request is given up.
    """
    if weights.ndim == 1:
        ticket.check()
        yield json.dumps(
            np.round(weights.astype(np.float64), DECIMALS).tolist(), allow_nan=False
        ).encode()
        return
    for index, part in enumerate(weights):
        yield b", " if index else b"["
        yield from weights_json(part, ticket)
    yield b"]"
