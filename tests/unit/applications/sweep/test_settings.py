"""The form of budgets, attentions and seeds."""

import re

import pytest

from relu_nmt.applications.sweep.settings import (
    JobsConfig,
    SweepSettings,
    parse_attentions,
    parse_budget,
)
from relu_nmt.errors import ConfigError
from tests.outputs import values


def sweep(**values):
    return SweepSettings(**{"data": "data-bin", "budget": "1u", **values})


@pytest.mark.parametrize(
    ("text", "flags", "words"),
    [
        ("4000", ("--max-update", "4000"), "4,000 updates"),
        ("4000u", ("--max-update", "4000"), "4,000 updates"),
        ("90s", ("--stop-time-hours", "0.025"), "1.5 minutes"),
        ("15m", ("--stop-time-hours", "0.25"), "15 minutes"),
        ("1.5h", ("--stop-time-hours", "1.5"), "1.5 hours"),
        ("30S", ("--stop-time-hours", "0.00833333"), "30 seconds"),
    ],
)
def test_a_budget_counts_updates_or_time(text, flags, words):
    settings = sweep(budget=text)
    assert (settings.time_flags, settings.time_in_words) == (flags, words)


@pytest.mark.parametrize("text", ["", "0", "0m", "10.5u", "10.5", "15d", "m", "-3m", "1 0"])
def test_other_budgets_are_refused(text):
    with pytest.raises(ValueError, match=r"expected 4000u|updates are whole"):
        parse_budget(text)


def test_a_comma_also_separates_the_options_of_an_attention():
    text = "softmax,reluformer:gamma=2,learnable=true, sparsemax,reluformer_paper"
    names = ("softmax", "reluformer:gamma=2,learnable=true", "sparsemax", "reluformer_paper")
    assert parse_attentions(text) == names


@pytest.mark.parametrize("text", ["softmax,softmax", "softmix", "softmax,", "gamma=2"])
def test_an_unknown_or_empty_attention_is_an_error(text):
    with pytest.raises((ValueError, ConfigError)):
        parse_attentions(text)


def test_compared_systems_are_attentions_and_variants():
    assert sweep().systems == ("softmax", "reluformer", "sparsemax")
    variants = ("a: --lr 1", "b: --lr 2\n --dropout 0.1")
    assert sweep(variants=variants).systems == ("a", "b")
    assert sweep(attentions="softmax", variants=variants).systems == ("softmax", "a", "b")


def test_lists_are_split_at_commas_and_flags_as_by_a_shell():
    config = sweep(seeds="1, 2,3", generate_flags="--beam 4 --remove-bpe '@@ '")
    assert config.seeds == (1, 2, 3)
    assert config.generate_flags == ("--beam", "4", "--remove-bpe", "@@ ")
    assert JobsConfig(jobs=2, gpus="0,2").gpus == ("0", "2")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lengths": (0, 128)}, "--lengths 0,128: expected 1 or more"),
        ({"lengths": (128, 128)}, "--lengths 128,128: expected one or more different"),
        ({"doc_mixture": "0"}, "--doc-mixture 0"),
        ({"checkpoint": "average:1"}, "average:N"),
        ({"checkpoint": "newest"}, "expected best, last"),
        ({"seeds": ""}, "--seeds '': expected whole numbers"),
        ({"seeds": "01,1"}, "--seeds 1,1: expected one or more different"),
        ({"seeds": "1,-2"}, "--seeds 1,-2: expected 0 or more"),
        ({"seeds": "one"}, "--seeds one: expected whole numbers"),
        ({"generate_flags": "--beam '4"}, "--generate-flags: No closing quotation"),
        ({"variants": ("wide",)}, "--variants 'wide': expected 'NAME: flags of relu-nmt-train'"),
        ({"variants": ("a/b: --lr 1",)}, "--variants 'a/b: --lr 1': expected"),
        ({"variants": ("a: --lr '1",)}, "--variants 'a: --lr '1': No closing quotation"),
        ({"variants": ("a: --lr 1", "a: --lr 2")}, "--variants: a name is given twice"),
        ({"attentions": "softmax", "variants": ("softmax: --lr 1",)}, "or is one of --attentions"),
        ({"budget": "10.5u"}, "--budget: '10.5u': updates are whole numbers"),
    ],
)
def test_contradicting_settings_of_a_sweep_are_errors(values, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        sweep(**values)


def test_processes_get_a_gpu_each_and_a_share_of_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("relu_nmt.applications.sweep.settings.available_cores", lambda: 8)
    config = JobsConfig(jobs=3, gpus=("4", "7"))
    environments = [config.environment(slot) for slot in range(3)]
    assert values(environments, "CUDA_VISIBLE_DEVICES") == ["4", "7", "4"]
    assert set(values(environments, "OMP_NUM_THREADS")) == {"2"}
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert config.environment(0)["OMP_NUM_THREADS"] == "5"
    with pytest.raises(ConfigError, match="--jobs 0"):
        JobsConfig(jobs=0)


def test_processes_that_train_together_get_gpus_of_their_own(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("relu_nmt.applications.sweep.settings.available_cores", lambda: 8)
    config = JobsConfig(jobs=2, gpus="0,1,4,5", training_processes=2)
    environments = [config.environment(slot) for slot in range(2)]
    assert values(environments, "CUDA_VISIBLE_DEVICES") == ["0,1", "4,5"]
    assert set(values(environments, "OMP_NUM_THREADS")) == {"2"}
    with pytest.raises(ConfigError, match=r"--gpus 0,1,2: 2 --training-processes each need one"):
        JobsConfig(jobs=2, gpus="0,1,2", training_processes=2)
    with pytest.raises(ConfigError, match="raise --jobs from 1 to 2"):
        JobsConfig(jobs=1, gpus="0,1,2,3", training_processes=2)


def test_a_gpu_without_a_process_is_an_error():
    with pytest.raises(ConfigError, match=r"--gpus 0,1,2: .*raise --jobs from 2 to 3"):
        JobsConfig(jobs=2, gpus=("0", "1", "2"))
    assert JobsConfig(jobs=4, gpus=("0", "1")).jobs == 4  # two share a GPU


def test_a_sweep_has_data_and_a_budget_unless_it_only_reports():
    with pytest.raises(ConfigError, match="--budget: say how long"):
        SweepSettings("data")
    with pytest.raises(ConfigError, match="DATA is missing"):
        SweepSettings.of(budget="4u")
    assert SweepSettings.of(report_only=True).data == ""
