"""Tuned constants of the attention kernels: thresholds and block sizes that were measured.

Another machine may want other values; results do not depend on them beyond rounding. Measure with
``python benchmarks/attention.py``; docs/lab/performance.md has the figures. If a constant names no
machine, none was recorded.
"""

CPU_LEAST_LENGTH = 40
"""Compute pointwise attention by blocks from this many queries and keys on a CPU.

Revision 4dceeb4, 2026-11-22: training steps with the regulariser take 10 to 20 % less time than
with 512."""

GPU_LEAST_PAIRS = 128 * 128
"""Compute pointwise attention by blocks from this many pairs of a query and a key on a GPU.

Set on 2026-11-21, revision 538f46f."""

CPU_HALF_FUSED_LENGTH = 512
"""Use PyTorch's fused softmax from this many keys on a CPU in 16 bits.

Revision f1e706d, 2026-11-21: with 16 keys in bfloat16 the fused kernel takes 15 times as long as
two products, forward and backward."""

CPU_BLOCK_BYTES = 1 << 22
"""Size of a block of weights on a CPU, so that it stays in the cache between two products.

Short sequences share a block by samples or heads; a long one has a block of some queries of one
head. 16-bit weights get twice as much. 4 MB take 5 to 20 % less time than 2 MB; in float32 8 MB
take 17 % more at 2,048 tokens, and in bfloat16 2 MB take 2 to 5 % more."""

CPU_LEAST_ROWS = 256
"""Queries of a block on a CPU: at least, as fewer make the products slow; in the causal case also
at most, so that a block leaves out the keys after its last query."""

KEPT_BYTES = 1 << 24
"""Keep scores of this size for the backward pass on a CPU, which computes all others again.

Intel Xeon, 2026-11-22, one thread, bfloat16, 8 heads of 64, 1,024 tokens: 0.91 of the time of the
whole matrix (docs/lab/performance.md)."""

GPU_BLOCK_WEIGHTS = 1 << 24
"""Weights of a block on a GPU, of all samples and heads together."""

GPU_LEAST_ROWS = 64
"""Fewest queries of a block on a GPU."""

SKIP_TILE = 64
"""Keys that are skipped together if all their weights for a block of queries are zero."""

PROBED_ROWS = 4
"""Rows of a block that are searched for zero keys first: dense weights then cost no full pass."""

MOST_LIVE = 0.75
"""Skip zero keys of a block if this share of its keys or less is left; selecting keys costs time,
too."""

ROWS_BLOCK_WEIGHTS = 1 << 22
"""Weights of a block of whole rows, of all samples and heads together; fewer are made at once."""

ROWS_LEAST_ROWS = 16
"""Fewest queries of a block of whole rows."""

FEATURE_CHUNK = 128
"""Positions whose causal weights feature attention computes as a matrix; sums serve all before."""

TRITON_LONG = 1024
"""Measure the block sizes of the Triton kernels from this many queries and keys on."""
