"""The interface of translation models: states for training, and steps for a search.

A search calls ``start`` and ``step`` of a :class:`StepDecoder`, and ``reorder`` and ``keep`` of the
state that ``start`` returned. :func:`relu_nmt.engine.install` makes a faster decoder with the same
results. An :class:`Ensemble` lets several models decode as one.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from relu_nmt.attention.base import Attention, Need
from relu_nmt.attention.records import AttentionRecord, record_attention
from relu_nmt.data.batch_plan import least_limit
from relu_nmt.errors import ConfigError
from relu_nmt.translation.config import TransformerConfig

BLOCK = 64  # columns of the vocabulary per block. The maxima of blocks narrow the search.


class SearchState:
    """A model's memory of the hypotheses of one search.

    Attributes:
        symbols: ids of the only symbols that the search may write, int64 [V']. None: all.
        project: maps states [..., D] to the logits [..., V'] of these symbols. None: all symbols.
    """

    symbols: Tensor | None = None
    project: Callable[[Tensor], Tensor] | None = None

    def reorder(self, parents: Tensor) -> None:
        """Let beam k of sentence b continue beam ``parents[b, k]`` [B, K] int64 of its group."""
        raise TypeError(f"{type(self).__name__} must define reorder")

    def keep(self, sentences: Tensor) -> None:
        """Keep only the sentences with these indices [B'], in this order."""
        raise TypeError(f"{type(self).__name__} must define keep")


class TranslationModel(nn.Module):
    """A model of target sentences given source sentences.

    Training calls :meth:`forward` and :meth:`logits`. A search calls :meth:`start`, :meth:`step`
    and :meth:`logits`, and ``reorder`` and ``keep`` of the state. Both ways give the same logits.

    A subclass is registered in ``translation_models`` and takes (config, source_vocab_size,
    target_vocab_size, pad_index, separators), as :class:`EncoderDecoder` does. A subclass with
    options names its settings class ``Config`` and takes an instance as a further argument. Every
    subclass makes ``output_projection``, which maps states [..., D] to scores [..., V].
    """

    output_projection: nn.Module

    def __init__(self, config: TransformerConfig, pad_index: int) -> None:
        super().__init__()
        self.config = config
        self.pad_index = pad_index

    def forward(self, src_tokens: Tensor, prev_output_tokens: Tensor) -> Tensor:
        """Return the states [B, T, D] of all target positions (teacher forcing).

        Sources [B, S] int64 are right-padded and end in the end symbol. ``prev_output_tokens``
        [B, T] int64 are the right-padded targets, shifted right: they begin with the end symbol.
        """
        raise TypeError(f"{type(self).__name__} must define forward")

    def logits(self, features: Tensor) -> Tensor:
        """Return the scores [..., V] in float32 of features [..., D]."""
        return self.output_projection(features).float()

    def start(self, src_tokens: Tensor, num_groups: int = 1) -> Any:
        """Read the sources [B, S], and return the :class:`SearchState` before the first token.

        Beams of different groups never mix.
        """
        raise TypeError(f"{type(self).__name__} must define start")

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Add the newest tokens [B, K] of all beams to a state, and return their states [B, K, D].

        The tokens of the first step are the end symbol. The first step gives the number of beams.
        """
        raise TypeError(f"{type(self).__name__} must define step")

    def most_tokens(self, side: str, of_sentence: bool = False) -> int | None:
        """Return the limit of tokens of the side ``source`` or ``target``, end symbol included.

        The limit is for a document, or for each sentence in it. None: unlimited.
        """
        return None

    @property
    def aligning_attention(self) -> Attention:
        """The attention that aligns target with source tokens (ConfigError: there is none)."""
        raise ConfigError(
            f"--translation-model {self.config.translation_model} has no attention from target to "
            "source, which alignments, coverage and shown weights need; leave them out"
        )

    def alignment_weights(self, record: AttentionRecord) -> Tensor:
        """Return the mean weights [B, T, S] over the aligning heads, from their record."""
        raise TypeError(f"{type(self).__name__} must define alignment_weights")


@dataclass(frozen=True)
class SearchStep:
    """The newest tokens of one search."""

    tokens: Tensor  # [B, K] int64, the newest token of each beam
    state: Any  # the search's :class:`SearchState`, which :meth:`StepDecoder.step` advances
    # [B, K] bool, True = beam with a live hypothesis. None: all. Nothing reads the scores of dead
    # beams, so that a decoder may leave them out.
    is_live: Tensor | None = None


@dataclass
class NextTokenScores:
    """Scores of the next tokens of one search.

    A decoder that leaves out dead beams has a subclass, whose ``log_probs`` have another shape.
    """

    log_probs: Tensor  # [B, K, V] float32, which the search may change
    weights: Tensor | None = None  # [B, K, S], the attention weights that align tokens, if wanted

    def of_all_beams(self) -> "NextTokenScores":
        """Return scores [B, K, V]. Dead beams may have any scores."""
        return self

    def best_continuations(self, totals: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the best sums of a beam's total and a token's log-probability.

        A top-k over all K V sums is slow. The best C sums lie in the C blocks of columns with the
        highest maxima, so it is enough to search these blocks.

        Args:
            totals: [B, K] log-probabilities of the beams so far. -inf for dead beams.
            count: C, number of continuations. At most K V exist.

        Returns:
            sums [B, C], best first, their beams and their tokens, int64 [B, C].
        """
        log_probs = self.of_all_beams().log_probs
        beam_size, vocab_size = log_probs.shape[1:]
        count = min(count, beam_size * vocab_size)
        num_blocks = -(-vocab_size // BLOCK)
        # Search all sums where blocks would save nothing.
        if num_blocks <= 4 or num_blocks * beam_size <= count:
            sums, columns = (log_probs + totals[:, :, None]).flatten(1).topk(count, dim=1)
            return sums, columns // vocab_size, columns % vocab_size
        # Take the maximum of each block, [B, K, blocks], and choose the best blocks, [B, C].
        num_full = vocab_size // BLOCK
        maxima = log_probs[:, :, : num_full * BLOCK].unflatten(2, (num_full, BLOCK)).amax(3)
        if num_full < num_blocks:
            last_maximum = log_probs[:, :, num_full * BLOCK :].amax(2, keepdim=True)
            maxima = torch.cat([maxima, last_maximum], dim=2)
        blocks = (maxima + totals[:, :, None]).flatten(1).topk(count, dim=1, sorted=False).indices
        # Search the columns of these blocks, [B, C, BLOCK]. The last block may end early.
        steps = torch.arange(BLOCK, device=log_probs.device)
        tokens = (blocks % num_blocks * BLOCK)[:, :, None] + steps
        beams = (blocks // num_blocks)[:, :, None].expand_as(tokens).flatten(1)
        # Exclude columns behind the vocabulary, for which the clamp repeats the last one.
        outside = (tokens >= vocab_size).flatten(1)
        columns = beams * vocab_size + tokens.clamp(max=vocab_size - 1).flatten(1)
        sums = log_probs.flatten(1).gather(1, columns) + totals.gather(1, beams)
        sums, index = sums.masked_fill_(outside, -torch.inf).topk(count, dim=1)
        # Split each of the K V columns into beam and token.
        columns = columns.gather(1, index)
        return sums, columns // vocab_size, columns % vocab_size


class StepDecoder:
    """A decoder that computes every beam of every search with the model's own layers."""

    def __init__(self, model: TranslationModel) -> None:
        self.model = model

    def start(self, src_tokens: Tensor, num_groups: int = 1, symbols: Tensor | None = None) -> Any:
        """Encode the sources and return the :class:`SearchState` of a new search.

        Args:
            src_tokens: [B, S] int64, right-padded, each ending in the end symbol.
            num_groups: groups of beams that never mix.
            symbols: [V'] int64, ids of the only symbols that the search may write. Its tokens are
                then indices into them, 0 to V' - 1. ``None``: all symbols.
        """
        state = self.model.start(src_tokens, num_groups)
        if symbols is not None:
            state.symbols = symbols
            state.project = self.projection_to(symbols)
        return state

    def projection_to(self, symbols: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the map from final states [..., D] to the logits of these symbols [V']."""
        return lambda states: self.model.logits(states)[..., symbols]

    def step(
        self, steps: Sequence[SearchStep], temperature: float = 1.0, want_weights: bool = False
    ) -> list[NextTokenScores]:
        """Advance every search, and return scores of the next tokens, and weights if wanted."""
        return [self._step(step, temperature, want_weights) for step in steps]

    def _step(self, step: SearchStep, temperature: float, want_weights: bool) -> NextTokenScores:
        model = self.model
        tokens = self.tokens(step)
        if not want_weights:
            return self.scores(model.step(tokens, step.state), step, temperature)
        with record_attention(model.aligning_attention, Need(weights=True)) as records:
            states = model.step(tokens, step.state)  # [B, K, D]
        scores = self.scores(states, step, temperature)
        # Use the first record. Gated aligned attention adds a record of the whole document.
        scores.weights = model.alignment_weights(records[0])
        return scores

    def tokens(self, step: SearchStep) -> Tensor:
        """Return the ids [B, K] of the newest tokens."""
        symbols = step.state.symbols
        return step.tokens if symbols is None else symbols[step.tokens]

    def logits(self, states: Tensor, state: SearchState) -> Tensor:
        """Return the logits [..., V'] of the symbols of a search from final states [..., D]."""
        return self.model.logits(states) if state.project is None else state.project(states)

    def scores(self, states: Tensor, step: SearchStep, temperature: float) -> NextTokenScores:
        """Return the scores that belong to final states [B, K, D] of the newest tokens."""
        logits = self.logits(states, step.state)  # [B, K, V']
        return NextTokenScores(torch.log_softmax(logits / temperature, dim=-1))


class Ensemble:
    """Models whose probabilities are averaged at every step, with the same dictionaries.

    ``dtype`` is ``torch.float16`` or ``torch.bfloat16`` for autocast.

    Attributes:
        max_target_positions: longest target that every model can write, in tokens with the end
            symbol. None: any length, here and below.
        max_source_positions: longest source that every model can read.
        max_target_sentence_positions: longest target of one sentence.
        max_source_sentence_positions: longest source of one sentence.
    """

    def __init__(self, decoders: Sequence[StepDecoder], dtype: torch.dtype | None = None) -> None:
        if not decoders:
            raise ConfigError("no model to decode with; give at least one checkpoint")
        self.decoders = list(decoders)
        self.models = [decoder.model for decoder in decoders]
        self.max_target_positions = self._least("target")
        self.max_source_positions = self._least("source")
        self.max_target_sentence_positions = self._least("target", of_sentence=True)
        self.max_source_sentence_positions = self._least("source", of_sentence=True)
        self.dtype = dtype

    def _least(self, side: str, of_sentence: bool = False) -> int | None:
        return least_limit(model.most_tokens(side, of_sentence) for model in self.models)

    @property
    def device(self) -> torch.device:
        """The device of the models."""
        return next(self.models[0].parameters(), torch.empty(0)).device

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch off dropout and gradients and compute in ``dtype``. Undo it afterwards."""
        precision: AbstractContextManager[object] = nullcontext()
        if self.dtype is not None:
            precision = torch.autocast(self.device.type, self.dtype)
        # Leave models in evaluation mode alone: to switch all their modules is slow.
        were_training = [model for model in self.models if model.training]
        try:
            for model in were_training:
                model.eval()
            with torch.inference_mode(), precision:
                yield
        finally:
            for model in were_training:
                model.train()

    def start(
        self, src_tokens: Tensor, num_groups: int = 1, symbols: Tensor | None = None
    ) -> list[Any]:
        """Return the states of a new search, one for each model. See :meth:`StepDecoder.start`."""
        return [decoder.start(src_tokens, num_groups, symbols) for decoder in self.decoders]

    def step(
        self,
        searches: Sequence[Sequence[SearchStep]],
        temperature: float = 1.0,
        want_weights: bool = False,
    ) -> list[NextTokenScores]:
        """Advance every search, given its step for each model. Return the averaged scores."""
        # Each decoder advances all searches. Then each search averages over the decoders.
        by_decoder = []
        for decoder, steps in zip(self.decoders, zip(*searches, strict=True), strict=True):
            by_decoder.append(decoder.step(steps, temperature, want_weights))
        return [average_scores(scores) for scores in zip(*by_decoder, strict=True)]


def average_scores(scores: Sequence[NextTokenScores]) -> NextTokenScores:
    """Average the probabilities and the aligning attention of several models."""
    if len(scores) == 1:
        return scores[0]
    # Models that left out different beams have scores of different shapes.
    if len({model_scores.log_probs.shape for model_scores in scores}) > 1:
        scores = [model_scores.of_all_beams() for model_scores in scores]
    log_probs = []
    weights = []
    for model_scores in scores:
        log_probs.append(model_scores.log_probs)
        if model_scores.weights is not None:
            weights.append(model_scores.weights)
    mean = torch.stack(weights).mean(0) if weights else None
    return replace(scores[0], log_probs=average_log_probs(log_probs), weights=mean)


def average_log_probs(log_probs: Sequence[Tensor]) -> Tensor:
    """Return the logarithms of the models' mean probabilities, [..., V]."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.logsumexp(torch.stack(list(log_probs)), dim=0).sub_(math.log(len(log_probs)))
