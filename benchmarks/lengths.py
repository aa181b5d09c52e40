r"""Measure time and memory per token by length, of training and decoding. Write CSV and plot.

    python benchmarks/lengths.py --csv lengths.csv --plot lengths.png
    python benchmarks/lengths.py --document-attention full aligned --lengths 128 256 512 1024
    python benchmarks/lengths.py --backends auto --positions sinusoidal sinusoidal+t5
    python benchmarks/lengths.py --device cuda --what training --steps plain compiled graph

Every attention runs with all its back ends for the device, in training with and without activation
checkpointing. A training step is a forward and a backward pass, with the regularizer if the
attention has one, without the optimizer. Decoding has 4 beams. Batches have about --tokens tokens,
a quarter of this in decoding. Documents are random words in sentences of 5 to 45 tokens. Each
figure comes from separate processes, which take turns. Times are medians over rounds. Memory is
PyTorch's largest allocation on a GPU, or the growth of the peak resident set on a CPU. A case that
needs more than --most-memory has no figures.

``compiled`` is the step by ``torch.compile`` (without generated code on a CPU, as a check),
``graph`` the step recorded as a CUDA graph and replayed.
"""

import argparse
import csv
import itertools
import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, fields, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from measuring import benchmark_parser, peak_resident

from relu_nmt.attention import attentions
from relu_nmt.attention.base import use_backend
from relu_nmt.config.registry import Spec
from relu_nmt.data.translation_batches import TranslationBatch, collate
from relu_nmt.io.safe_write import replacing
from relu_nmt.modules.config import AttentionRegularizerConfig
from relu_nmt.translation.base import SearchStep, StepDecoder
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.loss import TranslationObjective

PAD = 1
EOS = 2
SEPARATOR = 4
VOCAB = 4000
SHORTEST = 5
LONGEST = 45
BEAMS = 4
DECODED_SHARE = 4
WAVES = "sinusoidal"
WARM_UP_RUNS = {"plain": 1, "compiled": 3, "graph": 1}
"""Steps before a measurement: torch.compile compiles again when gradients exist."""
WARM_UP_LENGTH = 64
"""Tokens of the warm-up document. It is short, so that its peak memory hides no later peak."""
RECORDED_AFTER = 3
"""Steps before the recording of a graph, as PyTorch requires."""


@dataclass(frozen=True)
class Case:
    """The settings of one figure.

    Args:
        what: ``training`` or ``decoding``.
        length: tokens of a document.
        attention: attention with its options.
        backend: back end of the attention.
        recompute: compute activations again in the backward pass.
        document_attention: ``full`` or ``aligned``.
        step: ``plain``, ``compiled`` or ``graph``.
        positions: position scheme.
    """

    what: str
    length: int
    attention: str
    backend: str
    recompute: bool
    document_attention: str
    step: str
    positions: str

    @property
    def label(self) -> str:
        """Label of the line in the plot."""
        parts = [self.attention, self.backend]
        if self.document_attention != "full":
            parts.append(self.document_attention)
        if self.recompute:
            parts.append("checkpointing")
        if self.step != "plain":
            parts.append(self.step)
        if self.positions != WAVES:
            parts.append(self.positions)
        return ", ".join(parts)


@dataclass
class Figures:
    """The figures of a case. Both are ``None`` after a problem."""

    tokens: int = 0
    seconds: float | None = None
    peak_bytes: int | None = None
    problem: str = ""


def documents(length: int, tokens: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return pairs of documents of ``length`` tokens, with about ``tokens`` tokens in all."""
    draw = random.Random(length)
    pairs = []
    for _ in range(max(1, tokens // length)):
        ids: list[int] = []
        while len(ids) < length - 1:
            size = min(draw.randint(SHORTEST, LONGEST), length - 1 - len(ids))
            ids += [*draw.choices(range(5, VOCAB), k=size - 1), SEPARATOR]
        document = np.array([*ids, EOS])
        pairs.append((document, document))
    return pairs


def make_model(arguments: argparse.Namespace, case: Case) -> EncoderDecoder:
    """Return a model with random weights."""
    layers, width, heads = map(int, arguments.shape.split(","))
    sizes = {}
    for side in ("encoder", "decoder"):
        sizes[f"{side}_layers"] = layers
        sizes[f"{side}_embed_dim"] = width
        sizes[f"{side}_ffn_embed_dim"] = 4 * width
        sizes[f"{side}_attention_heads"] = heads
    if case.document_attention == "aligned":
        sizes["global_layers"] = arguments.global_layers
    config = TransformerConfig(
        attention=case.attention,
        document_attention=case.document_attention,
        checkpoint_activations=case.recompute,
        positions=case.positions,
        dropout=0.0,
        **sizes,
    )
    torch.manual_seed(1)
    model = EncoderDecoder(config, VOCAB, VOCAB, PAD, (SEPARATOR, SEPARATOR))
    use_backend(model, case.backend)
    return model.to(arguments.device)


def make_run(arguments: argparse.Namespace, case: Case) -> tuple[Callable[[], None], int]:
    """Return a function that runs the case once, and its number of target tokens."""
    model = make_model(arguments, case)
    device = torch.device(arguments.device)
    tokens = arguments.tokens
    if case.what == "decoding":
        tokens //= DECODED_SHARE
    batch = collate(documents(case.length, tokens), [0]).to(device)
    autocast = torch.autocast(
        device.type,
        torch.bfloat16,
        enabled=arguments.dtype == "bf16",
        cache_enabled=case.step != "graph",  # a recording must not read earlier casts
    )

    @torch.inference_mode()
    def decode() -> None:
        decoder = StepDecoder(model.eval())
        with autocast:
            state = decoder.start(batch.src_tokens)
            for tokens in batch.prev_output_tokens.T:
                beams = tokens[:, None].expand(-1, BEAMS)
                decoder.step([SearchStep(beams, state)])

    has_sums = attentions.get(Spec.parse(case.attention).name).capabilities.non_negative
    weight = 0.1 if has_sums and not case.attention.startswith("softmax") else 0.0
    objective = TranslationObjective(model, 0.1, AttentionRegularizerConfig(weight, weight))
    if case.what == "training":
        return training_step(objective, batch, autocast, case), batch.num_tokens
    return decode, batch.num_tokens


def training_step(
    objective: TranslationObjective, batch: TranslationBatch, autocast: torch.autocast, case: Case
) -> Callable[[], None]:
    """Return a function that runs a training step of the case."""
    loss_of: Callable = objective
    if case.step == "compiled":
        on_gpu = batch.src_tokens.is_cuda
        loss_of = torch.compile(objective, backend="inductor" if on_gpu else "eager")

    def train() -> None:
        objective.zero_grad(set_to_none=case.step != "graph")
        with autocast:
            output = loss_of(batch)
        output.loss.backward()

    if case.step == "graph":
        return recorded(train)
    return train


def recorded(step: Callable[[], None]) -> Callable[[], None]:
    """Return the step as a CUDA graph, which the GPU runs without Python."""
    if not torch.cuda.is_available():
        raise RuntimeError("a CUDA graph needs a GPU")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(RECORDED_AFTER):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def measure(arguments: argparse.Namespace, case: Case) -> Figures:
    """Return the figures of a case. Call it once per process."""
    on_gpu = arguments.device != "cpu"
    torch.set_num_threads(arguments.threads)
    try:
        few = argparse.Namespace(**{**vars(arguments), "tokens": WARM_UP_LENGTH})
        make_run(few, replace(case, length=WARM_UP_LENGTH, step="plain"))[0]()
        if not on_gpu:
            limit = int(arguments.most_memory * 1e9)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        before = peak_resident()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        run, tokens = make_run(arguments, case)
        seconds = []
        for _ in range(WARM_UP_RUNS[case.step] + 1):
            started = time.perf_counter()
            run()
            if on_gpu:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
    except (RuntimeError, MemoryError) as error:  # PyTorch's errors when memory runs out
        return Figures(problem=(str(error) or "out of memory").splitlines()[0][:200])
    if on_gpu:
        return Figures(tokens, seconds[-1], torch.cuda.max_memory_allocated())
    return Figures(tokens, seconds[-1], peak_resident() - before)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Yield all cases, the shortest first."""
    variants = itertools.product(
        arguments.lengths,
        arguments.what,
        arguments.attentions,
        arguments.document_attention,
        arguments.positions,
    )
    for length, what, attention, documents_by, positions in variants:
        checkpointing = [False]
        steps = ["plain"]
        if what == "training":
            checkpointing = arguments.checkpointing
            steps = arguments.steps
        backends = backends_of(attention, arguments)
        for backend, recompute, step in itertools.product(backends, checkpointing, steps):
            if recompute and step == "compiled":
                continue  # torch.compile takes no checkpoint with hooks
            yield Case(what, length, attention, backend, recompute, documents_by, step, positions)


def backends_of(attention: str, arguments: argparse.Namespace) -> list[str]:
    """Return the back ends to measure that an attention has on the device."""
    backends = list(attentions.get(Spec.parse(attention).name).backends)
    if arguments.device == "cpu" and "triton" in backends:
        backends.remove("triton")  # it is for GPUs
    chosen = arguments.backends or backends or ["auto"]
    return [name for name in chosen if name == "auto" or name in backends]


def measured(arguments: argparse.Namespace, case: Case) -> Figures:
    """Return the figures of a case, from a separate process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        try:
            return process.submit(measure, arguments, case).result()
        except BrokenProcessPool:
            return Figures(problem="killed, most likely out of memory")


def table(arguments: argparse.Namespace) -> dict[Case, Figures]:
    """Measure the cases that the CSV file lacks, in turn. Return the medians of all cases."""
    measurements = read_csv(arguments)
    for number in range(arguments.rounds):
        in_turn = list(cases(arguments))
        if number % 2:
            in_turn.reverse()
        for case in in_turn:
            rounds = measurements.setdefault(case, [])
            if len(rounds) > number or any(figures.problem for figures in rounds):
                continue
            rounds.append(measured(arguments, case))
            print(f"{case.what} {case.length} {case.label}: {rounds[-1]}", flush=True)
            if arguments.csv:
                write_csv(measurements, arguments)
    return {case: medians(rounds) for case, rounds in measurements.items()}


def medians(rounds: list[Figures]) -> Figures:
    """Return the medians of rounds, or their problem."""
    for figures in rounds:
        if figures.problem:
            return figures
    seconds = []
    peaks = []
    for figures in rounds:
        seconds.append(figures.seconds or 0.0)
        peaks.append(figures.peak_bytes or 0)
    peak = int(statistics.median(peaks))
    return Figures(rounds[0].tokens, statistics.median(seconds), peak)


def per_token(figures: Figures) -> tuple[float | None, float | None]:
    """Return microseconds and kilobytes per target token."""
    if figures.seconds is None or figures.peak_bytes is None:
        return None, None
    return 1e6 * figures.seconds / figures.tokens, figures.peak_bytes / figures.tokens / 1e3


def shared_settings(arguments: argparse.Namespace) -> str:
    """Return the settings that all measurements of a CSV file share."""
    names = ("shape", "global_layers", "tokens", "dtype", "device", "threads")
    return " ".join(f"--{n.replace('_', '-')} {getattr(arguments, n)}" for n in names)


def write_csv(measurements: dict[Case, list[Figures]], arguments: argparse.Namespace) -> None:
    """Write a line for each measurement."""
    names = [field.name for field in (*fields(Case), *fields(Figures))]
    path = arguments.csv
    settings = shared_settings(arguments)
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "us_per_token", "kb_per_token", "settings"])
        for case, rounds in measurements.items():
            for figures in rounds:
                values = [*asdict(case).values(), *asdict(figures).values()]
                writer.writerow([*values, *per_token(figures), settings])


def read_csv(arguments: argparse.Namespace) -> dict[Case, list[Figures]]:
    """Return the measurements in a file of :func:`write_csv`, or none without a file."""
    measurements: dict[Case, list[Figures]] = {}
    if arguments.csv is None or not arguments.csv.exists():
        return measurements
    settings = shared_settings(arguments)
    with open(arguments.csv, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["settings"] != settings:
                print(
                    f"{arguments.csv}: made with {row['settings']}; choose another", file=sys.stderr
                )
                sys.exit(2)
            case = {field.name: row[field.name] for field in fields(Case)}
            case |= {"length": int(row["length"]), "recompute": row["recompute"] == "True"}
            figures = Figures(int(row["tokens"]), problem=row["problem"])
            if not figures.problem:
                figures.seconds = float(row["seconds"])
                figures.peak_bytes = int(row["peak_bytes"])
            measurements.setdefault(Case(**case), []).append(figures)
    return measurements


def plot(figures_of: dict[Case, Figures], path: Path) -> None:
    """Draw time and memory per token by length, with a line for each method."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    kinds = list(dict.fromkeys(case.what for case in figures_of))
    figure, axes = plt.subplots(2, len(kinds), figsize=(7 * len(kinds), 10), squeeze=False)
    labels = ("microseconds per token", "peak memory, kB per token")
    # Cases that differ only in length and checkpointing have the same color.
    variants = list(dict.fromkeys(replace(case, length=0, recompute=False) for case in figures_of))
    by_length = sorted(figures_of, key=lambda case: case.length)
    for (row, label), (column, what) in itertools.product(enumerate(labels), enumerate(kinds)):
        axis = axes[row, column]
        for (number, variant), recompute in itertools.product(enumerate(variants), (False, True)):
            if variant.what != what:
                continue
            line = replace(variant, recompute=recompute)
            lengths = []
            values = []
            for case in by_length:
                value = per_token(figures_of[case])[row]
                if value and replace(case, length=0) == line:
                    lengths.append(case.length)
                    values.append(value)
            if lengths:
                style = "o--" if recompute else "o-"
                axis.loglog(lengths, values, style, base=2, label=line.label, color=f"C{number}")
        axis.set_yscale("log", base=10)
        axis.set_title(what)
        axis.set_xlabel("tokens of a document")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
        if axis.lines and row == 1:  # the upper plots have the same lines
            axis.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.15), ncol=2)
    figure.tight_layout()
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=120, format=path.suffix[1:] or "png")


def markdown(figures_of: dict[Case, Figures]) -> str:
    """Return the figures per token as a table."""
    lines = ["| | length | us a token | kB a token |", "| --- | --- | --- | --- |"]
    for case, figures in figures_of.items():
        cells = [f"{x:.4g}" for x in per_token(figures) if x is not None]
        text = " | ".join(cells) or f"{figures.problem} | "
        lines.append(f"| {case.what}: {case.label} | {case.length:,} | {text} |")
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    """Return the flags."""
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    lengths = [64, 128, 256, 512, 1024, 2048, 4096, 8192]
    add("--what", nargs="+", choices=("training", "decoding"), default=["training", "decoding"])
    add("--lengths", type=int, nargs="+", default=lengths, help="tokens of a document")
    add("--attentions", nargs="+", default=["softmax", "reluformer:gamma=2"])
    add("--backends", nargs="+", help="default: all back ends of each attention")
    add("--document-attention", nargs="+", choices=("full", "aligned"), default=["full"])
    add("--positions", nargs="+", default=[WAVES], help="position schemes")
    add("--steps", nargs="+", choices=("plain", "compiled", "graph"), default=["plain"])
    add(
        "--checkpointing",
        type=lambda word: {"off": False, "on": True}[word],
        nargs="+",
        default=[False, True],
        metavar="{off,on}",
        help="compute activations again in the backward pass",
    )
    add("--shape", default="3,256,4", help="layers per side, width, heads")
    add("--global-layers", type=int, default=2, help="for aligned attention")
    add("--tokens", type=int, default=8192, help="tokens in a training batch")
    add("--dtype", choices=("fp32", "bf16"), default="fp32", help="dtype of products")
    add("--rounds", type=int, default=3)
    add("--device", default="cpu")
    add("--threads", type=int, default=1)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    add("--most-memory", type=float, default=0.8 * memory, help="GB of address space on a CPU")
    add("--csv", type=Path, help="measurements, made only if they are missing")
    add("--plot", type=Path)
    return parser.parse_args()


def main() -> None:
    """Run the benchmark."""
    arguments = parse_arguments()
    figures_of = table(arguments)
    print(markdown(figures_of))
    if arguments.plot:
        plot(figures_of, arguments.plot)


if __name__ == "__main__":
    main()
