"""benchmarks/gpu.sh without a GPU: its commands, its page, and its exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.example_modules import example_modules

SCRIPT = Path(__file__).parents[2] / "benchmarks/gpu.sh"
STUB = f"""#!{sys.executable}
# Answers what is asked of PyTorch, and writes down how the rest would be called.
import json, os, sys, time
if sys.argv[1] == "-c":
    if "device_count" in sys.argv[2]:
        print(os.environ["DEVICES"])
    elif "triton" in sys.argv[2]:
        sys.exit(1)
    else:
        print("* PyTorch 9.9")
    sys.exit()
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
print("this was measured", flush=True)
if os.environ["SLEEPY"] in sys.argv:
    time.sleep(60)
sys.exit(os.environ["BROKEN"] in sys.argv)
"""
PARTS = (
    "Attention, causal",
    "Attention with the regularizer",
    "Attention",
    "Training steps",
    "Toolkit, training",
    "Toolkit, sentences",
    "Compiled training steps",
    "GPU tests",
)


def call(folder, devices, broken="none", sleepy="none", **settings):
    python = folder / "python"
    python.write_text(STUB)
    python.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(python), "DEVICES": str(devices), **settings}
    environment |= {"CALLS": str(folder / "calls"), "BROKEN": broken, "SLEEPY": sleepy}
    done = subprocess.run(
        ["bash", str(SCRIPT), str(folder / "out")], capture_output=True, text=True, env=environment
    )
    calls = folder / "calls"
    lines = calls.read_text().splitlines() if calls.is_file() else []
    made_calls = list(map(json.loads, lines))
    # Leave out those that only compile the kernels, side by side.
    return done, [call for call in made_calls if "1024" not in call]


def test_without_a_gpu_the_script_says_so(tmp_path):
    done, calls = call(tmp_path, devices=0)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "benchmarks/gpu.sh: PyTorch finds no GPU here; ON_CPU=1 tries the script on the CPU"
    ]
    assert not calls and not (tmp_path / "out").exists()


@pytest.mark.parametrize(("devices", "dry_run"), [(1, ""), (2, ""), (0, "1")])
def test_every_part_runs_with_flags_that_exist(tmp_path, monkeypatch, devices, dry_run):
    done, calls = call(tmp_path, devices, ON_CPU=dry_run, TEXT="/text")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "out/gpu.md").read_text()
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == list(PARTS)
    assert page.count("this was measured") == len(PARTS) == len(calls)
    assert ("dry run" in page) == bool(dry_run)
    assert calls[-1][:4] == ["-m", "pytest", "-m", "gpu"]
    parsed = []
    names = ("measuring", "programs", "peers", "corpus", "report", "attention", "lengths", "run")
    with example_modules("../benchmarks", names) as modules:
        for path, *flags in calls[:-1]:
            monkeypatch.setattr(sys, "argv", [path, *flags])
            parsed.append(getattr(modules, Path(path).stem).parse_arguments())
    causal, regularizer, plain, lengths, run, decoding, compiled = parsed
    device = "cpu" if dry_run else "cuda"
    assert {options.device for options in parsed} == {device}
    assert "triton" in plain.backends
    assert (plain.causal, causal.causal, regularizer.regularizer) == (False, True, True)
    assert run.text == Path("/text") and run.peers == []
    assert (run.only, decoding.only) == (["training"], ["sentences"])
    assert run.folder == decoding.folder
    assert run.processes == (1 if devices == 1 else 2)
    if not dry_run:
        assert (min(plain.lengths), max(plain.lengths)) == (2048, 16384)
        assert "sdpa" in plain.backends
        assert (lengths.dtype, lengths.steps) == ("bf16", ["plain", "graph"])
        assert (compiled.dtype, compiled.steps) == ("bf16", ["compiled"])
        assert run.variants == ["bfloat16"]


def test_a_failed_part_is_on_the_page_and_the_others_run(tmp_path):
    done, calls = call(tmp_path, devices=1, broken="--regularizer")
    assert done.returncode == 1
    assert len(calls) == len(PARTS)
    page = (tmp_path / "out/gpu.md").read_text()
    failed = page.index("## Attention with the regularizer")
    assert page.count("**Failed** with status 1") == 1
    assert failed < page.index("**Failed**") < page.index("## Training steps")


def test_a_part_that_takes_too_long_is_ended_and_the_others_run(tmp_path):
    done, calls = call(tmp_path, devices=1, sleepy="--regularizer", LIMIT="4")
    assert done.returncode == 1
    assert len(calls) == len(PARTS)
    page = (tmp_path / "out/gpu.md").read_text()
    assert page.count("**Not finished** after 4 seconds") == 1
    assert page.count("this was measured") == len(PARTS)


def test_the_tests_may_be_left_out(tmp_path):
    done, calls = call(tmp_path, devices=1, TESTS="")
    assert done.returncode == 0
    assert len(calls) == len(PARTS) - 1
