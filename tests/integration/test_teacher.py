"""relu-nmt-train --teacher: flags, resumption, several processes and the errors."""

import os
import random
import subprocess

import pytest
import torch

from relu_nmt.jobs.train import job
from relu_nmt.training import preflight
from relu_nmt.translation.teacher import TaughtObjective
from tests import outputs, tiny
from tests.commands import assert_refused
from tests.outputs import assert_same_tensors, json_lines, tensors, values
from tests.tiny import digit_documents, preprocessed, write_documents, write_lines

GROUPS = ("--sentence-separator", "--max-doc-tokens", 32)
OWN = "--batch-size 5 --disable-validation --no-epoch-checkpoints --dropout 0.1"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    rng = random.Random(0)
    for split in ("train", "valid"):
        write_lines(folder, split, tiny.digit_lines(rng, 20))
    return preprocessed(folder, joined_dictionary=True)


@pytest.fixture(scope="module")
def teachers(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("teachers")
    for seed in "12":
        train(data, folder / seed, "--max-update", "2", "--seed", seed)
    return [folder / seed / "checkpoint_last.safetensors" for seed in "12"]


def train(data, folder, *flags, check=True):
    return tiny.train(data, folder, OWN.split(), flags, check=check)


def test_a_teacher_whose_folder_has_a_colon_is_one_model(data, teachers, tmp_path):
    (tmp_path / "12:00").mkdir()
    teacher = tmp_path / "12:00" / "best.safetensors"
    teacher.symlink_to(teachers[0])
    flags = ["--teacher", teacher, "--max-update", 1]
    done = train(data, tmp_path / "cached", flags, "--teacher-cache", tmp_path / "cache")
    assert f"teacher: 1 model(s), {teacher}" in done.stdout
    train(data, tmp_path / "attention", flags, "--teacher-attention-weight", 1)


def test_an_ensemble_teaches_and_the_training_resumes_exactly(data, teachers, tmp_path):
    flags = f"--teacher {teachers[0]}:{teachers[1]} --attention reluformer --bf16 --update-freq 2"
    flags += " --teacher-weight 0.7 --teacher-temperature 2 --teacher-top-k 3"
    for name in ("once", "twice"):
        options = f"{flags} --teacher-cache {tmp_path / name}.cache".split()
        if name == "twice":
            train(data, tmp_path / name, options, "--max-update", 3)
        done = train(data, tmp_path / name, options, "--max-update", 5)
        assert f"teacher: 2 model(s), {teachers[0]}:{teachers[1]}" in done.stdout
        assert min(map(float, values(json_lines(done.stdout), "teacher_loss"))) > 0
    assert_same_tensors(tensors(tmp_path / "once"), tensors(tmp_path / "twice"))


def test_a_model_that_is_its_own_teacher_has_nothing_to_learn(data, teachers, tmp_path):
    flags = f"--teacher {teachers[0]} --finetune-from-model {teachers[0]} --teacher-top-k 99"
    flags += " --teacher-attention-weight 1 --dropout 0 --lr 1e-9 --max-update 1"
    [line] = outputs.containing(json_lines(train(data, tmp_path, flags.split()).stdout), "lr")[:1]
    assert float(line["teacher_loss"]) == pytest.approx(0, abs=1e-3)
    assert float(line["teacher_attention"]) == pytest.approx(0, abs=1e-3)


def test_the_preflight_runs_the_teacher_after_the_search_for_a_batch_size(
    data, teachers, tmp_path, monkeypatch
):
    """A peak that is read from the cache would lack the teacher's memory."""
    events = []
    top = TaughtObjective._best
    try_batch = preflight.try_batch
    monkeypatch.setattr(
        TaughtObjective, "_best", lambda *args: [events.append("teacher"), top(*args)][1]
    )
    monkeypatch.setattr(
        preflight, "try_batch", lambda *args: [events.append("preflight"), try_batch(*args)][1]
    )
    flags = ("--teacher", teachers[0], "--teacher-cache", tmp_path / "cache", "--max-update", 1)
    train(data, tmp_path / "cold", flags)
    events.clear()
    auto = ("--disable-validation", "--max-tokens", "auto")
    tiny.train(data, tmp_path / "warm", auto, flags)
    assert events[-2:] == ["preflight", "teacher"] and events.count("preflight") == 1


def test_a_budget_is_planned_with_the_teacher(data, teachers, tmp_path, monkeypatch):
    kinds = []
    measured_pace = job.measured_pace

    def measure(objective, *args):
        kinds.append(type(objective))
        return measured_pace(objective, *args)

    monkeypatch.setattr(job, "measured_pace", measure)
    cache = ("--teacher-cache", tmp_path / "cache")
    train(data, tmp_path, "--teacher", teachers[0], cache, "--budget", "2u")
    assert set(kinds) == {TaughtObjective}


@pytest.mark.parametrize("backend", ["pytorch_ddp", "fully_sharded"])
def test_two_processes_learn_as_one_does(data, teachers, tmp_path, backend, quick_python):
    flags = f"{tiny.TRAIN} {OWN} --teacher {teachers[0]} --teacher-attention-weight 0.5 --dropout 0"
    flags += " --max-update 2 --attention reluformer"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    command = [quick_python, *launcher, "relu_nmt.cli.train", data, *flags.split()]
    options = ["--save-dir", tmp_path / "two", "--ddp-backend", backend]
    subprocess.run([*command, *options], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    train(data, tmp_path / "one", flags.split(), "--update-freq", 2)
    single, double = map(outputs.weights, (tmp_path / "one", tmp_path / "two"))
    torch.testing.assert_close(single, double, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--teacher {0} --encoder-layers 1 --teacher-attention-weight 1", "layers of width 64"),
        ("--teacher nowhere.safetensors", "nowhere.safetensors: no such checkpoint"),
        ("--teacher {0} --teacher-top-k 0", "--teacher-top-k"),
        ("--teacher {0} --teacher-temperature 0", "--teacher-temperature"),
        ("--teacher {0} --teacher-cache {0}", "checkpoint_last.safetensors"),
    ],
)
def test_bad_flags_are_one_line(data, teachers, tmp_path, flags, message):
    words = flags.format(*teachers).split()
    assert_refused(train(data, tmp_path / "run", words, "--max-update", 1, check=False), message)


def test_a_teacher_of_other_words_is_refused(data, teachers, tmp_path):
    for split in ("train", "valid"):
        write_lines(tmp_path, split, ["a b c", "d e"])
    other = preprocessed(tmp_path, joined_dictionary=True)
    flags = ("--teacher", teachers[0], "--max-update", 1)
    done = train(other, tmp_path / "run", flags, check=False)
    assert_refused(done, "has another source dictionary than that of", "relu-nmt-preprocess --like")


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Return a data folder of documents, a model of its sentences, and one that adds documents."""
    folder = tmp_path_factory.mktemp("documents")
    for split in ("train", "valid"):
        write_documents(folder, split, digit_documents(random.Random(0), 12))
    data = preprocessed(folder, joined_dictionary=True, document_separator="blank")
    train(data, folder / "plain", "--max-update", 1)
    plain = folder / "plain/checkpoint_last.safetensors"
    train(data, folder / "long", "--finetune-from-model", plain, GROUPS, "--max-update", 1)
    return data, plain, folder / "long/checkpoint_last.safetensors"


def test_a_teacher_of_documents_gives_its_separator_to_a_new_model(documents, tmp_path):
    data, _, teacher = documents
    for updates in (1, 2):
        train(data, tmp_path, "--teacher", teacher, GROUPS, "--max-update", updates)


def test_a_teacher_with_another_separator_is_refused(documents, tmp_path):
    data, plain, long = documents
    for teacher, flags, message in (
        (
            plain,
            GROUPS,
            "trained without --sentence-separator; take a teacher with it, or leave it out here",
        ),
        (long, (), "trained with --sentence-separator; give it here too"),
    ):
        done = train(data, tmp_path, "--teacher", teacher, flags, "--max-update", 1, check=False)
        assert_refused(done, message)


def test_sentences_beyond_the_positions_of_an_aligned_teacher_are_left_out(documents, tmp_path):
    data = documents[0]
    skip = "--skip-invalid-size-inputs-valid-test"
    aligned = "--positions learned --max-source-positions 7 --max-target-positions 7"
    aligned += " --document-attention aligned --max-update 1"
    train(data, tmp_path / "short", aligned.split(), GROUPS, skip)
    teacher = tmp_path / "short/checkpoint_last.safetensors"
    flags = ("--teacher", teacher, *GROUPS, "--max-update", 3)
    train(data, tmp_path / "taught", flags, skip)
    assert_refused(train(data, tmp_path / "refused", flags, check=False), "or its --teacher")
