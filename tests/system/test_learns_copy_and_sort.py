"""The whole chain on made text: a small ReLUFormer learns to sort."""

import pytest

from tests.commands import run_here
from tests.example_modules import example_modules

FLAGS = ["--max-tokens", "1024", "--warmup-updates", "50"]


@pytest.fixture
def copy_task():
    with example_modules("../benchmarks", ["measuring", "copy_task"]) as modules:
        yield modules.copy_task


@pytest.mark.slow
def test_bleu_98_and_perplexity_1_03(copy_task, tmp_path, monkeypatch):
    """Shorter sequences than the benchmark's are learned in fewer updates."""
    monkeypatch.setattr(copy_task, "LONGEST", 8)
    monkeypatch.setattr(copy_task, "SYMBOLS", copy_task.SYMBOLS[:12])
    monkeypatch.setattr(copy_task, "SIZES", {"train": 10_000, "valid": 200, "test": 200})
    monkeypatch.setattr(copy_task, "output_of", lambda name, words: run_here(name, words).stdout)
    data = copy_task.write_data(tmp_path, "sort")
    learned = copy_task.learn(data, tmp_path / "run", 200, FLAGS)
    assert learned.perplexity <= 1.03
    assert learned.bleu >= 98


def test_the_targets_are_copies_or_sorted(copy_task, tmp_path, monkeypatch):
    monkeypatch.setattr(copy_task, "SIZES", {"train": 20, "valid": 5, "test": 5})
    monkeypatch.setattr(copy_task, "output_of", lambda name, words: "")
    for task, change in (("copy", list), ("sort", sorted)):
        copy_task.write_data(tmp_path, task)
        sources = (tmp_path / "train.src").read_text().splitlines()
        targets = (tmp_path / "train.tgt").read_text().splitlines()
        for source, target in zip(sources, targets, strict=True):
            assert target.split() == change(source.split())
