"""A few of the kills that ``kills.py`` makes by the hundred."""

import os
import random

import pytest

from tests.system import kills


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes that it forks")
def test_what_a_kill_leaves_is_whole(tmp_path, monkeypatch):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    found = kills.run(tmp_path, 8, random.Random(seed))
    assert found["within a file"] + found["between two"] == 8


def test_what_is_lost_or_damaged_is_found(tmp_path):
    from tests.unit.training.toy import Toy

    Toy(tmp_path, run={"max_update": 3}).trainer().train()
    assert kills.check(tmp_path, 4) == "between two"
    with pytest.raises(AssertionError, match="5 updates made, but 3 saved"):
        kills.check(tmp_path, 5)
