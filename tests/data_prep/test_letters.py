import pytest
from prep_tools.length_alignment import align
from prep_tools.letters import letters, plain_digits, width, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("See “Table 12”, page 3!", ["see", "table", "0", "page", "0"]),
        ("don't use snake_case", ["don", "t", "use", "snake", "case"]),
        ("मैं घर में हूँ।", ["मैं", "घर", "में", "हूँ"]),
        ("你好，世界", ["你", "好", "世", "界"]),
        ("ที่นี่ดี", ["ที่", "นี่", "ดี"]),
        ("كِتَابٌ جديـــد", ["كتاب", "جديد"]),
    ],
)
def test_words_of_all_scripts_are_found(text, expected):
    import unicodedata

    assert [unicodedata.normalize("NFC", word) for word in words(text)] == expected


def test_a_text_without_letters_has_no_words():
    assert letters("… — !?") == "" and words("… — !?") == []


def test_digits_of_all_scripts_become_ascii():
    assert plain_digits("१२ ٣٤ ５６ ៧៨ ၉ a²") == "12 34 56 78 9 a²"


def test_chinese_sentences_are_aligned_by_their_length_in_letters():
    chinese = ["他昨天在图书馆借了三本关于历史的书。", "好。", "她明天坐火车去上海看朋友。"]
    english = [
        "Yesterday he borrowed three books on history from the library.",
        "Good.",
        "Tomorrow she takes the train to Shanghai",
        "to see a friend.",
    ]
    groups = align(chinese, english)
    assert groups == [
        (chinese[:1], english[:1]),
        (chinese[1:2], english[1:2]),
        (chinese[2:], english[2:]),
    ]
    assert 0.6 < width(chinese[0]) / width(english[0]) < 1.6
