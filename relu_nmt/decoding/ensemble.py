"""One or several models that decode as one."""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from relu_nmt import native
from relu_nmt.data.batches import least_limit
from relu_nmt.errors import ConfigError
from relu_nmt.models.decoder_state import DecoderState
from relu_nmt.models.encoder_decoder import EncoderDecoder, StepOutput
from relu_nmt.modules.layer_cache import ComputedBeams


@dataclass
class StepScores:
    """What one step says of the next tokens of a search.

    Args:
        log_probs: [B, K, V] float32; [1, N', V] where not all beams are computed. The search may
            change them.
        weights: of the cross-attention [B, K, S], where alignments are wanted.
        computed: which beams are; None: all.
    """

    log_probs: Tensor
    weights: Tensor | None = None
    computed: ComputedBeams | None = None


class Ensemble:
    """Models whose probabilities are averaged at every step.

    Args:
        models: models with the same dictionaries, all on one device.
        temperature: divides the logits of every model.
        dtype: ``torch.float16`` or ``torch.bfloat16`` to compute in (autocast); the weights' own
            by default.

    Raises:
        ConfigError: no model at all.
    """

    def __init__(
        self,
        models: Sequence[EncoderDecoder],
        temperature: float = 1.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not models:
            raise ConfigError("no model to decode with; give at least one checkpoint")
        self.models = list(models)
        self.temperature = temperature
        self.dtype = dtype

    @property
    def device(self) -> torch.device:
        """Where the models are."""
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
        """Switch dropout and gradients off and ``dtype`` on; and the models back afterwards."""
        precision: AbstractContextManager[object] = nullcontext()
        if self.dtype is not None:
            precision = torch.autocast(self.device.type, self.dtype)
        # The others are left alone: to go through their modules takes a millisecond a call.
        were_training = [model for model in self.models if model.training]
        try:
            for model in were_training:
                model.eval()
            with torch.inference_mode(), precision:
                yield
        finally:
            for model in were_training:
                model.train()

    def start(self, src_tokens: Tensor, shortlist: Tensor | None = None) -> list[DecoderState]:
        """Encode src_tokens [B, S]; return each model's state before the first token: one beam.

        Args:
            src_tokens: int64, right-padded.
            shortlist: see :meth:`EncoderDecoder.start`.
        """
        few = () if shortlist is None else (shortlist,)
        return [model.start(model.encode(src_tokens), *few) for model in self.models]

    def step(
        self,
        tokens: Sequence[Tensor],
        states: Sequence[Sequence[DecoderState]],
        want_weights: bool = False,
    ) -> list["StepScores"]:
        """Advance every beam of some searches by its newest token.

        Args:
            tokens: [B, K] int64 of each search.
            states: those of the models, for each search; advanced in place.
            want_weights: also return cross-attention weights.

        Returns:
            for each search what the models say, in mean.
        """
        outputs = [
            model.step_together(tokens, of_model, want_weights)
            for model, of_model in zip(self.models, zip(*states, strict=True), strict=True)
        ]
        return [self._joined(of_search) for of_search in zip(*outputs, strict=True)]

    def _joined(self, outputs: Sequence[StepOutput]) -> "StepScores":
        log_probs = self.average([output.logits for output in outputs])
        weights = [output.cross_weights for output in outputs if output.cross_weights is not None]
        mean = torch.stack(weights).mean(0) if weights else None
        return StepScores(log_probs, mean, outputs[0].computed)

    def average(self, logits: list[Tensor]) -> Tensor:
        """Return the log of the mean of the models' probabilities.

        Args:
            logits: float32 [..., V] each; what they hold is lost.
        """
        log_probs = [self._log_softmax(each) for each in logits]
        if len(log_probs) == 1:
            return log_probs[0]
        return torch.logsumexp(torch.stack(log_probs), dim=0).sub_(math.log(len(log_probs)))

    def _log_softmax(self, logits: Tensor) -> Tensor:
        if self.temperature != 1.0:
            logits /= self.temperature
        # In their place: on a CPU new memory of this size costs as much as the exponentials.
        if logits.is_cpu and logits.is_contiguous() and native.is_wanted():
            symbols = logits.size(-1)
            native.call("log_softmax", (logits,), (logits.numel() // symbols, symbols))
            return logits
        return torch.log_softmax(logits, dim=-1, out=logits)
