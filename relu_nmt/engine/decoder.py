"""The fast decoder, with the results of :class:`StepDecoder`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.engine import native
from relu_nmt.engine.layers import FastCache, LayersKernel, StepView
from relu_nmt.engine.linear import PanelLinear
from relu_nmt.translation.base import NextTokenScores, SearchStep, StepDecoder
from relu_nmt.translation.decoder_state import DecoderState, LayerCache
from relu_nmt.translation.encoder_decoder import EncoderDecoder

MAX_COMPUTED_SHARE = 0.95
"""Leave out dead beams only if at most this fraction of all beams goes on."""


@dataclass
class FastScores(NextTokenScores):
    """Scores whose best continuations a kernel finds, for all beams or the computed ones."""

    # [B, K] bool, True = computed beam. ``log_probs`` then has these beams alone, [1, N, V].
    # None: all beams.
    is_computed: Tensor | None = None

    def of_all_beams(self) -> "FastScores":
        """Return the scores of all beams. Dead beams get the scores of another beam."""
        if self.is_computed is None:
            return self
        # Map each beam to the computed beam at or before it.
        index = self.is_computed.flatten().cumsum(0).sub_(1).clamp_min_(0)
        log_probs = self.log_probs[0, index].view(*self.is_computed.shape, -1)
        return replace(self, log_probs=log_probs, is_computed=None)

    def best_continuations(self, totals: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the best continuations, found by a kernel where it can.

        If there are fewer than ``count`` continuations, the sums of further ones are -inf.
        """
        # Leave other dtypes and many threads to PyTorch.
        log_probs = self.log_probs
        if not (log_probs.is_cpu and log_probs.dtype == torch.float32 and native.is_wanted()):
            return super().best_continuations(totals, count)
        log_probs = log_probs.contiguous()
        totals = totals.float().contiguous()
        batch, beam_size = totals.shape
        vocab_size = log_probs.size(2)
        count = min(count, beam_size * vocab_size)
        sums = totals.new_empty(batch, count)
        tokens = torch.empty(sums.shape, dtype=torch.int64)
        parents = torch.empty_like(tokens)
        values = {
            "log_probs": log_probs,
            "picked": None if self.is_computed is None else _indices_of(self.is_computed),
            "totals": totals,
            "best_totals": sums,
            "best_tokens": tokens,
            "best_parents": parents,
            "rows": log_probs.size(0) * log_probs.size(1),
            "sentences": batch,
            "beams": beam_size,
            "symbols": vocab_size,
            "count": count,
        }
        native.call("best_continuations", [("BestContinuations", values)])
        return sums, parents, tokens


class FastDecoder(StepDecoder):
    """A decoder of a model on a CPU, with packed weights (see :func:`relu_nmt.engine.install`).

    One call of a kernel computes all layers for all searches, if the kernel supports the layers.
    Otherwise the model's own layers compute each search.
    """

    model: EncoderDecoder

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__(model)
        layers = model.decoder.layers
        self.layers_kernel = None
        if native.library() is not None and LayersKernel.supports(layers):
            self.layers_kernel = LayersKernel(layers)

    def start(
        self, src_tokens: Tensor, num_groups: int = 1, symbols: Tensor | None = None
    ) -> DecoderState:
        state: DecoderState = super().start(src_tokens, num_groups, symbols)
        if all(type(cache) is LayerCache for cache in state.caches):
            state.caches = [FastCache(*cache.source) for cache in state.caches]
        return state

    def projection_to(self, symbols: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a map with the symbols' rows of the weight only."""
        projection = self.model.output_projection
        if isinstance(projection, PanelLinear):
            part = projection.restricted_to(symbols)
            return lambda states: part(states).float()
        linear = cast(nn.Linear, projection)
        weight = linear.weight[symbols]  # [V', D]
        bias = None if linear.bias is None else linear.bias[symbols]
        return lambda states: F.linear(states, weight, bias).float()

    def step(
        self, steps: Sequence[SearchStep], temperature: float = 1.0, want_weights: bool = False
    ) -> list[NextTokenScores]:
        computed: list[Tensor | None] = []
        sizes: list[int] = []
        for step in steps:
            rows = _computed_beams(step)
            computed.append(rows)
            sizes.append(step.tokens.numel() if rows is None else len(rows))
        kernel = self.layers_kernel
        if kernel is None or want_weights or not kernel.takes(steps, sum(sizes)):
            return super().step(steps, temperature, want_weights)
        # Map the newest tokens of all searches through the layers, as rows [1, N, D].
        embedded = []
        views = []
        for step, rows in zip(steps, computed, strict=True):
            x, view = self._begin(step, rows)
            embedded.append(x)
            views.append(view)
        states = self.model.decoder.final_norm(kernel(torch.cat(embedded, dim=1), views))
        # Project to logits: in one product unless a search has a list of symbols.
        if all(step.state.symbols is None for step in steps):
            logits = self.model.logits(states).split(sizes, dim=1)
        else:
            parts = zip(states.split(sizes, dim=1), steps, strict=True)
            logits = tuple(self.logits(part, step.state) for part, step in parts)
        scores: list[NextTokenScores] = []
        for step, rows, values in zip(steps, computed, logits, strict=True):
            log_probs = log_softmax(values, temperature)
            if rows is None:
                scores.append(FastScores(log_probs.view(*step.tokens.shape, -1)))
            else:
                scores.append(FastScores(log_probs, is_computed=step.is_live))
        return scores

    def _begin(self, step: SearchStep, rows: Tensor | None) -> tuple[Tensor, StepView]:
        """Embed the newest tokens of a search, [1, N, D]. Return also the view of its step."""
        decoder = self.model.decoder
        state = step.state
        x, visibility = decoder.embed_step(self.tokens(step), state)
        num_trees = len(x)
        x = x.reshape(1, -1, x.size(-1))  # [1, B K, D]
        if rows is not None:
            x = x.index_select(1, rows)
        view = StepView(
            num_rows=x.size(1),
            num_trees=num_trees,
            computed=rows,
            visibility=visibility,
            relative=decoder.embedding.positions.relative(visibility),
            memory_visibility=state.cross_visibility,
            caches=cast(Sequence[FastCache], state.caches),
        )
        return x, view

    def scores(self, states: Tensor, step: SearchStep, temperature: float) -> NextTokenScores:
        rows = _computed_beams(step)
        if rows is None:
            return FastScores(log_softmax(self.logits(states, step.state), temperature))
        states = states.reshape(1, -1, states.size(-1)).index_select(1, rows)
        log_probs = log_softmax(self.logits(states, step.state), temperature)
        return FastScores(log_probs, is_computed=step.is_live)


def _computed_beams(step: SearchStep) -> Tensor | None:
    """Return the rising indices [N] int64 of the live beams among all B K. None: compute all."""
    if step.is_live is None:
        return None
    rows = _indices_of(step.is_live)
    pays = 0 < len(rows) <= MAX_COMPUTED_SHARE * step.is_live.numel()
    return rows if pays else None


def _indices_of(beams: Tensor) -> Tensor:
    """Return the rising indices [N] int64 of the marked beams [B, K] among all."""
    return beams.flatten().nonzero().squeeze(1)


def log_softmax(logits: Tensor, temperature: float) -> Tensor:
    """Turn logits [..., V] float32 into log-probabilities, in place."""
    if temperature != 1.0:
        logits /= temperature
    # Work in place: on a CPU new memory of this size costs as much as the exponentials.
    if logits.dtype == torch.float32 and logits.is_contiguous() and native.is_wanted():
        num_symbols = logits.size(-1)
        num_rows = logits.numel() // num_symbols
        values = {"logits": logits, "rows": num_rows, "symbols": num_symbols}
        native.call("log_softmax", [("LogSoftmax", values)])
        return logits
    return torch.log_softmax(logits, dim=-1, out=logits)
