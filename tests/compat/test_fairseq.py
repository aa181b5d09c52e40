"""Transformers that fairseq trained translate here as there, and nothing in their files is run."""

import argparse
import os
import pickle
import sys
import types
from pathlib import Path

import pytest
import torch

from relu_nmt.translation.building import load_model
from relu_nmt.translator import Translator
from tests.commands import assert_refused, run_here
from tests.outputs import assert_same_tensors

FILES = Path(__file__).parent / "fairseq_files"
DATA = Path(__file__).parent / "files" / "data-fairseq"
SEARCH = ["--cpu", "--beam", "3", "--max-len-b", "20", "--stop-rule", "full", "--batch-size", "1"]


def model_of(path):
    return Translator.from_checkpoint(path, "cpu").models[0]


def imported(path, folder, *flags, check=True):
    out = folder / f"{path.stem}.safetensors"
    words = [path, "--data", DATA, "--output", out, "--trust-pickle", flags]
    return out, run_here("import_fairseq", words, check=check)


def unpickled(name):
    """Return what is in a file of our own."""
    return torch.load(FILES / f"{name}.pt", weights_only=False)


def hypotheses(text):
    """Return tokens and their scores by the number of the sentence."""
    texts = {}
    for line in text.splitlines():
        kind, _, number = line.partition("\t")[0].partition("-")
        if kind in ("H", "P"):
            texts.setdefault(number, []).append(line.split("\t")[-1])
    return texts


@pytest.mark.parametrize("name", ["post_norm", "pre_norm"])
def test_a_model_of_fairseq_translates_as_there(name, tmp_path):
    path, done = imported(FILES / f"{name}.pt", tmp_path)
    assert done.stdout.startswith(f"written: {path} (de-en, ")
    ours = hypotheses(run_here("generate", DATA, "--path", path, SEARCH).stdout)
    theirs = hypotheses((FILES / f"{name}.txt").read_text("utf-8"))
    assert len(theirs) == 29  # of 30 lines, one has no words
    for number, (words, scores) in theirs.items():
        own_words, own_scores = ours[number]
        assert own_words == words, number
        for score, other in zip(own_scores.split(), scores.split(), strict=True):
            assert float(score) == pytest.approx(float(other), abs=1.5e-4)  # of four printed digits


def as_of_old(saved):
    """Return a checkpoint as fairseq 0.6 wrote it, and the module of a class in it."""
    tensors = saved["model"]
    old = {"encoder.embed_positions._float_tensor": torch.zeros(1)}
    for name, tensor in tensors.items():
        if "k_proj" in name or "v_proj" in name:
            continue
        if "q_proj" in name:
            tensor = torch.cat([tensors[name.replace("q_proj", f"{p}_proj")] for p in "qkv"])
        norms = ["self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"]
        for number, norm in enumerate(norms[::2] if name.startswith("encoder") else norms):
            name = name.replace(f".{norm}.", f".layer_norms.{number}.")
        name = name.replace("q_proj.", "in_proj_").replace("output_projection.weight", "embed_out")
        old[name] = tensor
    module = types.ModuleType("fairseq.meters")
    module.AverageMeter = type("AverageMeter", (), {"__module__": "fairseq.meters"})
    meter = module.AverageMeter()
    meter.sum = 3
    state = {"args": saved["cfg"]["model"], "model": old, "extra_state": {"train_meters": meter}}
    return state, module


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_model_of_an_old_fairseq_is_the_same(is_zip, tmp_path, monkeypatch):
    old, module = as_of_old(unpickled("post_norm"))
    monkeypatch.setitem(sys.modules, "fairseq", types.ModuleType("fairseq"))
    monkeypatch.setitem(sys.modules, "fairseq.meters", module)
    torch.save(old, tmp_path / "old.pt", _use_new_zipfile_serialization=is_zip)
    monkeypatch.undo()
    first = model_of(imported(tmp_path / "old.pt", tmp_path)[0])
    second = model_of(imported(FILES / "post_norm.pt", tmp_path)[0])
    assert first.config == second.config
    assert_same_tensors(first.state_dict(), second.state_dict())


def test_raw_text_goes_in_if_it_is_told_how_it_was_split(tmp_path):
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\ne i\nei n\nein s</w>\n", "utf-8")
    flags = ["--tokenizer", "moses", "--lowercase", "--subword", "subword-nmt", "--subword-model"]
    path, _ = imported(FILES / "post_norm.pt", tmp_path, flags, codes)
    translator = Translator.from_checkpoint(path, "cpu")
    assert translator.sources.sentence("Eins, ein").tokens == ["eins", ",", "ei@@", "n"]
    # The words of Moses' own script, which made the training text.
    words = translator.task.source_text.words("l’un 10:30")
    assert words == ["l", "’", "un", "10", ":", "30"]


def test_training_goes_on_from_an_imported_model(tmp_path):
    path, _ = imported(FILES / "pre_norm.pt", tmp_path)
    flags = f"{DATA} --cpu --config {path} --finetune-from-model {path} --max-tokens 300 --lr 1e-9"
    saved = f"--max-update 1 --disable-validation --no-epoch-checkpoints --save-dir {tmp_path}"
    run_here("train", flags.split(), saved.split())
    first, second = map(model_of, (path, tmp_path / "checkpoint_last.safetensors"))
    assert first.config == second.config
    torch.testing.assert_close(second.state_dict(), first.state_dict())


def test_nothing_is_read_without_consent(tmp_path):
    out = tmp_path / "x.safetensors"
    words = [FILES / "post_norm.pt", "--data", DATA, "--output", out]
    assert_refused(run_here("import_fairseq", words, check=False), "give --trust-pickle")
    assert not out.exists()


class Harm:
    """Runs a command when it is unpickled as pickles usually are."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("is_zip", [True, False])
def test_what_no_model_needs_is_refused_and_not_run(is_zip, tmp_path):
    stored = {"args": argparse.Namespace(encoder_attention_heads=2), "model": {}}
    stored["extra_state"] = Harm(f"touch {tmp_path / 'harm'}")
    path = tmp_path / "harm.pt"
    torch.save(stored, path, _use_new_zipfile_serialization=is_zip)
    _, done = imported(path, tmp_path, check=False)
    assert_refused(done, "it names posix.system, which no model needs")
    assert not (tmp_path / "harm").exists()


def test_a_pickle_of_another_kind_is_one_line(tmp_path, recwarn):
    path = tmp_path / "other.pt"
    path.write_bytes(pickle.dumps({"model": Harm("true")}, protocol=4))
    _, done = imported(path, tmp_path, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and not recwarn.list


def changed(**settings):
    return lambda stored: vars(stored["cfg"]["model"]).update(settings)


def misshapen(stored):
    stored["model"]["encoder.embed_positions.weight"] = torch.zeros(())


def dropped(stored):
    del stored["model"]["encoder.layers.0.fc1.weight"]


def test_what_aligns_is_kept(tmp_path):
    stored = unpickled("post_norm")
    changed(alignment_layer=0, alignment_heads=1)(stored)
    torch.save(stored, tmp_path / "aligning.pt")
    path, _ = imported(tmp_path / "aligning.pt", tmp_path)
    config = load_model(path)[0].config
    assert (config.alignment_layer, config.alignment_heads) == (0, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(activation_fn="tanh"), "trained with --activation-fn tanh; known are relu"),
        (changed(adaptive_softmax_cutoff="9,20"), "trained with --adaptive-softmax-cutoff"),
        (changed(encoder_layers=3), "it lacks encoder.layers.2."),
        (
            changed(encoder_ffn_embed_dim=32),
            "outer.weight [8, 16] instead of [8, 32]",
        ),
        (misshapen, "damaged weights"),
        (dropped, "it lacks encoder.layers.0.feed_forward.inner.weight"),
        (lambda stored: stored.pop("model"), "no model in it"),
        (lambda stored: stored.pop("cfg"), "the settings of no transformer"),
    ],
)
def test_what_is_no_such_model_is_told(change, message, tmp_path):
    stored = unpickled("post_norm")
    change(stored)
    torch.save(stored, tmp_path / "changed.pt")
    out, done = imported(tmp_path / "changed.pt", tmp_path, check=False)
    assert (done.returncode, out.exists()) == (2, False)
    assert message in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("size", [0, 3, 100, 20_000])
def test_a_damaged_file_is_told(size, tmp_path):
    path = tmp_path / "cut.pt"
    path.write_bytes((FILES / "post_norm.pt").read_bytes()[:size])
    _, done = imported(path, tmp_path, check=False)
    assert_refused(done, "cut.pt: not read")


def test_other_dictionaries_are_told(tmp_path):
    for language in ("de", "en"):
        text = (DATA / f"dict.{language}.txt").read_text("utf-8")
        (tmp_path / f"dict.{language}.txt").write_text(text + "neu 1\n", "utf-8")
    words = [FILES / "post_norm.pt", "--data", tmp_path, "--trust-pickle", "--output"]
    done = run_here("import_fairseq", words, tmp_path / "x.safetensors", check=False)
    assert "its encoder knows 24 symbols, but the dictionary has 25" in done.stderr
