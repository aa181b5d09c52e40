"""The bias that a position scheme adds to the scores of attention."""

from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class ScoreBias:
    """b_hij = table[h, zero + query_codes_i - key_codes_j], added to the scores before the map.

    Codes of one-dimensional schemes are positions: ALiBi's table is -slope_h |offset|, T5's is
    learned[h, bucket(offset)]. On a grid of ``width`` columns, as in Swin, a code is
    y (2 width - 1) + x, so that each difference of positions has its own difference of codes. Only
    the table is stored. A back end computes the bias of the scores at hand.

    Reference: Press et al. 2022, "Train short, test long" (ALiBi), section 3. Raffel et al. 2020
    (T5), section 2.1. Liu et al. 2021, "Swin Transformer", Eq. 4.
    """

    table: Tensor  # [H, R] float, fixed or learned
    query_codes: Tensor  # [B or 1, Nq] int64
    key_codes: Tensor  # [B or 1, Nk] int64, within the table for padded keys, too
    zero: int  # column of the table for equal codes

    def block(self, queries: slice, keys: slice | Tensor) -> "ScoreBias":
        """Return the bias of these queries for these keys, a range or their indices."""
        query_codes = self.query_codes[:, queries]
        return replace(self, query_codes=query_codes, key_codes=self.key_codes[:, keys])

    def part(self, sample: int | slice, heads: slice) -> "ScoreBias":
        """Return the bias of one or some samples' scores in some heads."""
        samples = sample if isinstance(sample, slice) else slice(sample, sample + 1)
        codes = [x if len(x) == 1 else x[samples] for x in (self.query_codes, self.key_codes)]
        return ScoreBias(self.table[heads], codes[0], codes[1], self.zero)

    def values(self) -> Tensor:
        """Return b, [B or 1, H, Nq, Nk] in the dtype of the table."""
        index = self._columns()
        # The gradient of ``gather`` is fast and deterministic.
        by_head = self.table.gather(1, index.flatten().expand(len(self.table), -1))
        return by_head.view(-1, *index.shape).transpose(0, 1)

    def add_gradient(self, grad_scores: Tensor, grad_table: Tensor) -> None:
        """Add the gradient of the scores [B, H, Nq, Nk] to the table's gradient [H, R]."""
        index = self._columns()
        by_head = grad_scores.transpose(0, 1)
        if len(index) == 1:  # all samples share the codes
            by_head = by_head.sum(1)
        by_head = by_head.reshape(len(grad_table), -1)
        grad_table.scatter_add_(1, index.flatten().expand_as(by_head), by_head)

    def _columns(self) -> Tensor:
        """Return the table's column for each score, [B or 1, Nq, Nk]."""
        return self.zero + self.query_codes[:, :, None] - self.key_codes[:, None, :]
