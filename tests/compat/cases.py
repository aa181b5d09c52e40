"""The stored models, and what a revision of the code makes of them.

Only front doors are used here: the commands' ``main`` and :class:`Translator`.
"""

import contextlib
import importlib
import io
import itertools
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

FILES = Path(__file__).parent / "files"
DATA = "data-joined"
FAIRSEQ_DATA = "data-fairseq"
UPDATES = 202
FURTHER_UPDATES = 5
LINES = ["drei , acht und zwölf .", "elf .", "", "fünf und xyz , Sieben !"]
SHAPE = (
    "--cpu --seed 1 --max-tokens 300 --dropout 0 --log-format json --log-interval 1 "
    "--no-epoch-checkpoints --encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 8 "
    "--decoder-embed-dim 8 --encoder-ffn-embed-dim 16 --decoder-ffn-embed-dim 16 "
    "--encoder-attention-heads 2 --decoder-attention-heads 2"
)
IMAGES = "images.zip"
IMAGE_SHAPE = (
    "--cpu --seed 1 --image-size 8 --patch-size 4 --embed-dim 8 --heads 2 --layers 2 "
    "--batch-size 8 --lr 5e-3 --warmup-updates 4 --lr-period-updates 60 --log-format json "
    "--log-interval 1 --no-epoch-checkpoints"
)
IMAGE_UPDATES = 12
IMAGE_CASES = {
    "vit-class": "--attention softmax",
    "vit-mean": "--attention xca --pooling mean --layers 1",
}


@dataclass(frozen=True)
class Case:
    """A translation model: how it was trained, and how it translates."""

    train: str
    data: str = DATA
    generate: str = ""
    arch: str = "transformer_tiny"
    schedule: str = "--lr 1e-2 --lr-scheduler inverse_sqrt --warmup-updates 20"

    def training_flags(self) -> str:
        """Return the flags of the training command but for --max-update and --save-dir."""
        return f"{self.data} --arch {self.arch} {SHAPE} {self.schedule} {self.train}"


TIED = "--share-decoder-input-output-embed"
PRE_NORM = "--encoder-normalize-before --decoder-normalize-before"
CASES = {
    "softmax": Case(f"{TIED} --attention softmax --encoder-layers 2 --decoder-layers 2"),
    "reluformer": Case(
        "--share-all-embeddings --attention reluformer:gamma=2,learnable=true",
        arch="reluformer_paper_tiny",  # reluformer_tiny, when it was trained
        schedule="--lr 1e-2 --lr-scheduler cosine --warmup-updates 20 --lr-period-updates 400",
    ),
    "pointwise": Case(
        f"{TIED} --attention pointwise:h=relu2,alpha=0.5,gate=silu --weight-decay 0.01",
        schedule="--lr 1e-2 --lr-scheduler polynomial_decay --total-num-update 400",
    ),
    "rela": Case(f"{TIED} --attention rela:gated=true --optimizer adamw --clip-norm 1"),
    "polynomial": Case(
        f"{TIED} --attention polynomial:power=3,scale=dynamic,per_head=true --update-freq 2"
    ),
    "linear": Case(f"{TIED} --attention linear --activation-fn silu"),
    "soft": Case(f"{TIED} --encoder-attention soft:stride=2 --cross-attention softmax"),
    "learned": Case(
        f"--encoder-learned-pos --decoder-learned-pos --max-source-positions 80 "
        f"--max-target-positions 90 --no-scale-embedding {PRE_NORM} --criterion cross_entropy",
        schedule="--lr 1e-2 --lr-scheduler fixed --force-anneal 8 --lr-shrink 0.9",
    ),
    "gelu": Case(
        f"{TIED} --activation-fn gelu --layernorm-embedding --attention rela {PRE_NORM}",
        schedule="--lr 1e-2 --lr-scheduler reduce_lr_on_plateau --lr-patience 1",
    ),
    "documents": Case(
        f"{TIED} --attention reluformer:gamma=2 --sentence-separator --doc-mixture 1,60,120",
        generate="--max-doc-tokens 120",
    ),
    "ema": Case(
        f"{TIED} --attention entmax15 --encoder-attention sima --store-ema --ema-decay 0.95"
    ),
    "fairseq": Case(TIED, data=FAIRSEQ_DATA),
    "version2": Case(
        f"{TIED} --attention reluformer:gamma=2 --cross-attention softmax --store-ema "
        "--ema-decay 0.95 --sentence-separator --doc-mixture 1,60,120",
        generate="--max-doc-tokens 120",
    ),
}
LENGTH_NOTES = ("NOTE: single sentences are translated", "NOTE: sentences are joined")
"""Later releases tell how much they translate at once."""
LATER = ("version2",)
"""Made by later revisions than the first files, which make_fixtures.py names."""
AVERAGED = "averaged"
"""The mean of ``softmax`` with what it was 50 updates earlier."""
ENSEMBLE = f"softmax{os.pathsep}rela"


def checkpoint(name: str) -> str:
    """Return the path of a stored checkpoint, or of several, seen from the folder of the files."""
    return os.pathsep.join(f"checkpoints/{part}.safetensors" for part in name.split(os.pathsep))


def expected_file(name: str) -> Path:
    """Return the file with what the old code made of a model."""
    return FILES / "expected" / f"{name.replace(os.pathsep, '+')}.json"


def run_command(name: str, flags: str, *words: str) -> list[str]:
    """Run a command here, in the folder of the files and return the lines of its standard output.

    Args:
        name: of the command's module.
        flags: with spaces between them.
        more: flags and values that may have spaces in them.
    """
    main = importlib.import_module(f"relu_nmt.cli.{name}").main
    out = io.StringIO()
    before = Path.cwd()
    os.chdir(FILES)
    try:
        with contextlib.redirect_stdout(out):
            code = main([*flags.split(), *words])
    finally:
        os.chdir(before)
    assert code == 0, f"{name} {flags}: exit code {code}"
    return out.getvalue().splitlines()


def logged(lines: list[str]) -> list[dict[str, float]]:
    """Return the losses, norms and rates of JSON log lines. Times are left out."""
    records = []
    for line in lines:
        entry = json.loads(line) if line.startswith("{") else {}
        names = [n for n in entry if re.search("loss|accuracy|^(num_updates|lr|gnorm|wpb)$", n)]
        if names:
            records.append({n: entry[n] for n in names})
    return records


def translate(path: str, **search: bool) -> list[list]:
    """Return text and score (nats) of the two best translations of a few raw lines."""
    from relu_nmt.translator import Translator

    paths = [str(FILES / part) for part in path.split(os.pathsep)]
    translations = Translator.from_checkpoint(paths, "cpu").translate_nbest(
        LINES, beam=4, nbest=2, **search
    )
    return [[t.text, t.score] for t in itertools.chain.from_iterable(translations)]


LIMITS = "--max-len-b 40 --max-len-a 1"
FREE_COUNT = "--free-sentence-count"


def generate(data: str, path: str, flags: str = LIMITS) -> list[str]:
    """Return what generate prints of the test split, but for the seconds and the length note."""
    lines = run_command("generate", f"{data} --cpu --no-progress-bar {flags}", "--path", path)
    lines = [line for line in lines if "Translated " not in line[:13]]
    return [line for line in lines if not line.startswith(LENGTH_NOTES)]


def score_references(case: Case, path: str) -> list[str]:
    """Return the lines with the log-probabilities of the references of the test split."""
    # Models of documents join sentences by default, which they did not when these were stored.
    alone = " --max-doc-tokens 1" if "--doc-mixture" in case.train else ""
    lines = generate(case.data, path, f"--score-reference{alone}")
    return [line for line in lines if line[:2] in ("H-", "P-")]


def outputs_of_model(name: str, count_freely: bool = False) -> dict[str, list]:
    """Return translations and scores by a stored checkpoint, or by several with colons.

    Args:
        name: of the checkpoint.
        count_freely: ask for what the old code did with the number of sentences.
    """
    case = CASES.get(name, Case(""))
    path = checkpoint(name)
    search = {"free_sentence_count": True} if count_freely else {}
    flags = f"{LIMITS} --beam 5 --nbest 2 {case.generate} {FREE_COUNT if count_freely else ''}"
    return {
        "translate": translate(path, **search),
        "generate": generate(case.data, path, flags),
        "references": score_references(case, path),
    }


def resume(name: str, scratch: Path) -> dict[str, list]:
    """Train a stored model on for a few updates: its log, and the scores of the references."""
    case = CASES[name]
    until = f"--max-update {UPDATES + FURTHER_UPDATES} --restore-file {checkpoint(name)}"
    flags = f"{case.training_flags()} {until}"
    lines = run_command("train", flags, "--save-dir", str(scratch))
    last = str(scratch / "checkpoint_last.safetensors")
    return {"log": logged(lines), "references": score_references(case, last)}


def resume_images(name: str, scratch: Path) -> dict[str, list]:
    """Train a stored classifier on for a few updates, validating after each."""
    until = f"--max-update {IMAGE_UPDATES + FURTHER_UPDATES} --restore-file {checkpoint(name)}"
    flags = f"{IMAGES} {IMAGE_SHAPE} {IMAGE_CASES[name]} {until} --validate-interval-updates 1"
    return {"log": logged(run_command("vision_train", flags, "--save-dir", str(scratch)))}


def translate_document(more_flags: str = "") -> list[str]:
    """Return the sentences of a stored document, translated by the model of documents."""
    flags = f"--cpu --no-progress-bar --max-doc-tokens 120 {LIMITS} {more_flags}"
    path = checkpoint("documents")
    return run_command("translate_document", f"text/test.de --path {path} {flags}")


def preprocess(destination: str) -> None:
    """Make the data folder with raw text again, from the stored text."""
    flags = "-s de -t en --trainpref text/train --validpref text/valid --testpref text/test"
    flags += " --joined-dictionary --tokenizer moses --subword subword-nmt --subword-size 30"
    flags += " --document-separator blank --workers 1"
    run_command("preprocess", flags, "--destdir", destination)


def preprocess_prepared(destination: str) -> None:
    """Make the folder without raw text again, as fairseq makes it, from prepared text."""
    flags = "-s de -t en --trainpref text/plain --validpref text/plain --testpref text/plain"
    run_command("preprocess", f"{flags} --thresholdtgt 2 --workers 1", "--destdir", destination)
