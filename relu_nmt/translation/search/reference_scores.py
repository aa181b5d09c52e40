"""References scored as hypotheses are, without a search."""

import torch
from torch import Tensor

from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.translation_batches import shift_right
from relu_nmt.translation.search.config import GenerationConfig
from relu_nmt.translation.search.ensemble import Ensemble
from relu_nmt.translation.search.hypotheses import Hypothesis, LengthPenalty

CHUNK = 1024
"""Target tokens whose logits exist at a time; 128 MB for 32,000 symbols."""


def score_references(
    ensemble: Ensemble,
    config: GenerationConfig,
    symbols: Dictionary,
    src_tokens: Tensor,
    tgt_tokens: Tensor,
) -> list[list[Hypothesis]]:
    """Return each reference as the only hypothesis of its sentence (``--score-reference``).

    There is only one forward pass.

    Args:
        ensemble: the models.
        config: the length penalty.
        symbols: the target dictionary.
        src_tokens: [B, S] int64, right-padded, ending in the end symbol.
        tgt_tokens: [B, T] int64, right-padded, ending in the end symbol.
    """
    pad, models = symbols.pad_index, ensemble.models
    prev_output_tokens = shift_right(tgt_tokens, pad, symbols.eos_index)
    real = tgt_tokens != pad
    targets = tgt_tokens[real]  # [N]
    chosen = []
    with ensemble.evaluating():
        features = [model(src_tokens, prev_output_tokens)[real] for model in models]
        for start in range(0, len(targets), CHUNK):
            chunk = slice(start, start + CHUNK)
            log_probs = ensemble.log_probs(
                [model.logits(own[chunk]) for model, own in zip(models, features, strict=True)]
            )  # [C, V]
            chosen.append(log_probs.gather(1, targets[chunk, None])[:, 0])
    scores = torch.cat(chosen).split(real.sum(1).tolist())
    penalty = LengthPenalty.of(config)
    return [
        [
            Hypothesis(
                tokens=row[mask].cpu().numpy(),
                score=float(own.double().sum()) / penalty(len(own)),
                positional_scores=own.cpu().numpy(),
            )
        ]
        for row, mask, own in zip(tgt_tokens, real, scores, strict=True)
    ]
