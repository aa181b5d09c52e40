"""The choices of --budget, as a table."""

from operator import attrgetter
from types import SimpleNamespace

import pytest
import torch

from relu_nmt.config.classes import merged
from relu_nmt.jobs.budget import Pace, paced_settings, planned_updates, training_seconds
from relu_nmt.jobs.train.budget import (
    SHAPES,
    SMALLEST_BATCH,
    Chooser,
    batch_factor,
    dropout_settings,
    peak_rate,
)
from relu_nmt.jobs.train.settings import TranslationTrainingSettings
from relu_nmt.training.budgets import Budget


@pytest.mark.parametrize(
    ("budget", "spent", "updates"),
    [
        ("2000u", 50, 2000),
        ("2e", 50, 1200),
        ("0.5e", 0, 300),
        ("0.0001e", 0, 1),
        ("100s", 0, 495),  # a second is kept for the last checkpoint
        ("100s", 49, 250),
        ("100s", 1000, 5),  # a little is trained even then
    ],
)
def test_the_number_of_updates_in_a_budget(budget, spent, updates):
    pace = Pace(seconds=0.2, updates_per_epoch=600)
    assert planned_updates(Budget.parse(budget), pace, spent) == updates


def test_validations_take_at_most_a_twentieth_of_the_time():
    budget = Budget.parse("1000s")
    slow = Pace(1.0, 100, validation_batches=100)  # a validation takes 40 updates
    assert training_seconds(budget, slow, spent=0) == 950
    assert planned_updates(budget, slow) == 902
    paced = paced_settings(slow, 902, 950.0)
    assert paced["validate_interval_updates"] == 800
    quick = Pace(1.0, 100, validation_batches=5)
    assert paced_settings(quick, 902, None)["validate_interval_updates"] == 91


def test_the_last_validation_but_one_is_well_before_an_end_that_time_sets():
    pace = Pace(1.0, 100, validation_batches=1)
    between = paced_settings(pace, 950, 950.0)["validate_interval_updates"]
    assert between == 100  # the last one at 900 updates
    # A training that is a little faster or slower than expected has no two validations in a row.
    for updates in (910, 950, 990):
        assert 10 <= updates % between <= 90


@pytest.mark.parametrize(
    ("updates", "per_epoch", "warmup", "decay", "between", "epochs", "saved", "lines"),
    [
        (4400, 611, 440, 0.998, 440, 8, 1, 88),
        (2000, 611, 200, 0.9955, 200, 4, 1, 40),
        (100_000, 1000, 10_000, 0.9999, 10_000, 100, 10, 100),
        (30, 10, 3, 0.7, 3, 3, 1, 1),
        (1, 10, 0, 0.0, 1, 1, 1, 1),
    ],
)
def test_the_settings_that_follow_from_the_number_of_updates(
    updates, per_epoch, warmup, decay, between, epochs, saved, lines
):
    paced = paced_settings(Pace(1.0, per_epoch), updates, None)
    assert paced == {
        "max_update": updates,
        "max_epoch": 0,
        "total_num_update": updates,
        "warmup_updates": warmup,
        "ema_decay": decay,
        "validate_interval_updates": between,
        "validate_interval": epochs,
        "save_interval": saved,
        "log_interval": lines,
    }
    assert paced_settings(Pace(1.0, per_epoch), updates, 1800.0)["stop_time_hours"] == 0.5


def test_a_translation_model_has_at_least_400_updates_of_warmup_but_a_third_of_all():
    pace = Pace(1.0, 600)
    warmups = [
        paced_settings(pace, updates, None, least_warmup=400)["warmup_updates"]
        for updates in (2, 90, 1200, 3000, 4400)
    ]
    assert warmups == [1, 30, 400, 400, 440]


@pytest.mark.parametrize(
    ("epochs", "dropout", "attention_dropout"),
    [(0.5, 0.0, 0.0), (4.8, 0.0, 0.0), (7, 0.1, 0.1), (20, 0.2, 0.1), (100, 0.3, 0.1)],
)
def test_more_epochs_need_more_dropout(epochs, dropout, attention_dropout):
    expected = {"dropout": dropout, "attention_dropout": attention_dropout}
    assert dropout_settings(epochs) == expected


def test_rates_batches_and_shapes():
    rates = [peak_rate(width, is_pre_norm=False, is_trained=False) for width in (256, 512)]
    assert rates == [0.001, 0.0005]
    assert peak_rate(128, is_pre_norm=True, is_trained=False) == 0.005
    assert peak_rate(512, is_pre_norm=False, is_trained=True) == 0.0001
    assert SMALLEST_BATCH == {"cpu": 768, "cuda": 4096}
    assert [batch_factor(768, n) for n in (4_000, 23_999, 24_000, 10**6)] == [1, 1, 2, 4]
    assert SHAPES[1].settings["decoder_ffn_embed_dim"] == 1024
    for name in ("width", "inner", "least_updates", "least_pairs"):
        values = list(map(attrgetter(name), SHAPES))
        assert values == sorted(values)


def choices_for(num_updates, checkpoint=None, **flags):
    """Return the choices where there is time for so many updates."""
    values = {"data": "data-bin", "arch": "reluformer", "budget": "1000s", **flags}
    settings = merged(TranslationTrainingSettings, values)
    process = SimpleNamespace(device=torch.device("cpu"))
    training = SimpleNamespace(checkpoint=checkpoint, process=process, say=lambda text: None)
    task = SimpleNamespace(joined_dictionary=True)
    pace = Pace(seconds=990 / num_updates, updates_per_epoch=600)  # 10 seconds are kept back
    return Chooser(settings, task, training, lambda settings: pace).choose().values


@pytest.mark.parametrize(
    ("num_updates", "width", "is_pre_norm", "rate"),
    [(4_990, 128, True, 0.005), (5_010, 256, False, 0.001)],
)
def test_short_times_have_a_narrow_model(num_updates, width, is_pre_norm, rate):
    chosen = choices_for(num_updates)
    assert chosen["encoder_embed_dim"] == width
    assert chosen.get("decoder_normalize_before", False) == is_pre_norm
    assert chosen["lr"] == (rate,)
    assert chosen["clip_norm"] == 1.0


@pytest.mark.parametrize(
    ("num_updates", "checkpoint", "power"),
    [(3_990, None, 0.3), (4_010, None, None), (3_990, "trained.safetensors", None)],
)
def test_the_rate_of_a_short_new_training_decays_late(num_updates, checkpoint, power, monkeypatch):
    monkeypatch.setattr("relu_nmt.jobs.train.budget.read_metadata", lambda path: {})
    assert choices_for(num_updates, checkpoint).get("power") == power


@pytest.mark.parametrize(
    ("flags", "positions"),
    [
        ({}, "sinusoidal+rotary"),
        ({"arch": "transformer", "attention": "sparsemax"}, "sinusoidal+rotary"),
        ({"attention": "performer"}, "sinusoidal"),
        ({"decoder_attention": "cosformer"}, "sinusoidal"),
        ({"cross_attention": "cosformer"}, "sinusoidal+rotary"),
        ({"max_doc_tokens": 1}, "sinusoidal+rotary"),
        ({"max_doc_tokens": 512}, "sinusoidal+rotary+t5"),
        ({"doc_mixture": (1, 128)}, "sinusoidal+rotary+t5"),
        ({"doc_mixture": (1, 128), "attention": "performer"}, "sinusoidal"),
        ({"doc_mixture": (1, 128), "arch": "transformer"}, "sinusoidal+rotary"),
    ],
)
def test_only_attention_with_scores_gets_relative_positions(flags, positions):
    assert choices_for(1000, **flags)["positions"] == positions
