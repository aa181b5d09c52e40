"""Translations of one batch of token numbers, by whatever search the settings ask for."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from relu_nmt.decoding.beam_search import BeamSearch
from relu_nmt.decoding.config import GenerationConfig
from relu_nmt.decoding.constraints import length_limits
from relu_nmt.decoding.ensemble import Ensemble
from relu_nmt.decoding.hypotheses import Hypothesis, SymbolIndices
from relu_nmt.decoding.reference_scoring import score_references
from relu_nmt.decoding.selectors import (
    BeamSelector,
    DiverseSelector,
    SamplingSelector,
    Selector,
    draw_uniforms,
)
from relu_nmt.errors import ConfigError
from relu_nmt.models.encoder_decoder import EncoderDecoder


class Generator:
    """Finds or scores hypotheses for batches of source sentences.

    Args:
        models: one model, or several whose probabilities are averaged.
        config: settings of the search.
        symbols: numbers of the special symbols; the target dictionary has them.
        dtype: ``torch.float16`` or ``torch.bfloat16`` to compute in; scores stay in float32.

    Example:
        >>> from relu_nmt.data.dictionary import Dictionary
        >>> from relu_nmt.models.config import TransformerConfig
        >>> config = TransformerConfig(encoder_layers=1, decoder_layers=1)
        >>> model = EncoderDecoder(config, 10, 12, pad_index=1)
        >>> generator = Generator([model], GenerationConfig(beam=2, max_len_b=5), Dictionary())
        >>> [[best]] = generator.generate(torch.tensor([[4, 5, 2]]))
        >>> int(best.tokens[-1])
        2
    """

    def __init__(
        self,
        models: Sequence[EncoderDecoder],
        config: GenerationConfig,
        symbols: SymbolIndices,
        dtype: torch.dtype | None = None,
    ) -> None:
        # The temperature shapes the search; a reference's score is the model's own.
        temperature = 1.0 if config.score_reference else config.temperature
        self.ensemble = Ensemble(models, temperature, dtype)
        self.config = config
        self.symbols = symbols

    def generate(
        self,
        src_tokens: Tensor,
        prefix_tokens: Tensor | None = None,
        sentence_ids: Sequence[int] | None = None,
        context_sizes: np.ndarray | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each sentence, best first.

        Args:
            src_tokens: [B, S] int64, right-padded, each ending in the end symbol.
            prefix_tokens: forced first tokens [B, P] int64, right-padded; as in fairseq they are
                part of the hypothesis and its score.
            sentence_ids: what each sentence's random numbers depend on (``--sampling``); 0 to
                B - 1 by default.
            context_sizes: how many of the forced tokens are the translation of what comes before,
                int64 [B]: these are neither scored nor returned, and count only for the longest
                output. None for none.

        Raises:
            ConfigError: the settings leave a sentence no output at all.
        """
        config = self.config
        lengths = (src_tokens != self.symbols.pad_index).sum(1).cpu().numpy()
        limits = length_limits(config, lengths, self.ensemble.most_positions)
        ids = np.arange(len(limits)) if sentence_ids is None else np.asarray(sentence_ids)
        with self.ensemble.evaluating(src_tokens.device):
            selector = self._selector(ids, limits, src_tokens.device)
            search = BeamSearch(self.ensemble, config, self.symbols, selector)
            results = search.search(src_tokens, limits, prefix_tokens, context_sizes)
        if context_sizes is not None:
            results = [
                [hypothesis.without_context(size) for hypothesis in hypotheses]
                for hypotheses, size in zip(results, context_sizes.tolist(), strict=True)
            ]
        for sentence, hypotheses in zip(ids, results, strict=True):
            if not hypotheses:
                raise ConfigError(f"sentence {sentence}: no possible output; {self._reason()}")
        return results

    def _reason(self) -> str:
        if self.config.min_len > 1 or self.config.no_repeat_ngram_size:
            return (
                "--min-len and --no-repeat-ngram-size forbid every token; lower them, and if that "
                "does not help, the training of the model has diverged"
            )
        return "the model's scores are not finite (training diverged)"

    def score(self, src_tokens: Tensor, tgt_tokens: Tensor) -> list[list[Hypothesis]]:
        """Return the references [B, T], right-padded, as hypotheses with their scores."""
        with self.ensemble.evaluating(src_tokens.device):
            return score_references(
                self.ensemble, self.config, self.symbols, src_tokens, tgt_tokens
            )

    def _selector(self, ids: np.ndarray, limits: np.ndarray, device: torch.device) -> Selector:
        config = self.config
        if config.sampling:
            num_steps = int(limits.max(initial=0)) + 1
            uniforms = draw_uniforms(config.seed, ids, config.beam, num_steps)
            return SamplingSelector(
                torch.from_numpy(uniforms).to(device), config.sampling_topk, config.sampling_topp
            )
        if config.diverse_beam_groups > 0:
            return DiverseSelector(config.diverse_beam_groups, config.diverse_beam_strength)
        return BeamSelector()
