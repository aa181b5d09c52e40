"""Pointwise attention by blocks of queries: memory linear in the length, in both directions.

The matrix of weights exists for one block of queries at a time. The backward pass computes it
again. Only sums couple the keys of a row, so that no running maximum or rescaling is needed, unlike
in flash attention for softmax.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relu_nmt.attention.base import AttentionOutput, AttentionProblem, RowSums
from relu_nmt.attention.dropout import dropout_factors
from relu_nmt.attention.kernels import tuned
from relu_nmt.attention.masks import TreeVisibility, Visibility
from relu_nmt.errors import ConfigError

NO_INPUT = torch.empty(0)


@dataclass
class QueryBlock:
    """A block of queries of a part. They see no key from ``num_keys`` on.

    ``live`` are the indices of the keys whose weights are not all zero, ``None`` for all keys.
    ``scores`` are kept for the backward pass, unless it computes them again.
    """

    rows: slice
    num_keys: int
    seed: int
    live: Tensor | None = None
    scores: Tensor | None = None

    @property
    def keys(self) -> slice | Tensor:
        """The keys whose weights are computed: a range or their indices."""
        return slice(self.num_keys) if self.live is None else self.live


@dataclass
class Part:
    """Heads that are computed together: few on a CPU, all on a GPU."""

    # Index of a sample, or a range of samples with all their heads. None for all.
    sample: int | slice | None
    heads: slice  # range of its heads
    num_keys: int  # keys from here on are hidden from all queries
    hidden: Tensor | None  # [Nk] or, for several samples, [B, 1, 1, Nk] bool, further hidden keys
    blocks: list[QueryBlock] = field(default_factory=list)

    @property
    def index(self) -> tuple[int | slice, ...]:
        """Index of the part in [B, H, ...]."""
        if self.sample is None:
            return ()
        if isinstance(self.sample, slice):
            return (self.sample,)
        first = self.heads.start
        is_single = self.heads.stop - self.heads.start == 1
        # Products of a matrix are faster than of a batch of one.
        return self.sample, first if is_single else self.heads


def make_parts(visibility: Visibility, q: Tensor, k: Tensor, seed: int = 0) -> list[Part]:
    """Return the parts into which samples and heads are divided. ``seed`` is the first block's."""
    parts, rows = _parts(visibility, q, k)
    num_queries = visibility.num_queries
    offset = visibility.offset
    for part in parts:
        for start in range(0, num_queries, rows):
            stop = min(start + rows, num_queries)
            num_keys = part.num_keys
            if offset is not None:  # leave out the keys behind the last query's own
                num_keys = max(0, min(num_keys, offset + stop))
            part.blocks.append(QueryBlock(slice(start, stop), num_keys, seed))
            seed += 1
    return parts


def _parts(visibility: Visibility, q: Tensor, k: Tensor) -> tuple[list[Part], int]:
    """Return the parts without blocks, and the number of queries of a block."""
    batch, heads = q.shape[:2]
    num_keys = k.size(2)
    mask = visibility.key_mask
    if tuned.waits(q):
        # Take one part for all samples: its mask need not be read from the device.
        hidden = None if mask is None else ~mask[:, None, None, :]
        rows = tuned.GPU_BLOCK_WEIGHTS // max(1, batch * heads * num_keys)
        return [Part(None, slice(None), num_keys, hidden)], max(tuned.GPU_LEAST_ROWS, rows)
    # Find the rows of a block of one head, and how many such blocks fit into the cache.
    weights = tuned.CPU_BLOCK_BYTES // q.element_size()
    if q.element_size() == 2:
        weights *= 2
    rows = max(tuned.CPU_LEAST_ROWS, weights // max(1, num_keys))
    # Make causal blocks short, so that they compute few hidden weights.
    if visibility.hides_later:
        rows = min(rows, tuned.CPU_LEAST_ROWS)
    size = max(1, num_keys * min(rows, q.size(2)))
    # Short sequences: several samples with all their heads fill half the cache.
    parts: list[Part] = []
    samples = weights // 2 // (heads * size)
    if samples > 1:
        for start in range(0, batch, samples):
            several = slice(start, start + samples)
            length, hidden = _visible(mask, several, num_keys)
            parts.append(Part(several, slice(None), length, hidden))
        return parts, rows
    # Longer ones: some heads of one sample.
    together = max(1, weights // size)
    for sample in range(batch):
        length, hidden = _visible(mask, sample, num_keys)
        for head in range(0, heads, together):
            parts.append(Part(sample, slice(head, head + together), length, hidden))
    return parts, rows


def _visible(mask: Tensor | None, sample: int | slice, num_keys: int) -> tuple[int, Tensor | None]:
    """Return one past the last visible key of any sample, and a mask of hidden keys before it."""
    if mask is None:
        return num_keys, None
    mask_rows = mask[sample]
    visible = torch.atleast_2d(mask_rows).any(0).nonzero()
    length = int(visible[-1]) + 1 if len(visible) else 0
    mask_rows = mask_rows[..., :length]
    if mask_rows.all():
        return length, None
    return length, ~(mask_rows if mask_rows.dim() == 1 else mask_rows[:, None, None])


def live_keys(weights: Tensor) -> Tensor | None:
    """Return the indices of keys with a weight above zero, by tiles of keys.

    ``None`` stands for all keys, if too few are zero. weights [..., rows, n] are never negative.
    """
    num_keys = weights.size(-1)
    enough = tuned.MOST_LIVE * num_keys
    # Probe a few rows, which reveal most dense matrices without a pass over all rows.
    if weights[..., -tuned.PROBED_ROWS :, :].flatten(0, -2).amax(0).count_nonzero() > enough:
        return None
    tile = tuned.SKIP_TILE
    is_zero = weights.flatten(0, -2).amax(0) == 0
    is_zero = F.pad(is_zero, (0, -num_keys % tile), value=True).view(-1, tile).all(1)
    live = (~is_zero).repeat_interleave(tile)[:num_keys].nonzero().squeeze(1)
    return live if len(live) <= enough else None


def refuse_second_derivatives(backend: str) -> None:
    """Raise a ConfigError in a backward pass with ``create_graph``.

    ``once_differentiable`` would drop a second derivative silently where the loss is linear in the
    outputs.
    """
    if torch.is_grad_enabled():
        raise ConfigError(
            f"--attention-backend {backend} has no second derivatives; choose reference"
        )


def run_autograd(function: Any, problem: AttentionProblem, num_seeds: int) -> AttentionOutput:
    """Solve a problem of pointwise attention by an autograd function.

    The function takes the shifted q and k, v, the table of the bias, the problem without its q, k
    and v, which autograd keeps for the backward pass, and a seed of dropout. It returns the values,
    and the sums over the rows of h(z).
    """
    # The seed comes from the global generator, so that torch.manual_seed repeats everything.
    # Draw it on the CPU: reading one from the GPU would wait for it.
    seed = 0
    if problem.dropout > 0:
        seed = int(torch.randint(num_seeds, ()))
    without_inputs = replace(problem, q=NO_INPUT, k=NO_INPUT, v=NO_INPUT)
    table = None if problem.bias is None else problem.bias.table
    # Cast here to the dtype of the products, since a function turns autocast off.
    q, k = problem.attention.shift(problem.q, problem.k, problem.visibility)
    v = problem.v
    dtype = v.dtype
    if torch.is_autocast_enabled(v.device.type) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(v.device.type)
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    values, *sums = function.apply(q, k, v, table, without_inputs, seed)
    return AttentionOutput(
        values.to(problem.v.dtype), sums=RowSums(*sums) if problem.need.rows else None
    )


def pointwise(problem: AttentionProblem) -> AttentionOutput:
    """Return the outputs of pointwise attention and the row sums, if wanted.

    Reference: the products of FlashAttention (Dao et al. 2022, algorithms 1 and 4) without its
    softmax. ReLUFormer Eq. 5 for the weights and Eq. 7 for the sums.
    """
    return run_autograd(_Blockwise, problem, 1 << 62)


def supports(problem: AttentionProblem) -> bool:
    """Return True if no weights are wanted. A tree of hypotheses has too few queries to gain."""
    return not (problem.need.weights or isinstance(problem.visibility, TreeVisibility))


class _Blockwise(torch.autograd.Function):
    """Map q, k, v and the table of the bias to values, total, logs, nonzero and largest."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        table: Tensor | None,
        problem: AttentionProblem,
        seed: int,
    ) -> tuple[Tensor | None, ...]:
        exact = torch.promote_types(q.dtype, torch.float32)
        values = _heads_inside(v, q.size(2))
        rows = problem.need.rows
        telemetry = problem.need.telemetry
        needed = (rows, rows and problem.attention.map.non_negative, telemetry, telemetry)
        sums = [
            q.new_zeros(q.shape[:3], dtype=exact) if is_needed else None for is_needed in needed
        ]
        ctx.parts = make_parts(problem.visibility, q, k, seed)
        ctx.problem = problem
        ctx.save_for_backward(q, k, v)
        # Leave missing gradients None, to save their products.
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(x for x in sums[2:] if x is not None))
        # Fill them block by block. ``room`` counts the bytes of scores that may still be kept.
        step = _Steps(problem, q, k, v)
        if any(ctx.needs_input_grad) and not tuned.waits(q):
            step.room = tuned.KEPT_BYTES
        with torch.autocast(q.device.type, enabled=False):
            for part in ctx.parts:
                step.enter(part)
                at = part.index
                for block in part.blocks:
                    step.forward(block, values[at], [_part_of(x, at) for x in sums])
        return values, *sums

    @staticmethod
    def backward(
        ctx: Any, grad_values: Tensor | None, *grad_sums: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives("blockwise")
        q, k, v = ctx.saved_tensors
        # Take zeros if the loss depends on the sums only.
        if grad_values is None:
            grad_values = v.new_zeros(*q.shape[:3], v.size(3))
        grads = [_heads_inside(x, x.size(2)) for x in (q, k, v)]
        grad_table = None
        if ctx.needs_input_grad[3]:
            grad_table = torch.zeros_like(ctx.problem.bias.table)
        step = _Steps(ctx.problem, q, k, v)
        with torch.autocast(q.device.type, enabled=False):
            for part in ctx.parts:
                step.enter(part)
                at = part.index
                step.begin_backward(grad_values[at], [_part_of(x, at) for x in grad_sums[:2]])
                for block in part.blocks:
                    step.backward(block, grads[0][at], grad_table)
                # Copy the part's gradients. Keys behind its last one keep 0.
                for grad, total in zip(grads[1:], (step.grad_keys, step.grad_values), strict=True):
                    if total is not None:
                        grad[at][..., : part.num_keys, :] = total
        return *grads, grad_table, None, None


def _part_of(x: Tensor | None, index: Any) -> Tensor | None:
    return None if x is None else x[index]


def _heads_inside(like: Tensor, length: int) -> Tensor:
    """Return zeros [B, H, length, width], stored as [B, length, H, width] to join the heads."""
    return like.new_zeros(len(like), length, like.size(1), like.size(3)).transpose(1, 2)


class _Steps:
    """Computes block by block, forward or backward. All blocks use the same memory."""

    def __init__(self, problem: AttentionProblem, q: Tensor, k: Tensor, v: Tensor) -> None:
        self.problem = problem
        self.map = problem.attention.map
        self.all = (q.contiguous(), k.contiguous(), v.contiguous())
        self.exact = torch.promote_types(q.dtype, torch.float32)
        # In float16 unscaled sums over many keys would overflow. Otherwise scaling the outputs is
        # cheaper.
        self.scale_first = v.dtype == torch.float16
        # Look for zero weights only where reading them does not wait for the device.
        self.skips = self.map.rectifies and not tuned.waits(q)
        self.room = 0
        self.memory: dict[str, Tensor] = {}

    def enter(self, part: Part) -> None:
        """Work on the blocks of a part: take its inputs, row scale [..., Nq, 1] and bias."""
        self.part = part
        at = part.index
        self.q, self.k, self.v = (x[at] for x in self.all)
        self.row_scale = self.problem.row_scale.expand(self.all[0].shape[:3])[..., None][at]
        self.bias = self.problem.bias
        if self.bias is not None and part.sample is not None:
            self.bias = self.bias.part(part.sample, part.heads)

    def forward(self, block: QueryBlock, values: Tensor, sums: list[Tensor | None]) -> None:
        """Write the rows of ``block`` of outputs and sums, which start at 0. Find its live keys."""
        if block.num_keys == 0:
            return
        # Keep the scores while there is room. Otherwise leave out keys whose weights are zero.
        z = self._scores(block)
        if z.nbytes <= self.room:
            block.scores = z
            self.room -= z.nbytes
            del self.memory["z"]
        else:
            self.room = 0  # a smaller block would keep the memory of a larger one
            if self.skips:
                block.live = live_keys(z)
            if block.live is not None:
                z = z.index_select(-1, block.live)
            if z.size(-1) == 0:
                return
        w = self._weights(z, block)
        total, logs, nonzero, largest = (_part_of(x, (..., block.rows)) for x in sums)
        if total is not None:
            total.copy_(w.sum(-1, dtype=self.exact))
        if logs is not None:
            logs.copy_(self._logs(w).mul_(w).sum(-1))
        if nonzero is not None and largest is not None:
            nonzero.copy_((w != 0).sum(-1))
            largest.copy_(w.abs().amax(-1))
        factors = self._dropout_factors(w, block)
        if factors is not None:
            w = w * factors
        row_scale = self.row_scale[..., block.rows, :]
        if self.scale_first:
            w = w * row_scale
        product = self._product("out", w.to(self.v.dtype), self._seen(self.v, block))
        if not self.scale_first:
            product.mul_(row_scale)
        values[..., block.rows, :] = product

    def begin_backward(self, grad: Tensor, grad_sums: list[Tensor | None]) -> None:
        """Set the part's gradients of outputs [..., Nq, dv] and of total and logs [..., Nq]."""
        if not self.scale_first:
            grad = (grad * self.row_scale).to(grad.dtype)
        self.grad = grad.contiguous()
        self.grad_total, self.grad_logs = grad_sums
        self.grad_keys: Tensor | None = None
        self.grad_values: Tensor | None = None

    def backward(self, block: QueryBlock, grad_queries: Tensor, grad_table: Tensor | None) -> None:
        """Write the rows of ``block`` of the queries' gradient. Add to all other gradients."""
        if block.num_keys == 0 or (block.live is not None and len(block.live) == 0):
            return
        rows = block.rows
        dtype = self.v.dtype
        # Compute scores and weights again, with the same dropout.
        k, v = self._seen(self.k, block), self._seen(self.v, block)
        z = self._scores(block) if block.scores is None else block.scores
        w = self._weights(z, block)
        factors = self._dropout_factors(w, block)
        dropped = w
        if factors is not None:
            dropped = w * factors
        if self.scale_first:
            dropped = dropped * self.row_scale[..., rows, :]
        grad = self.grad[..., rows, :]
        dropped = dropped.to(dtype)
        self.grad_values = self._added("dv", self.grad_values, dropped, grad, block)
        dw = self._product("dw", grad, v.transpose(-1, -2))
        if self.scale_first:
            dw = dw.float() * self.row_scale[..., rows, :]
        if factors is not None:
            dw.mul_(factors)
        # Add the gradients of the row sums. Where w is 0 the derivative of the map removes them.
        if self.grad_total is not None:
            dw.add_(self.grad_total[..., rows, None])
        if self.grad_logs is not None:
            dw.add_(self._logs(w).add_(1.0).mul_(self.grad_logs[..., rows, None]))
        dz = self._times_derivative(dw, z, block)
        if grad_table is not None and self.bias is not None:
            bias = self.bias.block(rows, block.keys)
            by_sample = dz.to(grad_table.dtype)[(None,) * (4 - dz.dim())]  # [B, H, rows, n]
            bias.add_gradient(by_sample, grad_table[self.part.heads])
        dz = dz.to(dtype)
        grad_queries[..., rows, :] = self._product("dq", dz, k)
        self.grad_keys = self._added("dk", self.grad_keys, dz, self.q[..., rows, :], block)

    def _scores(self, block: QueryBlock) -> Tensor:
        """Return z of the block's live keys, rectified and 0 where hidden if the map rectifies."""
        k = self._seen(self.k, block)
        z = self._product("z", self.q[..., block.rows, :], k.transpose(-1, -2))
        if self.bias is not None:
            bias = self.bias.block(block.rows, block.keys).values()
            z.add_(bias.view(bias.shape[-z.dim() :]))
        if self.map.rectifies:
            self._hide(z.relu_(), block)
        elif z.dtype == torch.float16:
            z = z.float()
        return z

    def _weights(self, z: Tensor, block: QueryBlock) -> Tensor:
        if self.map.name == "relu":
            return z
        w = self.map.value(z)
        # After the map: softplus(0) and sigmoid(0) are not 0.
        if not self.map.rectifies:
            self._hide(w, block)
        return w

    def _times_derivative(self, dw: Tensor, z: Tensor, block: QueryBlock) -> Tensor:
        """Return dw h'(z), 0 where hidden. It may overwrite dw."""
        if self.map.name == "relu" and dw.dtype == z.dtype:
            # dw where z > 0: one pass instead of a comparison and a product
            return torch.ops.aten.threshold_backward.grad_input(dw, z, 0, grad_input=dw)
        dz = dw.mul_(self.map.derivative(z))
        if not self.map.rectifies:
            self._hide(dz, block)
        return dz

    def _hide(self, weights: Tensor, block: QueryBlock) -> None:
        """Set the entries of hidden keys to 0, in place."""
        rows = block.rows
        offset = self.problem.visibility.offset
        if self.part.hidden is not None:
            hidden = self.part.hidden[..., : block.num_keys]
            if block.live is not None:
                hidden = hidden.index_select(-1, block.live)
            weights.masked_fill_(hidden, 0.0)
        if offset is not None:
            # Query i sees keys up to offset + i, so only the last columns have hidden entries.
            first = max(0, offset + rows.start + 1)
            if block.live is None:
                weights[..., first:].tril_(offset + rows.start - first)
            else:
                last = torch.arange(rows.start, rows.stop, device=weights.device) + offset
                weights.masked_fill_(block.live > last[:, None], 0.0)

    def _logs(self, w: Tensor) -> Tensor:
        """Return log w, finite where w is 0."""
        return w.to(self.exact).clamp_min(torch.finfo(self.exact).tiny).log_()

    def _dropout_factors(self, w: Tensor, block: QueryBlock) -> Tensor | None:
        if self.problem.dropout == 0:
            return None
        generator = torch.Generator(w.device).manual_seed(block.seed)
        return dropout_factors(w, self.problem.dropout, generator)

    def _seen(self, keys: Tensor, block: QueryBlock) -> Tensor:
        """Return the rows [..., n, d] of keys or values that the block's queries see."""
        if block.live is not None:
            return keys.index_select(-2, block.live)
        return keys[..., : block.num_keys, :]

    def _product(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """Return a @ b in the memory called ``name``."""
        shape = torch.Size((*a.shape[:-1], b.size(-1)))
        memory = self.memory.get(name)
        if memory is None or memory.numel() < shape.numel():
            memory = self.memory[name] = a.new_empty(shape.numel())
        return torch.matmul(a, b, out=memory[: shape.numel()].view(shape))

    def _added(
        self, name: str, total: Tensor | None, weights: Tensor, x: Tensor, block: QueryBlock
    ) -> Tensor:
        """Return ``total`` [..., num_keys, d] plus weights^T x at the block's keys. None: zeros."""
        # A block of all keys starts the sum. If it is the only block, it needs no copy.
        weights = weights.transpose(-1, -2)
        is_whole = block.live is None and block.num_keys == self.part.num_keys
        if total is None and is_whole:
            product = self._product(name, weights, x)
            is_last = block.rows.stop == self.q.size(-2)
            return product if is_last else product.to(self.exact, copy=True)
        # Otherwise add to the rows of the block's keys, from zeros on.
        if total is None:
            total = x.new_zeros(*x.shape[:-2], self.part.num_keys, x.size(-1), dtype=self.exact)
        if block.live is not None:
            total.index_add_(-2, block.live, self._product(name, weights, x).to(total))
            return total
        # Take one fused product where possible.
        visible_total = total[..., : block.num_keys, :]
        if visible_total.dtype == x.dtype and x.dim() == 2:
            visible_total.addmm_(weights, x)
        else:
            visible_total.add_(self._product(name, weights, x))
        return total
