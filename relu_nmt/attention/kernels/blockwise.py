"""Pointwise attention by blocks of queries: memory linear in the length, in both directions.

The matrix of weights exists for one block of queries at a time. The backward pass computes it
again. Only sums couple the keys of a row, so that no running maximum or rescaling is needed, unlike
in flash attention for softmax.
"""

from collections.abc import Sequence
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

    queries: slice
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
        # Products of a matrix are faster than of a batch of one.
        is_single = self.heads.stop - self.heads.start == 1
        return self.sample, self.heads.start if is_single else self.heads


def make_parts(visibility: Visibility, q: Tensor, k: Tensor, seed: int = 0) -> list[Part]:
    """Return the parts into which samples and heads are divided. ``seed`` is the first block's."""
    parts, rows_per_block = _parts(visibility, q, k)
    num_queries = visibility.num_queries
    for part in parts:
        for start in range(0, num_queries, rows_per_block):
            stop = min(start + rows_per_block, num_queries)
            num_keys = part.num_keys
            if visibility.hides_later:  # leave out the keys behind the last query's own
                num_keys = max(0, min(num_keys, visibility.offset + stop))
            part.blocks.append(QueryBlock(slice(start, stop), num_keys, seed))
            seed += 1
    return parts


def _parts(visibility: Visibility, q: Tensor, k: Tensor) -> tuple[list[Part], int]:
    """Return the parts without blocks, and the number of rows, or queries, of a block."""
    batch, heads = q.shape[:2]
    num_keys = k.size(2)
    mask = visibility.key_mask
    if tuned.waits(q):
        # Take one part for all samples: its mask need not be read from the device.
        hidden = None if mask is None else ~mask[:, None, None, :]
        fitting = tuned.GPU_BLOCK_WEIGHTS // max(1, batch * heads * num_keys)
        return [Part(None, slice(None), num_keys, hidden)], max(tuned.GPU_LEAST_ROWS, fitting)
    # Find the rows of a block of one head, and how many such blocks fit into the cache.
    weights = tuned.CPU_BLOCK_BYTES // q.element_size()
    if q.element_size() == 2:
        weights *= 2
    rows_per_block = max(tuned.CPU_LEAST_ROWS, weights // max(1, num_keys))
    # Make causal blocks short, so that they compute few hidden weights.
    if visibility.hides_later:
        rows_per_block = min(rows_per_block, tuned.CPU_LEAST_ROWS)
    size = max(1, num_keys * min(rows_per_block, q.size(2)))
    # Short sequences: several samples with all their heads fill half the cache.
    parts: list[Part] = []
    samples = weights // 2 // (heads * size)
    if samples > 1:
        for start in range(0, batch, samples):
            several = slice(start, start + samples)
            length, hidden = _visible(mask, several, num_keys)
            parts.append(Part(several, slice(None), length, hidden))
        return parts, rows_per_block
    # Longer ones: some heads of one sample.
    together = max(1, weights // size)
    for sample in range(batch):
        length, hidden = _visible(mask, sample, num_keys)
        for head in range(0, heads, together):
            parts.append(Part(sample, slice(head, head + together), length, hidden))
    return parts, rows_per_block


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
    seed = int(torch.randint(num_seeds, ())) if problem.dropout > 0 else 0
    without_inputs = replace(problem, q=NO_INPUT, k=NO_INPUT, v=NO_INPUT)
    table = None if problem.bias is None else problem.bias.table
    # Cast here to the dtype of the products, since a function turns autocast off.
    q, k = problem.attention.shifted_inputs(problem.q, problem.k, problem.visibility)
    v = problem.v
    dtype = v.dtype
    if torch.is_autocast_enabled(v.device.type) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(v.device.type)
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    values, *sums = function.apply(q, k, v, table, without_inputs, seed)
    return AttentionOutput(
        values.to(problem.v.dtype), sums=RowSums(*sums) if problem.need.any_statistics else None
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
        has_sums = problem.need.any_statistics
        telemetry = problem.need.telemetry
        needed = (has_sums, has_sums and problem.attention.map.non_negative, telemetry, telemetry)
        shape = q.shape[:3]
        sums = [q.new_zeros(shape, dtype=exact) if is_needed else None for is_needed in needed]
        ctx.parts = make_parts(problem.visibility, q, k, seed)
        ctx.problem = problem
        ctx.save_for_backward(q, k, v)
        # Leave missing gradients None, to save their products.
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(x for x in sums[2:] if x is not None))
        memory = _Memory()
        if any(ctx.needs_input_grad) and not tuned.waits(q):
            memory.room = tuned.KEPT_BYTES
        # Fill values and sums block by block.
        inputs = [x.contiguous() for x in (q, k, v)]
        with torch.autocast(q.device.type, enabled=False):
            for part in ctx.parts:
                _PartWork(problem, part, inputs, memory).forward(values, sums)
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
        memory = _Memory()
        inputs = [x.contiguous() for x in (q, k, v)]
        with torch.autocast(q.device.type, enabled=False):
            for part in ctx.parts:
                work = _PartWork(ctx.problem, part, inputs, memory)
                work.backward(grad_values, grad_sums[:2], grads, grad_table)
        return *grads, grad_table, None, None


def _at(x: Tensor | None, index: Any) -> Tensor | None:
    return None if x is None else x[index]


def _heads_inside(like: Tensor, length: int) -> Tensor:
    """Return zeros [B, H, length, width], stored as [B, length, H, width] to join the heads."""
    return like.new_zeros(len(like), length, like.size(1), like.size(3)).transpose(1, 2)


class _Memory:
    """Memory of the products, which all blocks use in turn.

    ``room`` counts the bytes of scores that may still be kept for the backward pass.
    """

    def __init__(self) -> None:
        self.room = 0
        self._buffers: dict[str, Tensor] = {}

    def product(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """Return a @ b in the memory called ``name``."""
        shape = torch.Size((*a.shape[:-1], b.size(-1)))
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < shape.numel():
            buffer = self._buffers[name] = a.new_empty(shape.numel())
        return torch.matmul(a, b, out=buffer[: shape.numel()].view(shape))

    def keeps(self, name: str, product: Tensor) -> bool:
        """Return True if there is room to keep a product, whose memory is then used no more."""
        if product.nbytes > self.room:
            self.room = 0  # a smaller block would keep the memory of a larger one
            return False
        self.room -= product.nbytes
        del self._buffers[name]
        return True


class _PartWork:
    """The inputs of a part, and what is computed from them block by block.

    Forward: Z = Q K^T, W = h(Z), O = c W V. Backward, with G = c dO: dV = W^T G, dW = G V^T plus
    the gradients of the row sums, dZ = dW h'(Z), dQ = dZ K, dK = dZ^T Q.
    """

    def __init__(
        self, problem: AttentionProblem, part: Part, inputs: Sequence[Tensor], memory: _Memory
    ) -> None:
        index = part.index
        self.problem = problem
        self.map = problem.attention.map
        self.part = part
        self.memory = memory
        self.q, self.k, self.v = (x[index] for x in inputs)
        self.row_scale = problem.row_scale.expand(inputs[0].shape[:3])[..., None][index]
        self.bias = problem.bias
        if self.bias is not None and part.sample is not None:
            self.bias = self.bias.part(part.sample, part.heads)
        self.exact = torch.promote_types(self.q.dtype, torch.float32)
        # Unscaled sums over many keys overflow in float16. Otherwise scaling outputs is cheaper.
        self.scale_first = self.v.dtype == torch.float16

    def forward(self, values: Tensor, sums: Sequence[Tensor | None]) -> None:
        """Write the part of the outputs and sums, which start at 0. Find the live keys."""
        values = values[self.part.index]
        sums = [_at(x, self.part.index) for x in sums]
        for block in self.part.blocks:
            if block.num_keys == 0:
                continue
            # Keep the scores while there is room. Otherwise leave out keys whose weights are zero,
            # but look for them only where reading them does not wait for the device.
            z = self._scores(block)
            if self.memory.keeps("z", z):
                block.scores = z
            elif self.map.rectifies and not tuned.waits(z):
                block.live = live_keys(z)
                if block.live is not None:
                    z = z.index_select(-1, block.live)
                if z.size(-1) == 0:
                    continue
            w = self._weights(z, block)
            total, logs, nonzero, largest = (_at(x, (..., block.queries)) for x in sums)
            if total is not None:
                total.copy_(w.sum(-1, dtype=self.exact))
            if logs is not None:
                logs.copy_(self._logs(w).mul_(w).sum(-1))
            if nonzero is not None and largest is not None:
                nonzero.copy_((w != 0).sum(-1))
                largest.copy_(w.abs().amax(-1))
            w = self._dropped(w, self._dropout_factors(w, block), block)
            product = self.memory.product("out", w, self._seen(self.v, block))
            if not self.scale_first:
                product.mul_(self.row_scale[..., block.queries, :])
            values[..., block.queries, :] = product

    def backward(
        self,
        grad: Tensor,
        grad_sums: Sequence[Tensor | None],
        grads: Sequence[Tensor],
        grad_table: Tensor | None,
    ) -> None:
        """Write the part of the gradients of q, k and v, which start at 0. Add to the table's.

        ``grad`` is the gradient of the outputs. ``grad_sums`` are the gradients of total and logs.
        """
        grad = grad[self.part.index]
        if not self.scale_first:
            grad = (grad * self.row_scale).to(grad.dtype)
        grad = grad.contiguous()
        grad_total, grad_logs = (_at(x, self.part.index) for x in grad_sums)
        grad_q, grad_k, grad_v = (x[self.part.index] for x in grads)
        sum_k = sum_v = None
        for block in self.part.blocks:
            if block.num_keys == 0 or (block.live is not None and len(block.live) == 0):
                continue
            # Compute scores and weights again, with the same dropout.
            rows = (..., block.queries, slice(None))
            z = self._scores(block) if block.scores is None else block.scores
            w = self._weights(z, block)
            factors = self._dropout_factors(w, block)
            sum_v = self._added("dv", sum_v, self._dropped(w, factors, block), grad[rows], block)
            dw = self.memory.product("dw", grad[rows], self._seen(self.v, block).transpose(-1, -2))
            if self.scale_first:
                dw = dw.float() * self.row_scale[rows]
            if factors is not None:
                dw.mul_(factors)
            # Add the gradients of the row sums. Where w is 0 the map's derivative removes them.
            if grad_total is not None:
                dw.add_(grad_total[..., block.queries, None])
            if grad_logs is not None:
                dw.add_(self._logs(w).add_(1.0).mul_(grad_logs[..., block.queries, None]))
            dz = self._times_derivative(dw, z, block)
            if grad_table is not None and self.bias is not None:
                bias = self.bias.block(block.queries, block.keys)
                by_sample = dz.to(grad_table.dtype)[(None,) * (4 - dz.dim())]  # [B, H, queries, n]
                bias.add_gradient(by_sample, grad_table[self.part.heads])
            dz = dz.to(self.v.dtype)
            grad_q[rows] = self.memory.product("dq", dz, self._seen(self.k, block))
            sum_k = self._added("dk", sum_k, dz, self.q[rows], block)
        # Copy the sums over the blocks. Keys behind the part's last one keep 0.
        for grad_keys, total in ((grad_k, sum_k), (grad_v, sum_v)):
            if total is not None:
                grad_keys[..., : self.part.num_keys, :] = total

    def _scores(self, block: QueryBlock) -> Tensor:
        """Return z of the block's live keys, rectified and 0 where hidden if the map rectifies."""
        k = self._seen(self.k, block)
        z = self.memory.product("z", self.q[..., block.queries, :], k.transpose(-1, -2))
        if self.bias is not None:
            bias = self.bias.block(block.queries, block.keys).values()
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
        start = block.queries.start
        if self.part.hidden is not None:
            hidden = self.part.hidden[..., : block.num_keys]
            if block.live is not None:
                hidden = hidden.index_select(-1, block.live)
            weights.masked_fill_(hidden, 0.0)
        if self.problem.visibility.hides_later:
            # Query i sees keys up to offset + i, so only the last columns have hidden entries.
            offset = self.problem.visibility.offset
            first = max(0, offset + start + 1)
            if block.live is None:
                weights[..., first:].tril_(offset + start - first)
            else:
                last = torch.arange(start, block.queries.stop, device=weights.device) + offset
                weights.masked_fill_(block.live > last[:, None], 0.0)

    def _logs(self, w: Tensor) -> Tensor:
        """Return log w, finite where w is 0."""
        return w.to(self.exact).clamp_min(torch.finfo(self.exact).tiny).log_()

    def _dropout_factors(self, w: Tensor, block: QueryBlock) -> Tensor | None:
        if self.problem.dropout == 0:
            return None
        generator = torch.Generator(w.device).manual_seed(block.seed)
        return dropout_factors(w, self.problem.dropout, generator)

    def _dropped(self, w: Tensor, factors: Tensor | None, block: QueryBlock) -> Tensor:
        """Return the weights as factors of the values, after dropout and an early scale."""
        if factors is not None:
            w = w * factors
        if self.scale_first:
            w = w * self.row_scale[..., block.queries, :]
        return w.to(self.v.dtype)

    def _seen(self, keys: Tensor, block: QueryBlock) -> Tensor:
        """Return the rows [..., n, d] of keys or values that the block's queries see."""
        if block.live is not None:
            return keys.index_select(-2, block.live)
        return keys[..., : block.num_keys, :]

    def _added(
        self, name: str, total: Tensor | None, weights: Tensor, x: Tensor, block: QueryBlock
    ) -> Tensor:
        """Return ``total`` [..., num_keys, d] plus weights^T x at the block's keys. None: zeros."""
        # A block of all keys starts the sum. If it is the only block, it needs no copy.
        weights = weights.transpose(-1, -2)
        is_whole = block.live is None and block.num_keys == self.part.num_keys
        if total is None and is_whole:
            product = self.memory.product(name, weights, x)
            is_last = block.queries.stop == self.q.size(-2)
            return product if is_last else product.to(self.exact, copy=True)
        # Otherwise add to the rows of the block's keys, from zeros on.
        if total is None:
            total = x.new_zeros(*x.shape[:-2], self.part.num_keys, x.size(-1), dtype=self.exact)
        if block.live is not None:
            total.index_add_(-2, block.live, self.memory.product(name, weights, x).to(total))
            return total
        # Take one fused product where possible.
        visible_total = total[..., : block.num_keys, :]
        if visible_total.dtype == x.dtype and x.dim() == 2:
            visible_total.addmm_(weights, x)
        else:
            visible_total.add_(self.memory.product(name, weights, x))
        return total
