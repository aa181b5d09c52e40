import pytest

from relu_nmt.errors import ConfigError
from relu_nmt.jobs.translate.settings import TranslateSplitSettings


def settings_of(**options):
    return TranslateSplitSettings.of(data="data", path="model", **options)


def test_no_file_overwrites_another():
    settings_of(max_doc_tokens=9, output="a", results="b", attention_stats="c", results_path="a")
    for first, second, flags in (
        ({"output": "a"}, {"results": "./a"}, "--output and --results"),
        ({"results": "a"}, {"attention_stats": "b/../a"}, "--results and --attention-stats"),
        ({"attention_stats": "a"}, {"memory_stats": "./a"}, "--attention-stats and --memory-stats"),
        ({"output": "./model"}, {}, "--output and --path"),
        ({"results_path": "a"}, {"output": "a/generate-test.txt"}, "--results-path and --output"),
        (
            {"results_path": "a", "num_shards": 2, "gen_subset": "valid"},
            {"results": "a/generate-valid-0-of-2.txt"},
            "--results-path and --results",
        ),
    ):
        with pytest.raises(ConfigError, match=f"{flags} are both .*; give two files"):
            settings_of(max_doc_tokens=9, **first, **second)


def test_a_separator_without_a_file_is_refused():
    with pytest.raises(ConfigError, match="--output-separator tag does nothing without --output"):
        settings_of(max_doc_tokens=9, output_separator="tag")


@pytest.mark.parametrize(
    "option",
    [{"window_overlap": 1}, {"count_source_only": True}, {"output": "a"}, {"results": "a"}],
)
def test_options_of_documents_are_errors_for_sentences(option):
    flag = "--" + next(iter(option)).replace("_", "-")
    with pytest.raises(ConfigError, match=f"{flag}.* does nothing without --max-doc-tokens"):
        settings_of(**option).check_sentences()
    settings_of().check_sentences()


def test_the_longest_output_of_documents_grows_with_the_source():
    sentences, documents = map(settings_of().search.resolved, (False, True))
    assert (sentences.max_len_a, sentences.max_len_b) == (0, 200)
    assert (documents.max_len_a, documents.max_len_b) == (1.5, 50)
    search = settings_of(max_len_b=7, beam=2).search.resolved(documents=True)
    assert (search.max_len_a, search.max_len_b, search.beam) == (1.5, 7, 2)
    with pytest.raises(ConfigError, match="--min-len 9 is more than --max-len-b 8"):
        settings_of(min_len=9, max_len_b=8)


def test_attention_statistics_are_refused_with_a_window_overlap():
    with pytest.raises(ConfigError, match="--attention-stats a: not with --window-overlap"):
        settings_of(max_doc_tokens=9, window_overlap=1, attention_stats="a")
    with pytest.raises(ConfigError, match="--memory-stats a: not with --window-overlap"):
        settings_of(max_doc_tokens=9, window_overlap=1, memory_stats="a")
    with pytest.raises(ConfigError, match="both print A- lines"):
        settings_of(print_attention="cross.0", print_alignment="hard")


@pytest.mark.parametrize(
    "option", [{"nbest": 2}, {"print_alignment": "hard"}, {"print_attention": "cross.0"}]
)
def test_options_of_printed_translations_are_errors_with_quiet(option):
    settings_of(**option)
    flag = "--" + next(iter(option)).replace("_", "-")
    with pytest.raises(ConfigError, match=f"{flag}.* does nothing with --quiet; leave one of them"):
        settings_of(quiet=True, **option)
