"""What attention and the feed-forward networks add to the states, over many sentences."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from torch import Tensor, nn

from relu_nmt.modules.transformer_layer import Residual, TransformerLayer
from relu_nmt.translation.attention_maps import input_batches, single_model
from relu_nmt.translation.search.ensemble import Ensemble

BRANCHES = ("self_attention", "cross_attention", "feed_forward")
"""The parts of a layer that add to its states, in their order."""
VARIANCE_RATIO = (
    "Var(f(x)) / Var(x) over tokens and channels; x enters the residual branch, f(x) is what the "
    "branch adds to it"
)


class BranchStatistics:
    """Accumulates how much each branch of a model's layers adds, over pairs of sentences.

    A branch that adds next to nothing is asleep, whatever its attention weights look like.

    Args:
        ensemble: a single model; its number format is used.

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
        """Take in sentences with their translations.

        Args:
            sources: token numbers, ending in the end symbol.
            targets: token numbers, ending in the end symbol.
        """
        pad_index = self._model.decoder.pad_index
        batches = input_batches(sources, targets, self._ensemble, lambda n: n * n)
        for _, src_tokens, prev_output_tokens in batches:
            real = {"encoder": src_tokens != pad_index, "decoder": prev_output_tokens != pad_index}
            with self._ensemble.evaluating(), ExitStack() as hooks:
                for (side, _, _), variances in self._variances.items():
                    hooks.enter_context(variances.watching(real[side]))
                self._model(src_tokens, prev_output_tokens)

    def records(self) -> list[dict[str, Any]]:
        """Return ``side``, ``layer``, ``branch`` and ``variance_ratio`` of each branch.

        A ratio to a variance of 0 is None.
        """
        return [
            {"side": side, "layer": layer, "branch": branch, "variance_ratio": variances.ratio}
            for (side, layer, branch), variances in self._variances.items()
        ]


class BranchVariances:
    """The variances of the states before a branch of a layer, and of what it adds to them.

    Args:
        layer: it is in.
        branch: one of BRANCHES.
    """

    def __init__(self, layer: TransformerLayer, branch: str) -> None:
        self._module: nn.Module = getattr(layer, branch)
        self._residual: Residual = getattr(layer, f"{branch}_residual")
        self._input, self._output = _Moments(), _Moments()

    @contextmanager
    def watching(self, real: Tensor) -> Iterator[None]:
        """Add up what a pass inside the block does; real [B, N] bool, True = no padding."""
        start = self._residual.norm if self._residual.normalize_before else self._module
        handles = [
            start.register_forward_pre_hook(lambda _, args: self._input.add(args[0][real])),
            self._module.register_forward_hook(lambda *args: self._output.add(args[2][real])),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @property
    def ratio(self) -> float | None:
        """Var(f(x)) / Var(x); None if Var(x) is 0."""
        before = self._input.variance
        return self._output.variance / before if before else None


class _Moments:
    """Number, sum and sum of squares of many values."""

    def __init__(self) -> None:
        self.count, self.total, self.squares = 0, 0.0, 0.0

    def add(self, x: Tensor) -> None:
        """Take in values of any shape."""
        exact = x.double()
        self.count += exact.numel()
        self.total += float(exact.sum())
        self.squares += float(exact.square().sum())

    @property
    def variance(self) -> float:
        """Mean square of the deviations from the mean."""
        count = max(1, self.count)
        return max(0.0, self.squares / count - (self.total / count) ** 2)
