"""The whole chain on made text: a small ReLUFormer learns to copy and to sort."""

import pytest

from benchmarks.copy_task import UPDATES, learn, write_data


@pytest.mark.slow
@pytest.mark.parametrize("task", ["copy", "sort"])
def test_bleu_98_and_perplexity_1_03(tmp_path, task):
    learnt = learn(write_data(tmp_path, task), tmp_path / "run", UPDATES[task])
    assert learnt.perplexity <= 1.03
    assert learnt.bleu >= 98
