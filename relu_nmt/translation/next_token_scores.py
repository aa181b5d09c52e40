"""The scores of the next tokens, their best continuations, and their mean over several models."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

BLOCK = 64  # columns of the vocabulary per block. The maxima of blocks narrow the search.


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
