import argparse
import math

import pytest

from relu_nmt.config import add_settings, from_dict, read_settings, to_dict
from relu_nmt.errors import ConfigError
from relu_nmt.translation.search.config import GenerationConfig


def parse(*flags):
    parser = argparse.ArgumentParser()
    add_settings(parser, GenerationConfig)
    return read_settings(GenerationConfig, parser.parse_args(flags))


def test_fairseqs_flags_and_defaults():
    config = parse()
    assert (config.beam, config.nbest, config.lenpen, config.unkpen) == (5, 1, 1.0, 0.0)
    assert (config.longest_output, config.min_len, config.seed) == ((0, 200), 1, 1)
    assert (config.sampling_topk, config.sampling_topp, config.temperature) == (-1, -1.0, 1.0)
    assert (config.diverse_beam_groups, config.diverse_beam_strength) == (-1, 0.5)
    typed = (
        "--beam 4 --nbest 2 --lenpen 0.6 --unkpen 1 --max-len-a 1.2 --max-len-b 10 --min-len 2 "
        "--no-repeat-ngram-size 3 --max-sentences 8 --print-alignment --replace-unk "
        "--prefix-size 1"
    )
    config = parse(*typed.split())
    assert (config.max_len_a, config.max_len_b, config.batch_size) == (1.2, 10, 8)
    assert (config.print_alignment, config.replace_unk) == ("hard", "")
    assert config.wants_alignment
    assert parse("--replace-unk", "lexicon").replace_unk == "lexicon"
    assert from_dict(GenerationConfig, to_dict(config)) == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam": 0}, "--beam 0"),
        ({"nbest": 6}, "--nbest 6 is more than --beam 5"),
        ({"temperature": 0.0}, "--temperature"),
        ({"temperature": math.nan}, "--temperature nan"),
        ({"max_len_a": math.inf}, "--max-len-a inf"),
        ({"max_len_a": 1e300}, r"--max-len-a 1e\+300: expected 0 to 1000000"),
        ({"lenpen": 20}, "--lenpen 20: expected -5 to 5"),
        ({"lenpen": -20}, "--lenpen -20: expected -5 to 5"),
        ({"unkpen": -math.inf}, "--unkpen -inf"),
        ({"sampling": True, "sampling_topk": 0}, "--sampling-topk 0"),
        ({"sampling": True, "sampling_topp": 1.5}, "--sampling-topp 1.5"),
        ({"beam_threshold": 0.0}, "--beam-threshold 0"),
        ({"beam_threshold": 2.0, "beam": 1}, "--beam-threshold 2 does nothing with --beam 1"),
        (
            {"beam_threshold": 1.0, "sampling": True},
            "--beam-threshold 1 does nothing with --sampling",
        ),
        ({"sampling_topk": 3}, "--sampling-topk 3 does nothing without --sampling"),
        ({"sampling_topp": 0.5}, "--sampling-topp 0.5 does nothing without --sampling"),
        ({"seed": 2}, "--seed 2 does nothing without --sampling"),
        ({"diverse_beam_strength": 1}, "does nothing without --diverse-beam-groups"),
        ({"unnormalized": True, "lenpen": 2}, "--lenpen 2 does nothing with --unnormalized"),
        ({"score_reference": True, "beam": 4}, "--beam 4 does nothing with --score-reference"),
        ({"score_reference": True, "sampling": True}, "--sampling does nothing with --score-ref"),
        ({"score_reference": True, "max_len_b": 9}, "--max-len-b 9 does nothing with --score"),
        ({"stop_rule": "fulll"}, "--stop-rule fulll: expected one of ahead, full, exact; did you"),
        ({"lenpen_form": "powr"}, "--lenpen-form powr: expected one of power, gnmt"),
        ({"max_len_b": -1}, "--max-len-b -1"),
        ({"max_len_b": 10**9}, "--max-len-b 1000000000: expected 0 to 1000000"),
        ({"min_len": 10**9}, "--min-len 1000000000: expected 0 to 1000000"),
        ({"beam": 10**9}, "--beam 1000000000: expected 1 to 100000"),
        ({"beam": 100_001}, "--beam 100001: expected 1 to 100000"),
        ({"nbest": 10**9}, "--nbest 1000000000: expected 1 to 100000"),
        ({"diverse_beam_groups": 10**9}, "--diverse-beam-groups 1000000000: expected -1 to 100000"),
        ({"batch_size": 0}, "--batch-size 0"),
        ({"seed": -1}, "--seed -1"),
        ({"sampling": True, "sampling_topp": -2}, "--sampling-topp -2: expected -1 to 1"),
        ({"diverse_beam_groups": -2}, "--diverse-beam-groups -2: expected -1 to 100000"),
        ({"beam": 4, "diverse_beam_groups": 2, "sampling": True}, "--sampling off"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        GenerationConfig(**settings)
