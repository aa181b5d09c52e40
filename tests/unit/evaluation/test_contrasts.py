import json

import pytest

from relu_nmt.errors import DataError
from relu_nmt.evaluation.contrasts import Contrast, accuracies, read_contrasts

RECORD = {
    "document": "1/7",
    "sentence": 1,
    "antecedent": 0,
    "distance": 1,
    "phenomenon": "thing pronoun",
    "source_language": "en",
    "source": "It is red.",
    "reference": "Er ist rot.",
    "contrasts": ["Es ist rot.", "Sie ist rot."],
    "source_context": ["Here is a hat."],
    "reference_context": ["Hier ist ein Hut."],
}


def written(path, *records):
    lines = [r if isinstance(r, str) else json.dumps(r, ensure_ascii=False) for r in records]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_records_are_read(tmp_path):
    optional = {"phenomenon", "distance"}
    bare = {key: value for key, value in RECORD.items() if key not in optional}
    first, second = read_contrasts(written(tmp_path / "c.jsonl", RECORD, "", bare))
    assert first == Contrast(
        "en",
        "It is red.",
        "Er ist rot.",
        ("Es ist rot.", "Sie ist rot."),
        ("Here is a hat.",),
        ("Hier ist ein Hut.",),
        "thing pronoun",
        1,
    )
    assert first.chance == pytest.approx(1 / 3)
    assert (second.phenomenon, second.distance) == ("", None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": None}, "a text as 'source'"),
        ({"reference": 3}, "a text as 'reference'"),
        ({"contrasts": "Es ist rot."}, "a list of texts as 'contrasts'"),
        ({"contrasts": []}, "'contrasts' is empty"),
        ({"contrasts": ["Er ist rot."]}, "the reference is one of the contrasts"),
        ({"source_context": [1]}, "a list of texts as 'source_context'"),
        ({"reference_context": []}, "1 sentences in 'source_context', but 0"),
        ({"distance": "near"}, "a number of sentences as 'distance'"),
    ],
)
def test_a_wrong_record_is_named_with_its_line(tmp_path, change, message):
    path = written(tmp_path / "c.jsonl", RECORD, {**RECORD, **change})
    with pytest.raises(DataError, match=f"c.jsonl:2: .*{message}"):
        read_contrasts(path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"c\.jsonl:1: not JSON"):
        read_contrasts(written(tmp_path / "c.jsonl", "It is red."))
    with pytest.raises(DataError, match=r"c\.jsonl:1: expected a JSON object"):
        read_contrasts(written(tmp_path / "c.jsonl", "[1]"))
    with pytest.raises(DataError, match="no contrasts"):
        read_contrasts(written(tmp_path / "c.jsonl"))
    with pytest.raises(DataError, match="cannot read"):
        read_contrasts(tmp_path / "none.jsonl")


def test_accuracies_of_all_and_by_category():
    def contrast(phenomenon, distance, number):
        wrong = tuple(f"w{i}" for i in range(number))
        return Contrast("en", "s", "r", wrong, phenomenon=phenomenon, distance=distance)

    contrasts = [contrast("pronoun", 1, 2), contrast("pronoun", 2, 1), contrast("address", 1, 1)]
    found = accuracies(contrasts, [True, False, True])
    assert [a.category for a in found] == ["all", "address", "pronoun", "distance 1", "distance 2"]
    assert [(a.num_right, a.num_contrasts) for a in found] == [
        (2, 3),
        (1, 1),
        (1, 2),
        (2, 2),
        (0, 1),
    ]
    assert [a.chance for a in found] == pytest.approx(
        [100 * 4 / 9, 50, 100 * 5 / 12, 100 * 5 / 12, 50]
    )
    assert str(found[0]) == "66.67 (2/3) chance = 44.44"
