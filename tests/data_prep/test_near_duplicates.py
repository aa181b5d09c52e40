import random

import pytest
from prep_tools.near_duplicates import SeenLines, normalize, shingles


@pytest.mark.parametrize(
    "copy",
    [
        "Click the second button on the left.",
        "click THE second button, on the left",
        "Click the second button on the left!",
    ],
)
def test_case_and_punctuation_do_not_make_a_line_new(copy):
    assert copy in SeenLines(["Click the second button on the left."], threshold=1.0)


def test_other_numbers_do_not_make_a_line_new():
    assert "See page 17." in SeenLines(["See page 3."], threshold=1.0)


def test_a_line_that_shares_too_little_is_new():
    seen = SeenLines(["The green house stands by the old river."], threshold=0.7)
    assert "The green tree stands by the new bridge." not in seen


def test_text_without_spaces_is_compared_by_characters():
    line = "作成済みのドキュメントを開くと最初の頁が表示されます"
    assert line[:-1] + "た" in SeenLines([line], threshold=0.7)


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.55, 0.7, 0.9, 1.0])
def test_the_search_finds_what_comparing_all_lines_finds(threshold):
    lots = random.Random(4)

    def line() -> str:
        return " ".join(lots.choice("abcd") for _ in range(lots.randint(1, 9)))

    known = [line() for _ in range(150)]
    seen = SeenLines(known, threshold)

    def by_comparing(candidate: str) -> bool:
        members = shingles(normalize(candidate))
        return any(
            len(members & other) >= threshold * len(members | other) - 1e-9
            for other in (shingles(normalize(k)) for k in known)
        )

    candidates = [line() for _ in range(300)]
    found = [candidate in seen for candidate in candidates]
    assert found == [by_comparing(candidate) for candidate in candidates]
    assert len(set(found)) == 2 or threshold == 0.3
