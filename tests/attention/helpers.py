import torch

from relu_nmt.attention import attentions
from relu_nmt.attention.base import Attention, build_attention
from relu_nmt.attention.spec import AttentionSpec

VARIANTS = [
    "pointwise:h=gelu,alpha=0.5",
    "pointwise:h=sigmoid",
    "polynomial:power=2",
    "polynomial:scale=dynamic,length=4096",
]
"""Options that change what a mechanism can do; tested beside the defaults of everything."""


def make_attention(name: str, slot: str = "encoder", heads: int = 2, dim: int = 4) -> Attention:
    attention = build_attention(AttentionSpec.parse(name), slot, heads, dim, dropout=0.0)
    return attention.double().eval()


def random_qkv(batch, queries, keys, *, heads=2, dim=4, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(batch, heads, n, dim, generator=generator, dtype=torch.float64).to(dtype)
        for n in (queries, keys, keys)
    ]


def can(name: str, capability: str) -> bool:
    """Return what the class declares; options may change ``make_attention(name).capabilities``."""
    return getattr(attentions.get(AttentionSpec.parse(name).name).capabilities, capability)


def fitted_slope(lengths, values) -> float:
    """Return the exponent e of the least-squares fit values ~ lengths^e."""
    x, y = torch.tensor(lengths).double().log(), torch.tensor(values).double().log()
    x, y = x - x.mean(), y - y.mean()
    return float((x @ y) / (x @ x))
