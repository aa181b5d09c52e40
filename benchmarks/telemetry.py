"""Measure the cost of the attention statistics for a training step.

    python benchmarks/telemetry.py --attention reluformer:gamma=2

Steps with and without the statistics alternate on one batch of random tokens, so that both meet the
same state of the machine. Figures are medians. On a CPU a time is the processor time of all
threads, which other programs disturb least. A training measures one step in --telemetry-interval
(default: 100), so its cost is this fraction of the difference. The regularizer, which needs sums
and entropies in every step, is off without --regularizer.
"""

import argparse
import statistics
import time

import numpy as np
import torch
from measuring import benchmark_parser

from relu_nmt.data.translation_batches import TranslationBatch, collate
from relu_nmt.modules.config import AttentionRegularizerConfig
from relu_nmt.training.config import TrainerConfig
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.loss import TranslationObjective

VOCABULARY = 4000
PAD = 1
EOS = 2


def made_batch(sentences: int, length: int) -> TranslationBatch:
    """Return random sentences of ``length`` / 2 to ``length`` tokens."""
    rng = np.random.default_rng(0)

    def sentence() -> np.ndarray:
        return np.append(rng.integers(4, VOCABULARY, rng.integers(length // 2, length)), EOS)

    pairs = [(sentence(), sentence()) for _ in range(sentences)]
    return collate(pairs, ids=list(range(sentences)))


def made_objective(arguments: argparse.Namespace) -> TranslationObjective:
    """Return a model of 3 + 3 layers with its loss."""
    sizes = {}
    for side in ("encoder", "decoder"):
        sizes[f"{side}_layers"] = arguments.layers
        sizes[f"{side}_embed_dim"] = 256
        sizes[f"{side}_ffn_embed_dim"] = 1024
        sizes[f"{side}_attention_heads"] = 4
    config = TransformerConfig(attention=arguments.attention, share_all_embeddings=True, **sizes)
    weight = 0.01 if arguments.regularizer else 0.0
    model = EncoderDecoder(config, VOCABULARY, VOCABULARY, PAD)
    return TranslationObjective(model, 0.1, AttentionRegularizerConfig(weight, weight))


def main() -> None:
    """Run the benchmark and print its result."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--attention", default="reluformer:gamma=2", help="attention of all slots")
    parser.add_argument("--layers", type=int, default=3, help="layers per side")
    parser.add_argument("--sentences", type=int, default=48, help="sentences per batch")
    parser.add_argument("--length", type=int, default=32, help="most tokens of a sentence")
    parser.add_argument("--regularizer", action="store_true", help="with the regularizer on")
    parser.add_argument("--steps", type=int, default=20, help="steps of each kind")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device(arguments.device)
    objective = made_objective(arguments).to(device).train()
    batch = made_batch(arguments.sentences, arguments.length).to(device)
    optimizer = torch.optim.Adam(objective.parameters(), lr=1e-4)
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for step in range(2 * (arguments.steps + 1)):
        telemetry = step % 2 == 1
        started = clock()
        optimizer.zero_grad(set_to_none=True)
        output = objective(batch, telemetry=telemetry)
        output.loss.div(output.sample_size).backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if step >= 2:  # the first of each kind warms up
            seconds[telemetry].append(clock() - started)
    plain = statistics.median(seconds[False])
    measured = statistics.median(seconds[True])
    interval = TrainerConfig().telemetry_interval
    print(
        f"{arguments.attention}, {arguments.layers} + {arguments.layers} layers, "
        f"{batch.num_tokens:,} target tokens, {device.type}, torch {torch.__version__}\n"
        f"a step without statistics: {1e3 * plain:.1f} ms\n"
        f"a step with them:          {1e3 * measured:.1f} ms ({measured / plain - 1:+.1%}), "
        f"{len(output.telemetry)} scalars\n"
        f"cost with --telemetry-interval {interval}: {(measured / plain - 1) / interval:.2%}"
    )


if __name__ == "__main__":
    main()
