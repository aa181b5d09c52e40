"""The whole chain on made text: a small ReLUFormer learns to copy and to sort."""

import pytest

from benchmarks import copy_task
from tests.commands import run_here

FLAGS = ["--max-tokens", "1024", "--warmup-updates", "50"]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "updates"), [("copy", 400), ("sort", 200)])
def test_bleu_98_and_perplexity_1_03(tmp_path, monkeypatch, task, updates):
    """Shorter sequences than the benchmark's are learnt in fewer updates."""
    monkeypatch.setattr(copy_task, "LONGEST", 8)
    monkeypatch.setattr(copy_task, "SYMBOLS", copy_task.SYMBOLS[:12])
    monkeypatch.setattr(copy_task, "SIZES", {"train": 10_000, "valid": 200, "test": 200})
    monkeypatch.setattr(copy_task, "_run", lambda *words: run_here(*words).stdout)
    data = copy_task.write_data(tmp_path, task)
    learnt = copy_task.learn(data, tmp_path / "run", updates, FLAGS)
    assert learnt.perplexity <= 1.03
    assert learnt.bleu >= 98
