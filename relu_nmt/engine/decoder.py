"""The fast decoder, with the results of :class:`StepDecoder`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.base import Need
from relu_nmt.attention.records import AttentionRecord, record_attention
from relu_nmt.engine import native
from relu_nmt.engine.layers import FastCache, LayersKernel, StepView
from relu_nmt.modules.transformer_layer import TransformerLayer
from relu_nmt.translation.decoder_state import DecoderState
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.step_decoder import SearchStep, StepDecoder, StepScores

MAX_COMPUTED_SHARE = 0.95
"""Leave out dead beams only if at most this fraction of all beams goes on."""
# Selecting rows has a cost of its own. AMD EPYC, 2026-11-24, command not recorded.

ONEDNN_ROW_MULTIPLE = 16
"""Fill up the computed beams to a multiple of this where oneDNN computes the products.

oneDNN compiles products for each new number of rows."""
# A multiple of 32 took 7 % more time, with hand-written code; see docs/lab/decoding.md.


class FastScores(StepScores):
    """Scores whose best continuations a kernel finds, for all beams or the computed ones."""

    def best_continuations(self, totals: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """See :meth:`StepScores.best_continuations`; missing ones have the sum -inf, symbol 0."""
        # Leave GPUs, other dtypes and many threads to PyTorch.
        log_probs, rows = self.log_probs, self.rows
        if not (log_probs.is_cpu and log_probs.dtype == torch.float32 and native.is_wanted()):
            return super().best_continuations(totals, count)
        # Expand scores that all beams share, as in the first step, to [B, K, V].
        if rows is None:
            log_probs = log_probs.expand(-1, totals.size(1), -1)
        log_probs, totals = log_probs.contiguous(), totals.float().contiguous()
        (batch, beam_size), vocab_size = totals.shape, log_probs.size(2)
        count = min(count, beam_size * vocab_size)
        sums = totals.new_empty(batch, count)
        tokens, parents = (torch.empty(sums.shape, dtype=torch.int64) for _ in range(2))
        values = {
            "log_probs": log_probs,
            "picked": rows,
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
    """A decoder that computes the searches of a model together, without their dead beams.

    Layers with packed weights (see :func:`relu_nmt.engine.install`) take one call of a kernel for
    all of them, if the kernel supports their kind.
    """

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__(model)
        layers = model.decoder.layers
        fits = native.library() is not None and LayersKernel.fits(layers)
        self.layers_kernel = LayersKernel(layers) if fits else None

    @property
    def prunes(self) -> bool:
        """See :class:`StepDecoder`: on GPUs dead beams cost less than finding them."""
        return self.model.encoder.embedding.tokens.weight.is_cpu

    def start(
        self, src_tokens: Tensor, num_groups: int = 1, shortlist: Tensor | None = None
    ) -> DecoderState:
        """See :meth:`StepDecoder.start`."""
        project = None
        if shortlist is not None:
            project = projection_to(self.model.output_projection, shortlist)
        encoder_out = self.model.encoder(src_tokens)
        return self.model.decoder.start(encoder_out, num_groups, FastCache, shortlist, project)

    def step(
        self, steps: Sequence[SearchStep], temperature: float = 1.0, want_weights: bool = False
    ) -> list[StepScores]:
        """See :meth:`StepDecoder.step`."""
        # Map the newest tokens of all searches through the layers, as rows [1, N, D].
        embedded, views = zip(*map(self._begin, steps), strict=True)
        x, weights = self._through_layers(_joined(embedded), views, want_weights)
        # Project to logits: in one product unless a search has a shortlist of its own.
        sizes, project = [view.num_rows for view in views], self.model.output_projection
        if all(step.state.shortlist is None for step in steps):
            logits = project(x).float().split(sizes, dim=1)
        else:
            logits = tuple(
                (step.state.project or project)(own).float()
                for own, step in zip(x.split(sizes, dim=1), steps, strict=True)
            )
        # Return to one set of scores [B, K, V] or [1, N, V] per search.
        scores: list[StepScores] = []
        for step, own, view, weight in zip(steps, logits, views, weights, strict=True):
            shape = step.tokens.shape if view.rows is None else (1, view.num_rows)
            log_probs = log_softmax(own.view(*shape, -1), temperature)
            scores.append(FastScores(log_probs, weight, view.rows))
        return scores

    def _begin(self, step: SearchStep) -> tuple[Tensor, StepView]:
        """Embed the newest tokens of a search, [1, N, D]; return also what its rows may see."""
        decoder, state = self.model.decoder, step.state
        # Translate indices into a shortlist back to ids of the dictionary.
        tokens = step.tokens if state.shortlist is None else state.shortlist[step.tokens]
        x, visibility = decoder.embed_step(tokens, state)
        x = x.reshape(1, -1, x.size(-1))  # [1, B K, D]
        # Leave out dead beams if that is worth it, [1, N, D]; fill up only for oneDNN,
        # since own kernels take any number.
        rows = given = None
        if step.rows is not None and len(step.rows) <= MAX_COMPUTED_SHARE * x.size(1):
            own_products = native.is_wanted() and native.has_kernel("linear_float")
            multiple = 1 if own_products else ONEDNN_ROW_MULTIPLE
            rows, given = computed_beams(step.rows, x.size(1), multiple) or (None, None)
        if rows is not None:
            x = x.index_select(1, rows)
        # Compute the positions' rotation and bias once, for all layers.
        relative, across = decoder.relative(visibility), state.cross_visibility
        return x, StepView(x.size(1), rows, given, visibility, relative, across, state.caches)

    def _through_layers(
        self, x: Tensor, views: Sequence[StepView], want_weights: bool
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Return the final states [1, N, D], and each search's alignment weights, if wanted."""
        # Compute all layers in one call of the kernel, if it can.
        decoder, kernel = self.model.decoder, self.layers_kernel
        weights: list[Tensor | None] = [None] * len(views)
        if kernel is not None and not want_weights and kernel.takes(x, views):
            return decoder.final_norm(kernel(x, views)), weights
        # Otherwise compute layer by layer, recording weights where they are wanted.
        for i, layer in enumerate(decoder.layers):
            cross = layer.cross_attention
            aligns = cross is not None and cross.attention is decoder.aligning_attention
            x, records = _step_layer(layer, i, x, views, want_weights and aligns)
            if records:
                weights = [decoder.alignment_weights(record) for record in records]
        return decoder.final_norm(x), weights


def computed_beams(rows: Tensor, num_beams: int, multiple: int) -> tuple[Tensor, Tensor] | None:
    """Return the beams to compute, with dead ones up to a multiple; None: all beams.

    ``rows`` are the live beams among all ``num_beams``, rising, int64. The results are ``rows`` and
    ``given`` of :class:`StepView`.

    Example:
        >>> rows, given = computed_beams(torch.arange(0, 32, 2), 32, 1)
        >>> rows[:4].tolist(), given[:4].tolist()
        ([0, 2, 4, 6], [0, 0, 1, 1])
    """
    live = torch.zeros(num_beams, dtype=torch.bool, device=rows.device).index_fill_(0, rows, True)
    dead = (~live).nonzero().squeeze(1)
    more = -len(rows) % multiple
    # Compute all beams if dead ones are too few, or all are dead.
    if len(dead) <= more or len(rows) == 0:
        return None
    if more:
        live = live.index_fill(0, dead[:more], True)
        rows = live.nonzero().squeeze(1)
    # Give each dead beam the computed one before it.
    return rows, (live.cumsum(0) - 1).clamp_min(0)


def _step_layer(
    layer: TransformerLayer, number: int, x: Tensor, views: Sequence[StepView], want_weights: bool
) -> tuple[Tensor, list[AttentionRecord]]:
    """Map the newest tokens' states x [1, N, D], row by row of all searches, through a layer.

    Attention goes search by search, with caches of the layer's ``number``. ``want_weights`` also
    gives a record of each cross-attention.
    """
    own, cross = layer.self_attention, layer.cross_attention
    assert cross is not None, "decoders attend to an encoder"
    sizes, records = [view.num_rows for view in views], []
    # Self-attention: project all rows, attend from all beams, select the computed ones.
    residual = layer.self_attention_residual
    y = residual.before(x)
    made = []
    for part, view in zip(own.qkv(y).split(sizes, dim=1), views, strict=True):
        visible, cache = view.visibility, view.caches[number]
        every = view.beams(part, visible.num_queries)  # [R, k, 3 D]
        made.append(view.computed(own.values(every, visible, view.relative, cache)))
    x = residual.add(x, own.finish(_joined(made), y))
    # Cross-attention, likewise.
    residual = layer.cross_attention_residual
    y = residual.before(x)
    made = []
    for part, view in zip(cross.q(y).split(sizes, dim=1), views, strict=True):
        visible, cache = view.memory_visibility, view.caches[number]
        every = view.beams(part, visible.num_queries)  # [B, K, D]
        with record_attention(cross.attention, Need(weights=want_weights)) as found:
            made.append(view.computed(cross.values(every, visible, cache)))
        records += found[:1]  # gated aligned attention has a second record, of the whole document
    x = residual.add(x, cross.finish(_joined(made), y))
    residual = layer.feed_forward_residual
    return residual.add(x, layer.feed_forward(residual.before(x))), records


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)


def log_softmax(logits: Tensor, temperature: float) -> Tensor:
    """Turn logits [..., V] float32 into log-probabilities, in place."""
    if temperature != 1.0:
        logits /= temperature
    # Work in place: on a CPU new memory of this size costs as much as the exponentials.
    if logits.is_cpu and logits.is_contiguous() and native.is_wanted():
        symbols = logits.size(-1)
        rows = logits.numel() // symbols
        values = {"logits": logits, "rows": rows, "symbols": symbols}
        native.call("log_softmax", [("LogSoftmax", values)])
        return logits
    return torch.log_softmax(logits, dim=-1, out=logits)


def projection_to(projection: nn.Module, symbols: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the map from states to the logits of these symbols [V'] only."""
    # Ask the module itself first: packed and 8-bit maps select rows of their own.
    rows = getattr(projection, "rows", None)
    if rows is not None:
        return rows(symbols)
    # Select the rows of the weight, [V', D], and of the bias.
    linear = cast(nn.Linear, projection)
    bias = None if linear.bias is None else linear.bias[symbols]
    return partial(F.linear, weight=linear.weight[symbols], bias=bias)
