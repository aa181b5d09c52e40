"""Print and write the loss of a model at the start of a training with another attention.

The weights come from a trained softmax model. The loss is the negative log-likelihood of the
validation set, in bits per token: first with the weights as they are, then with the weights
calibrated as by --finetune-from-model.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from relu_nmt.cli.command import make_parser, run_command
from relu_nmt.config.classes import to_dict
from relu_nmt.config.shared import BatchLimits
from relu_nmt.data.batch_plan import BatchRules
from relu_nmt.data.translation_batches import TranslationBatches
from relu_nmt.drawing.pages import number
from relu_nmt.io.safe_write import write_text
from relu_nmt.translation.building import load_model
from relu_nmt.translation.calibration import SAMPLE_TOKENS, calibrate, changed_slots
from relu_nmt.translation.encoder_decoder import EncoderDecoder
from relu_nmt.translation.task import TranslationTask

SLOTS = {
    "ReLU in encoder and decoder": ("encoder", "decoder"),
    "ReLU in every slot": ("encoder", "decoder", "cross"),
}
MECHANISMS = {
    "gamma 8": "reluformer:gamma=8",
    "gamma 8, centered": "reluformer:gamma=8,centered=true",
    "gamma 8, centered, squared": "reluformer:gamma=8,centered=true,power=2",
}
MAX_TOKENS = 2048  # of a batch
SEED = 1  # of the batches that the factors are measured on


@torch.inference_mode()
def bits(model: EncoderDecoder, batches: TranslationBatches) -> float:
    """Return the mean negative log-likelihood of a token, in bits."""
    total = tokens = 0.0
    for index in range(batches.begin_epoch(1)):
        batch = batches.load(index)
        assert batch.tgt_tokens is not None, "validation batches have targets"
        logits = model.logits(model(batch.src_tokens, batch.prev_output_tokens))  # [B, T, V]
        total += float(
            F.cross_entropy(
                logits.flatten(0, 1),
                batch.tgt_tokens.flatten(),
                ignore_index=model.decoder.pad_index,
                reduction="sum",
            )
        )
        tokens += batch.num_tokens
    return total / tokens / math.log(2)


def table(data: Path, path: Path) -> str:
    """Return the losses of each start as a table of Markdown."""
    task = TranslationTask.from_data_folder(data)
    limits = BatchLimits(max_tokens=MAX_TOKENS)
    rules = BatchRules(limits, is_training=True, seed=SEED)
    train = TranslationBatches(task.load_split("train"), rules)
    train.begin_epoch(1)
    valid = TranslationBatches(task.load_split("valid"), BatchRules(limits))
    softmax, _, _ = load_model(path)
    stored = to_dict(softmax.config)
    lines = ["| attention | weights as they are | calibrated |", "| --- | --- | --- |"]
    lines.append(f"| softmax | {number(bits(softmax, valid), 3)} | |")
    for where, slots in SLOTS.items():
        for name, mechanism in MECHANISMS.items():
            model, _, _ = load_model(path, {f"{slot}_attention": mechanism for slot in slots})
            before = bits(model, valid)
            calibrate(model, train.sample(SAMPLE_TOKENS), changed_slots(stored, model.config))
            after = bits(model, valid)
            lines.append(f"| {where}, {name} | {number(before, 3)} | {number(after, 3)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Print and write the table, and return the exit code."""

    def run(arguments: argparse.Namespace) -> None:
        losses = table(arguments.data, arguments.checkpoint)
        print(losses)
        write_text(arguments.output, f"{losses}\n")

    parser = make_parser("start", str(__doc__))
    parser.add_argument("data", type=Path, metavar="DATA", help="data folder of the model")
    parser.add_argument("checkpoint", type=Path, metavar="CKPT", help="softmax model to start from")
    parser.add_argument("output", type=Path, metavar="FILE", help="the table, in Markdown")
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
