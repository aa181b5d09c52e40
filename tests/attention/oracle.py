"""The formula of every registered attention (``relu_nmt/attention/naive.py``), as the tests ask.

An attention without an entry here fails the tests: its formula comes first.
"""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from relu_nmt.attention import naive
from tests.attention.helpers import as_leaves


def polynomial_scale(attend, n):
    """c of polynomial attention, by the option ``scale``."""
    config = attend.config
    root = n.double().rsqrt()
    if config.scale == "none":
        return torch.ones_like(root)
    if config.scale == "dynamic":
        learned = attend.scale[:, None, None]
        return learned if config.length else learned * root
    return root if config.length is None else torch.full_like(root, config.length**-0.5)


def power_kernel(attend, n):
    """c z^3 of n tokens, or softmax, of XCA and Nystromformer."""
    config = attend.config
    if config.kernel == "softmax":
        return naive.softmax
    size = attend.head_dim if getattr(config, "count", "") == "channels" else n
    size = getattr(config, "length", None) or size
    c = {"none": 1.0, "fixed": size**-0.5}.get(config.scale)
    return lambda z: (attend.scale * size**-0.5 if c is None else c) * z**3


def reluformer(a, q, k, v, mask):
    gamma = a.config.gamma * (a.log_gamma_change.exp() if a.config.learnable else 1)
    return naive.relu_attention(q, k, v, mask, gamma, a.config.power, a.config.centered)


def cosformer(a, q, k, v, mask, grid=None):
    horizon = a.config.horizon if a.slot == "decoder" else None
    axes = None if a.config.reweight else []
    if a.config.grid:  # a token before the patches stands in the middle
        rows, columns = grid
        middle = [((rows - 1) / 2, (columns - 1) / 2)] * (k.size(2) - rows * columns)
        points = [*middle, *itertools.product(range(rows), range(columns))]
        axes = (torch.tensor(points, dtype=q.dtype) / torch.tensor(grid)).T
    return naive.cosformer_attention(q, k, v, mask, horizon, axes)


def convolved(a, values, v):
    if a.convolution is None:
        return values
    return values + naive.token_convolution(v, a.convolution.convolution.weight[:, 0, :, 0])


def nystromformer(a, q, k, v, _):
    kernel = power_kernel(a, k.size(2))
    values = naive.nystromformer_attention(q, k, v, a.config.landmarks, kernel, a.config.iterations)
    return convolved(a, values, v)


def soft(a, q, k, v, _):
    landmarks = naive.soft_landmarks(q, a.window.weight, a.window.bias, a.norm)
    values = naive.soft_attention(q, k, v, landmarks, a.config.iterations, a.config.normalized)
    return convolved(a, values, v)


FORMULAS = {
    "cosformer": cosformer,
    "efficient": lambda a, q, k, v, mask: naive.efficient_attention(q, k, v),
    "entmax": lambda a, q, k, v, mask: naive.entmax_attention(q, k, v, mask, alpha=a.config.alpha),
    "entmax15": lambda a, q, k, v, mask: naive.entmax_attention(q, k, v, mask, alpha=1.5),
    "linear": lambda a, q, k, v, mask: naive.linear_attention(q, k, v, mask),
    "linformer": lambda a, q, k, v, mask: naive.linformer_attention(
        q, k, v, *(x[:, : k.size(2)] for x in (a.keys_projection, a.values_projection))
    ),
    "nystromformer": nystromformer,
    "performer": lambda a, q, k, v, mask: naive.performer_attention(
        q, k, v, mask, a._current_directions(), a.config.kernel
    ),
    "pointwise": lambda a, q, k, v, mask: naive.pointwise_attention(
        q, k, v, mask, naive.POINTWISE[a.config.h], a.config.alpha
    ),
    "polynomial": lambda a, q, k, v, mask: naive.polynomial_attention(
        q, k, v, mask, a.config.power, polynomial_scale(a, mask.sum(-1, keepdim=True))
    ),
    "rela": lambda a, q, k, v, mask: naive.rela_attention(q, k, v, mask),
    "reluformer": reluformer,
    "sima": lambda a, q, k, v, mask: naive.sima_attention(
        q, k, v, {"l1": 1, "l2": 2, "none": 0}[a.config.norm]
    ),
    "soft": soft,
    "softmax": lambda a, q, k, v, mask: naive.softmax_attention(q, k, v, mask),
    "sparsemax": lambda a, q, k, v, mask: naive.sparsemax_attention(q, k, v, mask),
    "thresholded_relu": lambda a, *qkvm: naive.thresholded_relu_attention(
        *qkvm, power=a.config.power
    ),
    "xca": lambda a, q, k, v, mask: naive.xca_attention(
        q, k, v, a.temperature[:, None, None], power_kernel(a, k.size(2)), a.config.unit_norm
    ),
}


def formula(attend, q, k, v, visibility):
    """The outputs [B, H, Nq, dv] by the formula. The outputs of padded queries mean nothing.

    Mechanisms of whole sequences get each sample without its padding.
    """
    compute = FORMULAS[attend.name]
    visible = torch.ones(visibility.num_queries, visibility.num_keys, dtype=torch.bool)
    if visibility.mask is not None:
        visible = visibility.mask
    if attend.capabilities.causal:
        grid = {} if visibility.grid is None else {"grid": visibility.grid}
        return compute(attend, q, k, v, visible, **grid)
    outputs = []
    for b in range(len(q)):
        # All of a side are real if it has no mask.
        keys = slice(None) if visibility.key_mask is None else visibility.key_mask[b]
        queries = slice(None) if visibility.query_mask is None else visibility.query_mask[b]
        output = q.new_zeros(q.size(1), q.size(2), v.size(3))
        batch = slice(b, b + 1)
        real_keys, real_values = k[batch, :, keys], v[batch, :, keys]
        output[:, queries] = compute(attend, q[batch, :, queries], real_keys, real_values, None)[0]
        outputs.append(output)
    return torch.stack(outputs)


@dataclass(frozen=True)
class Expected:
    """Outputs by the formula, and their gradients after :func:`gradients_of`."""

    values: Tensor  # [B, H, Nq, dv], 0 at padded queries
    gradients: list[Tensor | None]


def real_queries(q, visibility):
    """Return 1 for each query that is no padding and 0 for others, [B, 1, Nq, 1]."""
    return visibility.real_rows(len(q)).double()[..., None]


def gradients_of(values, attend, inputs):
    """Return gradients of randomly weighted outputs by the inputs and the parameters."""
    generator = torch.Generator().manual_seed(5)
    factor = torch.randn(values.shape, generator=generator, dtype=torch.float64)
    leaves = [*inputs, *(p for p in attend.parameters() if p.requires_grad)]
    return torch.autograd.grad((values * factor).sum(), leaves, allow_unused=True)


def by_formula(attend, q, k, v, visibility):
    """Return the expected outputs and gradients of an attention in float64."""
    inputs = as_leaves([q, k, v])
    values = formula(attend, *inputs, visibility) * real_queries(q, visibility)
    return Expected(values.detach(), gradients_of(values, attend, inputs))


def assert_is_formula(attend, q, k, v, visibility, need, expected=None, rtol=1e-8, atol=1e-10):
    """Compare outputs and gradients, and the weights if asked for, with the formula's.

    Args:
        attend: the attention, in float64.
        q: [B, H, Nq, d].
        k: [B, H, Nk, d].
        v: [B, H, Nk, dv].
        visibility: what each query may see.
        need: what to ask for.
        expected: :func:`by_formula` of the same, where it is computed already.
        rtol: the relative tolerance.
        atol: the absolute one.
    """
    q, k, v = as_leaves([q, k, v])
    real = real_queries(q, visibility)
    output = attend(q, k, v, visibility, need=need)
    values = output.values * real
    expected = expected or by_formula(attend, q, k, v, visibility)
    torch.testing.assert_close(values, expected.values, rtol=rtol, atol=atol)
    ours = gradients_of(values, attend, (q, k, v))
    for our, their in zip(ours, expected.gradients, strict=True):
        if our is None or their is None:
            assert our is their or not (their if our is None else our).any()
            continue
        size = their.abs().max().clamp_min(1)
        torch.testing.assert_close(our / size, their / size, rtol=rtol, atol=atol)
    if need.weights:
        unit = torch.eye(k.size(2), dtype=torch.float64).expand(*k.shape[:2], -1, -1)
        weights = formula(attend, q, k, unit, visibility)
        torch.testing.assert_close(output.weights * real, weights * real, rtol=rtol, atol=atol)
