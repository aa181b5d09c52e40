import argparse

import pytest

from relu_nmt.config import add_settings, read_settings
from relu_nmt.errors import ConfigError
from relu_nmt.training.optimization import SCHEDULES, OptimizerConfig, ScheduleConfig


def parse(config_class, *argv):
    parser = argparse.ArgumentParser()
    add_settings(parser, config_class)
    return read_settings(config_class, parser.parse_args(argv))


@pytest.mark.parametrize("text", ["(0.9, 0.98)", "0.9,0.98", "[0.9,0.98]", " ( 0.9 , 0.98 ) "])
def test_fairseq_spellings_of_betas(text):
    assert parse(OptimizerConfig, "--adam-betas", text).adam_betas == (0.9, 0.98)


@pytest.mark.parametrize("text", ["0.9", "(1.0, 0.9)", "__import__('os')", "", "(0.9, -1)"])
def test_wrong_betas_are_refused(text):
    with pytest.raises(ConfigError, match=r"--adam-betas .*: expected"):
        OptimizerConfig(adam_betas=text)


def test_lists_of_learning_rates():
    assert ScheduleConfig(lr="1e-3").lr == ScheduleConfig(lr=1e-3).lr == (1e-3,)
    assert ScheduleConfig(lr="[0.0005]").lr == (5e-4,)
    assert parse(ScheduleConfig, "--lr", "1e-3,5e-4", "--lr-scheduler", "fixed").lr == (1e-3, 5e-4)
    with pytest.raises(ConfigError, match="needs --lr-scheduler fixed"):
        ScheduleConfig(lr=(1e-3, 1e-4))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr_scheduler": "cosin"}, "did you mean cosine"),
        ({"lr_scheduler": "cosine", "lr": (1e-4,), "min_lr": 1e-3}, "--min-lr"),
        ({"warmup_updates": -1}, "--warmup-updates -1"),
        ({"lr": (-1.0,)}, "--lr"),
        ({"lr": ""}, "--lr '': expected numbers with commas"),
        ({"lr": "nan"}, "--lr nan: expected numbers"),
        ({"lr": "inf"}, "--lr inf: expected a number"),
        ({"lr_shrink": 0.5}, "needs --lr-scheduler cosine or fixed or reduce_lr_on_plateau"),
        ({"lr_scheduler": "cosine", "power": 2}, "--power 2 does nothing with --lr-scheduler cos"),
        ({"warmup_init_lr": 0.1, "lr_scheduler": "fixed"}, "--warmup-init-lr 0.1 does nothing"),
        ({"lr_scheduler": "polynomial_decay", "total_num_update": 0}, "--total-num-update"),
    ],
)
def test_contradictions(settings, message):
    with pytest.raises(ConfigError, match=message):
        ScheduleConfig(**settings)


def test_unknown_optimizer():
    with pytest.raises(ConfigError, match=r"--optimizer adamm: .*one of adam, adamw.*mean"):
        OptimizerConfig(optimizer="adamm")


def test_a_schedule_of_the_users_own_may_read_any_setting(monkeypatch):
    monkeypatch.setitem(SCHEDULES._entries, "own", object)
    assert ScheduleConfig(lr_scheduler="own", power=2).power == 2
