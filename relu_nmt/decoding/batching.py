"""From sentences in any order to batches of similar length, and back to the order they came in."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from relu_nmt.decoding.config import GenerationConfig
from relu_nmt.decoding.generator import Generator
from relu_nmt.decoding.hypotheses import Hypothesis

DEFAULT_MAX_TOKENS = 12000
MOST_LOGITS = {"cpu": 2**22, "cuda": 2**26}
"""Entries of the [B, K, V] logits of a step where no batch size is given: 16 MB on a CPU, near
the size of its caches, and 256 MB on a GPU."""


def plan_decoding_batches(
    lengths: np.ndarray, config: GenerationConfig, vocab_size: int, device_type: str = "cpu"
) -> list[np.ndarray]:
    """Return the sentences of each batch, longest first.

    Args:
        lengths: source tokens of each sentence with the end symbol, [N].
        config: ``max_tokens``, ``batch_size`` and ``beam``; with neither of the former, batches
            are as large as suits the device.
        vocab_size: number of target symbols.
        device_type: ``cpu`` or ``cuda``.
    """
    max_tokens, batch_size = config.max_tokens, config.batch_size
    if max_tokens is None and batch_size is None:
        max_tokens = DEFAULT_MAX_TOKENS
        most_logits = MOST_LOGITS.get(device_type, MOST_LOGITS["cpu"])
        batch_size = max(1, most_logits // (config.beam * vocab_size))
    order = np.argsort(-lengths, kind="stable")
    batches, first = [], 0
    while first < len(order):
        longest = max(1, int(lengths[order[first]]))
        fitting = len(order) if batch_size is None else batch_size
        if max_tokens is not None:
            fitting = min(fitting, max_tokens // longest)
        last = first + max(1, fitting)  # a sentence longer than a batch is a batch of its own
        batches.append(order[first:last])
        first = last
    return batches


def generate_in_order(
    generator: Generator,
    sources: Sequence[np.ndarray],
    vocab_size: int,
    device: torch.device,
    targets: Sequence[np.ndarray] | None = None,
    first_id: int = 0,
    on_progress: Callable[[int], object] | None = None,
    contexts: Sequence[np.ndarray] | None = None,
) -> list[list[Hypothesis]]:
    """Return the n best hypotheses of each source, in the order of the sources.

    A source without words has one hypothesis without words and with score 0, so that an empty
    line stays empty; the model is not asked.

    Args:
        generator: search and models.
        sources: token numbers, each ending in the end symbol.
        vocab_size: number of target symbols.
        device: where the models are.
        targets: references, of which ``--prefix-size`` tokens are forced, or which are scored
            (``--score-reference``).
        first_id: number of the first sentence, for the random numbers of sampling.
        on_progress: called with the number of sentences of each batch that is done.
        contexts: target tokens, without end symbol, that each output goes on from; they are not
            part of it. Of no effect on ``--score-reference``.
    """
    config, symbols = generator.config, generator.symbols
    results: list[list[Hypothesis]] = [
        [Hypothesis(np.array([symbols.eos_index]), 0.0, np.zeros(1, np.float32), np.zeros(1, int))]
        for _ in sources
    ]
    lengths = np.array([len(source) for source in sources], dtype=np.int64)
    wanted = np.flatnonzero((lengths > 1) | config.score_reference)
    for batch in plan_decoding_batches(lengths[wanted], config, vocab_size, device.type):
        members = wanted[batch]
        src_tokens = pad([sources[i] for i in members], symbols.pad_index).to(device)
        if config.score_reference and targets is not None:
            tgt_tokens = pad([targets[i] for i in members], symbols.pad_index).to(device)
            found = generator.score(src_tokens, tgt_tokens)
        else:
            forced = [_beginning(i, config.prefix_size, targets, contexts) for i in members]
            prefixes = pad(forced, symbols.pad_index).to(device) if any(map(len, forced)) else None
            sizes = None if contexts is None else np.array([len(contexts[i]) for i in members])
            found = generator.generate(src_tokens, prefixes, members + first_id, sizes)
        for i, hypotheses in zip(members, found, strict=True):
            results[i] = hypotheses
        if on_progress is not None:
            on_progress(len(members))
    return results


def _beginning(
    number: int,
    prefix_size: int,
    targets: Sequence[np.ndarray] | None,
    contexts: Sequence[np.ndarray] | None,
) -> np.ndarray:
    """Return the forced first tokens of a sentence: its context, then ``--prefix-size`` tokens."""
    nothing = np.zeros(0, dtype=np.int64)
    context = nothing if contexts is None else contexts[number]
    prefix = nothing if targets is None else targets[number][:prefix_size]
    return np.concatenate([context, prefix])


def pad(rows: Sequence[np.ndarray], pad_index: int) -> Tensor:
    """Return the rows as one tensor [B, longest] int64, filled up on the right."""
    table = np.full((len(rows), max(map(len, rows), default=0)), pad_index, dtype=np.int64)
    for row, ids in zip(table, rows, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(table)
