"""Each kind of part is added by one file from outside the package, named with --user-module."""

import itertools
import json
import math
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from relu_nmt.attention.pointwise import pointwise_maps
from relu_nmt.config.registry import import_user_module
from relu_nmt.data import pair_formats
from relu_nmt.data.dictionary import Dictionary
from relu_nmt.modules import feed_forwards, norms, position_schemes
from relu_nmt.tokenization.base import subword_models
from relu_nmt.tokenization.pipeline import TextPipeline
from relu_nmt.training import OPTIMIZERS, SCHEDULES
from relu_nmt.translation import translation_models
from relu_nmt.translation.building import build_model
from relu_nmt.translation.config import TransformerConfig
from relu_nmt.translation.search import scorers, step_scores
from relu_nmt.translation.task import TranslationTask
from relu_nmt.vision import vision_blocks
from tests.commands import run_here
from tests.outputs import containing, starting

ROOT = Path(__file__).parents[2]
PARTS = Path(__file__).parent / "parts"
FILES = ROOT / "tests/compat/files"
TRAIN = (
    "--arch transformer_tiny --encoder-embed-dim 8 --decoder-embed-dim 8 --encoder-layers 1 "
    "--decoder-layers 1 --cpu --max-tokens 300 --lr 1e-3 --max-update 2 --no-epoch-checkpoints"
)
GENERATE = "--cpu --beam 2 --max-len-b 4 --no-progress-bar"
VISION = (
    "--cpu --image-size 8 --patch-size 2 --embed-dim 8 --heads 2 --layers 2 --batch-size 8 "
    "--lr 1e-3 --max-update 2 --no-epoch-checkpoints"
)
KERNELS = """
import sys, torch
from relu_nmt.attention.base import build_attention, use_backend
from relu_nmt.attention.masks import Visibility
from relu_nmt.config.registry import Spec
from relu_nmt.config.registry import import_user_module

import_user_module(sys.argv[1])
found = {}
for backend in ("reference", "blockwise", "triton"):
    spec = Spec.parse("pointwise:h=relu_cubed,qk_norm=false")
    attend = build_attention(spec, "encoder", 0, 1, 16, dropout=0.0)
    use_backend(attend, backend)
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 1, 19, 16, requires_grad=True) for _ in range(3))
    values = attend(q, k, v, Visibility(19, 19, causal=True)).values
    values.square().sum().backward()
    found[backend] = [values, q.grad, k.grad, v.grad]
for backend in ("blockwise", "triton"):
    for one, other in zip(found["reference"], found[backend], strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)
print("agree")
"""
REGISTRIES = (
    feed_forwards,
    norms,
    position_schemes,
    pointwise_maps,
    vision_blocks,
    subword_models,
    scorers,
    step_scores,
    pair_formats,
    translation_models,
    OPTIMIZERS,
    SCHEDULES,
)
pytestmark = pytest.mark.slow
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


@pytest.fixture(autouse=True)
def forget():
    """Forget what a command registered as soon as it has run, as if its process had ended."""
    before = [registry.names() for registry in REGISTRIES]

    def undo():
        for registry, names in zip(REGISTRIES, before, strict=True):
            for name in set(registry.names()) - set(names):
                del registry._entries[name]
        for name in starting(sys.modules, "relu_nmt_user_"):
            del sys.modules[name]

    yield undo
    undo()


@pytest.fixture
def command(forget):
    """Run a command and return its output, or what it says on standard error if it is to fail."""

    def run(name, *flags, code=0):
        done = run_here(name, flags, check=False)
        forget()
        assert done.returncode == code, done.stdout + done.stderr
        assert not code or done.stderr.count("\n") == 1
        return done.stderr if code else done.stdout

    return run


def train_and_translate(command, data, folder, part, flags, needed):
    """Train for two updates with a part, translate with it, and see that it is really in there."""
    user = ["--user-module", PARTS / part]
    command("train", data, TRAIN.split(), flags.split(), user, "--save-dir", folder)
    generate = [data, "--path", folder / "checkpoint_last.safetensors", *GENERATE.split()]
    assert "BLEU = " in command("generate", generate, user).splitlines()[-1]
    error = command("generate", generate, code=2)
    assert needed in error


@pytest.mark.parametrize(
    ("part", "flags", "needed"),
    [
        ("feed_forward.py", "--feed-forward relu_squared", "relu_squared"),
        ("mixture_of_experts.py", "--feed-forward experts:experts=3", "experts"),
        ("norm.py", "--norm scale", "scale"),
        ("positions.py", "--positions logarithmic", "logarithmic"),
        ("translation_model.py", "--translation-model decoder_only", "decoder_only"),
        pytest.param(
            "pointwise_map.py",
            "--attention pointwise:h=relu_cubed",
            "relu_cubed",
            marks=needs_triton,
        ),
    ],
)
def test_a_part_of_ones_own_is_trained_and_translates(command, tmp_path, part, flags, needed):
    train_and_translate(command, FILES / "data-joined", tmp_path, part, flags, needed)


def test_a_scorer_of_ones_own_ranks_translations(command):
    generate = [FILES / "data-joined", "--path", FILES / "checkpoints/softmax.safetensors"]
    generate += [*GENERATE.split(), "--nbest", 2, "--scorer", "reward:reward=0.25"]
    output = command("generate", generate, "--user-module", PARTS / "scorer.py")
    for number in re.findall(r"^H-(\d+)\t", output, re.MULTILINE):
        columns = re.findall(rf"^([HP])-{number}\t(.*)$", output, re.MULTILINE)
        scores = [float(line.split("\t")[0]) for kind, line in columns if kind == "H"]
        by_token = [list(map(float, line.split())) for kind, line in columns if kind == "P"]
        # Printed scores are in base 2.
        expected = [sum(row) + 0.25 / math.log(2) * len(row) for row in by_token]
        assert scores == pytest.approx(expected, abs=2e-3)
        assert scores == sorted(scores, reverse=True)
    assert "unknown scorer 'reward'" in command("generate", generate, code=2)


def test_a_step_score_of_ones_own_changes_what_is_written(command):
    generate = [FILES / "data-joined", "--path", FILES / "checkpoints/softmax.safetensors"]
    generate += [*GENERATE.split(), "--nbest", 2]

    def written(*flags):
        lines = command("generate", generate, flags).splitlines()
        return [line.split("\t") for line in lines if line[:2] == "H-"]

    user = ["--user-module", PARTS / "step_score.py", "--step-score"]
    before = written()
    assert written(user, "no_stammer:penalty=0") == before
    # The bonus is in the score of each of the tokens. Printed scores are in base 2.
    for _, score, tokens in written(user, "preferred:words=and,bonus=50")[::2]:
        assert tokens.split() == ["and"] * 4
        assert float(score) > 0.5 * 50 / math.log(2)
    for *_, tokens in written(user, "no_stammer:penalty=99"):
        assert all(a != b for a, b in itertools.pairwise(tokens.split()))
    error = command("generate", generate, user, "no_stammer:much=1", code=2)
    assert "--step-score" in error


@needs_triton
def test_the_kernels_compute_a_map_of_ones_own():
    done = subprocess.run(
        [sys.executable, "-c", KERNELS, PARTS / "pointwise_map.py"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert done.stdout == "agree\n", done.stderr


@pytest.mark.parametrize(
    ("part", "flag", "text", "wrong"),
    [
        ("schedule.py", "--lr-scheduler", "halving:every=1", "halving:ever=1"),
        ("optimizer.py", "--optimizer", "sign:momentum=0.5", "sign:momentum=2"),
        ("translation_model.py", "--translation-model", "decoder_only", "decoder_only:size=2"),
    ],
)
def test_a_training_with_a_schedule_or_optimizer_of_ones_own_goes_on(
    command, tmp_path, part, flag, text, wrong
):
    flags = [FILES / "data-joined", *TRAIN.split(), "--save-dir", tmp_path, "--log-interval", "1"]
    user = ["--user-module", PARTS / part]
    command("train", flags, user, flag, text)
    log = command("train", flags, user, flag, text, "--max-update", "3")
    assert "(epoch 1 @ 2 updates)" in log
    if flag == "--lr-scheduler":
        assert "lr=0.000125" in log
    known_error = command("train", flags, user, flag, wrong, code=2)
    unknown_error = command("train", flags, flag, text, code=2)
    for error in (known_error, unknown_error):
        assert flag in error


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "alibi"])
def test_a_translation_model_of_ones_own_gives_the_same_logits_step_by_step(positions):
    import_user_module(str(PARTS / "translation_model.py"))
    config = TransformerConfig(
        translation_model="decoder_only",
        positions=positions,
        decoder_layers=2,
        decoder_embed_dim=16,
        encoder_embed_dim=16,
    )
    words = Dictionary(["a", "b", "c", "d"])
    task = TranslationTask(TextPipeline("de"), TextPipeline("en"), words, words)
    torch.manual_seed(1)
    model = build_model(config, task).eval()
    pad = words.pad_index
    sources = torch.tensor([[4, 5, 6, 2], [7, 2, pad, pad], [5, 6, 2, pad]])
    targets = torch.tensor([[2, 4, 5, 7], [2, 6, 6, 4]])  # of the last beam of sentences 2 and 1
    with torch.inference_mode():
        state = model.start(sources)
        # Two beams for each sentence.
        steps = [model.step(torch.full((3, 2), 2), state)[[2, 1], 0]]
        model.step(torch.tensor([[4, 7], [6, 5], [4, 6]]), state)
        state.reorder(torch.tensor([[1, 0], [1, 0], [1, 0]]))
        state.keep(torch.tensor([2, 1]))
        for tokens in targets.T[2:]:
            steps.append(model.step(torch.stack([tokens.flip(0), tokens], dim=1), state)[:, 1])
        expected = model(sources[[2, 1]], targets)[:, [0, 2, 3]]
    torch.testing.assert_close(torch.stack(steps, dim=1), expected)


def test_a_translation_model_of_ones_own_has_no_attention_to_show(command, tmp_path):
    user = ["--user-module", PARTS / "translation_model.py"]
    data = FILES / "data-joined"
    chosen = ["--translation-model", "decoder_only", "--save-dir", tmp_path]
    command("train", data, TRAIN.split(), user, chosen)
    generate = [data, "--path", tmp_path / "checkpoint_last.safetensors", *GENERATE.split(), *user]
    for flags in (["--print-alignment"], ["--print-attention", "cross.0"]):
        error = command("generate", generate, flags, code=2)
        assert "--translation-model decoder_only" in error


def test_a_mixture_of_experts_of_ones_own_logs_and_trains_its_balance(command, tmp_path):
    flags = [FILES / "data-joined", *TRAIN.split(), "--log-interval", "1", "--log-format", "json"]
    user = ["--user-module", PARTS / "mixture_of_experts.py"]
    logged = {}
    for name, weight, further in (
        ("off", "0", []),
        ("on", "9", []),
        ("twice", "9", ["--checkpoint-activations"]),
    ):
        chosen = ["--feed-forward", f"experts:balance={weight}", *further]
        log = command("train", flags, user, chosen, "--save-dir", tmp_path / name)
        updates = [json.loads(line) for line in log.splitlines() if '"gnorm"' in line]
        logged[name] = containing(updates, "expert_balance")
    # Balance does not change the logged loss of the task, but the gradient.
    first, first_with_balance = logged["off"][0], logged["on"][0]
    assert first["loss"] == first_with_balance["loss"]
    assert first["expert_balance"] == first_with_balance["expert_balance"] >= 1
    assert first["gnorm"] != first_with_balance["gnorm"]
    for update, update_computed_twice in zip(logged["on"], logged["twice"], strict=True):
        for name in ("loss", "expert_balance", "gnorm"):
            assert update[name] == update_computed_twice[name]


def test_a_text_format_of_ones_own_makes_the_data_of_plain_text(command, tmp_path):
    user = ["--user-module", PARTS / "pair_format.py"]
    flags = ["-s", "de", "-t", "en", "--workers", "1", "--destdir"]
    pairs = [("ein Haus", "a house"), ("zwei", "two"), ("das Haus", "the house")]
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps({"de": de, "en": en}) + "\n" for de, en in pairs))
    for side, lines in zip(("de", "en"), zip(*pairs, strict=True), strict=True):
        (tmp_path / f"text.{side}").write_text("\n".join(lines) + "\n")
    command("preprocess", flags, tmp_path / "own", "--trainpref", file, user)
    command("preprocess", flags, tmp_path / "plain", "--trainpref", tmp_path / "text")
    for path in (tmp_path / "plain").iterdir():
        if path.suffix in (".txt", ".bin", ".idx"):
            assert path.read_bytes() == (tmp_path / "own" / path.name).read_bytes()
    error = command("preprocess", flags, tmp_path / "new", "--trainpref", file, code=2)
    assert f"{file}.de: no such file" in error
    file.write_text('{"de": "ein"}\n')
    error = command("preprocess", flags, tmp_path / "new", "--trainpref", file, user, code=2)
    assert f"{file}:1: expected de and en" in error


def test_a_vision_block_of_ones_own_is_trained(command, tmp_path):
    pytest.importorskip("PIL")
    flags = [FILES / "images.zip", *VISION.split(), "--block", "convolution"]
    user = ["--user-module", PARTS / "vision_block.py"]
    command("vision_train", flags, user, "--save-dir", tmp_path)
    assert (tmp_path / "checkpoint_last.safetensors").exists()
    assert "convolution" in command("vision_train", flags, "--save-dir", tmp_path, code=2)


def test_a_subword_model_of_ones_own_makes_data_trains_and_translates(command, tmp_path):
    user = ["--user-module", PARTS / "subword_model.py"]
    prefixes = [f"--{split}pref={FILES}/text/{split}" for split in ("train", "valid", "test")]
    flags = "-s de -t en --joined-dictionary --subword characters --subword-size 9 --workers 1"
    data = tmp_path / "data"
    command("preprocess", flags.split(), prefixes, "--destdir", data, user)
    assert (data / "characters.json").exists()
    symbols = [line.split()[0] for line in (data / "dict.de.txt").read_text().splitlines()]
    assert "z@@" in symbols
    assert "und" in symbols
    train_and_translate(command, data, tmp_path / "saved", "subword_model.py", "", "characters")
