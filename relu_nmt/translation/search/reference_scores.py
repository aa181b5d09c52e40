"""The scores of reference translations (``--score-reference``)."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from relu_nmt.attention.base import Need
from relu_nmt.attention.records import record_attention
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.data.separators import Separators
from relu_nmt.data.translation_batches import shift_right
from relu_nmt.translation.base import Ensemble, average_log_probs
from relu_nmt.translation.search.scoring import Outputs, Scorer, word_mask
from relu_nmt.translation.search.step_rules import exclude_token
from relu_nmt.translation.search.translations import Hypothesis

CHUNK = 1024  # target tokens whose logits exist at a time: 128 MB for 32,000 symbols


def score_references(
    ensemble: Ensemble,
    scorer: Scorer,
    symbols: Dictionary,
    src_tokens: Tensor,
    tgt_tokens: Tensor,
    separators: Separators | None = None,
) -> list[list[Hypothesis]]:
    """Return references [B, T] as hypotheses of the sources [B, S] (``--score-reference``)."""
    pad = symbols.pad_index
    # Shift the references right, as decoder input that begins with the end symbol.
    prev_output_tokens = shift_right(tgt_tokens, pad, symbols.eos_index)
    real = tgt_tokens != pad
    targets = tgt_tokens[real]  # [N]
    # Like the search, exclude separators from translations without any.
    is_single = torch.zeros_like(targets, dtype=torch.bool)  # [N]
    if separators is not None:
        num_separators = [separators.num_expected(row) for row in src_tokens.cpu().numpy()]
        no_separator = torch.tensor(num_separators, device=real.device) == 0
        is_single = no_separator[:, None].expand_as(real)[real]
    any_single = bool(is_single.any())
    chosen = []
    attention = None
    with ensemble.evaluating():
        # One forward pass of each model, then the logits of a chunk of tokens at a time.
        features = []
        weights = []
        for model in ensemble.models:
            recording: Any = nullcontext()
            if scorer.needs_attention:
                recording = record_attention(model.aligning_attention, Need(weights=True))
            with recording as records:
                features.append(model(src_tokens, prev_output_tokens)[real])
            if scorer.needs_attention:
                weights.append(model.alignment_weights(records[0]).float())
        if weights:
            mean = torch.stack(weights).mean(0)  # [B, T, S]
            attention = mean.masked_fill(~real[:, :, None], 0.0).sum(1, keepdim=True)
        for start in range(0, len(targets), CHUNK):
            chunk = slice(start, start + CHUNK)
            by_model = []
            for model, states in zip(ensemble.models, features, strict=True):
                logits = model.logits(states[chunk]) / scorer.search.temperature
                by_model.append(logits.log_softmax(-1))
            log_probs = average_log_probs(by_model)  # [C, V]
            if separators is not None and any_single:
                exclude_token(log_probs[None], separators.target, is_single[None, chunk])
            chosen.append(log_probs.gather(1, targets[chunk, None])[:, 0])
        # Divide the token scores among the sentences again.
        by_sentence = torch.cat(chosen).split(real.sum(1).tolist())
        # Score each reference as a finished hypothesis, in float64.
        totals = torch.stack([log_probs.double().sum() for log_probs in by_sentence])[:, None]
        lengths = real.sum(1).cpu().numpy()
        is_word = word_mask(src_tokens, symbols, separators)
        scores = scorer.score(Outputs(totals, lengths, attention, is_word))[:, 0].tolist()
    results = []
    for row, mask, score, token_scores in zip(tgt_tokens, real, scores, by_sentence, strict=True):
        results.append([Hypothesis(row[mask].cpu().numpy(), score, token_scores.cpu().numpy())])
    return results
