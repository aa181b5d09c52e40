import pytest

from relu_nmt.io.text_lines import scan_text
from relu_nmt.jobs.preprocess import text as preprocess_text
from relu_nmt.jobs.preprocess.text import describe_round_trip
from relu_nmt.tokenization.pipeline import TextPipeline

EARLIER = TextPipeline("de", "moses", tokenizer_version=1)
UNCHANGED = "come back from their tokens unchanged"


def described(tmp_path, lines, pipeline, separator="none", name="text"):
    path = tmp_path / name
    path.write_text("\n".join([*lines, ""]), "utf-8")
    return describe_round_trip(pipeline, scan_text(str(path), 100), separator)


def test_the_share_of_unchanged_lines_is_reported(tmp_path):
    lines = ["Ja, gut.", "um 10:30"] * 10  # Moses' own script gives "10: 30"
    assert described(tmp_path, lines, EARLIER) == (
        f"10 of 20 sampled lines (50.0%) {UNCHANGED}; --subword sentencepiece without --tokenizer "
        "changes none"
    )
    assert described(tmp_path, lines, TextPipeline("de", "moses")) == (
        f"20 of 20 sampled lines (100.0%) {UNCHANGED}"
    )


def test_case_and_spaces_and_separators_do_not_count(tmp_path):
    lines = ["<d>", "Ein  Haus.", "", "DAS Boot ."] * 3
    pipeline = TextPipeline("de", "moses", lowercase=True)
    assert described(tmp_path, lines, pipeline, "tag") == (
        f"6 of 6 sampled lines (100.0%) {UNCHANGED}"
    )


@pytest.mark.parametrize("number", [990, 989])
def test_advice_comes_only_if_many_lines_change(tmp_path, number):
    lines = ["Ja."] * number + ["10:30"] * (1000 - number)
    path = tmp_path / "text"
    path.write_text("\n".join([*lines, ""]), "utf-8")
    report = describe_round_trip(EARLIER, scan_text(str(path)), "none")
    assert report.startswith(f"{number} of 1,000 sampled lines ({number / 10}%) {UNCHANGED}")
    assert ("sentencepiece" in report) == (number == 989)


def test_the_sample_is_bounded_and_spread(tmp_path):
    report = described(tmp_path, ["Ja."] * 30_000 + ["10:30"] * 30_000, EARLIER)
    num_kept, _, total, *_ = report.split()
    assert 300 < int(total) <= 1000 and 0.45 < int(num_kept) / int(total) < 0.55


def test_the_sample_of_long_lines_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(
        preprocess_text, "SAMPLED_CHARACTERS", preprocess_text.SAMPLED_CHARACTERS // 25
    )
    report = described(tmp_path, ["wort " * 2_000] * 20, TextPipeline("de", "moses"))
    assert report.startswith("5 of 5 sampled lines")
