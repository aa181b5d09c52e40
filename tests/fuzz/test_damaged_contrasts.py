"""The reader of contrasts on damaged files: it reads them, or refuses them in one line."""

import json

from hypothesis import given
from hypothesis import strategies as st

from relu_nmt.errors import ReluNmtError
from relu_nmt.recipes.score_contrasts import read_contrasts

RECORD = {
    "source_language": "en",
    "source": "It is red.",
    "reference": "Er ist weiß.",
    "contrasts": ["Es ist weiß."],
    "source_context": ["Here is a hat."],
    "reference_context": ["Hier ist ein Hut."],
    "phenomenon": "thing pronoun",
    "distance": 1,
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def read_or_refuse(path, content):
    path.write_bytes(content)
    try:
        assert all(contrast.contrasts for contrast in read_contrasts(path))
    except ReluNmtError as error:
        assert "\n" not in str(error)
        assert "contrasts.jsonl" in str(error)


@given(st.integers(0, 400), st.binary(max_size=9), st.booleans())
def test_damaged_bytes(tmp_path_factory, place, junk, cut):
    content = (json.dumps(RECORD, ensure_ascii=False) + "\n").encode() * 2
    rest = b"" if cut else content[place:]
    path = tmp_path_factory.getbasetemp() / "contrasts.jsonl"
    read_or_refuse(path, content[:place] + junk + rest)


@given(st.dictionaries(st.sampled_from(sorted(RECORD)), VALUES))
def test_values_of_other_kinds(tmp_path_factory, changes):
    path = tmp_path_factory.getbasetemp() / "contrasts.jsonl"
    read_or_refuse(path, json.dumps({**RECORD, **changes}).encode())


def test_deeply_nested_lines(tmp_path):
    read_or_refuse(tmp_path / "contrasts.jsonl", b"[" * 100_000)
