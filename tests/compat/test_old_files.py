"""Checkpoints and data folders made before the redesign still load and give the same outputs.

make_fixtures.py made them, and says with which revision.
"""

import json
import math

import pytest

from tests.compat import cases

CLOSE = 1e-5
"""Relative. Weights that are wrong by 1e-7 change the scores after five updates by 3e-6."""
SIZES_OF_GROUPS = "; tokens mean"
ILL_CONDITIONED = {"soft": 5e-3}
"""The same where training goes on, by case: the iterations that invert the landmarks' matrix
multiply rounding errors, which differ by processor. 4e-3 was seen in a norm of gradients."""


def expected(name):
    return json.loads(cases.expected_file(name).read_text("utf-8"))


def assert_same_lines(lines, stored, close=CLOSE):
    """Compare lines of generate: texts and tokens exactly, scores (rounded in P-) closely."""
    assert len(lines) == len(stored)
    for line, old in zip(lines, stored, strict=True):
        fields, old_fields = line.split("\t"), old.split("\t")
        if old[:2] == "P-":
            values, old_values = (list(map(float, f[1].split())) for f in (fields, old_fields))
            assert values == pytest.approx(old_values, abs=2.1e-4, rel=close), old
        elif old[:2] in ("H-", "D-"):
            score = float(old_fields.pop(1))
            assert float(fields.pop(1)) == pytest.approx(score, rel=close), old
        elif SIZES_OF_GROUPS in old:
            # The old code counted the longer side of a group, the reference too.
            assert line.partition(SIZES_OF_GROUPS)[0] == old.partition(SIZES_OF_GROUPS)[0]
            continue
        else:
            assert line == old
        assert fields[0] == old_fields[0]
        if old[:2] != "P-":
            assert fields == old_fields


def assert_same_log(log, stored, close=CLOSE):
    """Compare log lines: losses and norms are printed with three decimals."""
    assert [entry.keys() for entry in log] == [entry.keys() for entry in stored]
    for entry, old in zip(log, stored, strict=True):
        assert entry == pytest.approx(old, abs=1.1e-3, rel=close)


@pytest.mark.parametrize("name", [*cases.CASES, cases.AVERAGED, cases.ENSEMBLE])
def test_translations_and_scores_are_those_of_the_old_code(name):
    has_separators = "--sentence-separator" in cases.CASES.get(name, cases.Case("")).train
    outputs = cases.outputs_of_model(name, has_separators)
    stored = expected(name)
    assert [text for text, _ in outputs["translate"]] == [text for text, _ in stored["translate"]]
    for (_, score), (text, old) in zip(outputs["translate"], stored["translate"], strict=True):
        assert math.isclose(score, old, rel_tol=CLOSE), text
    assert_same_lines(outputs["generate"], stored["generate"])
    assert_same_lines(outputs["references"], stored["references"])


@pytest.mark.parametrize("name", cases.CASES)
def test_a_resumed_training_goes_on_as_with_the_old_code(name, tmp_path):
    resumed = cases.resume(name, tmp_path)
    stored = expected(f"{name}-resumed")
    close = ILL_CONDITIONED.get(name, CLOSE)
    assert_same_log(resumed["log"], stored["log"], close)
    assert_same_lines(resumed["references"], stored["references"], close)


@pytest.mark.parametrize("name", cases.IMAGE_CASES)
def test_a_resumed_classifier_goes_on_as_with_the_old_code(name, tmp_path):
    pytest.importorskip("PIL")
    log = cases.resume_images(name, tmp_path)["log"]
    assert_same_log(log, expected(f"{name}-resumed")["log"])


def test_a_document_is_translated_to_the_same_sentences():
    assert cases.translate_document(cases.FREE_COUNT) == expected("document")["lines"]


@pytest.mark.parametrize(
    ("folder", "make"),
    [(cases.DATA, cases.preprocess), (cases.FAIRSEQ_DATA, cases.preprocess_prepared)],
)
def test_the_same_text_gives_byte_identical_data(folder, make, tmp_path):
    make(str(tmp_path))
    stored = sorted((cases.FILES / folder).iterdir())
    assert len(stored) > 10
    for file in stored:
        if file.name == "manifest.json":
            new, old = (json.loads(f.read_bytes()) for f in (tmp_path / file.name, file))
            assert new["files"] == old["files"]
            for text in new["text"].values():  # Moses leaves the words of this text as they were
                assert text.pop("tokenizer_version") in (1, 2)
            assert new["text"] == old["text"]
            assert new["splits"] == old["splits"]
        else:
            assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name
