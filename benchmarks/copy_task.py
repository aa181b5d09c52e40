"""Test with each attention if a small model learns to copy, or to sort, generated sequences.

    python benchmarks/copy_task.py                          every registered attention
    python benchmarks/copy_task.py --attentions rela sima   only these
    python benchmarks/copy_task.py --task sort --updates 1500

An attention with a causal form is used in the decoder's self-attention, any other in the encoder.
The other slots have the attention of the preset. Sequences have 1 to 12 symbols, out of 16. The
model has two layers of width 64. The script prints BLEU and perplexity on held-out sequences.
"""

import argparse
import random
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from measuring import output_of

SYMBOLS = "abcdefghijklmnop"
LONGEST = 12
SIZES = {"train": 20_000, "valid": 300, "test": 300}
MODEL = """
    --arch reluformer_tiny --share-all-embeddings --dropout 0 --label-smoothing 0
    --optimizer adam --adam-betas (0.9,0.98) --lr 4e-3 --lr-scheduler polynomial_decay
    --warmup-updates 200 --clip-norm 1 --max-tokens 2048 --seed 1 --cpu
    --log-format simple --log-interval 100 --no-epoch-checkpoints
"""
UPDATES = {"copy": 900, "sort": 1500}


@dataclass(frozen=True)
class Learned:
    """Scores on held-out sequences."""

    bleu: float
    perplexity: float


def write_data(folder: Path, task: str) -> Path:
    """Write and binarize a corpus of sequences to copy or to sort. Return the data folder."""
    rng = random.Random(task)
    for split, size in SIZES.items():
        sources = ""
        targets = ""
        for _ in range(size):
            symbols = rng.choices(SYMBOLS, k=rng.randint(1, LONGEST))
            sources += " ".join(symbols) + "\n"
            if task == "sort":
                symbols.sort()
            targets += " ".join(symbols) + "\n"
        (folder / f"{split}.src").write_text(sources, "utf-8")
        (folder / f"{split}.tgt").write_text(targets, "utf-8")
    data = folder / "data"
    flags = ["-s", "src", "-t", "tgt", "--joined-dictionary", "--workers", "1"]
    flags += [f"--{split}pref={folder / split}" for split in SIZES]
    output_of("preprocess", [*flags, "--destdir", str(data)])
    return data


def learn(data: Path, run: Path, updates: int, flags: Sequence[str] = ()) -> Learned:
    """Train on ``data`` and translate its test set.

    Args:
        data: result of :func:`write_data`.
        run: folder of the checkpoints.
        updates: number of updates.
        flags: further flags of relu-nmt-train.
    """
    steps = ["--max-update", str(updates), "--total-num-update", str(updates)]
    log = output_of("train", [str(data), *MODEL.split(), *steps, "--save-dir", str(run), *flags])
    perplexity = float(re.findall(r"valid on .* ppl=?\s*([\d.]+)", log)[-1])
    checkpoint = str(run / "checkpoint_best.safetensors")
    output = output_of("generate", [str(data), "--path", checkpoint, "--beam", "5", "--cpu"])
    return Learned(float(re.search(r"BLEU = ([\d.]+)", output)[1]), perplexity)


def slot_of(name: str) -> str:
    """Return the slot in which the attention ``name`` is tested."""
    from relu_nmt.attention import attentions
    from relu_nmt.config.registry import Spec

    causal = attentions.get(Spec.parse(name).name).capabilities.causal
    return "decoder" if causal else "encoder"


def main() -> None:
    """Test the attentions one by one."""
    from relu_nmt.attention import attentions

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--attentions", nargs="*", default=attentions.names(), metavar="NAME")
    parser.add_argument("--task", choices=sorted(UPDATES), default="copy")
    parser.add_argument("--updates", type=int)
    arguments = parser.parse_args()
    updates = arguments.updates or UPDATES[arguments.task]
    print("| attention | slot | BLEU | perplexity | seconds |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        data = write_data(Path(folder), arguments.task)
        for number, name in enumerate(arguments.attentions):
            start = time.monotonic()
            # Use the regularizer only with weights that are never negative.
            off = ["--attention-norm-weight", "0", "--attention-entropy-weight", "0"]
            flags = [f"--{slot_of(name)}-attention", name, *off]
            learned = learn(data, Path(folder) / f"run{number}", updates, flags)
            seconds = time.monotonic() - start
            row = f"{learned.bleu:.1f} | {learned.perplexity:.3f} | {seconds:.0f}"
            print(f"| {name} | {slot_of(name)} | {row} |", flush=True)


if __name__ == "__main__":
    main()
