import random

import pytest
from prep_tools.documents import Document, pairs_of
from prep_tools.held_out_text import HeldOutText, without_held_out

from tests.data_prep.made_archives import word

FORMULA = "The debate is closed and the vote will take place tomorrow at 12 noon."


def sentences(name, number, words=12):
    """Sentences of which no two share a word."""
    texts = []
    for n in range(number):
        texts.append(" ".join(f"{name}{n}x{w}" for w in range(words)) + ".")
    return texts


def document(name, texts):
    names = list(map(word, texts))
    return Document(name, tuple((text, f"de {text}") for text in names))


def cut(train, held_out, fewest=6):
    return without_held_out([train], held_out, fewest)


@pytest.mark.parametrize(
    "change",
    [
        lambda texts: texts,
        lambda texts: [text.replace(".", " .").upper() for text in texts],
        # Other borders between sentences: two together, and each cut in the middle.
        lambda texts: [" ".join(texts[n : n + 2]) for n in range(0, len(texts), 2)],
        lambda texts: " ".join(texts).replace("x5 ", "x5. ").split(". "),
        # Sentences that one of the two has not.
        lambda texts: texts[:3] + texts[4:],
        lambda texts: [*texts[:4], *sentences("new", 2), *texts[4:]],
    ],
)
def test_a_copy_of_a_held_out_document_is_left_out(change):
    texts = sentences("a", 10)
    parts, counts = cut(document("t", change(texts)), [document("h", texts)])
    assert parts == []
    assert counts["held-out documents found"] == counts["training documents left out"] == 1


def test_other_documents_stay_whole_and_formulas_with_them():
    train = document("t", [*sentences("a", 5), FORMULA, "Thank you.", *sentences("b", 5), FORMULA])
    held_out = document("h", ["Thank you.", *sentences("c", 9), FORMULA])
    parts, counts = cut(train, [held_out])
    assert parts == [train]
    assert not any(counts.values())


def document_of_numbers(numbers):
    return Document("t", tuple((str(n), str(n)) for n in numbers))


def test_documents_of_numbers_are_copies_only_if_the_numbers_are_equal():
    table = document_of_numbers(range(40))
    other = document_of_numbers(range(90, 130))
    assert cut(table, [other])[0] == [table]
    assert cut(table, [table])[0] == []


def test_formulas_all_over_a_long_document_are_not_a_copy():
    # A short held-out turn of the chair, and a sitting in which all its formulas are, far apart.
    formulas = [" ".join(sentences(name, 1, 14)) for name in "defg"]
    texts = []
    for formula in formulas:
        texts += [*sentences("b" + formula[0], 9), formula]
    [part], _ = cut(document("sitting", texts), [document("h", formulas)])
    assert len(part.pairs) == len(texts)


def test_a_long_document_is_cut_at_held_out_text():
    texts = [*sentences("a", 7), *sentences("h", 9), *sentences("b", 3), *sentences("i", 8)]
    texts += sentences("c", 6)
    train = document("t", texts)
    held_out = [document("h", sentences("h", 9)), document("i", sentences("i", 8))]
    parts, counts = cut(train, held_out)
    assert [d.pairs for d in parts] == [train.pairs[:7], train.pairs[-6:]]
    assert parts[0].name != parts[1].name
    assert counts == {
        "held-out documents found": 2,
        "training documents left out": 0,
        "training documents cut": 1,
        "pairs left out": 9 + 3 + 8,
    }


def test_held_out_text_may_span_two_pairs():
    held_out = document("h", sentences("h", 20))
    first, second = held_out.pairs[:8], held_out.pairs[8:]
    train = [Document("t", first), Document("u", second)]
    parts, counts = without_held_out(train, [held_out], 6)
    assert parts == [] and counts["held-out documents found"] == 1


def test_a_small_part_of_a_held_out_document_is_found_in_a_long_one():
    texts = sentences("h", 60)
    train = document("t", [*sentences("a", 30), *texts[20:26], *sentences("b", 30)])
    parts, _ = cut(train, [document("h", texts)])
    assert [d.pairs for d in parts] == [train.pairs[:30], train.pairs[-30:]]


def test_short_documents_are_compared_as_a_whole():
    held_out = HeldOutText([document("h", ["Thank you.", "Good bye."])])
    assert held_out.find(document("t", ["thank you", "good bye!"])) == [(0, 0, 2)]
    assert not held_out.find(document("t", ["Thank you."]))
    assert not held_out.find(document("t", ["Thank you.", "Good bye.", *sentences("a", 3)]))


def test_documents_in_a_script_without_spaces_are_compared():
    held_out = ["他昨天在图书馆借了三本关于历史的书。", "然后他坐火车回家，路上看完了第一本。"]
    other = ["我们下星期要去北京参加会议，", "会后还想去看看长城和故宫博物院。"]

    def pairs(lines):
        return tuple((line, "x") for line in lines)

    train = Document("t", pairs([*other, "".join(held_out), *other]))
    parts, counts = without_held_out([train], [Document("h", pairs(held_out))], fewest=1)
    assert [document.pairs for document in parts] == [pairs(other), pairs(other)]
    assert counts["held-out documents found"] == 1


def test_documents_without_words_stay():
    empty = document("t", ["...", "--"])
    assert not HeldOutText([empty]).find(empty)


@pytest.mark.parametrize("seed", range(20))
def test_all_other_pairs_stay(seed):
    lots = random.Random(seed)
    parts = [(lots.choice("th"), lots.randint(1, 12)) for _ in range(6)]
    texts = []
    held_out = []
    fresh = []
    for number, (kind, size) in enumerate(parts):
        part = sentences(f"{kind}{word(number)}", size, lots.randint(8, 20))
        texts += part
        if kind == "h":
            held_out.append(document(str(number), part))
        else:
            fresh += document("t", part).pairs
    train = document("t", texts)
    remaining, counts = cut(train, held_out, fewest=1)
    assert pairs_of(remaining) == fresh
    assert counts["pairs left out"] == len(texts) - len(fresh)
    assert counts["held-out documents found"] == len(held_out)
