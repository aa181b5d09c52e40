"""Statistics of the branches of layers and of memories, over many sentences.

The model reads sentences and their translations. A feed-forward network counts as a memory of keys.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.applications.statistics import definitions, summary
from relu_nmt.attention.regularizer import NULL_SUM
from relu_nmt.errors import ConfigError
from relu_nmt.modules.feed_forward import FeedForward
from relu_nmt.modules.multihead import MultiheadAttention
from relu_nmt.modules.transformer_layer import Residual, TransformerLayer
from relu_nmt.translation.base import Ensemble
from relu_nmt.translator.attention_maps import input_batches, single_model

BRANCHES = ("self_attention", "cross_attention", "feed_forward")  # of a layer, in order
PERCENTS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
SORTED_AT_ONCE = 2**22  # weights of memories to sort at a time: 32 MB in float64
OF_MEMORIES = {
    "weights": "outputs of the activation, one for each of the n = `size` keys of the memory; no "
    "dropout, real tokens only, targets are read in one pass",
    **definitions(("variance_ratio", "anisotropy", "null_fraction", "top_sums")),
    "sides": "means over the layers of a side",
    "overall": "means over all layers",
}
BranchPlace = tuple[str, int, str]  # Side, layer, and one of BRANCHES


class LayerStatistics:
    """Sums of the statistics of a model's branches and memories over pairs of sentences.

    A branch with a ``variance_ratio`` near 0 has no effect, even if its attention weights look
    sharp. ``top_sums`` are the sums over the largest p percent of weights. Memories whose weights
    may be negative (GELU, gates) have neither ``top_sums`` nor ``null_fraction``. The ensemble
    holds a single model.

    Reference: ReLUFormer, section 3, Eq. 4 and Figures 2 and 3.
    """

    def __init__(self, ensemble: Ensemble, memories_only: bool = False) -> None:
        self._ensemble = ensemble
        self._model = single_model(ensemble)
        self._num_sentences = 0
        self._sums: dict[BranchPlace, BranchSums] = {}
        branches = BRANCHES[-1:] if memories_only else BRANCHES
        for side, stack in (("encoder", self._model.encoder), ("decoder", self._model.decoder)):
            for index, layer in enumerate(stack.layers):
                for branch in branches:
                    if getattr(layer, branch) is not None:
                        self._sums[side, index, branch] = BranchSums(layer, branch)
        self._memories = {}
        self.has_memories = True
        for (side, index, branch), sums in self._sums.items():
            if sums.size:
                self._memories[f"{side}.{index}"] = sums
            elif branch == BRANCHES[-1]:
                self.has_memories = False
                if memories_only:
                    raise ConfigError(
                        f"no statistics of memories: the feed-forward network "
                        f"{type(sums.module).__name__} is no subclass of FeedForward"
                    )

    def add(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> None:
        """Add sentences and their translations: token ids, each with its end symbol."""
        largest = max((sums.size for sums in self._memories.values()), default=0)
        batches = input_batches(sources, targets, self._ensemble, lambda n: max(largest, n) * n)
        for _, *inputs in batches:
            self.add_batch(*inputs)

    def add_batch(self, src_tokens: Tensor, prev_output_tokens: Tensor) -> None:
        """Add src_tokens [B, S] and prev_output_tokens [B, T], int64, right-padded."""
        pad_index = self._model.decoder.pad_index
        real = {"encoder": src_tokens != pad_index, "decoder": prev_output_tokens != pad_index}
        with self._ensemble.evaluating(), ExitStack() as hooks:
            for (side, _, _), sums in self._sums.items():
                sums.watch(real[side], hooks)
            self._model(src_tokens, prev_output_tokens)
        self._num_sentences += len(src_tokens)

    def records(self) -> list[dict[str, Any]]:
        """Return ``side``, ``layer``, ``branch`` and ``variance_ratio`` of branches."""
        records = []
        for (side, layer, branch), sums in self._sums.items():
            record = {"side": side, "layer": layer, "branch": branch, "variance_ratio": sums.ratio}
            records.append(record)
        return records

    def added_variances(self) -> dict[tuple[str, int, int], float | None]:
        """Return the ``added_variance`` of the heads by slot, layer and head."""
        variances = {}
        for (side, layer, branch), sums in self._sums.items():
            slot = "cross" if branch == "cross_attention" else side
            for head, ratio in enumerate(sums.head_ratios):
                variances[slot, layer, head] = ratio
        return variances

    def report(self) -> dict[str, Any]:
        """Return plain values for JSON, ``modules`` by layer. A mean without values is None."""
        # Report no module before the first sentence.
        modules = {}
        if self._num_sentences:
            for name, sums in self._memories.items():
                modules[name] = sums.report()
        overall, sides = summary(modules, without=("tokens", "size"))
        return {
            "definitions": OF_MEMORIES,
            "sentences": self._num_sentences,
            "feed_forward": self._model.config.feed_forward,
            "overall": overall,
            "sides": sides,
            "modules": modules,
        }


class BranchSums:
    """Sums over the tokens that pass through a branch of a layer, for variances and a memory."""

    def __init__(self, layer: TransformerLayer, branch: str) -> None:
        self.module: nn.Module = getattr(layer, branch)
        residual: Residual = getattr(layer, f"{branch}_residual")
        # In pre-norm layers x is the input of the norm.
        self._start = residual.norm if residual.normalize_before else self.module
        num_heads = self.module.num_heads if isinstance(self.module, MultiheadAttention) else 0
        # Number, sum and sum of squares of the values of x, of f(x), and of each head's W_h o_h.
        self._moments = np.zeros((2 + num_heads, 3))
        self._outer: nn.Linear | None = None
        self.size = 0
        if isinstance(self.module, FeedForward):
            self._outer = self.module.outer
            self.size = self._outer.in_features
        # For each p, the index of the last of the largest p percent of keys, rounded up.
        self._last = [math.ceil(percent * self.size / 100) - 1 for percent in PERCENTS]
        self._num_tokens = 0
        self._num_summed = 0
        self._is_signed = False
        self._top_sums = np.zeros(len(PERCENTS))

    def watch(self, real: Tensor, hooks: ExitStack) -> None:
        """Add the states of each pass until ``hooks`` closes. ``real`` [B, N] bool marks tokens."""

        def watch_inputs(module: nn.Module, add: Callable[[Tensor], None]) -> None:
            # A handle removes its hook at the end of its block.
            handle = module.register_forward_pre_hook(lambda _, args: add(args[0][real]))
            hooks.enter_context(handle)

        module = self.module
        watch_inputs(self._start, partial(self._add, 0))
        after = module.register_forward_hook(lambda _, args, output: self._add(1, output[real]))
        hooks.enter_context(after)
        if self._outer is not None:
            watch_inputs(self._outer, self._rank)
        if isinstance(module, MultiheadAttention):
            watch_inputs(module.out_proj, partial(self._add_heads, module))

    def _add(self, row: int, states: Tensor) -> None:
        """Add states [R, D] to a row of the moments."""
        x = states.double()
        self._moments[row] += x.numel(), float(x.sum()), float(x.square().sum())

    def _add_heads(self, attention: MultiheadAttention, values: Tensor) -> None:
        """Add the part W_h o_h of each head, from joined heads [R, H d]."""
        heads = values.double().chunk(attention.num_heads, -1)  # [R, d] each
        weights = attention.out_proj.weight.double().chunk(attention.num_heads, 1)  # [D, d] each
        for row, (head, weight) in enumerate(zip(heads, weights, strict=True), start=2):
            self._add(row, head @ weight.T)

    def _rank(self, weights: Tensor) -> None:
        """Add the sums of the largest p percent of weights, from all weights [R, F]."""
        # Stop at the first negative weight: signed weights have no shares.
        self._num_tokens += len(weights)
        for part in weights.split(max(1, SORTED_AT_ONCE // self.size)):
            self._is_signed = self._is_signed or bool((part < 0).any())
            if self._is_signed:
                return
            ranked = part.sort(-1, descending=True).values.double().cumsum(-1)
            ranked = ranked[ranked[:, -1] > NULL_SUM]
            self._num_summed += len(ranked)
            # Divide the sums of the largest weights by the whole sum: [R', P].
            shares = ranked[:, self._last] / ranked[:, -1:]
            self._top_sums += shares.sum(0).cpu().numpy()

    @property
    def ratio(self) -> float | None:
        """The ``variance_ratio``, or None if Var(x) is 0."""
        before, after, *_ = self._variances
        return after / before if before else None

    @property
    def head_ratios(self) -> list[float | None]:
        """The ``added_variance`` of each head, None if Var(x) is 0. []: a branch without heads."""
        before, _, *heads = self._variances
        return [part / before if before else None for part in heads]

    @property
    def _variances(self) -> list[float]:
        """Var(x), Var(f(x)), and the variance of each head's part."""
        counts, sums, squares = self._moments.T
        counts = np.maximum(1.0, counts)
        variances: list[float] = np.maximum(0.0, squares / counts - (sums / counts) ** 2).tolist()
        return variances

    def report(self) -> dict[str, Any]:
        """Return the statistics of a memory as plain values for JSON."""
        assert self._outer is not None
        part: dict[str, Any] = {
            "tokens": self._num_tokens,
            "size": self.size,
            "variance_ratio": self.ratio,
            "anisotropy": anisotropy(self._outer.weight.detach().T),
        }
        if self._is_signed:
            return part
        means: list[Any] = [None] * len(PERCENTS)
        if self._num_summed:
            means = (self._top_sums / self._num_summed).tolist()
        return part | {
            "null_fraction": 1 - self._num_summed / max(1, self._num_tokens),
            "top_sums": dict(zip(map(str, PERCENTS), means, strict=True)),
        }


def anisotropy(values: Tensor) -> float | None:
    """Return the mean cosine of two different non-zero rows of V [F, D]. None: too few rows.

    It is between -1 / (F - 1) and 1, and near 0 for random rows.

    Reference: ReLUFormer, Eq. 4.
    """
    rows = values.double()
    # Drop zero rows, which have no direction.
    rows = F.normalize(rows[rows.any(-1)], dim=-1, eps=0.0)
    number = len(rows)
    if number < 2:
        return None
    # Subtract the cosines of rows with themselves, which are 1.
    return (float(rows.sum(0).square().sum()) - number) / (number * (number - 1))
