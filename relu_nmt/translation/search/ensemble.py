"""One or several models that decode as one."""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relu_nmt.data.groups import least_limit
from relu_nmt.errors import ConfigError
from relu_nmt.translation.step_decoder import SearchState, SearchStep, StepDecoder, StepScores


@dataclass(frozen=True)
class EnsembleState:
    """The states of one search, one for each model."""

    states: Sequence[SearchState]

    def reorder(self, parents: Tensor) -> None:
        """See :meth:`SearchState.reorder`."""
        for state in self.states:
            state.reorder(parents)

    def keep(self, sentences: Tensor) -> None:
        """See :meth:`SearchState.keep`."""
        for state in self.states:
            state.keep(sentences)


class Ensemble:
    """Models whose probabilities are averaged at every step.

    Args:
        decoders: of models with the same dictionaries, all on one device.
        temperature: divides the logits of every model.
        dtype: ``torch.float16`` or ``torch.bfloat16`` to compute in (autocast); the weights' own
            by default.

    Raises:
        ConfigError: no model at all.
    """

    def __init__(
        self,
        decoders: Sequence[StepDecoder],
        temperature: float = 1.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not decoders:
            raise ConfigError("no model to decode with; give at least one checkpoint")
        self.decoders = list(decoders)
        self.models = [decoder.model for decoder in decoders]
        # List live beams as soon as one model leaves out dead ones.
        self.prunes = any(decoder.prunes for decoder in decoders)
        self.temperature = temperature
        self.dtype = dtype

    @property
    def device(self) -> torch.device:
        """The device of the models."""
        weights = (weight for model in self.models for weight in model.parameters())
        return next(weights, torch.empty(0)).device

    @property
    def max_positions(self) -> int | None:
        """Longest target with the end symbol that every model can write; None for any."""
        return least_limit(model.most_target_tokens for model in self.models)

    @property
    def max_source_positions(self) -> int | None:
        """Longest source with the end symbol that every model can read; None for any."""
        return least_limit(model.most_source_tokens for model in self.models)

    @property
    def max_sentence_positions(self) -> int | None:
        """Longest sentence of a target, with the symbol that ends it; None for any."""
        return least_limit(model.most_target_sentence for model in self.models)

    @property
    def max_source_sentence_positions(self) -> int | None:
        """Longest sentence of a source, with the symbol that ends it; None for any."""
        return least_limit(model.most_source_sentence for model in self.models)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch off dropout and gradients and compute in ``dtype``; undo it afterwards."""
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
        self, src_tokens: Tensor, num_groups: int = 1, shortlist: Tensor | None = None
    ) -> EnsembleState:
        """Return the state of a new search; see :meth:`StepDecoder.start`."""
        return EnsembleState(
            [decoder.start(src_tokens, num_groups, shortlist) for decoder in self.decoders]
        )

    def step(self, steps: Sequence[SearchStep], want_weights: bool = False) -> list[StepScores]:
        """Advance every search by its newest tokens.

        Args:
            steps: the searches' newest tokens, with states of :meth:`start`.
            want_weights: also return the attention weights that align tokens.

        Returns:
            for each search the scores, averaged over the models.
        """
        # Each model advances all searches with its own states.
        outputs = []
        for number, decoder in enumerate(self.decoders):
            own = []
            for step in steps:
                assert isinstance(step.state, EnsembleState), "from start"
                own.append(replace(step, state=step.state.states[number]))
            outputs.append(decoder.step(own, self.temperature, want_weights))
        return [self._averaged(of_search) for of_search in zip(*outputs, strict=True)]

    def _averaged(self, scores: Sequence[StepScores]) -> StepScores:
        first = scores[0]
        if len(scores) == 1:
            return first
        # Average probabilities, and the aligning attention of models that have it.
        weights = [each.weights for each in scores if each.weights is not None]
        return replace(
            first,
            log_probs=average_log_probs([each.log_probs for each in scores]),
            weights=torch.stack(weights).mean(0) if weights else None,
        )

    def log_probs(self, logits: Sequence[Tensor]) -> Tensor:
        """Return the log of the mean of the models' probabilities, [..., V].

        Args:
            logits: [..., V] float32 of each model.
        """
        return average_log_probs(
            [torch.log_softmax(each / self.temperature, dim=-1) for each in logits]
        )


def average_log_probs(log_probs: Sequence[Tensor]) -> Tensor:
    """Return the log of the mean of probabilities, [..., V] as each."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.logsumexp(torch.stack(list(log_probs)), dim=0).sub_(math.log(len(log_probs)))
