"""The tokenizer of BLEU by language, against sacreBLEU with the one that its README recommends."""

import urllib.error

import pytest
import sacrebleu
from sacrebleu.tokenizers import tokenizer_ja_mecab, tokenizer_ko_mecab, tokenizer_spm

from relu_nmt.errors import ConfigError
from relu_nmt.evaluation.document_scores import AlignedDocuments
from relu_nmt.evaluation.metrics import Metric, choose_tokenizer, recommended_tokenizer
from relu_nmt.evaluation.significance import SegmentStatistics, paired_bootstrap

TEXTS = {
    "zh": (["今天天气很好。", "他在学校读书。"], ["今天天气真好。", "他在学校看书。"]),
    "th": (["วันนี้อากาศดีมาก", "เขาไปโรงเรียน"], ["วันนี้อากาศดี", "เขาไปที่โรงเรียน"]),
    "lo": (["ມື້ນີ້ອາກາດດີຫຼາຍ"], ["ມື້ນີ້ອາກາດດີ"]),
    "km": (["ថ្ងៃនេះអាកាសធាតុល្អណាស់"], ["ថ្ងៃនេះអាកាសធាតុល្អ"]),
    "my": (["ဒီနေ့ရာသီဥတုကောင်းတယ်"], ["ဒီနေ့ရာသီဥတုသာယာတယ်"]),
    "ja": (["今日はとても良い天気です。"], ["今日は良い天気です。"]),
}


class FakeTagger:
    """MeCab as sacreBLEU calls it, with words of two characters."""

    def __init__(self, arguments):
        pass

    def dictionary_info(self):
        return type("Dictionary", (), {"size": 392126, "next": None})

    def version(self):
        return "0.996"

    def parse(self, line):
        return " ".join(line[i : i + 2] for i in range(0, len(line), 2))


@pytest.fixture
def without_mecab(monkeypatch):
    for module in (tokenizer_ja_mecab, tokenizer_ko_mecab):
        monkeypatch.setattr(module, "MeCab", None)


@pytest.fixture
def with_mecab(monkeypatch):
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", type("M", (), {"Tagger": FakeTagger}))
    arguments = type("Ipadic", (), {"MECAB_ARGS": ""})
    monkeypatch.setattr(tokenizer_ja_mecab, "ipadic", arguments, raising=False)


@pytest.mark.parametrize(
    ("tokenizer", "codes"),
    [
        ("zh", "zh zh-CN zh_TW ZH zho_Hans zho_Hant cmn cmn_Hans yue yue_Hant zh-Hant-HK lzh"),
        ("ja-mecab", "ja ja-JP jpn jpn_Jpan"),
        ("ko-mecab", "ko ko_KR kor_Hang"),
        ("char", "th th-TH tha_Thai lo lao_Laoo km khm_Khmr my mya_Mymr bo bod_Tibt dz shn_Mymr"),
        ("13a", "de en vi fr_FR rus_Cyrl ar hi tr zh_Latn jpn-Latn kmr lou mys the zhx"),
    ],
)
def test_language_codes_choose_the_tokenizer(tokenizer, codes):
    assert set(map(recommended_tokenizer, codes.split())) == {tokenizer}
    assert recommended_tokenizer("") == "13a"


@pytest.mark.parametrize("language", TEXTS)
def test_scores_are_those_of_sacrebleu_with_the_recommended_tokenizer(language, without_mecab):
    hypotheses, references = TEXTS[language]
    name, note = choose_tokenizer(language, references)
    tokenizer = {"zh": "zh"}.get(language, "char")
    expected = sacrebleu.corpus_bleu(hypotheses, [references], tokenize=tokenizer)
    metric = Metric(tokenize=name)
    score = metric.score(hypotheses, [references])
    assert score.value == expected.score > 1
    assert f"|tok:{tokenizer}|" in score.signature == metric.signature
    assert note.startswith(f"BLEU of {language} uses the tokenizer {tokenizer}")
    assert sacrebleu.corpus_bleu(hypotheses, [references]).score < 1


def test_scores_of_documents_and_comparisons_use_the_tokenizer():
    hypotheses, references = TEXTS["zh"]
    metric = Metric(tokenize=choose_tokenizer("zh", references)[0])
    aligned = AlignedDocuments([hypotheses], [[references]])
    joined = ([" ".join(hypotheses)], [[" ".join(references)]])
    d_bleu = sacrebleu.corpus_bleu(*joined, tokenize="zh")
    assert aligned.document_score(metric).value == d_bleu.score
    s_bleu = sacrebleu.corpus_bleu(hypotheses, [references], tokenize="zh")
    assert aligned.sentence_score(metric).value == s_bleu.score
    _, comparison = paired_bootstrap(metric, hypotheses, references, [references], samples=9)
    assert comparison["system"]["value"] == s_bleu.score and "|tok:zh|" in comparison["signature"]


def test_the_scores_of_stored_counts_need_no_tokenizer(with_mecab, monkeypatch):
    hypotheses, references = TEXTS["ja"]
    metric = Metric(tokenize="ja-mecab")
    score = metric.score(hypotheses, [references])
    counts = SegmentStatistics.of(metric, hypotheses, [references]).to_json()
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    assert SegmentStatistics.from_json(counts).score() == score.value


def test_japanese_uses_mecab_if_installed(with_mecab):
    name, note = choose_tokenizer("ja", [])
    assert (name, note) == ("ja-mecab", "BLEU of ja uses the tokenizer ja-mecab")
    assert "|tok:ja-mecab-0.996-IPA|" in Metric(tokenize=name).signature


def test_without_mecab_the_next_best_is_used_and_reported(without_mecab):
    for language, name, package in (("ja", "char", "ja"), ("ko", "13a", "ko")):
        chosen, note = choose_tokenizer(language, [])
        assert chosen == name
        assert f"tokenizer {name}" in note and f"'sacrebleu[{package}]'" in note
        with pytest.raises(ConfigError, match=rf"sacrebleu\[{package}\]") as caught:
            Metric(tokenize=f"{language}-mecab").build()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["flores101", "flores200", "spBLEU-1K", "spm"])
@pytest.mark.parametrize("fault", [urllib.error.URLError("no route"), SystemExit(1)])
def test_a_model_that_cannot_be_fetched_is_a_one_line_error(name, fault, tmp_path, monkeypatch):
    def fail(url):
        raise fault

    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", fail)
    with pytest.raises(ConfigError, match=f"'{name}': cannot fetch or read its model") as caught:
        Metric(tokenize=name).build()
    assert "\n" not in str(caught.value)


def test_a_damaged_model_is_a_one_line_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path))
    (tmp_path / "models").mkdir()
    (tmp_path / "models/flores200sacrebleuspm").write_bytes(b"half")
    with pytest.raises(ConfigError, match="delete a damaged file there"):
        Metric(tokenize="flores200").build()


def test_a_note_warns_of_text_with_hardly_any_spaces():
    thai = ["วันนี้อากาศดีมากและเขาไปโรงเรียน"]
    assert "--sacrebleu-tokenizer char" in choose_tokenizer("", thai)[1]
    assert choose_tokenizer("txt", thai)[0] == "13a"
    for text in (["A dog is here."], ["Donaudampfschifffahrt endet hier"], [], [""]):
        assert not choose_tokenizer("de", text)[1]
