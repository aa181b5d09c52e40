"""Statistics of the branches of layers, and of feed-forward networks as memories of keys."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from relu_nmt.attention.statistics import NULL_SUM, definitions
from relu_nmt.errors import ConfigError
from relu_nmt.modules.feed_forward import FeedForward
from relu_nmt.modules.transformer_layer import Residual, TransformerLayer
from relu_nmt.translation.attention_maps import input_batches, single_model
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.search.ensemble import Ensemble
from relu_nmt.translation.step_decoder import PlainDecoder

BRANCHES = ("self_attention", "cross_attention", "feed_forward")
"""The parts of a layer that add to its states, in their order."""
PERCENTS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
MOST_WEIGHTS = 2**22
"""Weights of memories to sort at a time: 32 MB in float64."""
DEFINITIONS = {
    "weights": "outputs of the activation, one for each of the n = `size` keys of the memory; no "
    "dropout, real tokens only, targets are read in one pass",
    **definitions(("variance_ratio", "anisotropy", "null_fraction", "top_sums")),
    "sides": "means over the layers of a side",
    "overall": "means over all layers",
}


class BranchStatistics:
    """Sums for the ``variance_ratio`` of each branch of a model's layers over pairs of sentences.

    A branch with a ratio near 0 has no effect, even if its attention weights look sharp.

    ``ensemble`` holds a single model; its dtype is used.

    Raises:
        ConfigError: several models.
    """

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self._model = single_model(ensemble)
        self._variances = {
            (side, index, branch): BranchVariances(layer, branch)
            for side, stack in (("encoder", self._model.encoder), ("decoder", self._model.decoder))
            for index, layer in enumerate(stack.layers)
            for branch in BRANCHES
            if getattr(layer, branch) is not None
        }

    def add(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> None:
        """Add sentences and their translations: token ids, each with its end symbol."""
        pad_index = self._model.decoder.pad_index
        batches = input_batches(sources, targets, self._ensemble, lambda n: n * n)
        for _, src_tokens, prev_output_tokens in batches:
            # Leave padding out of the variances.
            real = {"encoder": src_tokens != pad_index, "decoder": prev_output_tokens != pad_index}
            with self._ensemble.evaluating(), ExitStack() as hooks:
                for (side, _, _), variances in self._variances.items():
                    hooks.enter_context(variances.watching(real[side]))
                self._model(src_tokens, prev_output_tokens)

    def records(self) -> list[dict[str, Any]]:
        """Return ``side``, ``layer``, ``branch`` and ``variance_ratio`` of branches."""
        return [
            {"side": side, "layer": layer, "branch": branch, "variance_ratio": variances.ratio}
            for (side, layer, branch), variances in self._variances.items()
        ]


class BranchVariances:
    """Variances of the input of a branch (one of BRANCHES), and of the states that it adds."""

    def __init__(self, layer: TransformerLayer, branch: str) -> None:
        self._module: nn.Module = getattr(layer, branch)
        self._residual: Residual = getattr(layer, f"{branch}_residual")
        self._input, self._output = np.zeros(3), np.zeros(3)

    @contextmanager
    def watching(self, real: Tensor) -> Iterator[None]:
        """Add the states of passes inside the block; real [B, N] bool, True = no padding."""

        # Watch the states before and after the branch, without padding.
        def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
            self._input += _moments(args[0][real])

        def leave(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            self._output += _moments(output[real])

        # In pre-norm layers x is the input of the norm.
        start = self._residual.norm if self._residual.normalize_before else self._module
        handles = [
            start.register_forward_pre_hook(enter),
            self._module.register_forward_hook(leave),
        ]
        try:
            yield
        finally:
            # Remove the hooks even if a pass fails.
            for handle in handles:
                handle.remove()

    @property
    def ratio(self) -> float | None:
        """The ``variance_ratio``; None if Var(x) is 0."""
        before = _variance(self._input)
        return _variance(self._output) / before if before else None


def _moments(x: Tensor) -> np.ndarray:
    """Return number, sum and sum of squares of the values of x."""
    exact = x.double()
    return np.array([exact.numel(), float(exact.sum()), float(exact.square().sum())])


def _variance(moments: np.ndarray) -> float:
    """Return the mean square of the deviations from the mean."""
    count = max(1.0, moments[0])
    return max(0.0, float(moments[2] / count - (moments[1] / count) ** 2))


class MemoryStatistics:
    """Sums of the statistics of a model's memories over pairs of sentences.

    Networks whose weights may be negative (GELU, gates) have neither ``null_fraction`` nor
    ``top_sums``.

    ``ensemble`` holds a single model; its dtype is used. ``percents`` are the p of ``top_sums``.

    Raises:
        ConfigError: several models, feed-forward networks of another kind than
            :class:`relu_nmt.modules.feed_forward.FeedForward`, or impossible percents.

    Reference: ReLUFormer, section 3, Eq. 4 and Figures 2 and 3.
    """

    def __init__(self, ensemble: Ensemble, percents: Sequence[float] = PERCENTS) -> None:
        if not all(0 < percent <= 100 for percent in percents):
            raise ConfigError(f"percents: {percents}: expected above 0 to 100")
        self._ensemble = ensemble
        self._model = single_model(ensemble)
        self._num_sentences = 0
        self._sums: dict[str, list[_LayerSums]] = {
            side: [_LayerSums(layer, percents) for layer in stack.layers]
            for side, stack in (("encoder", self._model.encoder), ("decoder", self._model.decoder))
        }

    def add(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> None:
        """Add sentences and their translations: token ids, each with its end symbol."""
        size = max(sums.size for layers in self._sums.values() for sums in layers)
        for _, *inputs in input_batches(sources, targets, self._ensemble, lambda n: size * n):
            self.add_batch(*inputs)

    def add_batch(self, src_tokens: Tensor, prev_output_tokens: Tensor) -> None:
        """Add src_tokens [B, S] and prev_output_tokens [B, T], int64, right-padded."""
        tokens = {"encoder": src_tokens, "decoder": prev_output_tokens}
        pad_index = self._model.decoder.pad_index
        with self._ensemble.evaluating(), ExitStack() as hooks:
            for side, layers in self._sums.items():
                for sums in layers:
                    hooks.enter_context(sums.watching(tokens[side] != pad_index))
            self._model(src_tokens, prev_output_tokens)
        self._num_sentences += len(src_tokens)

    def report(self) -> dict[str, Any]:
        """Return everything as plain values for JSON; ``modules`` has each layer.

        A mean of no values, and a ratio to a variance of 0, is None.
        """
        # Leave the lists empty before the first sentence.
        found = {
            side: [sums.report() for sums in layers] if self._num_sentences else []
            for side, layers in self._sums.items()
        }
        modules = {f"{s}.{i}": part for s, parts in found.items() for i, part in enumerate(parts)}
        return {
            "definitions": DEFINITIONS,
            "sentences": self._num_sentences,
            "feed_forward": self._model.config.feed_forward,
            "overall": _mean_of(list(modules.values())),
            "sides": {side: _mean_of(parts) for side, parts in found.items() if parts},
            "modules": modules,
        }


def memory_statistics(
    model: EncoderDecoder,
    batches: Iterable[tuple[Tensor, Tensor]],
    percents: Sequence[float] = PERCENTS,
) -> dict[str, Any]:
    """Return the statistics of the memories of a model; see :class:`MemoryStatistics`.

    Args:
        model: a model on the device of the batches.
        batches: sources [B, S], and targets shifted right [B, T], int64, right-padded.
        percents: p of ``top_sums``.

    Raises:
        ConfigError: feed-forward networks of another kind, or impossible percents.

    Example:
        >>> import torch
        >>> from relu_nmt.translation.config import TransformerConfig
        >>> config = TransformerConfig(encoder_layers=1, decoder_layers=1, feed_forward="softmax")
        >>> batch = torch.tensor([[4, 5, 2]]), torch.tensor([[2, 6]])
        >>> report = memory_statistics(EncoderDecoder(config, 10, 12, pad_index=1), [batch])
        >>> round(report["overall"]["top_sums"]["100"], 6)
        1.0
    """
    statistics = MemoryStatistics(Ensemble([PlainDecoder(model)]), percents)
    for batch in batches:
        statistics.add_batch(*batch)
    return statistics.report()


def anisotropy(values: Tensor) -> float | None:
    """Return the mean cosine between two different non-zero rows of V [F, D]; None without a pair.

    It is between -1 / (F - 1) and 1, and near 0 for random rows.

    Reference: ReLUFormer, Eq. 4.

    Example:
        >>> import torch
        >>> anisotropy(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 0.0]]))
        1.0
    """
    rows = values.double()
    # Drop zero rows, which have no direction.
    rows = F.normalize(rows[rows.any(-1)], dim=-1, eps=0.0)
    number = len(rows)
    if number < 2:
        return None
    # Subtract the cosines of rows with themselves, which are 1.
    return (float(rows.sum(0).square().sum()) - number) / (number * (number - 1))


class _LayerSums:
    """The sums over tokens of the feed-forward network of a layer."""

    def __init__(self, layer: TransformerLayer, percents: Sequence[float]) -> None:
        network = layer.feed_forward
        if not isinstance(network, FeedForward):
            raise ConfigError(
                f"no statistics of memories: the feed-forward network {type(network).__name__} is "
                "no subclass of FeedForward"
            )
        self._network, self._variances = network, BranchVariances(layer, "feed_forward")
        self.size = network.outer.in_features
        self._percents = percents
        # Round the numbers of keys up, so that each p has a key.
        self._counts = [math.ceil(percent * self.size / 100) for percent in percents]
        self._num_tokens, self._num_summed, self._is_signed = 0, 0, False
        self._top_sums = np.zeros(len(percents))

    @contextmanager
    def watching(self, real: Tensor) -> Iterator[None]:
        """Add the weights of passes inside the block; real [B, N] bool, True = no padding."""
        inner = self._network.outer
        handle = inner.register_forward_pre_hook(lambda _, args: self._rank(args[0][real]))
        try:
            with self._variances.watching(real):
                yield
        finally:
            handle.remove()

    def _rank(self, weights: Tensor) -> None:
        """Add the sums of the largest of the weights [R, F]."""
        # Stop at the first negative weight: signed weights have no shares.
        self._num_tokens += len(weights)
        for part in weights.split(max(1, MOST_WEIGHTS // self.size)):
            self._is_signed = self._is_signed or bool((part < 0).any())
            if self._is_signed:
                return
            # Sum up the largest weights, without tokens of null rows.
            ranked = part.sort(-1, descending=True).values.double().cumsum(-1)
            ranked = ranked[ranked[:, -1] > NULL_SUM]
            self._num_summed += len(ranked)
            # Divide the sums of the largest weights by the whole sum: [R', P].
            shares = ranked[:, [count - 1 for count in self._counts]] / ranked[:, -1:]
            self._top_sums += shares.sum(0).cpu().numpy()

    def report(self) -> dict[str, Any]:
        """Return the statistics as plain values for JSON."""
        part: dict[str, Any] = {
            "tokens": self._num_tokens,
            "size": self.size,
            "variance_ratio": self._variances.ratio,
            "anisotropy": anisotropy(self._network.outer.weight.detach().T),
        }
        # Leave out shares of signed weights.
        if self._is_signed:
            return part
        means = (self._top_sums / max(1, self._num_summed)).tolist()
        return part | {
            "null_fraction": 1 - self._num_summed / max(1, self._num_tokens),
            "top_sums": {
                str(percent): mean if self._num_summed else None
                for percent, mean in zip(self._percents, means, strict=True)
            },
        }


def _mean_of(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the means over layers of the statistics that all layers have."""
    means: dict[str, Any] = {}
    for name in ("variance_ratio", "anisotropy", "null_fraction"):
        if parts and all(name in part for part in parts):
            means[name] = _mean([part[name] for part in parts])
    if parts and all("top_sums" in part for part in parts):
        means["top_sums"] = {
            percent: _mean([part["top_sums"][percent] for part in parts])
            for percent in parts[0]["top_sums"]
        }
    return means


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
