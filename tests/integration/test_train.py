"""relu-nmt-train on generated digits: fairseq's command, resuming, signals, several processes."""

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from relu_nmt.cli import train
from relu_nmt.training.checkpoint import load_checkpoint
from relu_nmt.translator import Translator
from tests.commands import assert_refused, run_here, seconds_of_children, wait_for
from tests.outputs import (
    assert_same_tensors,
    column,
    containing,
    json_lines,
    starting,
    steps_of,
    tensors,
    values,
    weights,
)
from tests.ranks import errors_of, run_ranks
from tests.tiny import digit_lines, preprocessed, write_lines

ROOT = Path(__file__).parents[2]
QUICK = "--arch reluformer_tiny --cpu --warmup-updates 20 --log-format json --log-interval 1"
FAIRSEQ_COMMAND = """
    --arch transformer_iwslt_de_en --share-decoder-input-output-embed
    --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0
    --lr 5e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000
    --dropout 0.3 --weight-decay 0.0001
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 4096
    --eval-bleu --eval-bleu-args '{"beam": 5, "max_len_a": 1.2, "max_len_b": 10}'
    --eval-bleu-detok moses --eval-bleu-remove-bpe --eval-bleu-print-samples
    --best-checkpoint-metric bleu --maximize-best-checkpoint-metric
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Digits to be copied and ended: a folder with raw text, and one as fairseq makes it."""
    folder = tmp_path_factory.mktemp("train")
    rng = random.Random(0)
    for split, count in (("train", 60), ("valid", 8)):
        lines = digit_lines(rng, count)
        write_lines(folder, split, lines, [f"{line} ." for line in lines])
    for name, joined in (("joined", True), ("apart", False)):
        preprocessed(folder, name, joined_dictionary=joined)
    for path in [*(folder / "apart").glob("*.raw"), folder / "apart/manifest.json"]:
        path.unlink()  # what is left is what fairseq-preprocess makes
    return folder


def run(data, flags, capsys=None):
    """Run the command here and return its exit code and its JSON lines."""
    flags = flags.split() if isinstance(flags, str) else flags
    code = train.main([str(data), *flags])
    out = capsys.readouterr().out if capsys else ""
    return code, json_lines(out)


def start(python, data, flags, processes=1):
    """Start the command as a separate program."""
    launcher = [python, "-m"]
    if processes > 1:
        launcher += ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    return subprocess.Popen(
        [*launcher, "relu_nmt.cli.train", str(data), *flags.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def forked_twice(python, data, flags, folder):
    """Run the command in two processes that train together and return the output of the first."""

    def work():
        done = run_here("train", data, flags.split())
        (folder / f"out.{os.environ['RANK']}").write_text(done.stdout)

    codes = run_ranks(python, work, 2, folder, joined=False)
    assert codes == [0, 0], errors_of(folder)
    return (folder / "out.0").read_text()


def test_the_command_that_fairseq_users_know(folder, tmp_path, capsys):
    size = "--encoder-layers 1 --decoder-layers 1 --max-epoch 1 --log-format simple --cpu "
    size += "--report-accuracy"
    flags = shlex.split(f"{FAIRSEQ_COMMAND} {size} --save-dir {tmp_path}")
    code = train.main([str(folder / "apart"), *flags])
    out = capsys.readouterr().out
    assert code == 0
    assert re.search(r"num\. shared model params: [\d,]+ \(num\. trained: [\d,]+\)", out)
    valid = re.search(
        r"\| epoch 001 \| valid on 'valid' subset \| loss .* \| best_bleu [\d.]+", out
    )
    assert " | bleu " in valid[0]
    assert 0 < float(re.search(r" \| accuracy ([\d.]+) ", valid[0])[1]) < 100
    assert "signature: nrefs:1|case:mixed|eff:no|tok:13a" in out
    assert out.count("example hypothesis: ") == 3
    assert (tmp_path / "checkpoint_best.safetensors").exists()


def test_presets_and_typed_flags(folder, tmp_path):
    flags = f"{QUICK} --max-tokens 100 --max-update 1 --share-all-embeddings --dropout 0.25"
    assert run(folder / "joined", f"{flags} --save-dir {tmp_path}")[0] == 0
    metadata = load_checkpoint(tmp_path / "checkpoint_last.safetensors").metadata
    assert metadata["model_config"]["attention"] == "reluformer:gamma=8"
    assert metadata["model_config"]["dropout"] == 0.25
    assert metadata["args"]["regularizer"]["attention_norm_weight"] > 0
    assert metadata["args"]["trainer"]["max_update"] == 1
    translator = Translator.from_checkpoint(tmp_path / "checkpoint_last.safetensors", "cpu")
    assert len(translator.translate(["1 2 3", ""], beam=2, max_len_b=4)) == 2


@pytest.mark.parametrize(
    "flags",
    [
        "--dropout 0.1 --attention-dropout 0.1",
        "--store-ema --ema-decay 0.9 --update-freq 2 --bf16",
        "--arch transformer_tiny --lr-scheduler reduce_lr_on_plateau --num-workers 0",
    ],
)
def test_stopping_and_going_on_changes_no_bit(folder, tmp_path, flags):
    flags = f"{QUICK} --max-tokens 100 --no-epoch-checkpoints {flags} --save-dir {tmp_path}"
    run(folder / "joined", f"{flags}/whole --max-update 10")
    for last in (3, 7, 10):
        run(folder / "joined", f"{flags}/parts --max-update {last}")
    assert_same_tensors(tensors(tmp_path / "whole"), tensors(tmp_path / "parts"))


@pytest.mark.parametrize("name", ["softmax:temperature=2", "relu-ln"])
def test_every_memory_learns_and_is_stored(folder, tmp_path, capsys, name):
    flags = (
        f"{QUICK} --ffn {name} --relu-dropout 0.1 --dropout 0 --lr 5e-3 --checkpoint-activations "
        f"--max-tokens 200 --max-update 40 --no-epoch-checkpoints --save-dir {tmp_path} "
        "--encoder-layers 1 --decoder-layers 1"
    )
    code, lines = run(folder / "joined", flags, capsys)
    losses = list(map(float, values(lines, "nll_loss")))
    assert code == 0 and losses[-1] < losses[0] - 1
    path = tmp_path / "checkpoint_last.safetensors"
    assert load_checkpoint(path).metadata["model_config"]["feed_forward"] == name
    model = Translator.from_checkpoint(path, "cpu").ensemble.models[0]
    loaded = containing(model.state_dict(), "feed_forward")
    stored = tensors(tmp_path)
    assert loaded
    for key in loaded:
        assert torch.equal(model.state_dict()[key], stored[key])
    assert ("encoder.layers.0.feed_forward.norm.weight" in loaded) == ("-ln" in name)
    assert ("encoder.layers.0.feed_forward.inner.bias" in loaded) == ("softmax" not in name)


def test_the_seed_decides(folder, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        flags = (
            f"{QUICK} --max-tokens 100 --max-update 3 --seed {seed} --save-dir {tmp_path}/{name}"
        )
        run(folder / "joined", flags)
    first, other = tensors(tmp_path / "a"), tensors(tmp_path / "c")
    assert_same_tensors(first, tensors(tmp_path / "b"))
    name = max(first, key=lambda key: first[key].numel())
    assert not torch.equal(first[name], other[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    "further",
    ["", "--ddp-backend fully_sharded --share-all-embeddings --checkpoint-activations --store-ema"],
)
def test_two_processes_give_the_losses_of_one(folder, tmp_path, capsys, further, quick_python):
    flags = f"{QUICK} --max-tokens 60 --max-epoch 2 --dropout 0 --eval-bleu {further}"
    flags += f" --best-checkpoint-metric bleu --save-dir {tmp_path}"
    _, single = run(folder / "joined", f"{flags}/one --update-freq 2", capsys)
    words = f"{flags}/two"
    if further:
        double = json_lines(forked_twice(quick_python, folder / "joined", words, tmp_path))
    else:
        process = start(quick_python, folder / "joined", words, processes=2)
        out, error = process.communicate(timeout=300)
        double = json_lines(out)
        assert double, error
    assert len(values(single, "update")) >= 6
    for name in ("loss", "nll_loss", "attention_norm", "gnorm", "wpb", "bsz", "valid_loss", "lr"):
        assert values(single, name) == pytest.approx(values(double, name), rel=2e-3), name
    assert values(single, "valid_bleu") == pytest.approx(values(double, "valid_bleu"), abs=1)
    # Two processes store the same as one process, which goes on from their checkpoint.
    alone, together = tensors(tmp_path / "one"), tensors(tmp_path / "two")
    torch.testing.assert_close(alone, together, rtol=1e-2, atol=1e-4)
    assert run(folder / "joined", f"{flags}/two --update-freq 2 --max-epoch 3")[0] == 0


@pytest.fixture(scope="module")
def shard(folder):
    """A second data folder with the dictionary of the first."""
    lines = [f"{number % 10} {number // 10}" for number in range(40)]
    write_lines(folder, "more", lines)
    first = {"joined_dictionary": True, "srcdict": str(folder / "joined/dict.de.txt")}
    return preprocessed(folder, "more-bin", (), trainpref=str(folder / "more"), **first)


def test_each_epoch_trains_on_one_of_several_folders(folder, shard, tmp_path, capsys):
    data = f"{folder / 'joined'}:{shard}"
    flags = f"{QUICK} --max-tokens 60 --no-epoch-checkpoints --save-dir {tmp_path}"
    _, lines = run(data, f"{flags}/whole --max-epoch 3", capsys)
    # 60 sentences with an end of their own, and 40 of two words.
    tokens = values(lines, "wpb")
    epochs = list(map(int, column(containing(lines, "wpb"), "epoch")))
    updates = list(map(epochs.count, (1, 2, 3)))
    assert updates[0] == updates[2] > updates[1]
    assert sum(tokens[updates[0] : sum(updates[:2])]) == 40 * 3
    # It is resumed in the second folder.
    for last in (updates[0] + 1, sum(updates)):
        run(data, f"{flags}/parts --max-epoch 3 --max-update {last}")
    assert_same_tensors(tensors(tmp_path / "whole"), tensors(tmp_path / "parts"))
    assert run(f"{folder / 'joined'}:{folder / 'apart'}", f"{flags}/other")[0] == 2
    error = capsys.readouterr().err
    assert f"apart/dict.de.txt: not the dictionary of {folder / 'joined'}; preprocess" in error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_exits_and_the_same_command_goes_on(
    folder, tmp_path, number, capsys, quick_python
):
    flags = f"{QUICK} --max-tokens 100 --save-dir {tmp_path} --no-epoch-checkpoints"
    process = start(quick_python, folder / "joined", flags)
    wait_for(process, '"num_updates": 3')
    process.send_signal(number)
    out, error = process.communicate(timeout=300)
    assert process.returncode == 128 + number
    assert "interrupted" in out
    assert error == ""
    done = load_checkpoint(tmp_path / "checkpoint_last.safetensors").metadata["training_state"]
    updates = done["num_updates"] + 1
    _, lines = run(folder / "joined", f"{flags} --max-update {updates}", capsys)
    assert values(lines, "num_updates") == [updates]


def test_tensorboard_has_losses_regularizer_and_attention_statistics(folder, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    flags = f"{QUICK} --max-tokens 100 --max-update 4 --log-interval 2 --save-dir {tmp_path}/run"
    flags += " --telemetry-interval 2"
    run(folder / "joined", f"{flags} --tensorboard-logdir {tmp_path}/tb")
    curves = EventAccumulator(str(tmp_path / "tb" / "train_inner")).Reload()
    names = set(curves.Tags()["scalars"])
    assert {"loss", "nll_loss", "attention_norm", "attention_entropy"} <= names
    assert {"lr", "gnorm", "wps"} <= names
    assert len(containing(containing(names, "/"), "entropy")) >= 6
    assert steps_of(curves, "loss") == [2, 4]


def test_time_limit_over_resumes(folder, tmp_path, capsys):
    flags = f"{QUICK} --max-tokens 100 --stop-time-hours 0.0004 --save-dir {tmp_path}"
    started = time.monotonic()
    assert run(folder / "joined", flags, capsys)[0] == 0
    assert time.monotonic() - started < 300
    _, lines = run(folder / "joined", flags, capsys)
    assert not values(lines, "num_updates")
    assert "time is up" in lines[-1]["message"]


@pytest.mark.parametrize(
    ("data", "flags", "message"),
    [
        ("joined", "", "give --max-tokens or --batch-size"),
        ("joined", "--max-tokens 5", r"train\.de-en.*: sentence \d+ has \d+ tokens \(and"),
        ("apart", "--max-tokens 99 --share-all-embeddings", "--joined-dictionary"),
        ("joined", "--max-tokens 99 --best-checkpoint-metric bleu", "bleu needs --eval-bleu"),
        ("joined", "--max-tokens 99 --valid-subset dev", "dev"),
        ("joined", "--max-tokens 99 --arch reluformr", "did you mean reluformer"),
        ("joined", "--max-tokens 99 --fp16", "--fp16 needs a CUDA GPU"),
        ("joined", "--max-tokens 99 --lr-scheduler cosine", "--lr-period-updates"),
        ("joined", "--max-tokens 99 --restore-file nowhere.pt", "no such file"),
        ("nowhere", "--max-tokens 99", "nowhere"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(folder, tmp_path, data, flags, message):
    flags = f"--cpu --arch reluformer_tiny --max-epoch 1 --save-dir {tmp_path} {flags}"
    done = run_here("train", folder / data, flags.split(), check=False)
    assert_refused(done)
    assert re.search(message, done.stderr), done.stderr


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15", "entmax:alpha=1.3"])
def test_scores_that_are_not_finite_end_the_training_in_one_line(folder, tmp_path, name):
    """The first update leaves weights so large that products of queries and keys overflow."""
    flags = f"--cpu --arch transformer_tiny --attention {name} --max-tokens 100 --max-update 5 "
    flags += f"--lr 1e30 --warmup-updates 1 --log-format none --save-dir {tmp_path}"
    done = run_here("train", folder / "joined", flags.split(), check=False)
    assert_refused(done, "error: update 2 (epoch 1): loss", "became not finite", "Lower --lr")
    result = json.loads((tmp_path / "results.json").read_text())
    assert result["diverged"] and result["ended"] in done.stderr


def test_bad_bleu_arguments_are_refused_at_the_start(folder, capsys):
    for text in ("{", "[]", '{"beem": 5}', '{"beam": 0}'):
        flags = ["--max-tokens", "9", "--eval-bleu", "--eval-bleu-args", text]
        assert train.main([str(folder / "joined"), *flags]) == 2
        assert "--eval-bleu-args" in capsys.readouterr().err


def test_long_sentences_are_left_out_on_request(folder, tmp_path, capsys):
    flags = f"{QUICK} --max-tokens 6 --max-update 1 --skip-invalid-size-inputs-valid-test"
    code, lines = run(folder / "joined", f"{flags} --save-dir {tmp_path}", capsys)
    assert code == 0
    assert containing(values(lines, "message"), "left out")


def test_a_checkpoint_with_another_dictionary_is_refused(folder, tmp_path, capsys):
    flags = f"{QUICK} --max-tokens 100 --save-dir {tmp_path}"
    run(folder / "joined", f"{flags} --max-update 1", capsys)
    for split in ("train", "valid"):
        write_lines(tmp_path, split, ["a b c"], ["1 2"])
    other = preprocessed(tmp_path, "other")
    assert train.main([str(other), *f"{flags} --max-update 2".split()]) == 2
    assert "another source dictionary" in capsys.readouterr().err


def test_a_changed_setting_is_noted_when_going_on(folder, tmp_path, capsys):
    flags = f"{QUICK} --max-tokens 100 --save-dir {tmp_path}"
    run(folder / "joined", f"{flags} --max-update 1 --dropout 0.1", capsys)
    _, lines = run(folder / "joined", f"{flags} --max-update 2 --dropout 0.3", capsys)
    notes = starting(values(lines, "message"), "note: ")
    assert notes == ["note: settings are changed since the checkpoint: --dropout 0.3 (was 0.1)"]


@pytest.mark.parametrize(
    ("command", "flag"), [("train", "--max-tokens"), ("vision_train", "--patch-size")]
)
def test_help_is_quick(command, flag):
    started = seconds_of_children()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", f"relu_nmt.cli.{command}", "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert seconds_of_children() - started < 5  # well below 1 s, but machines that test are slow
    assert flag in done.stdout
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)


def test_a_bleu_that_takes_long_is_told_while_it_is_computed(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("relu_nmt.io.progress.SECONDS_UNTIL_WAITING", 0.001)
    flags = f"{QUICK} --max-tokens 60 --max-update 1 --eval-bleu --save-dir {tmp_path}"
    _, lines = run(folder / "joined", flags, capsys)
    messages = values(lines, "message")
    assert starting(messages, "BLEU: translate valid: 0% of 8 sentences")


def test_frozen_parts_keep_their_weights(folder, tmp_path):
    flags = f"{QUICK} --max-tokens 500 --no-epoch-checkpoints --optimizer adafactor"
    weights_of = []
    for updates in (1, 3):
        name = tmp_path / str(updates)
        parts = "--freeze encoder,decoder.layers.0 --lr-scales decoder=0.5"
        assert run(folder / "apart", f"{flags} {parts} --max-update {updates} --save-dir {name}")
        weights_of.append(weights(name))
    first, third = weights_of
    for name in first:
        frozen = name.startswith(("encoder.", "decoder.layers.0."))
        assert torch.equal(first[name], third[name]) == frozen, name
