"""Which of several translations a model prefers, given the sentences before."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch

from relu_nmt.corpus.translation import TranslationTask
from relu_nmt.data.split import join_sentences
from relu_nmt.decoding.generator import Generator, generate_in_order
from relu_nmt.errors import ConfigError
from relu_nmt.evaluation.contrasts import Contrast


class ContrastScorer:
    """Scores the right and the wrong translations of contrasts with a model.

    Context and sentence are one source, joined as groups of sentences are in training. The
    translations of the context are given too; only what follows them is scored: its total
    log-probability, the end symbol included.

    Args:
        generator: with the model, and settings that score references.
        task: tokenisation and dictionaries.
        device: where the model is.

    Raises:
        ConfigError: the generator's settings are for a search.
    """

    def __init__(
        self, generator: Generator, task: TranslationTask, device: str | torch.device
    ) -> None:
        if not generator.config.score_reference:
            raise ConfigError("contrasts are scored, not searched for: set score_reference")
        self._generator = generator
        self._task = task
        self._device = torch.device(device)

    def scores(
        self,
        contrasts: Sequence[Contrast],
        context: int | None = None,
        on_progress: Callable[[int], object] | None = None,
    ) -> list[np.ndarray]:
        """Return the log-probabilities (nats) of the translations, float64, the right one first.

        Args:
            contrasts: what to score.
            context: most sentences to give of those before, the nearest; None for all.
            on_progress: called with the number of translations of each batch that is done.

        Raises:
            ConfigError: the model's scores are not finite.
            DataError: a source is too long for learned positions.
        """
        sources, targets, prefixes = [], [], []
        for contrast in contrasts:
            own_source, prefix = self._encode(contrast, context)
            for text in (contrast.reference, *contrast.contrasts):
                sources.append(own_source)
                targets.append(np.concatenate([prefix, self._task.encode_target(text)]))
                prefixes.append(len(prefix))
        found = generate_in_order(
            self._generator,
            sources,
            len(self._task.target_dictionary),
            self._device,
            targets,
            on_progress=on_progress,
        )
        totals = [
            best.positional_scores[prefix:].sum(dtype=np.float64)
            for (best, *_), prefix in zip(found, prefixes, strict=True)
        ]
        if not np.isfinite(totals).all():
            raise ConfigError("the model's scores are not finite (training diverged)")
        rest = iter(totals)
        return [np.array(list(itertools.islice(rest, 1 + len(c.contrasts)))) for c in contrasts]

    def _encode(self, contrast: Contrast, context: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the source with its context, and the target's context without end symbol."""
        before = len(contrast.source_context)
        first = 0 if context is None else max(0, before - context)
        sources = [*contrast.source_context[first:], contrast.source]
        targets = contrast.reference_context[first:]
        return (
            join_sentences([self._task.encode_source(text) for text in sources]),
            join_sentences([self._task.encode_target(text) for text in targets])[:-1],
        )


def prefers_reference(scores: Sequence[np.ndarray]) -> list[bool]:
    """Return for each contrast whether the right translation scored above every wrong one.

    Args:
        scores: of :meth:`ContrastScorer.scores`. A tie is not right: the model did not prefer it.

    Example:
        >>> prefers_reference([np.array([-1.0, -2.0, -1.5]), np.array([-2.0, -2.0])])
        [True, False]
    """
    return [bool(own[0] > own[1:].max()) for own in scores]
