import pytest

from relu_nmt.tokenization.sentences import join_texts


@pytest.mark.parametrize(
    "language", ["zh", "zh_TW", "zh-Hans", "zho_Hant", "cmn", "yue", "ja", "jpn"]
)
def test_texts_in_chinese_and_japanese_are_joined_without_spaces(language):
    assert join_texts(["「よし。」", "", "はい。"], language) == "「よし。」はい。"
    assert join_texts(["Python を", "Java も。", "OK!", "Yes."], language) == (
        "Python をJava も。OK! Yes."
    )
    assert (
        join_texts(["我 来 。", "你 好 。", "OK"], language) == "我 来 。 你 好 。 OK"
    )  # tokenized


@pytest.mark.parametrize("language", ["de", "en", "ko", "th", "zh_Latn", "", "zha"])
def test_texts_in_other_languages_are_joined_with_spaces(language):
    assert join_texts(["가나.", "", "다라."], language) == "가나. 다라."
    assert join_texts([], language) == join_texts([""], "zh") == ""
