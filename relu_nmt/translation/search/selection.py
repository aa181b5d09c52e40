"""Choice of the next tokens: diverse beam search, sampling, forbidden tokens."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from relu_nmt.io.process import require_memory
from relu_nmt.translation.search.hypotheses import Continuations
from relu_nmt.translation.step_decoder import StepScores


def best_of_groups(
    scores: StepScores, totals: Tensor, num_groups: int, strength: float
) -> Continuations:
    """Extend each of ``num_groups`` groups of k beams by its 2k best continuations.

    At most k candidates are the end symbol, so at least k can go on. Groups are extended one after
    the other. Each pays ``strength`` for each time that an earlier group chose a token. The penalty
    only steers the choice, and the reported scores are the model's own. The totals of the beams are
    [B, K].

    Reference: Vijayakumar et al. 2018, equation 4 with Hamming diversity. Beams of one group are
    neighbors here. Fairseq interleaves the groups and adds the penalty to the score.
    """
    scores = scores.of_all(*totals.shape)
    log_probs = scores.log_probs_of(totals)
    batch, beam_size, vocab_size = log_probs.shape
    size = beam_size // num_groups
    groups: list[tuple[Tensor, Tensor, Tensor]] = []
    for first in range(0, beam_size, size):
        own_probs = log_probs[:, first : first + size]  # [B, k, V]
        own_totals = totals[:, first : first + size]  # [B, k]
        # Subtract the penalty for tokens of earlier groups.
        steered = own_probs
        if groups:
            chosen = torch.cat([tokens[:, :size] for tokens, _, _ in groups], dim=1)
            times = log_probs.new_zeros(batch, vocab_size)
            times.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=times.dtype))
            steered = own_probs - strength * times[:, None]
        # Choose by the steered scores, but report the model's own.
        steered_scores = replace(scores, log_probs=steered)
        _, parents, tokens = steered_scores.best_continuations(own_totals, 2 * size)  # [B, 2k]
        gains = own_probs.flatten(1).gather(1, parents * vocab_size + tokens)
        groups.append((tokens, parents + first, own_totals.gather(1, parents) + gains))
    # Stack the groups, [B, G, 2k].
    return Continuations(*(torch.stack(column, dim=1) for column in zip(*groups, strict=True)))


def draw(
    scores: StepScores, totals: Tensor, uniforms: Tensor, topk: int = -1, topp: float = -1.0
) -> Continuations:
    """Draw one token for each beam, by random numbers in [0, 1), [B, K]. The beams never mix.

    Draw from the ``topk`` likeliest tokens, and of these from the fewest whose probabilities,
    renormalized, sum to ``topp`` or more. -1: draw from all. The reported log-probabilities are
    the model's. The cut distribution does not change them.

    Reference: Holtzman et al. 2020, section 3.1 (``topp``), and Fan et al. 2018, section 5.1
    (``topk``).
    """
    log_probs = scores.log_probs_of(totals)
    values = log_probs
    symbols = None
    # Sort the likeliest tokens, and leave out tokens once the likelier ones together reach p.
    if topk > 0 or topp > 0:
        vocab_size = log_probs.size(2)
        values, symbols = log_probs.topk(min(topk, vocab_size) if topk > 0 else vocab_size, dim=2)
    # Work with probabilities as multiples of the largest, [B, K, n] float64: with a low
    # temperature or a forced token, all plain probabilities would underflow.
    largest = values.amax(-1, keepdim=True).clamp_min(torch.finfo(values.dtype).min)
    probs = (values.double() - largest).exp()
    if topp > 0:
        below = probs.cumsum(2) - probs  # sum over all likelier tokens
        probs = probs.masked_fill(below >= topp * probs.sum(2, keepdim=True), 0.0)
    # Stay strictly below the sum, so that no draw falls behind the last possible token.
    cumulated = probs.cumsum(2)
    threshold = cumulated[:, :, -1:] * (uniforms[:, :, None] * (1 - 1e-12))
    index = torch.searchsorted(cumulated, threshold, right=True)
    index = index.clamp(max=probs.size(2) - 1)  # [B, K, 1]
    tokens = index if symbols is None else symbols.gather(2, index)
    return Continuations(tokens, None, totals[:, :, None] + log_probs.gather(2, tokens))


def draw_uniforms(
    seed: int, sentence_ids: np.ndarray, beam_size: int, num_steps: int
) -> np.ndarray:
    """Return numbers in [0, 1), float64 [B, T, K], from the seed and each sentence's number."""
    shape = (num_steps, beam_size)
    subject = "the draws of --sampling"
    num_bytes = 8 * len(sentence_ids) * num_steps * beam_size
    require_memory(subject, num_bytes, "a smaller --max-len-b, --batch-size or --beam needs less")
    # Seed a generator for each sentence, so that batches do not change the draws.
    return np.stack([np.random.default_rng([seed, int(i)]).random(shape) for i in sentence_ids])


def block_repeated_ngrams(log_probs: Tensor, history: Tensor, size: int, spare_index: int) -> None:
    """Forbid, in place, every token that would repeat an n-gram of its hypothesis.

    log_probs are [B, K, V], the history the tokens of each hypothesis so far, [B, K, t]. The size
    is n, 1 or more, and ``spare_index`` a symbol that is always forbidden.

    Example:
        >>> log_probs = torch.zeros(1, 1, 8)
        >>> block_repeated_ngrams(log_probs, torch.tensor([[[5, 6, 7, 5]]]), 2, 0)
        >>> log_probs.isinf().nonzero()[:, 2].tolist()
        [0, 6]
    """
    length = history.size(2)
    if length < size:
        return
    # The n-grams so far are a context of n - 1 tokens and the token that followed it. A token is
    # forbidden if the context is also the end of the hypothesis.
    followers = history[:, :, size - 1 :]  # [B, K, t - n + 1]
    if size > 1:
        contexts = history[:, :, :-1].unfold(2, size - 1, 1)  # [B, K, t - n + 1, n - 1]
        ending = history[:, :, None, length - size + 1 :]  # [B, K, 1, n - 1]
        followers = torch.where((contexts == ending).all(-1), followers, spare_index)
    log_probs.scatter_(2, followers, -torch.inf)


def exclude_token(log_probs: Tensor, token: int, where: Tensor | None = None) -> None:
    """Take a token out of distributions, in place, and normalize the other tokens.

    Args:
        log_probs: [B, K, V].
        token: its id.
        where: the beams, bool [B, K] or [B, 1]. None for all.

    Example:
        >>> log_probs = torch.tensor([[[0.5, 0.25, 0.25]]]).log()
        >>> exclude_token(log_probs, 0)
        >>> log_probs.exp().tolist()
        [[[0.0, 0.5, 0.5]]]
    """
    share = log_probs[:, :, token]  # [B, K]
    if where is not None:
        share = share.masked_fill(~where, -torch.inf)
    # Keep the other tokens as they are where this token has all of the probability.
    remainder = torch.log1p(-share.exp())
    log_probs -= remainder.masked_fill(remainder == -torch.inf, 0.0)[:, :, None]
    log_probs[:, :, token].masked_fill_(share > -torch.inf, -torch.inf)
