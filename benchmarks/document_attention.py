"""Time and memory of documents with aligned attention, beside attention to all of them.

    python benchmarks/document_attention.py
    python benchmarks/document_attention.py --device cuda --shape 6,512,8 --tokens 16384

A training step (forward and backward pass with the regulariser, no optimiser) and step-by-step
decoding with 4 beams, for documents of 128 to 1,024 random tokens in sentences of 5 to 45. All
batches have about as many tokens. Times are the medians of the
repeats in seconds, ratios those of full to aligned, so above 1 aligned is the cheaper one. Memory
is what PyTorch has allocated at most on a GPU, else the growth of the process's peak resident set,
for which every measurement is a process of its own.
"""

import argparse
import multiprocessing
import random
import resource
import statistics
import time

import numpy as np
import torch

from relu_nmt.attention.spec import AttentionRegularizerConfig
from relu_nmt.data.batches import collate
from relu_nmt.models.config import TransformerConfig
from relu_nmt.models.encoder_decoder import EncoderDecoder
from relu_nmt.models.objective import TranslationObjective

PAD, EOS, SEPARATOR, VOCAB = 1, 2, 4, 4000
SHORTEST, LONGEST = 5, 45
BEAMS, DECODED_SHARE = 4, 4


def documents(length: int, tokens: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return pairs of documents of about so many tokens each, and together."""
    draw, pairs = random.Random(length), []
    for _ in range(max(1, tokens // length)):
        ids: list[int] = []
        while len(ids) < length - 1:
            size = min(draw.randint(SHORTEST, LONGEST), length - 1 - len(ids))
            ids += [*draw.choices(range(5, VOCAB), k=size - 1), SEPARATOR]
        document = np.array([*ids, EOS])
        pairs.append((document, document))
    return pairs


def make_model(arguments: argparse.Namespace, kind: str) -> EncoderDecoder:
    """Return a model with random weights."""
    layers, width, heads = map(int, arguments.shape.split(","))
    shape = {"layers": layers, "embed_dim": width, "ffn_embed_dim": 4 * width}
    shape["attention_heads"] = heads
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in shape.items()}
    more = {"global_layers": arguments.global_layers} if kind == "aligned" else {}
    config = TransformerConfig(
        attention=arguments.attention, document_attention=kind, dropout=0.0, **sides, **more
    )
    torch.manual_seed(1)
    separators = SEPARATOR, SEPARATOR
    return EncoderDecoder(config, VOCAB, VOCAB, PAD, separators).to(arguments.device)


def measure(arguments: argparse.Namespace, what: str, kind: str, length: int) -> tuple[float, int]:
    """Return the seconds of one step and the peak of its memory in bytes."""
    torch.set_num_threads(arguments.threads)
    model, on_gpu = make_model(arguments, kind), arguments.device != "cpu"
    share = 1 if what == "training" else DECODED_SHARE
    batch = collate(documents(length, arguments.tokens // share), [0]).to(arguments.device)
    weight = 0.1 if "relu" in arguments.attention else 0.0
    regularizer = AttentionRegularizerConfig(attention_norm_weight=weight)
    objective = TranslationObjective(model, 0.1, regularizer)

    def train() -> None:
        objective.zero_grad()
        with torch.autocast(arguments.device, torch.bfloat16, enabled=on_gpu):
            output = objective(batch)
        output.loss.backward()

    @torch.inference_mode()
    def decode() -> None:
        model.eval()
        state = model.start(model.encode(batch.src_tokens))
        for step, tokens in enumerate(batch.prev_output_tokens.T):
            beams = tokens[:, None].expand(-1, BEAMS if step else 1)
            model.step(beams, state)
            if step == 0:
                state.spread(BEAMS)

    run, before = {"training": train, "decoding": decode}[what], resident()
    seconds = []
    for _ in range(1 + arguments.repeats):  # the first one warms up
        start = time.perf_counter()
        run()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() if on_gpu else resident() - before
    return statistics.median(seconds[1:]), peak


def resident() -> int:
    """Return the peak resident set of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--attention", default="reluformer:gamma=2")
    parser.add_argument("--global-layers", type=int, default=2)
    parser.add_argument("--shape", default="6,256,4", help="layers a side, width, heads")
    parser.add_argument("--lengths", default="128,256,512,1024", help="tokens of a document")
    parser.add_argument("--tokens", type=int, default=2048, help="of a batch")
    parser.add_argument("--what", default="training,decoding")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    processes = multiprocessing.get_context("spawn")
    print("what | tokens | full s | aligned s | ratio | full MB | aligned MB | ratio")
    for what in arguments.what.split(","):
        for length in map(int, arguments.lengths.split(",")):
            found = {}
            for kind in ("full", "aligned"):
                with processes.Pool(1) as pool:
                    found[kind] = pool.apply(measure, (arguments, what, kind, length))
            (time_full, full), (time_aligned, aligned) = found["full"], found["aligned"]
            print(
                f"{what} | {length} | {time_full:.3f} | {time_aligned:.3f} | "
                f"{time_full / time_aligned:.2f} | {full / 1e6:.0f} | {aligned / 1e6:.0f} | "
                f"{full / aligned:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
