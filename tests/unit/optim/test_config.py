import argparse

import pytest

from relu_nmt.config import add_options, from_namespace
from relu_nmt.errors import ConfigError
from relu_nmt.optim.config import OptimizerConfig, ScheduleConfig, parse_betas, parse_numbers


def parse(config_class, *argv):
    parser = argparse.ArgumentParser()
    add_options(parser, config_class, "group")
    return from_namespace(config_class, parser.parse_args(argv))


@pytest.mark.parametrize("text", ["(0.9, 0.98)", "0.9,0.98", "[0.9,0.98]", " ( 0.9 , 0.98 ) "])
def test_fairseq_spellings_of_betas(text):
    assert parse(OptimizerConfig, "--adam-betas", text).adam_betas == (0.9, 0.98)


@pytest.mark.parametrize("text", ["0.9", "(1.0, 0.9)", "__import__('os')", "", "(0.9, -1)"])
def test_wrong_betas_are_refused(text):
    with pytest.raises(ValueError, match="expected"):
        parse_betas(text)


def test_lists_of_learning_rates():
    assert parse_numbers("1e-3") == (1e-3,)
    assert parse_numbers("[0.0005]") == (5e-4,)
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
        ({"lr_scheduler": "polynomial_decay", "total_num_update": 0}, "--total-num-update"),
    ],
)
def test_contradictions(settings, message):
    with pytest.raises(ConfigError, match=message):
        ScheduleConfig(**settings)


def test_unknown_optimizer():
    with pytest.raises(ConfigError, match="unknown optimizer 'adamm'"):
        OptimizerConfig(optimizer="adamm")
