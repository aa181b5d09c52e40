"""The comparison of first trainings: what each program is told, and how it is scored."""

import argparse
import signal
import sys

import pytest
import yaml

from relu_nmt.io.text_lines import write_lines
from tests.example_modules import example_modules
from tests.outputs import starting

NAMES = ("measuring", "programs", "peers", "corpus", "report", "run", "first_hour")
REFERENCES = ["A dog isn't here.", "Two men walk on the red street."]


@pytest.fixture
def modules():
    with example_modules("../benchmarks", NAMES) as loaded:
        yield loaded


@pytest.fixture
def first_hour(modules, tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for split in ("train", "valid", "test"):
        for language in ("de", "en"):
            write_lines(text / f"{split}.{language}", REFERENCES)
    arguments = argparse.Namespace(
        folder=tmp_path, text=text, minutes=1.5, threads=1, sentences=2, rows=None
    )
    return modules.first_hour.FirstHour(arguments)


def test_every_program_trains_for_the_same_time(first_hour, tmp_path):
    words = {}
    for program in first_hour.programs:
        words[program.name] = program.train(first_hour.training, "float32", tmp_path / "m").words
    ours = words["relu_nmt"]
    flags = starting(ours, "--")
    assert flags == ["--arch", "--budget", "--save-dir"]
    assert ours[ours.index("--budget") + 1] == "90s"
    for name in ("fairseq", "fairseq, small"):
        assert words[name][words[name].index("--stop-time-hours") + 1] == "0.025"


def test_translations_of_joeynmt_end_where_its_model_ends_them(first_hour):
    layers = {}
    for program in first_hour.programs[3:]:
        program.train(first_hour.training, "float32", program.models)
        program.decode(first_hour.decoding, "float32")
        settings = yaml.safe_load((program.models / "decoding.yaml").read_text())
        testing = settings["testing"]
        assert (testing["min_output_length"], testing["max_output_length"]) == (1, 100)
        assert testing["beam_size"] == 5
        layers[program.name] = settings["model"]["encoder"]["num_layers"]
    assert layers == {"joeynmt": 6, "joeynmt, small": 3}


def test_bleu_is_of_words_in_any_case(first_hour, tmp_path):
    lines = ["a do@@ g is@@ n &apos;t here .", "two men walk on the red st@@ reet ."]
    assert first_hour.bleu(lines, tmp_path / "out") == pytest.approx(100)
    assert (tmp_path / "out").read_text() == "a dog isn't here.\ntwo men walk on the red street.\n"
    assert first_hour.bleu([*lines[:1], "two men walk ."], tmp_path / "out") < 70


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_a_program_that_is_interrupted_can_write_its_model(modules, tmp_path, handler):
    before = signal.signal(signal.SIGINT, handler)  # a background job of a shell ignores it
    program = (
        "import pathlib, time\n"
        "try:\n    print('begun', flush=True); time.sleep(30)\n"
        "except KeyboardInterrupt:\n    pathlib.Path('model').touch()"
    )
    try:
        done = modules.measuring.run(
            [sys.executable, "-c", program], folder=tmp_path, interrupt_after=3
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert 3 <= done.seconds < 25 and (tmp_path / "model").exists()
