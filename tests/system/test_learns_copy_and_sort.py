"""The whole chain on made text: a small ReLUFormer learns to copy and to sort."""

import random
import re

import pytest

from relu_nmt.cli import generate, preprocess, train

SYMBOLS = "abcdefghijklmnop"
MODEL = """
    --arch reluformer_tiny --share-all-embeddings --dropout 0 --label-smoothing 0
    --optimizer adam --adam-betas (0.9,0.98) --lr 4e-3 --lr-scheduler polynomial_decay
    --warmup-updates 200 --clip-norm 1 --max-tokens 2048 --seed 1 --cpu
    --log-format simple --log-interval 100 --no-epoch-checkpoints
"""


def write_corpus(folder, task, sizes):
    rng = random.Random(task)
    for split, size in sizes.items():
        sources = [rng.choices(SYMBOLS, k=rng.randint(1, 12)) for _ in range(size)]
        targets = [sorted(s) if task == "sort" else s for s in sources]
        for language, lines in (("src", sources), ("tgt", targets)):
            text = "".join(" ".join(line) + "\n" for line in lines)
            (folder / f"{split}.{language}").write_text(text)


def run(command, text):
    assert command.main(text.split()) == 0, text


@pytest.mark.slow
@pytest.mark.parametrize(("task", "updates"), [("copy", 900), ("sort", 1500)])
def test_bleu_98_and_perplexity_1_03(tmp_path, capsys, task, updates):
    write_corpus(tmp_path, task, {"train": 20_000, "valid": 300, "test": 300})
    run(
        preprocess,
        f"-s src -t tgt --trainpref {tmp_path}/train --validpref {tmp_path}/valid "
        f"--testpref {tmp_path}/test --destdir {tmp_path}/data --joined-dictionary --workers 1",
    )
    run(
        train,
        f"{tmp_path}/data {MODEL} --max-update {updates} --total-num-update {updates} "
        f"--save-dir {tmp_path}/run",
    )
    perplexity = float(re.findall(r"valid on .* ppl=?\s*([\d.]+)", capsys.readouterr().out)[-1])
    checkpoint = tmp_path / "run/checkpoint_best.safetensors"
    run(generate, f"{tmp_path}/data --path {checkpoint} --beam 5 --cpu")
    bleu = float(re.search(r"BLEU.* = ([\d.]+)", capsys.readouterr().out)[1])
    assert perplexity <= 1.03
    assert bleu >= 98
