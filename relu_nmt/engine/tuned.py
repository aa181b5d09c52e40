"""Measured constants of the engine: the sizes at which one way to compute becomes the faster one.

Each comment names the machine, date and command of the measurement, as far as they are known.
"""

MAX_THREADS = 2
"""Prefer the single-threaded kernels over PyTorch's up to this many threads of PyTorch."""
# Attention of 5 to 60 queries takes 0.25 to 0.85 of the time of PyTorch's fused kernel.
# AMD EPYC (AVX512), 2 cores, 2026-11-24, hand-written code; table in docs/lab/performance.md.

MAX_QUERIES = 64
"""Use the attention kernel up to this many queries of a sample."""
# The same measurement: with 60 queries and keys it still takes 0.62 of the time.

MAX_PRODUCTS = 1 << 22
"""Use the kernel for float32 and bfloat16 products up to this many multiply-adds.

Above it oneDNN with several threads is faster; with one thread the kernel always serves."""
# AMD EPYC (AVX512 with VNNI and BF16), 2026-11-24:
# python benchmarks/products.py --shapes 256x256 256x1024 256x7880 --rows 1 5 48 250

MAX_INT8_PRODUCTS = 1 << 25
"""Use the kernel for 8-bit products up to this many multiply-adds, or with few threads."""
# The same command and machine.

MAX_ROWS_OF_LAYERS = 16
"""Compute whole layers in one thread up to this many rows, whatever the number of threads."""
# Fewer rows leave nothing to share between threads. AMD EPYC, 2026-11-24, command not recorded.

MAX_COMPUTED_SHARE = 0.95
"""Leave out dead beams only if at most this fraction of all beams goes on."""
# Selecting rows has a cost of its own. AMD EPYC, 2026-11-24, command not recorded.

ONEDNN_ROW_MULTIPLE = 16
"""Fill up the computed beams to a multiple of this where oneDNN computes the products.

oneDNN compiles products for each new number of rows."""
# A multiple of 32 took 7 % more time, with hand-written code; see docs/lab/performance.md.
