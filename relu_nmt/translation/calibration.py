"""A calibrated start: the weights of a trained model for a model with another attention.

Each row of softmax weights sums to 1. With the same projections, a row of another mechanism's
weights can have any sum. ReLU is homogeneous, ReLU(a z) = a ReLU(z): a factor of a layer's queries
scales its rows, and needs no new parameter. Layers are calibrated from the bottom, each on the
outputs of the calibrated layers below.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from relu_nmt.attention.base import Attention, Need
from relu_nmt.attention.records import AttentionRecord, record_attention
from relu_nmt.attention.regularizer import NULL_SUM
from relu_nmt.config.registry import Spec
from relu_nmt.data.translation_batches import TranslationBatch
from relu_nmt.modules.config import SLOTS
from relu_nmt.modules.multihead import MultiheadAttention
from relu_nmt.translation.base import TranslationModel
from relu_nmt.translation.config import TransformerConfig

SAMPLE_TOKENS = 4096  # number of tokens to calibrate with
ROUNDS = 4
CLOSE_TO_1 = 0.01

Factors = dict[str, dict[str, float]]
"""The factor of each layer's queries, by slot and by name of the attention module."""


def changed_slots(stored: Mapping[str, Any], config: TransformerConfig) -> dict[str, str]:
    """Return in words how the mechanism of each changed slot differs from stored settings.

    Example:
        >>> changed_slots({"attention": "softmax"}, TransformerConfig(cross_attention="rela"))
        {'cross': 'softmax to rela'}
    """
    changes = {}
    for slot in SLOTS:
        before = stored.get(f"{slot}_attention") or stored.get("attention") or "softmax"
        old = Spec.parse(before).name
        new = config.mechanism_of(slot)
        if old != new:
            changes[slot] = f"{old} to {new}"
    return changes


def fit_mechanisms(
    model: nn.Module, weights: Mapping[str, Tensor], slots: Mapping[str, str]
) -> dict[str, Tensor]:
    """Return the weights, with the new model's parameters for the mechanisms of these slots."""
    changed = tuple(
        f"{name}."
        for name, module in model.named_modules()
        if isinstance(module, Attention) and module.slot in slots
    )
    fitted = {name: tensor for name, tensor in weights.items() if not name.startswith(changed)}
    for name, tensor in model.state_dict().items():
        if name.startswith(changed):
            fitted[name] = tensor.clone()
    return fitted


@torch.no_grad()
def calibrate(
    model: TranslationModel, batch: TranslationBatch, slots: Mapping[str, str]
) -> Factors:
    """Scale queries in place, so that rows of weights sum to 1 on average. Return the factors."""
    factors: Factors = {slot: {} for slot in slots}
    names = {module: name for name, module in model.named_modules()}
    weights = model.state_dict()

    # Before a layer computes, measure its rows on the same inputs, and scale its queries.
    def scale(module: MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        attention = module.attention
        name = names[module]
        factor_of = factors[attention.slot]
        # Repeat: scaled queries do not scale a bias of the scores, so one factor is inexact.
        for _ in range(ROUNDS):
            with record_attention(attention, Need(weights=True)) as records:
                module.forward(*args, **kwargs)
            total = _mean_row_sum(records)
            if total <= NULL_SUM or abs(total - 1) < CLOSE_TO_1:
                return
            factor = total ** (-1 / (attention.degree or 1))
            factor_of[name] = factor_of.get(name, 1.0) * factor
            scale_queries(weights, name, factor)

    with ExitStack() as hooks:
        for module in names:
            if not isinstance(module, MultiheadAttention):
                continue
            if module.attention.slot in slots and module.attention.degree is not None:
                hooks.enter_context(module.register_forward_pre_hook(scale, with_kwargs=True))
        model.eval()(batch.src_tokens, batch.prev_output_tokens)
    return factors


def _mean_row_sum(records: Sequence[AttentionRecord]) -> float:
    """Return the mean over heads and real rows of the sum of absolute weights."""
    # Add up the records: attention inside sentences has one for each part.
    sums = count = 0.0
    for record in records:
        assert record.weights is not None, "homogeneous mechanisms have weights"
        totals = record.weights.abs().sum(-1, dtype=torch.float64)  # [B, H, Nq]
        real = record.visibility.real_rows(len(totals)).expand_as(totals)
        sums += float(totals[real > 0].sum())
        count += float(real.sum())
    return sums / max(count, 1.0)


def scale_queries(weights: Mapping[str, Tensor], name: str, factor: float) -> None:
    """Scale an attention's queries: its gain of ``qk_norm``, or else its projection."""
    width = len(weights[f"{name}.out_proj.weight"])
    parts = ["attention.query_gain"]
    if f"{name}.attention.query_gain" not in weights:
        parts = ["qkv.weight", "qkv.bias", "q.weight", "q.bias"]
    for part in parts:
        tensor = weights.get(f"{name}.{part}")
        if tensor is not None:
            tensor[:width].mul_(factor)


def describe(slots: Mapping[str, str], factors: Factors) -> list[str]:
    """Return a line for each changed slot, with the factors of its layers."""
    lines = []
    for slot, change in slots.items():
        values = ", ".join(f"{factor:.3g}" for factor in factors[slot].values())
        how = f"rows sum to 1 with queries times {values}" if values else "starts as it is"
        lines.append(f"{slot} attention {change}: {how}")
    return lines
