import math

import torch

from relu_nmt.attention import attentions
from relu_nmt.attention.base import Attention, Need, build_attention
from relu_nmt.attention.score_bias import ScoreBias
from relu_nmt.config.registry import Spec

VARIANTS = [
    "cosformer:reweight=false",
    "linformer:rank=2,length=4096",
    "nystromformer:landmarks=2,conv=3",
    "nystromformer:landmarks=2,kernel=polynomial",
    "nystromformer:landmarks=2,kernel=polynomial,scale=dynamic",
    "performer:kernel=relu",
    "pointwise:h=gelu,alpha=0.5",
    "pointwise:h=sigmoid",
    "polynomial:power=2",
    "polynomial:scale=dynamic,length=4096",
    "reluformer:centered=true",
    "reluformer:centered=true,power=2",
    "sima:norm=l2",
    "sima:norm=none",
    "soft:stride=2,normalized=true,conv=3",
    "xca:kernel=polynomial,count=channels",
    "xca:kernel=polynomial,scale=fixed,unit_norm=false",
]
"""Options that change the abilities of a mechanism. All tests run them beside the defaults."""

FORMS = [
    "cosformer:horizon=70",
    "entmax:alpha=1.3",
    "linformer:length=70,rank=3",
    "nystromformer:landmarks=3",
    *(
        f"nystromformer:landmarks=3,kernel=polynomial,scale={scale}"
        for scale in ("none", "fixed,length=196", "dynamic,length=196")
    ),
    "performer:features=6",
    *(f"pointwise:h={h},alpha=0" for h in ("relu", "relu2", "relu6")),
    *(f"pointwise:h={h},alpha=1.25" for h in ("relu", "relu2", "relu6")),
    *(f"pointwise:h={h},alpha=0.5" for h in ("identity", "sigmoid", "softplus")),
    *(f"polynomial:power={power}" for power in (1, 4, 5, 6)),
    *(f"polynomial:scale={scale}" for scale in ("none", "fixed,length=196", "dynamic")),
    "polynomial:scale=dynamic,length=196,per_head=true",
    "reluformer:gamma=0.35",
    "reluformer:gamma=0.35,power=2",
    "reluformer:gamma=2,learnable=true",
    "soft:stride=3",
    *(f"thresholded_relu:power={power}" for power in (1, 2, 3, 8)),
    "xca:kernel=polynomial,scale=dynamic",
    "xca:kernel=polynomial,scale=none,unit_norm=false",
    "xca:kernel=polynomial,scale=dynamic,count=channels",
]
"""Further options, which are compared with their formula only."""

SHORT_ONLY = {
    "soft:stride=2,normalized=true,conv=3": "inverting 2048 landmarks takes minutes",
    "nystromformer:landmarks=2,kernel=polynomial": "its true outputs exceed float16's 65504: the"
    " inverse of cubed products of means over thousands of tokens is that large",
    "nystromformer:landmarks=2,kernel=polynomial,scale=dynamic": "the same",
}
"""Variants that are not tested at thousands of tokens in half precision, and why."""


HOLED = ("011101011011", "000000111111", "000000000011", "110000000001", "111111111110")
"""Masks whose padding stands anywhere: 1 is a real token."""


SLOTS = {False: "encoder", True: "decoder"}
"""Slot of self-attention, by whether it is causal."""


def make_attention(name: str, slot: str = "encoder", heads: int = 2, dim: int = 4) -> Attention:
    attention = build_attention(Spec.parse(name), slot, 0, heads, dim, dropout=0.0)
    return attention.double().eval()


def random_qkv(batch, queries, keys, *, heads=2, dim=4, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    options = {"generator": generator, "dtype": torch.float64}
    q = torch.randn(batch, heads, queries, dim, **options)
    k = torch.randn(batch, heads, keys, dim, **options)
    v = torch.randn(batch, heads, keys, dim, **options)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def as_leaves(tensors, dtype=None):
    """Return copies of tensors that get gradients."""
    return [x.detach().clone().to(dtype or x.dtype).requires_grad_() for x in tensors]


def leaves(*arguments, **options):
    """Return random queries, keys and values that get gradients."""
    return as_leaves(random_qkv(*arguments, **options))


def is_real(mask):
    """Return a mask of ones and zeros as a tensor with one row."""
    return torch.tensor(list(map(int, mask))).bool()[None]


def entropy_of(row):
    """Return the entropy of the positive weights of a row of numbers, in shares of its sum."""
    entropy = 0.0
    for weight in row:
        if weight > 0:
            share = weight / sum(row)
            entropy -= share * math.log(share)
    return entropy


def can(name: str, capability: str) -> bool:
    """Return a capability of the class. Options of an instance may change it."""
    return getattr(attentions.get(Spec.parse(name).name).capabilities, capability)


def fitted_slope(lengths, values) -> float:
    """Return the exponent e of the least-squares fit values ~ lengths^e."""
    x = torch.tensor(lengths).double().log()
    y = torch.tensor(values).double().log()
    x = x - x.mean()
    y = y - y.mean()
    return float((x @ y) / (x @ x))


def needed_results(name: str, recorded: bool = True) -> Need:
    """Return a need of all results that a mechanism has, or of its values alone."""
    if not recorded:
        return Need()
    return Need(statistics=True, telemetry=True, weights=can(name, "weights"))


def num_queries(name: str, queries: int, keys: int) -> int:
    """Return ``queries``, or ``keys`` where queries and keys are the same tokens."""
    return queries if can(name, "cross") else keys


def with_length(name: str, length: int) -> str:
    """Return the name with its option ``length``, if it has to know the number of keys."""
    if not can(name, "fixed_length") or "length=" in name:
        return name
    return with_option(name, f"length={length}")


def with_option(name: str, option: str) -> str:
    """Return the name with one more option."""
    return f"{name}{',' if ':' in name else ':'}{option}"


def make_bias(visibility, seed=7, heads=2):
    """A learned bias of every head for every distance that occurs."""
    size = visibility.num_keys + visibility.num_queries
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(heads, 2 * size, generator=generator, dtype=torch.float64)
    return ScoreBias(
        table.requires_grad_(), visibility.query_positions(), visibility.key_positions(), size
    )
