"""What every command does before and after its own work."""

import os

import pytest

from relu_nmt.cli.command import KERNEL_CACHE, make_parser, run_command


@pytest.mark.parametrize(("before", "during"), [(None, "256"), ("7", "7")])
def test_the_kernel_cache_is_limited_unless_the_user_set_it(monkeypatch, before, during):
    monkeypatch.setenv(KERNEL_CACHE, "")  # so that it is put back afterwards
    if before is None:
        monkeypatch.delenv(KERNEL_CACHE)
    else:
        monkeypatch.setenv(KERNEL_CACHE, before)
    seen = []
    run_command(make_parser("test", ""), lambda _: seen.append(os.environ[KERNEL_CACHE]), [])
    assert seen == [during]
