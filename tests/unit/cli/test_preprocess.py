import pytest

from relu_nmt.errors import ConfigError, DataError
from relu_nmt.jobs.preprocess.inputs import check_parallel
from relu_nmt.jobs.preprocess.settings import PreprocessSettings

BASE = {"source_lang": "de", "target_lang": "en", "trainpref": "corpus/train"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source_lang": None}, "--source-lang is missing"),
        ({"target_lang": None}, "--target-lang is missing"),
        ({"target_lang": "de"}, "are both 'de'"),
        ({"source_lang": "de-at"}, "language 'de-at'"),
        ({"source_lang": "../x"}, "language '../x'"),
        ({"trainpref": None}, "no text"),
        ({"trainpref": None, "validpref": "v"}, "without --trainpref, --srcdict"),
        ({"trainpref": None, "validpref": "v", "srcdict": "d"}, "without --trainpref, --tgtdict"),
        ({"joined_dictionary": True, "srcdict": "a", "tgtdict": "b"}, "not both"),
        ({"joined_dictionary": True, "only_source": True}, "does nothing with --only-source"),
        ({"padding_factor": 0}, "--padding-factor 0"),
        ({"subword_size": 0}, "--subword-size 0"),
        ({"workers": -1}, "--workers -1"),
        ({"subword_model": "m"}, "--subword-model m does nothing with --subword none"),
        (
            {"trainpref": None, "testpref": "t", "srcdict": "d", "tgtdict": "d"}
            | {"subword": "subword-nmt"},
            "learns on the training text",
        ),
    ],
)
def test_contradictory_settings_are_errors(changes, message):
    with pytest.raises(ConfigError, match=message):
        PreprocessSettings(**(BASE | changes))


def test_splits_are_named_as_in_fairseq():
    config = PreprocessSettings(**BASE, validpref="a,b", testpref="c,d,e")
    assert config.splits() == {
        "train": "corpus/train",
        "valid": "a",
        "valid1": "b",
        "test": "c",
        "test1": "d",
        "test2": "e",
    }


def test_dictionaries_may_replace_the_training_text():
    config = {"source_lang": "de", "target_lang": "en", "testpref": "t"}
    PreprocessSettings(**config, joined_dictionary=True, tgtdict="d")
    PreprocessSettings(**config, srcdict="d", tgtdict="e")
    PreprocessSettings(source_lang="de", testpref="t", only_source=True, srcdict="d")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"srcdict": "a", "thresholdsrc": 5}, "--thresholdsrc 5 does nothing with --srcdict a"),
        ({"srcdict": "a", "nwordssrc": 9}, "--nwordssrc 9 does nothing with --srcdict a"),
        ({"tgtdict": "a", "thresholdtgt": 5}, "--thresholdtgt 5 does nothing with --tgtdict a"),
        ({"tgtdict": "a", "nwordstgt": 9}, "--nwordstgt 9 does nothing with --tgtdict a"),
        (
            {"joined_dictionary": True, "tgtdict": "a", "nwordssrc": 9},
            "--nwordssrc 9 does nothing with --tgtdict a",
        ),
        (
            {"srcdict": "a", "tgtdict": "b", "padding_factor": 4},
            "--padding-factor 4 does nothing with --srcdict a and --tgtdict b",
        ),
        (
            {"only_source": True, "srcdict": "a", "padding_factor": 4},
            "--padding-factor 4 does nothing with --srcdict a",
        ),
    ],
)
def test_limits_of_a_given_dictionary_are_errors(changes, message):
    with pytest.raises(ConfigError, match=message):
        PreprocessSettings(**(BASE | changes)).refuse_idle_limits()


def test_limits_of_the_other_dictionary_are_read():
    read = {"thresholdtgt": 5, "nwordstgt": 9, "padding_factor": 4}
    PreprocessSettings(**BASE, srcdict="a", **read).refuse_idle_limits()
    read = {"thresholdsrc": 5, "nwordssrc": 9, "padding_factor": 4}
    PreprocessSettings(**BASE, tgtdict="a", **read).refuse_idle_limits()


def test_shards_take_the_first_dictionary_and_keep_its_limits_in_their_key():
    config = PreprocessSettings(**(BASE | {"trainpref": "a,b"}), thresholdsrc=5, nwordstgt=9)
    first, second = config.shards()
    assert (first.thresholdsrc, first.nwordstgt, first.srcdict) == (5, 9, None)
    assert (second.thresholdsrc, second.srcdict) == (5, "data-bin/shard0/dict.de.txt")


def test_files_must_have_the_same_number_of_lines():
    check_parallel({"a": 3, "b": 3}, "lines")
    check_parallel({"a": 3}, "lines")
    with pytest.raises(DataError, match="a: 1,000 lines, but b has 1,001; both sides"):
        check_parallel({"a": 1000, "b": 1001}, "lines")
